"""The fixed descriptor of an atom's surroundings."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from contract import ETHANOL, graph_of
from sigmaff.backbones import Surroundings
from sigmaff.backbones.linear_response import AutomaticResponse
from sigmaff.backbones.surroundings import N_RADIAL
from sigmaff.graph import build_graph

ELEMENTS = (1, 6, 8)


def described(atoms: Atoms, cutoff: float = 5.0, elements: tuple[int, ...] = ELEMENTS) -> np.ndarray:
    surroundings = Surroundings(elements, cutoff)
    return surroundings(build_graph(atoms, cutoff)).numpy().reshape(len(atoms), -1, N_RADIAL)


def test_of_a_dimer_written_out():
    distance, centers = 1.3, np.linspace(0.0, 5.0, N_RADIAL)
    expected = np.exp(-0.5 * ((distance - centers) / centers[1]) ** 2) * 0.5 * (np.cos(np.pi * distance / 5.0) + 1.0)
    found = described(Atoms("CO", [[0, 0, 0], [0, 0, distance]]))
    np.testing.assert_allclose(found[0, 2], expected, rtol=1e-12)
    np.testing.assert_allclose(found[1, 1], expected, rtol=1e-12)
    assert np.count_nonzero(found[0, [0, 1, 3]]) == 0


def test_rotations_reflections_and_order_do_not_matter():
    rng = np.random.default_rng(0)
    rotation, order = np.linalg.qr(rng.normal(size=(3, 3)))[0], rng.permutation(len(ETHANOL))
    turned = Atoms(ETHANOL.numbers, ETHANOL.positions @ rotation.T)[order]
    np.testing.assert_allclose(described(turned), described(ETHANOL)[order], atol=1e-10)


def test_periodic_images_count_as_atoms_do():
    cell = bulk("Cu", cubic=True)
    np.testing.assert_allclose(
        described(cell.repeat((2, 1, 1)), elements=(29,))[:4], described(cell, elements=(29,)), atol=1e-10
    )


def test_a_neighbour_leaves_without_a_jump():
    """Value and slope vanish at the cutoff, also where the graph of a backbone reaches farther."""

    def at(distance: float) -> np.ndarray:
        return described(Atoms("CO", [[0, 0, 0], [0, 0, distance]]), cutoff=8.0)

    assert np.abs(at(5.0 - 1e-4)).max() < 1e-8
    assert np.count_nonzero(at(5.0 + 1e-6)) == 0


def test_elements_that_are_not_known_share_a_place():
    found = described(Atoms("CSi", [[0, 0, 0], [0, 0, 1.8]]))
    other = described(Atoms("CCl", [[0, 0, 0], [0, 0, 1.8]]))
    np.testing.assert_array_equal(found[0], other[0])
    assert np.count_nonzero(found[0, :-1]) == 0
    assert found[0, -1].max() > 0.1


def test_is_float64_whatever_the_network_is():
    graph = graph_of(ETHANOL).to(dtype=torch.float32)
    assert Surroundings(ELEMENTS, 5.0)(graph).dtype == torch.float64


@pytest.mark.parametrize("cutoff", [3.0, 10.0])
def test_reaches_no_farther_than_the_backbone_or_five_angstrom(cutoff: float):
    assert Surroundings(ELEMENTS, cutoff).cutoff == min(cutoff, 5.0)


@pytest.mark.parametrize(
    "atoms", [ETHANOL, bulk("NaCl", "rocksalt", a=5.6), Atoms("H")], ids=["molecule", "crystal", "atom"]
)
def test_response_is_the_derivative(atoms: Atoms):
    """By automatic differentiation; in the crystal one pair of atoms is neighbours several times."""
    surroundings = Surroundings((1, 6, 8, 11, 17), 6.0)
    graph = build_graph(atoms, 6.0, torch.float64)
    found, expected = surroundings.linear_response(graph), AutomaticResponse(surroundings, graph)
    torch.testing.assert_close(found.embeddings, expected.embeddings)
    torch.manual_seed(0)
    cotangents = torch.randn(3, *found.embeddings.shape, dtype=torch.float64)
    for one, other in zip(found.pull_back(cotangents), expected.pull_back(cotangents), strict=True):
        torch.testing.assert_close(one, other)
    directions, shifts = (
        torch.randn(2, *values.shape, dtype=torch.float64) for values in (graph.positions, graph.pair_shift)
    )
    torch.testing.assert_close(found.push_forward(directions, shifts), expected.push_forward(directions, shifts))
