"""Train the networks that other benchmarks share: five seeds of one backbone on each of eight data sets.

python benchmarks/networks.py networks [--sets ethanol acac ...] [--seeds 0 1 2 3 4]

Seed 0 is the backbone of every solved head; all five are the ensemble beside it. Rerun the command to resume. Data sets
are read from the folder SIGMAFF_DATA, but those labelled by GFN2-xTB, which are made once.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.optimize import BFGS
from machine import progress

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DataSource, SplitConfig
from sigmaff.data.labelling import EngineConfig, label, make_calculator
from sigmaff.files import atomic_write
from sigmaff.heads import DeterministicConfig
from sigmaff.models import PotentialConfig
from sigmaff.runs.config import DataConfig, RunConfig
from sigmaff.runs.run import run
from sigmaff.training import CosineSchedule, TrainingConfig

ENGINE = EngineConfig(calculator="gfn2-xtb")
TEMPERATURE = 500.0  # K
MOLECULES = ("CH3CH2OH", "CH3OH", "CH3CHO", "HCOOH", "CH3CH2NH2", "CH3CONH2", "C2H4", "CH3SH")
"""Names of ``ase.build.molecule``: alcohols, an aldehyde, an acid, an amine, an amide, an alkene, a thiol."""
OTHERS = ("CH3OCH3", "CH3CN", "C3H8", "CH3COOH", "CH3NO2", "CH3CH2Cl")
"""An ether, a nitrile, an alkane, an acid, a nitro compound, a chloride: no choice was made on them."""


def thermal(name: str, n_frames: int, seed: int) -> list[Atoms]:
    """Labelled frames of Langevin dynamics of a molecule on the surface of GFN2-xTB."""
    rng = np.random.default_rng(seed)
    atoms = molecule(name)
    atoms.calc = make_calculator(atoms, ENGINE)
    BFGS(atoms, logfile=None).run(fmax=0.02, steps=200)
    MaxwellBoltzmannDistribution(atoms, temperature_K=2 * TEMPERATURE, rng=rng)
    friction = 0.02 / units.fs
    dynamics = Langevin(atoms, units.fs, temperature_K=TEMPERATURE, friction=friction, fixcm=False, rng=rng)
    dynamics.run(250)
    frames = []
    for _ in range(n_frames):
        dynamics.run(10)
        frames.append(label(Atoms(atoms.numbers, atoms.positions), ENGINE))
    return frames


def made_once(path: Path, make: Callable[[], list[Atoms]]) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            ase.io.write(temporary, make(), format="extxyz")
    return path


def data_of(name: str, directory: Path) -> Path:
    reference = {
        "acac": "acac/train_300K.extxyz",
        "3bpa": "3bpa/train_300K.extxyz",
        "water": "water/deepmd_water_192.extxyz",
        "silicon": "mlearn/Si_training.extxyz",
    }
    if name in reference:
        return Path(os.environ["SIGMAFF_DATA"]) / reference[name]
    if name == "ethanol":
        return made_once(directory / "ethanol.extxyz", lambda: thermal("CH3CH2OH", 600, 0))
    if name in ("molecules", "others"):
        compounds = MOLECULES if name == "molecules" else OTHERS
        frames_of = lambda: [frame for compound in compounds for frame in thermal(compound, 100, 1)]  # noqa: E731
        return made_once(directory / f"{name}.extxyz", frames_of)
    return made_once(directory / "ooe.extxyz", lambda: relaxed_molecules(directory / "qm7x-like"))


def relaxed_molecules(directory: Path) -> list[Atoms]:
    """In random order of molecules, all conformers of one together: a split in this order is one of molecules."""
    path = directory / "equilibrium.extxyz"
    if not path.exists():
        options = "--molecules 300 --conformers 3 --displaced 2"
        raise SystemExit(f"first: sigmaff generate qm7x-like --output {directory} {options}")
    by_molecule: dict[str, list[Atoms]] = {}
    for atoms in ase.io.read(path, ":"):
        by_molecule.setdefault(atoms.info["smiles"], []).append(atoms)
    order = np.random.default_rng(0).permutation(list(by_molecule))
    return [atoms for name in order for atoms in by_molecule[name]]


SETS = {  # structures to train and validate on, batch size, epochs
    "ethanol": (400, 100, 10, 160),
    "molecules": (500, 120, 10, 160),
    "others": (400, 100, 10, 160),
    "acac": (300, 50, 10, 200),
    "3bpa": (300, 50, 10, 200),
    "silicon": (184, 30, 5, 150),
    "water": (60, 30, 2, 50),
    "ooe": (480, 96, 10, 150),
}


def config_of(name: str, seed: int, directory: Path) -> RunConfig:
    n_train, n_validation, batch_size, epochs = SETS[name]
    split = SplitConfig(
        kind="blocked" if name == "ooe" else "random", n_train=n_train, n_validation=n_validation, seed=0
    )
    backbone = SchNetConfig(n_hidden=64, n_filters=64, n_interactions=3, n_gaussians=32, cutoff=5.0)
    forces_weight = (
        0.9 if name in ("molecules", "others") else None
    )  # with 0.99 energies of one molecule stay 0.8 eV off
    return RunConfig(
        data=DataConfig(source=DataSource(path=data_of(name, directory)), split=split),
        model=PotentialConfig(backbone=backbone, head=DeterministicConfig()),
        training=TrainingConfig(
            forces_weight=forces_weight,
            batch_size=batch_size,
            max_epochs=epochs,
            validate_every=5,
            learning_rate=2e-3,
            schedule=CosineSchedule(warmup_steps=200),
            threads=1,
            compile=True,
        ),
        output=directory / name / str(seed),
        seed=seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments = parser.parse_args()
    with progress() as terminal:
        for seed in arguments.seeds:
            for name in arguments.sets:
                run(config_of(name, seed, arguments.directory), terminal)


if __name__ == "__main__":
    main()
