"""Neighbour pairs against ASE's neighbour list, and what graphs do with them."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from contract import AMMONIA, CRYSTAL, ETHANOL, OXYGEN_ATOM, SLAB, WATER, displaced, graph_of
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph

WIRE = Atoms("CO", positions=[[0, 0, 0], [0.4, 0.9, 1.1]], cell=[0, 0, 2.5], pbc=[0, 0, 1])
TRICLINIC = displaced(
    Atoms("CNOH", positions=2.0 * np.eye(4, 3), cell=[[3, 0, 0], [1.4, 3, 0], [-1, 1.1, 2.8]], pbc=True), 0
)
LEFT_HANDED = Atoms("CO", positions=[[0, 0, 0], [1.2, 0.5, 0.3]], cell=[[0, 4, 0], [4, 0, 0], [0, 0, 5]], pbc=True)
LARGE_CELL = displaced(bulk("Cu", cubic=True).repeat(4), 1)


def unwrapped() -> Atoms:
    """Atoms many cells away from the cell that they belong to."""
    atoms = TRICLINIC.copy()
    atoms.positions += np.array([[3, 0, -2], [-5, 1, 0], [0, 0, 7], [1, 1, 1]]) @ atoms.cell.array
    return atoms


def pair_set(first: np.ndarray, second: np.ndarray, vectors: np.ndarray) -> list[tuple[float, ...]]:
    rows = np.column_stack([first, second, vectors.round(6) + 0.0])
    return sorted(map(tuple, rows.tolist()))


STRUCTURES = [ETHANOL, CRYSTAL, SLAB, WIRE, TRICLINIC, LEFT_HANDED, LARGE_CELL, unwrapped(), OXYGEN_ATOM]
IDS = ["molecule", "crystal", "slab", "wire", "triclinic", "left-handed", "large", "unwrapped", "atom"]


@pytest.mark.parametrize("cutoff", [1.3, 5.0])
@pytest.mark.parametrize("atoms", STRUCTURES, ids=IDS)
def test_pairs_are_those_of_ase_each_once(atoms: Atoms, cutoff: float):
    graph = build_graph(atoms, cutoff, torch.float64)
    (first, second), vectors = graph.pair_index.numpy(), graph.pair_vectors().numpy()
    both_ways = pair_set(np.r_[first, second], np.r_[second, first], np.r_[vectors, -vectors])
    expected = pair_set(*neighbor_list("ijD", atoms, cutoff))
    assert len(both_ways) == len(expected)
    np.testing.assert_allclose(np.array(both_ways), np.array(expected), atol=2e-6)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        (Atoms("HH", positions=[[0, 0, 0], [0, 0, 0.01]]), "atoms 0 and 1 are 0.01 Å apart"),
        (Atoms("H2O", positions=[[0, 0, 0], [0, 0, 1], [0, np.nan, 0]]), "atom 2 has a position"),
        (Atoms("H", cell=[3, 3, 0], pbc=True), "lattice vector 2 has zero length"),
        (Atoms("H", cell=[[3, 0, 0], [6, 0, 0], [0, 0, 3]], pbc=True), "linearly dependent"),
        (Atoms("H", cell=[[3, 0, 0], [0, np.inf, 0], [0, 0, 3]], pbc=True), "cell contains values"),
        (Atoms("HH", positions=[[0, 0, 0.02], [0, 0, 2.98]], cell=[3, 3, 3], pbc=True), "overlap"),
    ],
    ids=["overlap", "nan", "no vector", "flat cell", "infinite cell", "overlap with an image"],
)
def test_broken_structures_are_named(atoms: Atoms, message: str):
    with pytest.raises(DataError, match=message):
        build_graph(atoms, 5.0)


@pytest.mark.parametrize("handedness", [1.0, -1.0], ids=["rotation", "reflection"])
@pytest.mark.parametrize("atoms", STRUCTURES, ids=IDS)
def test_order_of_pairs_is_invariant_under_rotation_and_reflection(atoms: Atoms, handedness: float):
    q = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    q *= handedness * np.linalg.det(q)
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ q.T)
    turned.positions = atoms.positions @ q.T
    before, after = graph_of(atoms), graph_of(turned)
    assert torch.equal(before.pair_index, after.pair_index)
    expected = before.pair_vectors() @ torch.as_tensor(q).T
    torch.testing.assert_close(after.pair_vectors(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("atoms", STRUCTURES, ids=IDS)
def test_incoming_edges_are_the_neighbours_of_ase(atoms: Atoms):
    graph = batch_graphs([graph_of(OXYGEN_ATOM), graph_of(atoms)]).with_incoming()
    incoming, n_edges = graph.incoming, 2 * graph.pair_index.shape[1]
    start = torch.cat([graph.pair_index.flip(0).T.flatten(), torch.tensor([-1])])
    found = [sorted(start[edges[edges < n_edges]].tolist()) for edges in incoming]
    first, second = neighbor_list("ij", atoms, 4.5)
    expected = [[], *(sorted((1 + second[first == atom]).tolist()) for atom in range(len(atoms)))]
    assert found == expected
    filled = incoming < n_edges
    end = graph.pair_index.T.flatten()
    assert torch.equal(end[incoming[filled]], filled.nonzero()[:, 0])
    assert graph.with_incoming() is graph


def test_batching_keeps_each_structure():
    structures = [ETHANOL, OXYGEN_ATOM, CRYSTAL, WATER]
    batch = graph_of(*structures)
    for index, atoms in enumerate(structures):
        alone = graph_of(atoms)
        mine = batch.structure_index == index
        offset = int((batch.structure_index < index).sum())
        pairs = batch.structure_index[batch.pair_index[0]] == index
        assert torch.equal(batch.positions[mine], alone.positions)
        assert torch.equal(batch.atomic_numbers[mine], alone.atomic_numbers)
        assert torch.equal(batch.pair_index[:, pairs] - offset, alone.pair_index)
        assert torch.equal(batch.pair_vectors()[pairs], alone.pair_vectors())
        assert torch.equal(batch.cell[index], torch.as_tensor(atoms.cell.array * bool(atoms.pbc.any())))
        assert torch.equal(batch.atom_rank()[mine], torch.arange(len(atoms)))


def test_batches_of_batches_are_batches():
    nested = batch_graphs([graph_of(ETHANOL, CRYSTAL), graph_of(WATER), graph_of(AMMONIA, SLAB)])
    flat = graph_of(ETHANOL, CRYSTAL, WATER, AMMONIA, SLAB)
    for name, value in vars(flat).items():
        other = getattr(nested, name)
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_pad_lays_out_atoms_by_structure():
    graph = graph_of(WATER, OXYGEN_ATOM, AMMONIA)
    padded = graph.pad(torch.stack([graph.positions, 2 * graph.positions]), fill=-7.0)
    assert padded.shape == (2, 3, 4, 3)
    for index, atoms in enumerate((WATER, OXYGEN_ATOM, AMMONIA)):
        assert torch.equal(padded[1, index, : len(atoms)], 2 * graph_of(atoms).positions)
        assert (padded[:, index, len(atoms) :] == -7.0).all()


def test_precision_is_that_of_pair_vectors_alone():
    graph = graph_of(CRYSTAL).to(dtype=torch.float32)
    assert graph.pair_vectors().dtype == torch.float32
    assert {graph.positions.dtype, graph.pair_shift.dtype, graph.cell.dtype} == {torch.float64}
    assert {graph.atomic_numbers.dtype, graph.pair_index.dtype, graph.structure_index.dtype} == {torch.int64}
    assert batch_graphs([graph, graph]).dtype == torch.float32


def test_far_from_the_origin_single_precision_loses_nothing():
    far = ETHANOL.copy()
    far.positions += 1e5
    vectors = [graph_of(atoms, dtype=torch.float32).pair_vectors() for atoms in (ETHANOL, far)]
    torch.testing.assert_close(*vectors, rtol=1e-6, atol=1e-6)


def test_single_precision_rounds_pair_vectors_and_not_positions():
    """Two molecules 2 µm apart in one structure, and atoms thousands of cells away from their cell."""
    apart = ETHANOL.copy()
    apart.positions += [2e4, 0.0, 90.0]
    astray = CRYSTAL.copy()
    astray.positions += 4001 * np.arange(len(CRYSTAL))[:, None] * CRYSTAL.cell.array.sum(0)
    for atoms in (ETHANOL + apart, astray):
        single, double = (graph_of(atoms, dtype=dtype).pair_vectors() for dtype in (torch.float32, torch.float64))
        assert torch.equal(single, double.float())


def test_building_a_graph_leaves_the_structure_alone():
    atoms = molecule("CH3OH")
    before = atoms.positions.copy()
    graph = build_graph(atoms, 5.0, torch.float64)
    graph.positions.add_(1.0)
    np.testing.assert_array_equal(atoms.positions, before)


def test_other_positions_keep_the_pairs():
    graph = graph_of(CRYSTAL)
    moved: AtomicGraph = graph.with_positions(graph.positions + 1.0)
    torch.testing.assert_close(moved.pair_vectors(), graph.pair_vectors())


HUGE = {
    "far along one axis": ([[0, 0, 0], [0, 1, 0], [6e5, 0, 0]], None, "atom 2 is 6e\\+05 Å away"),
    "far in a plane": ([[0, 0, 0], [0, 1, 0], [4e4, 4e4, 0]], None, "atom 2 is 4e\\+04 Å away"),
    "beyond all numbers": ([[0, 0, 0], [0, 1, 0], [1e300, 0, 0]], None, "atom 2 is 1e\\+300 Å away"),
    "far above a slab": ([[0, 0, 0], [0, 1, 0], [0, 0, 4e4]], ([5, 5, 5], [1, 1, 0]), "atom 2 is 4e\\+04 Å away"),
    "many cells away": ([[0, 0, 0], [5e9, 0, 0]], ([5, 5, 5], [1, 1, 1]), "atom 1 is 1e\\+09 cells away"),
    "long cell": ([[0, 0, 0]], ([50, 1e6, 50], [1, 1, 1]), "too long and thin .* correct the cell"),
    "cell beyond all numbers": ([[0, 0, 0]], ([1e200, 1e200, 1e200], [1, 1, 1]), "the cell .* above 1e\\+12 Å"),
    "flat cell": ([[0, 0, 0]], ([[10, 0, 0], [10, 1e-5, 0], [0, 0, 10]], [1, 1, 1]), "1e-05 Å wide along lattice"),
}
"""Structures on which the neighbour search died of a signal, or did not end within a minute."""


@pytest.mark.parametrize("name", HUGE)
def test_structures_that_the_search_does_not_survive_are_refused(name):
    positions, periodic, message = HUGE[name]
    cell, pbc = periodic or (None, False)
    atoms = Atoms("H" * len(positions), positions=positions, cell=cell, pbc=pbc)
    with pytest.raises(DataError, match=message):
        build_graph(atoms, 5.0)


def test_long_structures_and_far_cells_are_searched():
    chain = Atoms("H4", positions=[[0, 0, 0], [1, 0, 0], [2e5, 0, 0], [2e5 + 1, 0, 0]])
    assert build_graph(chain, 5.0).pair_index.tolist() == [[0, 2], [1, 3]]
    crystal = Atoms("H2", positions=[[0, 0, 0], [5000 * 6.0 + 1.0, 0, 0]], cell=[6, 6, 6], pbc=True)
    graph = build_graph(crystal, 2.0, torch.float64)
    assert graph.pair_vectors().norm(dim=-1).tolist() == pytest.approx([1.0])
