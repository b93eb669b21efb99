"""Labelled structures as graphs: search neighbours once, assemble batches fast."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sigmaff.data.store import store_graphs
from sigmaff.data.structures import IndexArray, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, Labels, batch_graphs, build_graph

MAX_PAIRS = 10_000
"""Largest number of pairs to predict at once; limits memory."""


MAX_ATOMS = 5_000_000
"""Of a data set whose graphs are held in memory; those of a larger one are in files (``store.py``)."""


class GraphDataset:
    """All graphs of a data set in flat tensors; a batch gathers the rows of its structures.

    ``graph`` holds all structures as one. Above MAX_ATOMS atoms its tensors are files that are mapped into memory.

    Arguments:
        structures: eV and Å.
        cutoff: radius within which atoms are neighbours, Å.
        dtype: of pair vectors, forces and stresses; energies are float64.
    """

    def __init__(self, structures: LabelledStructures, cutoff: float, dtype: torch.dtype = torch.float32) -> None:
        if not len(structures):
            raise DataError(f"{structures.source}: the data set has no structures")
        _check_labels(structures)
        self.structures = structures
        self.cutoff = cutoff
        searched = (_graph(structures, index, cutoff, dtype) for index in range(len(structures)))
        self.graph: AtomicGraph
        self.n_atoms: Tensor  # (n_structures,)
        self.n_pairs: Tensor  # (n_structures,)
        self._forces: Tensor | None
        if sum(map(len, structures.structures)) > MAX_ATOMS:
            stored = store_graphs(structures, searched, cutoff, dtype)
            self.graph, self._forces = stored.graph, stored.forces
            self.n_atoms, self.n_pairs = stored.n_atoms.clone(), stored.n_pairs.clone()
        else:
            graphs = list(searched)
            self.graph = batch_graphs(graphs)
            self.n_atoms = torch.tensor([graph.n_atoms for graph in graphs])
            self.n_pairs = torch.tensor([graph.pair_index.shape[1] for graph in graphs])
            self._forces = _tensor(None if structures.forces is None else np.concatenate(structures.forces), dtype)
        self._first_atom, self._first_pair = _starts(self.n_atoms), _starts(self.n_pairs)
        self._energy = _tensor(structures.energy, torch.float64)
        self._stress = _tensor(structures.stress, dtype)

    def __len__(self) -> int:
        return len(self.structures)

    @property
    def mean_neighbors(self) -> float:
        """Mean number of neighbours of an atom within the cutoff; each pair counts for both of its atoms."""
        return 2.0 * self.graph.pair_index.shape[1] / self.graph.n_atoms

    def batch_size(self, at_most: int) -> int:
        """Number of structures to predict at once: no batch has more than MAX_PAIRS pairs; at least 1 structure."""
        return min(at_most, max(1, MAX_PAIRS // max(1, int(self.n_pairs.max()))))

    def batch(self, indices: Sequence[int] | IndexArray | Tensor) -> tuple[AtomicGraph, Labels]:
        """Return the structures at these indices as one graph, and their labels."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        everything = self.graph
        first_atom, n_atoms = self._first_atom[chosen], self.n_atoms[chosen]
        atoms, structure_index = _rows(first_atom, n_atoms)
        pairs, pair_structure = _rows(self._first_pair[chosen], self.n_pairs[chosen])
        cell = None if everything.cell is None else everything.cell[chosen]
        graph = AtomicGraph(
            positions=everything.positions[atoms],
            atomic_numbers=everything.atomic_numbers[atoms],
            structure_index=structure_index,
            pair_index=everything.pair_index[:, pairs] + (_starts(n_atoms) - first_atom)[pair_structure],
            pair_shift=everything.pair_shift[pairs],
            cell=cell if cell is not None and cell.any() else None,
            n_structures=len(chosen),
            dtype=everything.dtype,
        )
        labels = Labels(
            energy=None if self._energy is None else self._energy[chosen],
            forces=None if self._forces is None else self._forces[atoms],
            stress=None if self._stress is None else self._stress[chosen],
        )
        return graph, labels


def _starts(count: Tensor) -> Tensor:
    return torch.cumsum(count, 0) - count


def _rows(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``first[k] … first[k] + count[k] − 1`` for each k in turn, and the k that each row belongs to."""
    owner = torch.repeat_interleave(count)
    return torch.arange(len(owner)) + (first - _starts(count))[owner], owner


def _graph(structures: LabelledStructures, index: int, cutoff: float, dtype: torch.dtype) -> AtomicGraph:
    try:
        return build_graph(structures.structures[index], cutoff, dtype)
    except DataError as error:
        raise DataError(f"{structures.frame_name(index)}: {error}") from error


def _check_labels(structures: LabelledStructures) -> None:
    """Reject labels that are not finite numbers: training would turn every weight into NaN."""
    for label, values in structures.labels.items():
        for index, value in enumerate(values):
            if not np.isfinite(value).all():
                where = f", atom {np.argwhere(~np.isfinite(value))[0, 0]}" if label == "forces" else ""
                raise DataError(f"{structures.frame_name(index)}{where}: {label} is not a finite number")


def _tensor(values: np.ndarray | None, dtype: torch.dtype) -> Tensor | None:
    return None if values is None else torch.as_tensor(values, dtype=dtype)
