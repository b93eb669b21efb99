"""Neighbour pairs of structures that move: searched within a skin around the cutoff, and kept until an atom left it.

An atom at x₀ in a cell h₀, which is h now, would be at x₀F if it followed the cell, with F = h₀⁻¹h. It is w away from
there. Two atoms that were farther apart than c + s are farther apart than σ(c + s) − 2 max|w|, with σ the smallest
singular value of F. No pair is missed as long as this is no less than the cutoff c.

| symbol | variable |
|---|---|
| c, s | ``cutoff``, ``skin`` |
| x₀, h₀ | ``_positions``, ``_cells`` |
| F | ``deformation`` |
| max w | ``budget`` |
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sigmaff.errors import DataError
from sigmaff.graph.neighbors import FloatArray, IndexArray, search_pairs

SKIN = 0.5
"""Å."""
SMALL, WIDE_SKIN = 32, 20.0
"""A structure of so few atoms that is not periodic gets a skin of so many Å: nearly all of its pairs."""
ROUNDING = 1e-6
"""Å. Subtracted from the way that an atom may go."""


class Pairs(NamedTuple):
    """Pairs within the cutoff: those of ``neighbor_pairs``, structure by structure."""

    atoms: IndexArray  # (2, n_pairs)
    shift: FloatArray  # (n_pairs, 3) Å
    distance: FloatArray  # (n_pairs,) Å


class SkinList:
    """The neighbour pairs of a batch of structures, whose numbers of atoms and periodic axes stay the same."""

    def __init__(
        self, n_atoms: Sequence[int], periodic: npt.NDArray[np.bool_], cutoff: float, *, skin: float = SKIN
    ) -> None:
        """
        n_atoms: of each structure.
        periodic: (n_structures, 3) whether each lattice vector is periodic.
        cutoff: Å.
        skin: Å; 0 searches whenever an atom moved.
        """
        self.cutoff = cutoff
        self.problems: dict[int, str] = {}  # by structure: why it cannot be searched, and has no pairs
        self.n_searches = 0
        n_structures, self.periodic = len(n_atoms), periodic
        self._is_whole, self._is_open = np.asarray(periodic.all(1)), np.asarray(~periodic.any(1))
        counts = np.asarray(n_atoms, dtype=np.int64)
        self._first = np.concatenate([[0], np.cumsum(counts)])
        self._structure = np.repeat(np.arange(n_structures), counts)
        is_small = self._is_open & (counts <= SMALL) & (skin > 0)
        self._skin: FloatArray = np.where(is_small, WIDE_SKIN, skin)
        self._positions, self._cells = np.full((self._first[-1], 3), np.nan), np.full((n_structures, 3, 3), np.nan)
        self._found: list[tuple[IndexArray, IndexArray]] = [_NONE] * n_structures  # pairs, and their images
        self._boxes = np.zeros((n_structures, 3, 3))  # that the images count in
        self._now = self._cells.copy()  # cells that ``_shift`` is for
        self._of = np.zeros(0, dtype=np.int64)  # structure of each pair
        self._index, self._images, self._shift = np.zeros((2, 0), dtype=np.int64), np.zeros((0, 3)), np.zeros((0, 3))

    def select(self, chosen: npt.NDArray[np.bool_]) -> "SkinList":
        """The list of these structures alone; what was searched stays."""
        counts, kept = np.diff(self._first)[chosen], np.flatnonzero(chosen)
        other = SkinList(counts.tolist(), self.periodic[chosen], self.cutoff)
        other._skin, other._boxes, other._cells = self._skin[chosen], self._boxes[chosen], self._cells[chosen]
        other._positions = self._positions[chosen[self._structure]]
        other._found = [self._found[structure] for structure in kept.tolist()]
        other._join()
        return other

    def pairs(self, positions: FloatArray, cells: FloatArray) -> Pairs:
        """The pairs of finite positions (n_atoms, 3) and cells (n_structures, 3, 3), Å.

        Order and numbers depend on these alone, to the last bit, and not on when pairs were searched.
        """
        stale = self._stale(positions, cells)
        if len(stale):
            self._search(stale, positions, cells)
        if len(stale) or not np.array_equal(cells, self._now):
            self._now = cells.copy()
            boxes = np.where(self._is_whole[:, None, None], cells, self._boxes)[self._of]
            self._shift = (self._images[:, :, None] * boxes).sum(1)
        first, second = self._index
        vector = positions.take(second, axis=0)
        vector += self._shift
        vector -= positions.take(first, axis=0)
        distance = np.sqrt(np.square(vector).sum(1))
        near = np.flatnonzero(distance <= self.cutoff)
        if len(near) == len(distance):
            return Pairs(self._index, self._shift, distance)
        return Pairs(self._index.take(near, axis=1), self._shift.take(near, axis=0), distance.take(near))

    def _stale(self, positions: FloatArray, cells: FloatArray) -> IndexArray:
        """Structures that have a pair, perhaps, that is not kept."""
        followed, reach = self._positions, self.cutoff + self._skin
        if not np.array_equal(cells, self._cells):
            deformation, reach = self._deformed(cells, reach)
            followed = np.einsum("ai,aij->aj", followed, deformation[self._structure])
        budget = 0.5 * (reach - self.cutoff) - ROUNDING
        limit = np.where(budget > 0.0, np.square(budget), -1.0)[self._structure]
        has_left = ~(np.square(positions - followed).sum(1) <= limit)  # NaN: never searched
        return np.unique(self._structure[has_left]) if has_left.any() else _NO_INDEX

    def _deformed(self, cells: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Deformations since the search, (n_structures, 3, 3), and how far the pairs reach now, (n_structures,) Å.

        A cell that is periodic along some axes only must not change at all.
        """
        deformation = np.tile(np.eye(3), (len(cells), 1, 1))
        is_changed = (cells != self._cells).any((1, 2)) & ~self._is_open
        reach = np.where(is_changed & ~self._is_whole, 0.0, reach)
        chosen = np.flatnonzero(is_changed & self._is_whole & np.isfinite(self._cells).all((1, 2)))
        deformation[chosen] = np.linalg.solve(self._cells[chosen], cells[chosen])
        reach[chosen] *= np.linalg.svd(deformation[chosen], compute_uv=False)[:, -1]
        return deformation, reach

    def _search(self, stale: IndexArray, positions: FloatArray, cells: FloatArray) -> None:
        """Find the pairs of these structures anew."""
        for structure in stale.tolist():
            atoms = slice(self._first[structure], self._first[structure + 1])
            reach = self.cutoff + self._skin[structure]
            self.problems.pop(structure, None)
            self._positions[atoms], self._cells[structure] = positions[atoms], cells[structure]
            self.n_searches += 1
            try:
                where = (positions[atoms], cells[structure], self.periodic[structure])
                index, images, _, self._boxes[structure] = search_pairs(*where, self.cutoff, reach)
                self._found[structure] = index, images
            except DataError as error:
                self.problems[structure], self._found[structure] = str(error), _NONE
                self._positions[atoms] = self._cells[structure] = np.nan  # search again
        self._join()

    def _join(self) -> None:
        """The pairs of all structures in one row."""
        pairs = zip(self._found, self._first, strict=False)
        self._index = np.concatenate([index + first for (index, _), first in pairs], axis=1)
        self._images = np.concatenate([images for _, images in self._found]).astype(np.float64)
        self._of = np.repeat(np.arange(len(self._found)), [len(images) for _, images in self._found])


_NO_INDEX = np.zeros(0, dtype=np.int64)
_NONE = np.zeros((2, 0), dtype=np.int64), np.zeros((0, 3), dtype=np.int64)
