"""The data doctor finds each fault that we put into good data, and none in good data."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.md.verlet import VelocityVerlet

from sigmaff.data import LabelledStructures, check_structures, find_overlap
from sigmaff.data.check.labels import all_electron_energy
from sigmaff.units import KCAL_PER_MOL


def trajectory(atoms: Atoms, n: int = 40) -> LabelledStructures:
    """Molecular dynamics with forces that are exact derivatives of the energies."""
    atoms.calc = EMT()
    thermal = np.sqrt(units.kB * 600 / atoms.get_masses())[:, None]
    atoms.set_velocities(thermal * np.random.default_rng(1).normal(size=(len(atoms), 3)))
    dynamics = VelocityVerlet(atoms, 2 * units.fs)
    structures, energies, forces = [], [], []
    for _ in range(n):
        dynamics.run(2)
        structures.append(Atoms(atoms.numbers, atoms.positions.copy(), cell=atoms.cell, pbc=atoms.pbc))
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces().copy())
    return LabelledStructures(
        structures=tuple(structures),
        energy=np.array(energies),
        forces=tuple(forces),
        source="md.traj",
        frame_index=100 + np.arange(n),
    )


@pytest.fixture(scope="module")
def cluster() -> LabelledStructures:
    atoms = bulk("Cu", cubic=True) * (2, 1, 1)
    atoms.pbc = False
    atoms.cell = None
    return trajectory(atoms)


@pytest.fixture(scope="module")
def crystal() -> LabelledStructures:
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, seed=1)
    atoms.positions += [0.0, 0.0, 0.05]
    data = trajectory(atoms)
    for structure in data.structures:
        structure.wrap()
    return data


def problems(data: LabelledStructures) -> dict[str, tuple[str, tuple[int, ...]]]:
    findings = [found for found in check_structures(data) if found.severity != "info"]
    return {found.code: (found.severity, found.frames) for found in findings}


@pytest.mark.parametrize("name", ["cluster", "crystal"])
def test_good_data_has_no_problem(request, name):
    assert problems(request.getfixturevalue(name)) == {}


def test_summary(cluster):
    messages = {found.code: found.message for found in check_structures(cluster)}
    assert "40 structures of 8 to 8 atoms, 1 compositions, 0 periodic; elements Cu" in messages["composition"]
    assert f"{cluster.energy.min() / 8:.6g} to {cluster.energy.max() / 8:.6g}" in messages["energy_range"]


def changed(data: LabelledStructures, frame: int, edit) -> LabelledStructures:
    """A copy in which ``edit(atoms, forces)`` has been at one frame."""
    structures = [atoms.copy() for atoms in data.structures]
    forces = [array.copy() for array in data.forces]
    edit(structures[frame], forces[frame])
    return replace(data, structures=tuple(structures), forces=tuple(forces))


def test_not_finite(cluster):
    def edit(_, forces):
        forces[1, 2] = np.nan

    assert problems(changed(cluster, 4, edit)) == {"not_finite": ("error", (104,))}
    energy = cluster.energy.copy()
    energy[7] = np.inf
    assert problems(replace(cluster, energy=energy))["not_finite"] == ("error", (107,))

    def lose(atoms, _):
        atoms.positions[0, 0] = np.nan

    assert problems(changed(cluster, 4, lose)) == {"not_finite": ("error", (104,))}
    everything = replace(cluster, energy=np.full(len(cluster), np.nan))
    assert problems(everything) == {"not_finite": ("error", tuple(range(100, 140)))}


@pytest.mark.parametrize(
    ("factor", "code", "severity"), [(1e7, "absurd_forces", "error"), (80, "outlying_forces", "warning")]
)
def test_absurd_forces(cluster, factor, code, severity):
    typical = np.median(np.linalg.norm(np.concatenate(cluster.forces), axis=1))

    def edit(_, forces):
        forces[:2] = [[factor * typical, 0, 0], [-factor * typical, 0, 0]]

    assert problems(changed(cluster, 5, edit))[code] == (severity, (105,))


def test_zero_forces(cluster):
    def all_atoms(_, forces):
        forces[:] = 0

    def one_atom(_, forces):
        forces[3] = 0

    assert problems(changed(cluster, 5, all_atoms))["zero_forces"] == ("warning", (105,))
    assert problems(changed(cluster, 5, one_atom))["zero_force_atoms"] == ("warning", (105,))
    nothing = replace(cluster, forces=tuple(np.zeros_like(forces) for forces in cluster.forces))
    assert problems(nothing)["zero_forces"][0] == "error"


def test_zero_energies(cluster):
    energy = cluster.energy.copy()
    energy[3] = 0.0
    assert problems(replace(cluster, energy=energy))["zero_energies"] == ("warning", (103,))


def test_outlying_energy(cluster):
    energy = cluster.energy.copy()
    energy[3] += 80
    assert problems(replace(cluster, energy=energy))["outlying_energies"] == ("warning", (103,))


def test_duplicates(cluster):
    repeated = cluster.subset([0, 1, 2, 1, 3, 0])
    nudged = changed(repeated, 3, lambda atoms, _: atoms.translate([5e-7, 0, 0]))
    found = check_structures(replace(nudged, frame_index=np.arange(6)))
    assert {f.code: f.frames for f in found if f.severity != "info"} == {"duplicates": (3, 5)}
    assert "duplicates" not in problems(
        changed(repeated.subset([1, 3]), 1, lambda atoms, _: atoms.translate([1e-5, 0, 0]))
    )


def test_duplicates_that_contradict(cluster):
    repeated = cluster.subset([0, 1, 2, 1])
    energy = repeated.energy.copy()
    energy[3] += 0.01
    data = replace(repeated, energy=energy, frame_index=np.arange(4))
    assert problems(data)["contradicting_duplicates"] == ("error", (3,))


def test_overlapping_atoms(crystal):
    def across_the_boundary(atoms, _):
        atoms.positions[0] = atoms.positions[1] + atoms.cell.array[0] + [0, 0, 0.8]

    def on_top(atoms, _):
        atoms.positions[0] = atoms.positions[1]

    assert problems(changed(crystal, 2, across_the_boundary))["overlapping_atoms"] == ("error", (102,))
    assert problems(changed(crystal, 2, on_top))["unusable_structure"] == ("error", (102,))


def test_lonely_atoms(cluster):
    def edit(atoms, _):
        atoms.positions[0] -= 30

    assert problems(changed(cluster, 2, edit))["lonely_atoms"] == ("warning", (102,))


def test_cells(crystal):
    def mirror(atoms, _):
        atoms.set_cell(atoms.cell.array[[1, 0, 2]])

    def shrink(atoms, _):
        atoms.set_cell(atoms.cell.array * 0.5)

    def vanish(atoms, _):
        atoms.set_cell(np.zeros((3, 3)))

    assert problems(changed(crystal, 2, mirror))["left_handed_cell"] == ("warning", (102,))
    assert problems(changed(crystal, 2, shrink))["tiny_cell"] == ("warning", (102,))
    assert problems(changed(crystal, 2, vanish))["unusable_structure"] == ("error", (102,))


def test_net_force(cluster):
    def edit(_, forces):
        forces += [0.5, 0, 0]

    assert problems(changed(cluster, 9, edit))["net_force"] == ("warning", (109,))


def test_missing_labels(cluster):
    partly = replace(cluster, forces=None, incomplete_labels={"forces": (103, 104)})
    assert problems(partly)["missing_labels"] == ("error", (103, 104))
    assert problems(replace(cluster, energy=None))["missing_labels"] == ("warning", ())


@pytest.mark.parametrize("name", ["cluster", "crystal"])
def test_forces_of_the_wrong_sign(request, name):
    data = request.getfixturevalue(name)
    assert problems(replace(data, forces=tuple(-forces for forces in data.forces))) == {"force_sign": ("error", ())}


def test_sign_is_judged_in_order_of_time(cluster):
    order = np.random.default_rng(0).permutation(len(cluster))
    shuffled = replace(cluster.subset(order), time_index=order, forces=tuple(-cluster.forces[k] for k in order))
    assert "force_sign" in problems(shuffled)


def test_energy_and_forces_in_different_units(cluster):
    data = replace(cluster, energy=cluster.energy / KCAL_PER_MOL)
    message = next(found.message for found in check_structures(data) if found.code == "force_unit")
    assert "energies in kcal/mol with forces in eV/Angstrom" in message
    data = replace(cluster, forces=tuple(forces * units.Bohr / units.Hartree for forces in cluster.forces))
    message = next(found.message for found in check_structures(data) if found.code == "force_unit")
    assert "energies in eV with forces in Hartree/Bohr" in message


HARTREE_FOCK = {1: -0.5, 6: -37.69, 7: -54.40, 8: -74.81, 14: -288.85, 17: -459.48}
"""Hartree, tabulated Hartree–Fock energies of atoms."""


def test_semiclassical_energies_of_atoms():
    estimate = all_electron_energy(np.array(list(HARTREE_FOCK))) / units.Hartree
    np.testing.assert_allclose(estimate[1:], list(HARTREE_FOCK.values())[1:], rtol=0.015)
    assert estimate[0] == pytest.approx(-0.5, rel=0.1)


@pytest.mark.parametrize(("unit", "value"), [("Hartree", units.Hartree), ("kcal/mol", KCAL_PER_MOL), ("eV", 1.0)])
def test_unit_of_total_energies(unit, value):
    formulas = ["CH3OH", "C2H6O", "CO2", "NH2COCH3"]
    structures = tuple(Atoms(formula) for formula in formulas)
    for atoms in structures:
        atoms.positions[:, 0] = 1.4 * np.arange(len(atoms))
    energy = np.array([sum(HARTREE_FOCK[int(z)] for z in atoms.numbers) for atoms in structures]) * units.Hartree
    data = LabelledStructures(
        structures=structures, energy=energy / value, forces=None, source="made", frame_index=np.arange(4)
    )
    messages = [found.message for found in check_structures(data) if found.code == "energy_unit"]
    assert messages == [] if unit == "eV" else f"are they in {unit}?" in messages[0]


def test_forces_that_are_all_large(cluster):
    rms = np.sqrt(np.mean(np.concatenate(cluster.forces) ** 2))
    data = replace(cluster, energy=None, forces=tuple(forces * 20 / rms for forces in cluster.forces))
    assert problems(data)["large_forces"] == ("warning", ())


def test_overlap_between_train_and_test(cluster, crystal):
    train, test = cluster.subset(range(20)), cluster.subset([5, 30, 7, 31])
    np.testing.assert_array_equal(find_overlap(train, test), [0, 2])
    assert len(find_overlap(train, cluster.subset([30, 30]))) == 0
    assert len(find_overlap(train, crystal)) == 0


def test_overlap_in_a_large_set():
    rng = np.random.default_rng(0)
    structures = tuple(Atoms("H4", rng.uniform(0, 10, size=(4, 3))) for _ in range(3000))
    data = LabelledStructures(
        structures=structures, energy=None, forces=None, source="made", frame_index=np.arange(3000)
    )
    chosen = rng.permutation(3000)[:100]
    np.testing.assert_array_equal(find_overlap(data, data.subset(chosen)), np.arange(100))
