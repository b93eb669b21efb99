"""Reference energies against energies made from known ones; scale against its definition."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms

from sigmaff.data import (
    GraphDataset,
    LabelledStructures,
    compute_statistics,
    reference_energies,
)
from sigmaff.errors import ConfigError, DataError

ATOM = {1: -13.6413, 6: -1027.5925, 8: -2039.7349}


def molecules(formulas: list[str], noise: float = 0.0, forces: bool = True) -> LabelledStructures:
    rng = np.random.default_rng(3)
    structures = [Atoms(formula) for formula in formulas]
    for atoms in structures:
        atoms.positions = 1.5 * np.arange(len(atoms))[:, None] + rng.normal(scale=0.1, size=(len(atoms), 3))
    exact = np.array([sum(ATOM[int(number)] for number in atoms.numbers) for atoms in structures])
    return LabelledStructures(
        structures=tuple(structures),
        energy=exact + noise * rng.normal(size=len(exact)),
        forces=tuple(rng.normal(size=(len(atoms), 3)) for atoms in structures) if forces else None,
        source="made.extxyz",
        frame_index=np.arange(len(structures)),
    )


def test_least_squares_recovers_atomic_energies():
    found = reference_energies(molecules(["CH4", "H2O", "CO2", "C2H6O", "C3H4O2"]), "least_squares")
    assert found == pytest.approx(ATOM, abs=1e-8)


def test_least_squares_of_one_molecule_leaves_only_the_deviation():
    data = molecules(["C2H6O"] * 50, noise=0.2)
    found = reference_energies(data, "least_squares")
    total = 2 * found[6] + 6 * found[1] + found[8]
    assert total == pytest.approx(data.energy.mean(), abs=1e-9)


def test_large_totals_keep_their_digits():
    data = molecules(["CH4", "H2O", "CO2", "C2H6O"])
    shifted = LabelledStructures(
        structures=data.structures,
        energy=data.energy - 1e6 * np.array([len(atoms) for atoms in data.structures]),
        forces=None,
        source="made",
        frame_index=data.frame_index,
    )
    found = reference_energies(shifted, "least_squares")
    assert {number: energy + 1e6 for number, energy in found.items()} == pytest.approx(ATOM, abs=1e-7)


@pytest.mark.parametrize("given", [{"H": -13.0, "C": -1000.0, "O": -2000.0}, {1: -13.0, 6: -1000.0, 8: -2000.0}])
def test_given_reference_energies(given):
    expected = {1: -13.0, 6: -1000.0, 8: -2000.0}
    assert reference_energies(molecules(["C2H6O"]), given) == expected
    assert reference_energies(molecules(["C2H6O"]), json.loads(json.dumps(given))) == expected


def test_given_reference_energies_must_cover_the_elements():
    with pytest.raises(DataError, match=r"made\.extxyz: no reference energy for C, O"):
        reference_energies(molecules(["C2H6O"]), {"H": -13.0})
    with pytest.raises(ConfigError, match="'Hx', which is not an element"):
        reference_energies(molecules(["C2H6O"]), {"Hx": -13.0})


def test_isolated_atoms_give_reference_energies():
    data = molecules(["H", "C", "O", "C2H6O", "H"])
    for atoms in data.structures[:3]:
        atoms.info["config_type"] = "IsolatedAtom"
    data.energy[4] = 0.0  # a single atom that is not marked does not count
    assert reference_energies(data, "isolated_atoms") == pytest.approx(ATOM)
    with pytest.raises(DataError, match="no reference energy for H; give a structure of one atom"):
        reference_energies(data.subset([1, 2, 3]), "isolated_atoms")


def test_scale_is_the_rms_force_component():
    data = molecules(["CH4", "H2O", "C2H6O"])
    components = np.concatenate([forces.ravel() for forces in data.forces])
    assert compute_statistics(GraphDataset(data, 3.0)).scale == pytest.approx(
        (components @ components / len(components)) ** 0.5
    )


def test_scale_without_forces_is_the_spread_of_energy_per_atom():
    data = molecules(["C2H6O"] * 40, noise=0.3, forces=False)
    assert compute_statistics(GraphDataset(data, 3.0)).scale == pytest.approx(np.std(data.energy) / 9)


def test_scale_of_structures_at_rest_is_the_spread_of_energy_per_atom():
    """Whose forces say little: the network's output would have to be hundreds of such units."""
    data = molecules(["C2H6O"] * 40, noise=0.3)
    at_rest = replace(data, forces=tuple(1e-3 * forces for forces in data.forces))
    assert compute_statistics(GraphDataset(at_rest, 3.0)).scale == pytest.approx(np.std(data.energy) / 9)


def test_scale_without_spread_is_one():
    assert compute_statistics(GraphDataset(molecules(["H"], forces=False), 3.0)).scale == 1.0


def test_mean_neighbors_of_a_crystal():
    crystal = Atoms("Cu", cell=3.61 * np.array([[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]), pbc=True)
    data = LabelledStructures(
        structures=(crystal,), energy=np.array([-3.5]), forces=None, source="fcc", frame_index=np.arange(1)
    )
    statistics = compute_statistics(GraphDataset(data, 3.0, torch.float64))
    assert statistics.mean_neighbors == 12
    assert statistics.elements == (29,)
    assert statistics.n_structures == 1
