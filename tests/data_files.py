"""Small labelled structures and files in every format, for the tests that read them."""

from pathlib import Path

import h5py
import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator


def water(rng: np.random.Generator) -> Atoms:
    atoms = Atoms("OH2", positions=[[0, 0, 0], [0, 0.76, 0.59], [0, -0.76, 0.59]])
    atoms.positions += rng.normal(scale=0.05, size=(3, 3))
    return atoms


def labelled_frames(rng: np.random.Generator, n: int = 4, prefix: str = "") -> list[Atoms]:
    frames = []
    for _ in range(n):
        atoms = water(rng)
        atoms.info[f"{prefix}energy"] = float(rng.normal(-2000, 1))
        atoms.arrays[f"{prefix}forces"] = rng.normal(size=(3, 3))
        frames.append(atoms)
    return frames


def calculated_frames(n: int = 3) -> list[Atoms]:
    frames = []
    for k in range(n):
        atoms = Atoms("Cu4", positions=[[0, 0, 0], [0, 1.8, 1.8], [1.8, 0, 1.8 + 0.05 * k], [1.8, 1.8, 0.1]])
        atoms.set_cell([3.6, 3.6, 3.6])
        atoms.pbc = True
        atoms.calc = EMT()
        results = {
            "energy": atoms.get_potential_energy(),
            "forces": atoms.get_forces(),
            "stress": atoms.get_stress(),
        }
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    return frames


def md17_arrays(rng: np.random.Generator, n: int = 5) -> dict[str, np.ndarray]:
    return {
        "z": np.array([8, 1, 1], dtype=np.uint8),
        "R": np.array([water(rng).positions for _ in range(n)]),
        "E": rng.normal(-47000, 5, size=(n, 1)),
        "F": rng.normal(scale=20, size=(n, 3, 3)),
        "r_unit": np.array("Ang"),
        "e_unit": np.array("kcal/mol"),
    }


def rmd17_arrays(rng: np.random.Generator, n: int = 5) -> dict[str, np.ndarray]:
    md17 = md17_arrays(rng, n)
    return {
        "nuclear_charges": md17["z"],
        "coords": md17["R"],
        "energies": md17["E"][:, 0],
        "forces": md17["F"],
        "old_indices": np.arange(n)[::-1],
        "old_energies": md17["E"][:, 0] - 1.0,
        "old_forces": -md17["F"],
    }


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


def write_qm7x(path: Path, rng: np.random.Generator) -> Path:
    """Two molecules in the published layout, with some of the datasets that we do not use."""
    with h5py.File(path, "w") as file:
        for molecule in (1, 2):
            for suffix in ("opt", "d1", "d2"):
                group = file.create_group(f"{molecule}/Geom-m{molecule}-i1-c1-{suffix}")
                group["atNUM"] = np.array([8, 1, 1])
                group["atXYZ"] = water(rng).positions
                group["ePBE0+MBD"] = np.array([-2080.0 - molecule - 0.1 * (suffix == "opt")])
                group["eMBD"] = np.array([-0.01])
                group["eAT"] = np.array([-9.5])
                group["totFOR"] = np.full((3, 3), 0.5 * (suffix != "opt"))
    return path
