"""A molecule in pieces, against GFN2-xTB: σ of energies and forces says that nothing is known."""

from functools import cache

import numpy as np
import pytest
from ase import Atoms

from contract import BACKBONES, ETHANOL, HEADS, WRAPPERS, Case, displaced, graph_of
from sigmaff.backbones.surroundings import CUTOFF
from sigmaff.data import GraphDataset, compute_statistics, label_structures
from sigmaff.data.labelling import EngineConfig, label
from sigmaff.heads import DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.models.solve import solve_head

HOT = EngineConfig(arguments={"electronic_temperature": 3000.0})
"""Far atoms have orbitals of equal energy: without a temperature the self-consistent field does not converge."""
FAR = 25.0


@cache
def solved() -> Potential:
    """The default head on a small SchNet of random weights: the closed form learns from labels of GFN2-xTB."""
    frames = [label(displaced(ETHANOL, number, width=0.05), EngineConfig()) for number in range(90)]
    train, held_out = (GraphDataset(label_structures(part), BACKBONES[0].cutoff) for part in (frames[:60], frames[60:]))
    config = PotentialConfig(backbone=BACKBONES[0], head=DeterministicConfig())
    potential = Potential(config, compute_statistics(train))
    return solve_head(potential, LNKConfig(), train, held_out)[0].eval()


def spread(factor: float) -> Atoms:
    atoms = ETHANOL.copy()
    atoms.positions *= factor
    return atoms


def without(atom: int, *, distance: float) -> Atoms:
    """Ethanol with one atom moved away from all others, Å."""
    atoms = ETHANOL.copy()
    outwards = atoms.positions[atom] - atoms.positions.mean(0)
    atoms.positions[atom] += distance * outwards / np.linalg.norm(outwards)
    return atoms


def forces_std(atoms: Atoms, how: ForceStdMethod = "exact") -> np.ndarray:
    return solved().predict_raw(graph_of(atoms), forces_std=how).forces_std.numpy()


def hidden() -> float:
    """Force σ of an atom without neighbours, eV/Å."""
    return LNKConfig().distance_prior / CUTOFF


@pytest.mark.parametrize("factor", [1.5, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_errors_of_a_molecule_in_pieces_are_within_three_std(factor: float, how: ForceStdMethod):
    atoms = label(spread(factor), HOT)
    found = solved().predict_raw(graph_of(atoms), forces_std=how)
    error = float(found.energy) - atoms.get_potential_energy()
    assert abs(error) > 5.0  # it is wrong, or this would test nothing
    assert abs(error) < 3.0 * float(found.energy_std)
    errors, stds = found.forces.numpy() - atoms.get_forces(), found.forces_std.numpy()
    assert np.square(errors).mean() < 9.0 * np.square(stds).mean()
    assert stds.min() > 0.1 * hidden()


@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_the_force_on_an_atom_without_neighbours_is_not_known(how: ForceStdMethod):
    """All that it has is the prior over the cutoff; the others keep the σ of the broken molecule."""
    stds = forces_std(without(0, distance=FAR), how)
    assert stds[0] == pytest.approx(hidden(), rel=1e-3)
    rest = ETHANOL.copy()
    del rest[0]
    np.testing.assert_allclose(stds[1:], forces_std(rest, how), rtol=1e-4)


def test_a_structure_of_one_atom_has_no_force():
    np.testing.assert_array_equal(forces_std(Atoms("C")), 0.0)


def test_two_whole_molecules_far_apart_are_known():
    """Each has the σ that it has alone."""
    other = ETHANOL.copy()
    other.positions += FAR
    np.testing.assert_allclose(forces_std(ETHANOL + other), np.tile(forces_std(ETHANOL), (2, 1)), rtol=1e-3)


def test_force_std_is_smooth_where_the_last_neighbour_leaves():
    """From half the cutoff on: no jump, and no distance at which the σ vanishes."""
    distances = np.arange(2.0, 6.0, 0.02)
    graph = graph_of(*(Atoms("HO", [[0, 0, 0], [0, 0, distance]]) for distance in distances))
    stds = solved().predict_raw(graph, forces_std="exact").forces_std.numpy()[::2]
    assert np.abs(np.diff(stds, axis=0)).max() < 0.1 * stds.max()
    assert np.linalg.norm(stds, axis=1).min() > 0.5 * hidden()


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.name)
def test_what_other_heads_say_about_the_force_on_an_atom_without_neighbours(head: HeadConfig):
    """As docs/uncertainty.md tells: nothing, zero, or a σ of the atom."""
    potential = Case(backbone=BACKBONES[0], head=head).build().eval()
    stds = potential.predict_raw(graph_of(Atoms("CO", [[0, 0, 0], [FAR, 0, 0]]))).forces_std
    if head.name in ("deterministic", "evidential", "gmdn"):
        assert stds is None
    elif head.wants_surroundings or head.name == "latent_distance":
        assert bool((stds > 0).all())
    else:
        assert not stds.any()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_networks_agree_that_an_atom_without_neighbours_has_no_force(wrapper: str):
    model = Case(backbone=BACKBONES[0], head=DeterministicConfig(), wrapper=wrapper).build().eval()
    assert not model.predict_raw(graph_of(Atoms("CO", [[0, 0, 0], [FAR, 0, 0]]))).forces_std.any()
