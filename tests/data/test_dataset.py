"""A batch equals the graphs built one by one; a bad frame is named."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from sigmaff.data import GraphDataset, LabelledStructures, dataset, distances
from sigmaff.data.store import cache_folder
from sigmaff.errors import DataError
from sigmaff.graph import batch_graphs, build_graph

CUTOFF = 4.0


def labelled(structures: list[Atoms], stress: bool = False) -> LabelledStructures:
    rng = np.random.default_rng(5)
    return LabelledStructures(
        structures=tuple(structures),
        energy=rng.normal(-1e5, 1, size=len(structures)),
        forces=tuple(rng.normal(size=(len(atoms), 3)) for atoms in structures),
        stress=rng.normal(size=(len(structures), 3, 3)) if stress else None,
        source="made.extxyz",
        frame_index=10 + np.arange(len(structures)),
    )


@pytest.fixture
def mixed() -> LabelledStructures:
    """Molecules, an isolated atom, a cell smaller than the cutoff, a slab, a left-handed and a huge cell."""
    left_handed = bulk("NaCl", "rocksalt", a=5.64)
    left_handed.set_cell(left_handed.cell.array[[1, 0, 2]])
    slab = bulk("Al", cubic=True)
    slab.pbc = (True, True, False)
    huge = Atoms("OH2", molecule("H2O").positions, cell=[1e4, 1e4, 1e4], pbc=True)
    frames = [molecule("CH3CH2OH"), Atoms("H"), bulk("Si"), molecule("H2O"), slab, left_handed, huge]
    return labelled(frames, stress=True)


@pytest.fixture(params=["in memory", "in files"])
def where(request, tmp_path, monkeypatch) -> str:
    """Graphs of large data sets are in files."""
    monkeypatch.setenv("SIGMAFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dataset, "MAX_ATOMS", 0 if request.param == "in files" else 10**9)
    return request.param


@pytest.mark.parametrize("indices", [[0], [3, 0], [1], [0, 1, 2, 3, 4, 5, 6], [6, 2, 2, 1], [1, 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_equals_graphs_one_by_one(mixed, indices, dtype, where):
    made = GraphDataset(mixed, CUTOFF, dtype)
    assert (where == "in files") == any(cache_folder().glob("*/positions"))
    graph, labels = made.batch(indices)
    expected = batch_graphs([build_graph(mixed.structures[index], CUTOFF, dtype) for index in indices])
    assert graph.n_structures == expected.n_structures
    for name in ("positions", "atomic_numbers", "structure_index", "pair_index", "pair_shift"):
        torch.testing.assert_close(getattr(graph, name), getattr(expected, name), rtol=0, atol=0)
    assert (graph.cell is None) == (expected.cell is None)
    if expected.cell is not None:
        torch.testing.assert_close(graph.cell, expected.cell, rtol=0, atol=0)
    np.testing.assert_array_equal(labels.energy.numpy(), mixed.energy[indices])
    assert labels.energy.dtype == torch.float64
    forces = np.concatenate([mixed.forces[index] for index in indices])
    torch.testing.assert_close(labels.forces, torch.as_tensor(forces, dtype=dtype))
    torch.testing.assert_close(labels.stress, torch.as_tensor(mixed.stress[indices], dtype=dtype))


@pytest.mark.parametrize("where", ["in files"], indirect=True)
def test_files_of_graphs_are_made_once_and_known_by_content(mixed, where, monkeypatch):
    first = GraphDataset(mixed, CUTOFF)
    others = {"cutoff": GraphDataset(mixed, 3.0), "forces": GraphDataset(replace(mixed, forces=None), CUTOFF)}
    assert others["forces"].batch([0])[1].forces is None
    assert others["cutoff"].n_pairs.sum() < first.n_pairs.sum()
    moved = mixed.structures[0].copy()
    moved.positions[0] += 1e-9
    GraphDataset(replace(mixed, structures=(moved, *mixed.structures[1:])), CUTOFF)
    assert len(list(cache_folder().glob("*/arrays.json"))) == 4
    monkeypatch.setattr(dataset, "_graph", None)  # nothing is searched for again
    again = GraphDataset(mixed, CUTOFF)
    assert torch.equal(again.graph.pair_index, first.graph.pair_index)
    assert torch.equal(again.batch([2])[1].forces, first.batch([2])[1].forces)


@pytest.mark.parametrize("where", ["in files"], indirect=True)
def test_files_of_graphs_that_a_killed_process_left_are_made_again(mixed, where):
    expected = GraphDataset(mixed, CUTOFF).graph.pair_index.clone()
    (folder,) = (path.parent for path in cache_folder().glob("*/arrays.json"))
    (folder / "arrays.json").unlink()
    (folder / "pairs").write_bytes(b"half")
    (cache_folder() / ".building-x").mkdir()
    assert torch.equal(GraphDataset(mixed, CUTOFF).graph.pair_index, expected)
    assert not list(cache_folder().glob(".building-*"))


def test_shortest_distances_are_those_of_all_pairs(mixed, where, monkeypatch):
    monkeypatch.setattr(distances, "AT_ONCE", 2)
    expected: dict[tuple[int, int], float] = {}
    for atoms in mixed.structures:
        for first, second, length in zip(*neighbor_list("ijd", atoms, CUTOFF), strict=True):
            pair = tuple(sorted((int(atoms.numbers[first]), int(atoms.numbers[second]))))
            expected[pair] = min(length, expected.get(pair, np.inf))
    found = distances.shortest_distances(GraphDataset(mixed, CUTOFF))
    assert [row[:2] for row in found] == sorted(expected)
    assert [row[2] for row in found] == pytest.approx([expected[pair] for pair in sorted(expected)], abs=1e-9)


def test_batches_to_predict_are_bounded_by_pairs(mixed):
    """A molecule does not limit a batch; a cell of a thousand atoms does, but is always one itself."""
    crystal = bulk("Si", cubic=True).repeat(5)
    molecules, crystals = (GraphDataset(labelled([atoms] * 2), CUTOFF) for atoms in (molecule("H2O"), crystal))
    assert molecules.batch_size(32) == 32
    n_pairs = crystals.batch([0])[0].pair_index.shape[1]
    assert crystals.batch_size(32) == max(1, 10_000 // n_pairs) < 32


def test_absent_labels_stay_absent():
    data = LabelledStructures(
        structures=(Atoms("H"),), energy=None, forces=None, source="made", frame_index=np.arange(1)
    )
    labels = GraphDataset(data, CUTOFF).batch([0])[1]
    assert labels.energy is None
    assert labels.forces is None
    assert labels.stress is None


def with_positions(positions: list[list[float]], **cell: object) -> Atoms:
    return Atoms(f"H{len(positions)}", positions=positions, **cell)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        (with_positions([[0, 0, 0], [0, 0, 0.01]]), "atoms 0 and 1 are 0.01 Å apart"),
        (with_positions([[0, 0, 0], [0, np.nan, 0]]), "atom 1 has a position that is not a finite number"),
        (with_positions([[0, 0, 0]], cell=[0, 0, 0], pbc=True), "lattice vector 0 has zero length"),
        (with_positions([[0, 0, 0]], cell=[[3, 0, 0], [3, 0, 0], [0, 0, 3]], pbc=True), "no volume"),
        (with_positions([[0, 0, 0], [4.99, 0, 0]], cell=[5, 5, 5], pbc=True), "overlap"),
    ],
)
def test_bad_structures_are_named(atoms, message):
    with pytest.raises(DataError, match=rf"made\.extxyz, frame 11: .*{message}"):
        GraphDataset(labelled([molecule("H2O"), atoms]), CUTOFF)


@pytest.mark.parametrize("label", ["energy", "forces", "stress"])
def test_bad_labels_are_named(mixed, label):
    if label == "energy":
        mixed.energy[2] = np.inf
    else:
        getattr(mixed, label)[2][1, 2] = np.nan
    where = ", atom 1" if label == "forces" else ""
    with pytest.raises(DataError, match=rf"frame 12{where}: {label} is not a finite number"):
        GraphDataset(mixed, CUTOFF)


def test_no_structures(mixed):
    with pytest.raises(DataError, match="no structures"):
        GraphDataset(mixed.subset([]), CUTOFF)


def test_subset_keeps_frame_numbers_and_order(mixed):
    part = mixed.subset([3, 1])
    assert [atoms.get_chemical_formula() for atoms in part.structures] == ["H2O", "H"]
    np.testing.assert_array_equal(part.frame_index, [13, 11])
    np.testing.assert_array_equal(part.energy, mixed.energy[[3, 1]])
    np.testing.assert_array_equal(part.forces[0], mixed.forces[3])
    np.testing.assert_array_equal(part.stress, mixed.stress[[3, 1]])
