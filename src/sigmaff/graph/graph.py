"""The input of a model: a batch of structures as one graph, and its labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, Self

import torch
from ase import Atoms
from torch import Tensor

from sigmaff.errors import DataError
from sigmaff.graph.layout import Layout
from sigmaff.graph.neighbors import neighbor_pairs
from sigmaff.graph.ops import scatter_sum


@dataclass(frozen=True, kw_only=True)
class AtomicGraph:
    """A batch of structures as one disconnected graph. Lengths in Å.

    Positions, shifts and cells are float64. A network sees pair vectors, formed in float64 and then cast to ``dtype``:
    the precision of a distance does not depend on the size of the structure.
    """

    positions: Tensor  # (n_atoms, 3)
    atomic_numbers: Tensor  # (n_atoms,)
    structure_index: Tensor  # (n_atoms,) sorted
    pair_index: Tensor  # (2, n_pairs) each pair once
    pair_shift: Tensor  # (n_pairs, 3) Cartesian offset of the second atom's periodic image
    cell: Tensor | None  # (n_structures, 3, 3) rows are lattice vectors; zero where a structure is not periodic
    n_structures: int
    incoming: Tensor | None = None  # (n_atoms, n_most) edges that end at each atom; see ``with_incoming``
    dtype: torch.dtype = torch.float64  # of pair vectors, embeddings and forces
    layout: Layout | None = None  # of a graph that compiled code sees
    vectors: Tensor | None = None  # (n_pairs, 3) in place of what positions give, to differentiate by

    @property
    def n_atoms(self) -> int:
        return self.positions.shape[0]

    def atoms_per_structure(self) -> Tensor:
        return torch.bincount(self.structure_index, minlength=self.n_structures)

    def atom_rank(self) -> Tensor:
        """Index of each atom in its own structure, (n_atoms,)."""
        return _rank(self.structure_index)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Arrange atoms by structure: (..., n_atoms, d) -> (..., n_structures, n_largest, d).

        Structures with fewer than n_largest atoms are filled up with ``fill``.
        """
        if self.layout is not None and fill == 0.0 and values.ndim == 2:
            return self.layout.padded(values)
        n_largest = self.n_atoms if self.n_structures == 1 else int(self.atoms_per_structure().max())
        if self.n_atoms == self.n_structures * n_largest:  # all of one size
            return values.unflatten(-2, (self.n_structures, n_largest))
        slot = self.structure_index * n_largest + self.atom_rank()
        shape = (*values.shape[:-2], self.n_structures * n_largest, values.shape[-1])
        padded = values.new_full(shape, fill).index_copy(-2, slot, values)
        return padded.unflatten(-2, (self.n_structures, n_largest))

    def pad_each(self, *values: Tensor) -> tuple[Tensor, ...]:
        """``pad`` of several arrays of atoms, at once."""
        return self.pad(torch.cat(values, dim=-1)).split([part.shape[-1] for part in values], dim=-1)

    def row_blocks(self, first: Tensor, second: Tensor, n_pairs: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Padded atoms (n_structures, n_largest, d) in blocks with up to n_pairs pairs of atoms of one structure."""
        if self.layout is not None:  # compiled code has no such loop
            return [(first, second)]
        block = max(1, n_pairs // (first.shape[0] * first.shape[1]))
        return zip(first.split(block, dim=1), second.split(block, dim=1), strict=True)

    def sum_of_structures(self, values: Tensor) -> Tensor:
        """Sum over the atoms of each structure: (n_atoms, ...) -> (n_structures, ...)."""
        if self.layout is not None:
            return self.layout.sum_of_structures(values)
        return scatter_sum(values, self.structure_index, self.n_structures)

    def pair_vectors(self) -> Tensor:
        """Vectors from the first to the second atom of each pair, (n_pairs, 3) Å, in ``dtype``."""
        if self.vectors is not None:
            return self.vectors.to(self.dtype)
        first, second = self.pair_index
        return (self.positions[second] + self.pair_shift - self.positions[first]).to(self.dtype)

    def with_incoming(self) -> Self:
        """Add ``incoming``, the directed edges that end at each atom, (n_atoms, n_most).

        Pair p has two directed edges: 2p ends at its first atom, 2p + 1 at its second; e ^ 1 reverses e.
        n_most is the largest number of edges of one atom; rows with fewer are filled up with 2 · n_pairs.
        """
        if self.incoming is not None:
            return self
        if self.layout is not None:
            return replace(self, incoming=self.layout.incoming(self.pair_index.shape[1]))
        end = self.pair_index.T.flatten()
        order = torch.argsort(end, stable=True)
        end = end[order]
        rank = _rank(end)
        n_most = int(rank.max()) + 1 if len(end) else 0
        incoming = end.new_full((self.n_atoms, n_most), len(end))
        incoming[end, rank] = order
        return replace(self, incoming=incoming)

    def within(self, cutoff: float) -> Self:
        """Remove the pairs that are farther apart than ``cutoff`` Å."""
        near = self.pair_vectors().norm(dim=-1) <= cutoff
        if bool(near.all()):
            return self
        return replace(self, pair_index=self.pair_index[:, near], pair_shift=self.pair_shift[near], incoming=None)

    def with_positions(self, positions: Tensor) -> Self:
        """Replace the positions, (n_atoms, 3) Å, and keep the pairs. Forces are derivatives with respect to them."""
        return replace(self, positions=positions)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move all tensors to a device. ``dtype`` is that of pair vectors."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: value.to(device=device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **(values | {"dtype": dtype or self.dtype}))


def _rank(group: Tensor) -> Tensor:
    """Index of each element in its own group, (n,), for sorted group numbers (n,)."""
    return torch.arange(len(group), device=group.device) - torch.searchsorted(group, group)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Reference values of a quantum-chemistry code. eV and Å; stress has ASE's sign.

    They are separate from the graph, so that a model cannot see its targets.
    """

    energy: Tensor | None = None  # (n_structures,) float64
    forces: Tensor | None = None  # (n_atoms, 3)
    stress: Tensor | None = None  # (n_structures, 3, 3)


def build_graph(atoms: Atoms, cutoff: float, dtype: torch.dtype = torch.float32) -> AtomicGraph:
    """Build the graph of one structure, with all pairs of atoms (and periodic images) within the cutoff.

    Positions are stored relative to their mean.

    Arguments:
        atoms: positions and cell in Å.
        cutoff: Å.
        dtype: of the pair vectors.
    """
    if len(atoms) == 0:
        raise DataError("the structure has no atoms")
    periodic = bool(atoms.pbc.any())
    positions = atoms.get_positions()
    pair_index, pair_shift = neighbor_pairs(
        positions, atoms.cell.array if periodic else None, atoms.pbc if periodic else None, cutoff
    )
    return AtomicGraph(
        positions=torch.as_tensor(positions - positions.mean(0)),
        atomic_numbers=torch.as_tensor(atoms.numbers, dtype=torch.int64),
        structure_index=torch.zeros(len(atoms), dtype=torch.int64),
        pair_index=torch.as_tensor(pair_index),
        pair_shift=torch.as_tensor(pair_shift),
        cell=torch.tensor(atoms.cell.array).unsqueeze(0) if periodic else None,
        n_structures=1,
        dtype=dtype,
    )


def batch_graphs(graphs: Sequence[AtomicGraph]) -> AtomicGraph:
    """Concatenate graphs into one disconnected graph, in order."""
    if len(graphs) == 1:
        return graphs[0]
    first_atom = accumulate((graph.n_atoms for graph in graphs), initial=0)
    first_structure = accumulate((graph.n_structures for graph in graphs), initial=0)
    cells = [
        graph.positions.new_zeros(graph.n_structures, 3, 3) if graph.cell is None else graph.cell for graph in graphs
    ]
    return AtomicGraph(
        positions=torch.cat([graph.positions for graph in graphs]),
        atomic_numbers=torch.cat([graph.atomic_numbers for graph in graphs]),
        structure_index=torch.cat(
            [graph.structure_index + k for graph, k in zip(graphs, first_structure, strict=False)]
        ),
        pair_index=torch.cat([graph.pair_index + k for graph, k in zip(graphs, first_atom, strict=False)], dim=1),
        pair_shift=torch.cat([graph.pair_shift for graph in graphs]),
        cell=None if all(graph.cell is None for graph in graphs) else torch.cat(cells),
        n_structures=sum(graph.n_structures for graph in graphs),
        dtype=graphs[0].dtype,
    )
