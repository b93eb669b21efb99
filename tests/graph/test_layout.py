"""Layouts: sums over neighbours, structures and elements by padded indices equal sums by scattering."""

import numpy as np
import pytest
import torch
from ase import Atoms

from contract import CRYSTAL, ETHANOL, WATER, graph_of
from sigmaff.graph import AtomicGraph, ElementGroups, Layout
from sigmaff.graph.ops import scatter_sum

ELEMENTS = (1, 6, 7, 8)


def laid_out(graph: AtomicGraph) -> Layout:
    kinds = torch.tensor([ELEMENTS.index(int(number)) for number in graph.atomic_numbers])
    return Layout.of(graph.pair_index, graph.structure_index, graph.n_structures, kinds, len(ELEMENTS))


@pytest.fixture(params=[(ETHANOL, WATER, ETHANOL), (WATER,), (Atoms("O"), WATER, Atoms("H"))], ids=len)
def graph(request: pytest.FixtureRequest) -> AtomicGraph:
    return graph_of(*request.param)


def test_sums_over_structures_and_edges(graph: AtomicGraph):
    layout, (first, second) = laid_out(graph), graph.pair_index
    of_atoms = torch.randn(graph.n_atoms, 3, dtype=torch.float64)
    of_pairs = torch.randn(graph.pair_index.shape[1], 2, 3, dtype=torch.float64)
    expected = scatter_sum(of_atoms, graph.structure_index, graph.n_structures)
    torch.testing.assert_close(layout.sum_of_structures(of_atoms), expected)
    ends = torch.cat([first, second])
    both = scatter_sum(torch.cat([of_pairs, of_pairs]), ends, graph.n_atoms)
    torch.testing.assert_close(layout.sum_of_edges(of_pairs), both)
    sided = scatter_sum(torch.cat([-of_pairs, of_pairs]), ends, graph.n_atoms)
    torch.testing.assert_close(layout.sum_by_side(of_pairs), sided)


def test_neighbors_and_slots(graph: AtomicGraph):
    """Every edge has one slot, at the atom where it ends, and both edges of a pair find their slots."""
    layout, pairs = laid_out(graph), graph.pair_index.numpy()
    found = {
        (int(layout.neighbor[slot, atom]), atom, int(layout.pair[slot, atom]))
        for slot, atom in np.argwhere(layout.side.numpy() != 0)
    }
    expected = {(j, i, p) for p, (i, j) in enumerate(pairs.T)} | {(i, j, p) for p, (i, j) in enumerate(pairs.T)}
    assert found == expected
    at = layout.slot % graph.n_atoms
    assert torch.equal(at, graph.pair_index.T)
    assert torch.equal(layout.pair.flatten()[layout.slot], torch.arange(pairs.shape[1]).unsqueeze(-1).expand(-1, 2))


def test_padding_and_incoming_edges_are_those_of_the_graph(graph: AtomicGraph):
    layout, values = laid_out(graph), torch.randn(graph.n_atoms, 4, dtype=torch.float64)
    padded, expected = layout.padded(values), graph.pad(values)
    torch.testing.assert_close(padded[:, : expected.shape[1]], expected)
    assert not padded[:, expected.shape[1] :].any()
    if graph.pair_index.shape[1]:
        incoming, by_sorting = layout.incoming(graph.pair_index.shape[1]), graph.with_incoming().incoming
        n_edges = 2 * graph.pair_index.shape[1]
        for mine, theirs in zip(incoming, by_sorting, strict=True):
            assert set(mine[mine < n_edges].tolist()) == set(theirs[theirs < n_edges].tolist())


def test_groups_of_elements(graph: AtomicGraph):
    """What is done with each element reaches its own atoms, in both ways of grouping."""
    layout, values = laid_out(graph), torch.randn(graph.n_atoms, 2, dtype=torch.float64)
    kinds = torch.tensor([ELEMENTS.index(int(number)) for number in graph.atomic_numbers])
    for groups in (ElementGroups(kinds, len(ELEMENTS)), ElementGroups(kinds, len(ELEMENTS), layout)):
        scaled = [part * (element + 1) for element, part in zip(groups.present, groups.of(values), strict=True)]
        torch.testing.assert_close(groups.joined(scaled), values * (kinds + 1).unsqueeze(-1))


def test_periodic_images_are_edges_of_their_own():
    """An atom of a small cell is its own neighbour, on both sides of each pair."""
    graph = graph_of(CRYSTAL)
    layout, ones = laid_out(graph), torch.ones(graph.pair_index.shape[1], dtype=torch.float64)
    counts = torch.bincount(graph.pair_index.flatten(), minlength=graph.n_atoms).double()
    torch.testing.assert_close(layout.sum_of_edges(ones), counts)
