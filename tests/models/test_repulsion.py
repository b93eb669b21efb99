"""Short-range repulsion: derivatives by finite differences, the Coulomb limit, and nothing where there are data."""

from dataclasses import replace

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.units import Bohr, Hartree
from numpy.testing import assert_allclose

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.graph import Labels, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.repulsion import Repulsion, pair_energy

CUTOFF = 4.0
NETWORK = SchNetConfig(n_hidden=8, n_filters=8, n_interactions=1, n_gaussians=6, cutoff=CUTOFF)


def training_set(n: int = 6) -> LabelledStructures:
    rng = np.random.default_rng(0)
    structures = []
    for _ in range(n):
        atoms = ase.build.molecule("CH3CH2OH")
        atoms.rattle(0.05, rng=rng)
        structures.append(atoms)
    forces = tuple(rng.normal(size=(len(atoms), 3)) for atoms in structures)
    return LabelledStructures(
        structures=tuple(structures), energy=rng.normal(size=n), forces=forces, source="", frame_index=np.arange(n)
    )


@pytest.fixture(scope="module")
def potential() -> Potential:
    torch.manual_seed(0)
    statistics = compute_statistics(GraphDataset(training_set(), CUTOFF))
    model = Potential(PotentialConfig(backbone=NETWORK, head=DeterministicConfig()), statistics)
    model.set_precision(torch.float64)
    return model.eval()


def squeezed(cell: bool = False) -> Atoms:
    """Ethanol with two atoms at half their bond length; with a cell, an atom and its image nearly touch."""
    atoms = ase.build.molecule("CH3CH2OH")
    atoms.rattle(0.03, seed=1)
    bond = atoms.positions[1] - atoms.positions[0]
    atoms.positions[1] = atoms.positions[0] + 0.5 * bond
    if cell:
        atoms.set_cell(np.diag([np.ptp(atoms.positions[:, 0]) + 0.5, 9.0, 9.0]))
        atoms.pbc = True
    return atoms


def without(potential: Potential) -> Potential:
    other = Potential(potential.config.model_copy(update={"repulsion": False}), potential.statistics)
    other.set_precision(potential.dtype)
    other.load_state_dict(potential.state_dict())
    return other.eval()


def test_training_structures_do_not_feel_it(potential):
    plain = without(potential)
    for atoms in training_set().structures:
        graph = build_graph(atoms, CUTOFF)
        assert potential.repulsion(graph) is None
        assert torch.equal(potential.predict_raw(graph).forces, plain.predict_raw(graph).forces)


@pytest.mark.parametrize("cell", [False, True])
def test_forces_and_stress_are_derivatives(potential, cell):
    def energy(atoms: Atoms) -> float:
        return float(potential.predict_raw(build_graph(atoms, CUTOFF, torch.float64)).energy)

    atoms, step = squeezed(cell), 1e-5
    found = potential.predict_raw(build_graph(atoms, CUTOFF, torch.float64))
    plain = without(potential).predict_raw(build_graph(atoms, CUTOFF, torch.float64))
    assert float(found.energy - plain.energy) > 10.0
    assert_allclose(found.node_energy.sum(), found.energy, rtol=1e-12)
    for atom, axis in [(0, 0), (1, 1), (2, 2), (8, 0)]:
        sides = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[atom, axis] += sign * step
            sides.append(energy(moved))
        assert_allclose(-(sides[0] - sides[1]) / (2 * step), found.forces[atom, axis], rtol=1e-5, atol=1e-6)
    if cell:
        strained = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[0, 0] += sign * step
            deformed = atoms.copy()
            deformed.set_cell(atoms.cell.array @ strain, scale_atoms=True)
            strained.append(energy(deformed))
        slope = (strained[0] - strained[1]) / (2 * step)
        assert_allclose(slope / atoms.get_volume(), found.stress[0, 0, 0], rtol=1e-5)


def test_nuclei_repel_by_coulombs_law_when_they_touch():
    distance = torch.tensor([1e-6], dtype=torch.float64)  # Å, where electrons screen nothing
    energy = pair_energy(torch.tensor([6]), torch.tensor([8]), distance, torch.ones(1))
    assert_allclose(energy, Hartree * Bohr * 6 * 8 / distance, rtol=1e-4)


def test_no_bond_is_repelled():
    bonds = {
        "H2": 0.741,
        "N2": 1.098,
        "CO": 1.128,
        "HF": 0.917,
        "O2": 1.208,
        "CN": 1.153,
        "F2": 1.412,
    }
    for name, length in bonds.items():
        pair = Atoms(name, positions=[[0, 0, 0], [length, 0, 0]])
        assert Repulsion(())(build_graph(pair, CUTOFF)) is None, name


def test_it_begins_smoothly_at_the_shortest_distance_of_the_data():
    repulsion = Repulsion([(1, 6, 0.8)])
    begins = 0.9 * 0.8

    def energy(distance: float) -> float:
        repelled = repulsion(build_graph(Atoms("CH", positions=[[0, 0, 0], [0, 0, distance]]), CUTOFF, torch.float64))
        return 0.0 if repelled is None else float(repelled.energy)

    assert energy(begins) == 0.0
    h = 1e-3
    below = [energy(begins - k * h) for k in (1, 2, 3)]
    assert_allclose(np.array(below) / below[0], [1, 8, 27], rtol=0.02)  # rises as the third power: C² at the end
    rising = [energy(distance) for distance in np.linspace(0.7, 0.1, 20)]
    assert (np.diff(rising) > 0).all()


def test_targets_are_what_the_network_has_to_say(potential):
    atoms = squeezed(cell=True)
    graph = build_graph(atoms, CUTOFF, torch.float64)
    found, plain = potential.predict_raw(graph), without(potential).predict_raw(graph)
    labels = Labels(energy=found.energy, forces=found.forces, stress=found.stress)
    energy, forces = potential.normalised_targets(graph, labels)
    expected = without(potential).normalised_targets(graph, replace(labels, energy=plain.energy, forces=plain.forces))
    assert_allclose(energy, expected[0], rtol=1e-9)
    assert_allclose(forces, expected[1], rtol=1e-6, atol=1e-9)
    virial = potential.normalised_virial(graph, found.stress)
    assert_allclose(virial, without(potential).normalised_virial(graph, plain.stress), rtol=1e-6, atol=1e-9)


def test_files(potential, tmp_path):
    graph = build_graph(squeezed(), CUTOFF)
    save(potential, tmp_path / "new.sigmaff")
    assert torch.equal(load(tmp_path / "new.sigmaff").predict_raw(graph).forces, potential.predict_raw(graph).forces)
    early = Potential(potential.config, replace(potential.statistics, shortest_distances=None))
    assert early.repulsion is None  # as files of earlier versions load
