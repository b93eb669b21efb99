"""Graphs of one structure after another, with a neighbour list that is kept while atoms move little."""

import numpy as np
import torch
from ase import Atoms

from sigmaff.errors import DataError
from sigmaff.graph.graph import AtomicGraph
from sigmaff.graph.neighbors import neighbor_pairs, require_apart
from sigmaff.graph.skin import SKIN, SkinList


class GraphBuilder:
    """Builds the graphs of ``build_graph``, faster where a structure is the last one, moved."""

    def __init__(self, cutoff: float, *, skin: float = SKIN) -> None:
        """
        cutoff: Å.
        skin: Å, around the cutoff; 0 searches neighbours each time.
        """
        self.cutoff, self.skin = cutoff, skin
        self._numbers, self._periodic = np.zeros(0, dtype=np.int64), np.zeros(3, dtype=bool)
        self._neighbors = SkinList([], np.zeros((0, 3), dtype=bool), cutoff)
        self._atomic_numbers = self._structure_index = torch.zeros(0, dtype=torch.int64)

    def build(self, atoms: Atoms) -> AtomicGraph:
        """The graph of one structure, with pair vectors in float64."""
        if len(atoms) == 0:
            raise DataError("the structure has no atoms")
        if not (np.array_equal(atoms.numbers, self._numbers) and np.array_equal(atoms.pbc, self._periodic)):
            self._begin(atoms)
        positions, cell, is_periodic = atoms.positions, atoms.cell.array, bool(self._periodic.any())
        if not np.isfinite(positions).all() or (is_periodic and not np.isfinite(cell).all()):
            neighbor_pairs(positions, cell, self._periodic, self.cutoff)  # says what is wrong
        pairs = self._neighbors.pairs(positions, cell[None])
        for problem in self._neighbors.problems.values():
            raise DataError(problem)
        require_apart(pairs.atoms, pairs.distance)
        return AtomicGraph(
            positions=torch.as_tensor(positions - positions.mean(0)),
            atomic_numbers=self._atomic_numbers,
            structure_index=self._structure_index,
            pair_index=torch.as_tensor(pairs.atoms),
            pair_shift=torch.as_tensor(pairs.shift),
            cell=torch.tensor(cell).unsqueeze(0) if is_periodic else None,
            n_structures=1,
        )

    def _begin(self, atoms: Atoms) -> None:
        """With another structure."""
        self._numbers, self._periodic = atoms.numbers.copy(), atoms.pbc.copy()
        self._neighbors = SkinList([len(atoms)], self._periodic[None], self.cutoff, skin=self.skin)
        self._atomic_numbers = torch.as_tensor(self._numbers, dtype=torch.int64)
        self._structure_index = torch.zeros(len(atoms), dtype=torch.int64)
