"""Where atoms and edges stand in padded arrays: what compiled code needs, and cannot find out by itself.

Compiled code takes arrays of any length, but no length may follow from numbers in them. So what sorts and counts is
done here, once for a list of pairs. Sums over neighbours, atoms of a structure and atoms of an element then have an
axis of their own. That axis is the first: a compiled loop over the last one, features, reads consecutive numbers.

In this module a slot of an atom holds one of the directed edges that end at it.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IndexArray = npt.NDArray[np.int64]

DYNAMIC_AXES: tuple[tuple[int, ...], ...] = ((0, 1), (0, 1), (0, 1), (0,), (0, 1), (0, 1), (1,), (0,))
"""Of each tensor of a layout, the axes whose length depends on the structures."""
LEAST = 2
"""Length of every axis, at least: the compiler takes a length of one for a constant."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Indices of a batch with n_atoms atoms and n_pairs pairs. Where nothing stands, an index is 0 and the mask too."""

    neighbor: Tensor  # (n_slots, n_atoms) atom that the edge comes from
    pair: Tensor  # (n_slots, n_atoms) pair of the edge
    side: Tensor  # (n_slots, n_atoms) float32: −1 if the atom is the first of the pair, 1 if the second, 0 if empty
    slot: Tensor  # (n_pairs, 2) place of both edges of a pair among all slots: that at its first atom, at its second
    member: Tensor  # (n_largest, n_structures) atoms of each structure
    is_member: Tensor  # (n_largest, n_structures) float32 mask
    of_element: Tensor  # (n_elements, n_most) atoms of each element of a model
    place: Tensor  # (n_atoms,) of each atom in the array of elements

    @classmethod
    def of(
        cls, pair_index: Tensor, structure_index: Tensor, n_structures: int, elements: Tensor, n_elements: int
    ) -> Self:
        """Lay out a batch.

        Arguments:
            pair_index: (2, n_pairs).
            structure_index: (n_atoms,) sorted.
            elements: (n_atoms,) of each atom, from 0 to n_elements − 1.
        """
        n_atoms = len(structure_index)
        found = {
            **_slots(pair_index.cpu().numpy(), n_atoms),
            **_members(structure_index.cpu().numpy(), n_structures),
            **_of_elements(elements.cpu().numpy(), n_elements),
        }
        return cls(**{name: torch.as_tensor(values, device=pair_index.device) for name, values in found.items()})

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in order, as ``Layout.from_tensors`` takes them."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @classmethod
    def from_tensors(cls, tensors: tuple[Tensor, ...]) -> Self:
        names = (field.name for field in fields(cls))
        given: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return cls(**given)

    def incoming(self, n_pairs: int) -> Tensor:
        """Edges that end at each atom, as ``AtomicGraph.with_incoming`` numbers them, (n_atoms, n_slots)."""
        edge = 2 * self.pair + (self.side > 0)
        return torch.where(self.side == 0, 2 * n_pairs, edge).T

    def sum_of_structures(self, values: Tensor) -> Tensor:
        """Sum over the atoms of each structure: (n_atoms, ...) -> (n_structures, ...)."""
        mask = self.is_member.view(*self.is_member.shape, *[1] * (values.ndim - 1)).to(values.dtype)
        return (values[self.member] * mask).sum(0)

    def padded(self, values: Tensor) -> Tensor:
        """Atoms by structure: (n_atoms, d) -> (n_structures, n_largest, d), filled up with zeros."""
        return values[self.member.T] * self.is_member.T.unsqueeze(-1).to(values.dtype)

    def sum_of_edges(self, values: Tensor) -> Tensor:
        """Sum over the edges that end at an atom of what belongs to pairs: (n_pairs, ...) -> (n_atoms, ...)."""
        mask = self.side.abs().view(*self.side.shape, *[1] * (values.ndim - 1)).to(values.dtype)
        return (values[self.pair] * mask).sum(0)

    def sum_by_side(self, values: Tensor) -> Tensor:
        """The same, with the sign of the atom's side: derivatives by positions from those by the vectors of pairs."""
        side = self.side.view(*self.side.shape, *[1] * (values.ndim - 1)).to(values.dtype)
        return (values[self.pair] * side).sum(0)


def _slots(pair_index: IndexArray, n_atoms: int) -> dict[str, npt.NDArray[Any]]:
    first, second = pair_index
    n_pairs = len(first)
    end, start = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(end, kind="stable")
    counts = np.bincount(end, minlength=n_atoms)
    n_slots = max(LEAST, int(counts.max(initial=0)))
    filled = (_rank(counts), end[order])
    neighbor, pair = np.zeros((2, n_slots, n_atoms), dtype=np.int64)
    side = np.zeros((n_slots, n_atoms), dtype=np.float32)
    neighbor[filled], pair[filled] = start[order], order % n_pairs
    side[filled] = np.where(order < n_pairs, -1.0, 1.0)
    slot = np.empty(2 * n_pairs, dtype=np.int64)
    slot[order] = filled[0] * n_atoms + filled[1]
    return {"neighbor": neighbor, "pair": pair, "side": side, "slot": slot.reshape(2, n_pairs).T.copy()}


def _members(structure_index: IndexArray, n_structures: int) -> dict[str, npt.NDArray[Any]]:
    counts = np.bincount(structure_index, minlength=n_structures)
    member = np.zeros((max(LEAST, int(counts.max())), n_structures), dtype=np.int64)
    is_member = np.zeros(member.shape, dtype=np.float32)
    filled = (_rank(counts), structure_index)
    member[filled], is_member[filled] = np.arange(len(structure_index)), 1.0
    return {"member": member, "is_member": is_member}


def _of_elements(elements: IndexArray, n_elements: int) -> dict[str, npt.NDArray[Any]]:
    counts = np.bincount(elements, minlength=n_elements)
    order = np.argsort(elements, kind="stable")
    of_element = np.zeros((n_elements, max(LEAST, int(counts.max()))), dtype=np.int64)
    filled = (elements[order], _rank(counts))
    of_element[filled] = order
    place = np.empty(len(elements), dtype=np.int64)
    place[order] = filled[0] * of_element.shape[1] + filled[1]
    return {"of_element": of_element, "place": place}


def _rank(counts: IndexArray) -> IndexArray:
    """Index of each element in its own group, for sorted groups of these sizes."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
