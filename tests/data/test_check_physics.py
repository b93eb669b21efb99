"""The data doctor knows mechanics: faults in molecules of a Morse potential, in random order and orientation."""

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.morse import MorsePotential
from ase.calculators.singlepoint import SinglePointCalculator
from scipy.spatial.transform import Rotation

from sigmaff.data import DataSource, LabelledStructures, check_structures, read_structures
from sigmaff.data.check.bonds import check_forces_against_bonds
from sigmaff.data.labelling import EngineConfig, label

ETHANOL = molecule("CH3CH2OH")


def made(structures: list[Atoms], energy=None, forces=None) -> LabelledStructures:
    return LabelledStructures(
        structures=tuple(structures),
        energy=None if energy is None else np.array(energy),
        forces=None if forces is None else tuple(forces),
        source="made",
        frame_index=np.arange(len(structures)),
    )


@pytest.fixture(scope="module")
def shuffled() -> LabelledStructures:
    """Frames without an order in time, each in an orientation of its own."""
    rng, structures, energies, forces = np.random.default_rng(0), [], [], []
    for turn in Rotation.random(60, random_state=1):
        atoms = ETHANOL.copy()
        atoms.positions = turn.apply(atoms.positions + rng.normal(0.0, 0.04, (9, 3))) + rng.normal(0.0, 5.0, 3)
        atoms.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        atoms.calc = None
        structures.append(atoms)
    return made(structures, energies, forces)


def problems(data: LabelledStructures) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = [finding for finding in check_structures(data) if finding.severity != "info"]
    return {finding.code: (finding.severity, finding.frames) for finding in found}


def test_good_data_has_no_problem(shuffled) -> None:
    assert problems(shuffled) == {}


def test_wrong_sign_in_shuffled_frames(shuffled) -> None:
    flipped = replace(shuffled, forces=tuple(-forces for forces in shuffled.forces))
    assert problems(flipped) == {"force_sign": ("error", ())}


def test_wrong_unit_of_forces_in_shuffled_frames(shuffled) -> None:
    data = replace(shuffled, forces=tuple(forces * units.Bohr / units.Hartree for forces in shuffled.forces))
    messages = {finding.code: finding.message for finding in check_structures(data)}
    assert "energies in eV with forces in Hartree/Bohr" in messages["force_unit"]


def test_forces_of_other_atoms_or_another_orientation(shuffled) -> None:
    permuted = replace(shuffled, forces=tuple(np.roll(forces, 1, axis=0) for forces in shuffled.forces))
    assert problems(permuted)["net_torque"][0] == "error"
    turn = Rotation.from_euler("xyz", [1.0, 0.4, 2.0])
    turned = replace(shuffled, forces=tuple(turn.apply(forces) for forces in shuffled.forces))
    assert problems(turned)["net_torque"][0] == "error"
    one = list(shuffled.forces)
    one[7] = np.roll(one[7], 1, axis=0)
    assert problems(replace(shuffled, forces=tuple(one))) == {"net_torque": ("warning", (7,))}


def labelled(structures: list[Atoms]) -> LabelledStructures:
    for atoms in structures:
        atoms.calc = EMT()
    energies, forces = zip(*((atoms.get_potential_energy(), atoms.get_forces()) for atoms in structures), strict=True)
    for atoms in structures:
        atoms.calc = None
    return made(structures, energies, forces)


@pytest.fixture(scope="module")
def crystals() -> LabelledStructures:
    """Copper at rest but for large random displacements: no two frames are neighbours."""
    structures = [bulk("Cu", cubic=True) * (2, 2, 2) for _ in range(12)]
    for seed, atoms in enumerate(structures):
        atoms.rattle(0.12, seed=seed)
    return labelled(structures)


def test_forces_of_crystals_without_neighbouring_frames(crystals) -> None:
    assert problems(crystals) == {}
    flipped, permuted = (
        replace(crystals, forces=tuple(change(forces) for forces in crystals.forces))
        for change in (np.negative, lambda forces: np.roll(forces, 1, axis=0))
    )
    assert problems(flipped) == {"force_sign": ("error", ())}
    assert problems(permuted) == {"force_order": ("error", ())}
    assert problems(replace(flipped, energy=None))["force_sign"] == ("error", ())


def test_strained_crystals_and_surfaces_are_sound() -> None:
    """Strain changes all lengths; forces vanish by symmetry, or do not follow them."""
    rng, strained = np.random.default_rng(0), []
    for _ in range(8):
        for atoms in (bulk("Cu", cubic=True) * (2, 2, 2), fcc111("Cu", (2, 2, 4), vacuum=6.0, periodic=True)):
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0.0, 0.03, (3, 3))), scale_atoms=True)
            atoms.rattle(0.003, rng=rng)
            strained.append(atoms)
    assert problems(labelled(strained)) == {}


def test_lengths_in_bohr(shuffled, tmp_path: Path) -> None:
    frames = []
    for atoms, energy, forces in zip(shuffled.structures, shuffled.energy, shuffled.forces, strict=True):
        frame = Atoms(atoms.numbers, atoms.positions / units.Bohr)
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces * units.Bohr)
        frames.append(frame)
    ase.io.write(tmp_path / "bohr.extxyz", frames)
    messages = {f.code: f.message for f in check_structures(read_structures(tmp_path / "bohr.extxyz"))}
    assert "--length-unit Bohr" in messages["length_unit"]
    assert "lengths as Angstrom (assumed)" in messages["units"]
    assert problems(read_structures(DataSource(path=tmp_path / "bohr.extxyz", length_unit="Bohr"))) == {}


def test_lengths_of_solids_and_gases() -> None:
    for name in ("Cu", "Si", "Na", "Mo"):
        assert "length_unit" not in problems(made([bulk(name, cubic=True) * (2, 2, 2)]))
    crystal = bulk("Si", cubic=True)
    crystal.set_cell(crystal.cell.array / units.Bohr, scale_atoms=True)
    assert problems(made([crystal]))["length_unit"][0] == "error"
    gas = Atoms("Ar4", 3.8 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]))
    assert problems(made([gas])) == {"missing_labels": ("warning", ())}


def stated(symbols: str, **info) -> Atoms:
    return Atoms(symbols, 1.3 * np.arange(len(Atoms(symbols)))[:, None] * [1.0, 0, 0], info=info)


IGNORED = ("missing_labels", "duplicates", "length_unit")


def electrons(*structures: Atoms) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {code: found for code, found in problems(made(list(structures))).items() if code not in IGNORED}


def test_electrons() -> None:
    assert electrons(stated("OH2"), stated("N"), stated("OH2", charge=0)) == {}
    assert electrons(stated("OH2"), stated("OH2", total_charge=2.0)) == {"mixed_charge": ("error", (1,))}
    assert electrons(stated("O2", multiplicity=3), stated("O2", multiplicity=1)) == {"mixed_spin": ("error", (1,))}
    assert electrons(stated("NH4", charge=1)) == {}
    messages = {f.code: f.message for f in check_structures(made([stated("NH4")]))}
    assert "an odd number of electrons (11): a cation, an anion or a radical?" in messages["odd_electrons"]
    assert electrons(stated("CH3", charge=0, multiplicity=2)) == {"odd_electrons": ("warning", (0,))}
    assert electrons(stated("OH2", charge=0, multiplicity=2)) == {"impossible_multiplicity": ("warning", (0,))}


def test_the_equilibrium_among_dissociated_frames_is_no_outlier() -> None:
    scan = []
    for length in (0.97, *np.linspace(3.0, 4.5, 11)):
        atoms = ETHANOL.copy()
        atoms.set_distance(2, 3, length, fix=0)
        scan.append(atoms)
    plateau = np.random.default_rng(0).normal(0.0, 1e-3, 12)
    at_equilibrium, elsewhere = plateau.copy(), plateau.copy()
    at_equilibrium[0] -= 5.0
    elsewhere[6] -= 5.0
    assert "outlying_energies" not in problems(made(scan, at_equilibrium))
    assert problems(made(scan, elsewhere))["outlying_energies"] == ("warning", (6,))


def test_a_neighbour_at_exactly_the_limit() -> None:
    def dimer(distance: float) -> Atoms:
        return Atoms("NaCl", [[0.1, 0.2, 0.3], [0.1, 0.2, 0.3 + distance]])

    assert electrons(dimer(5.0)) == {}
    assert electrons(dimer(5.0), dimer(5.01)) == {"lonely_atoms": ("warning", (1,))}


def test_forces_that_vanish_by_symmetry() -> None:
    crystals = [bulk(name, cubic=True) for name in ("Si", "Li", "Cu")]
    assert problems(made(crystals, [-1.0, -2.0, -3.0], [np.zeros((len(atoms), 3)) for atoms in crystals])) == {}


def test_names_that_were_found(tmp_path: Path) -> None:
    atoms = ETHANOL.copy()
    atoms.info["dft_energy"] = -1.0
    atoms.arrays["dft_forces"] = np.zeros((9, 3))
    ase.io.write(tmp_path / "data.extxyz", atoms)
    found = check_structures(read_structures(DataSource(path=tmp_path / "data.extxyz", labels=())))
    messages = [finding.message for finding in found if finding.code == "missing_labels"]
    assert len(messages) == 2
    assert all("found dft_energy, dft_forces" in message for message in messages)
    assert "--energy-key" in messages[0]


def test_large_data_are_sampled_and_it_is_said() -> None:
    crystals = [bulk("Cu", cubic=True) * (2, 1, 1) for _ in range(50)]
    for seed, atoms in enumerate(crystals):
        atoms.rattle(0.05, seed=seed)
    crystals[49].positions[1] = crystals[49].positions[0] + [0, 0, 0.5]
    messages = {f.code: f.message for f in check_structures(made(crystals), max_searched=80)}
    assert "distances were computed in 10 of 50 structures" in messages["sampled"]
    assert "overlapping_atoms" not in messages
    assert problems(made(crystals))["overlapping_atoms"] == ("error", (49,))


def test_isomers_at_rest_need_not_restore_the_bonds_of_each_other() -> None:
    """Cyclopropene, allene and propyne have the same elements in the same order, and bonds of other lengths."""
    structures = []
    for name in ("C3H4_C2v", "C3H4_D2d", "C3H4_C3v"):
        for seed in range(12):
            atoms = molecule(name)
            atoms.positions += np.random.default_rng(seed).normal(0.0, 1e-3, atoms.positions.shape)
            structures.append(label(Atoms(atoms.numbers, atoms.positions), EngineConfig(calculator="gfn2-xtb")))
    data = made(structures, forces=[atoms.get_forces() for atoms in structures])
    assert list(check_forces_against_bonds(data)) == []
