"""Structures with the same atoms, stacked: whole arrays are checked at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sigmaff.data.overlap import comparable
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Structures with the same elements in the same order and the same periodicity."""

    indices: IndexArray  # (m,) of the structures
    numbers: IndexArray  # (n_atoms,)
    is_molecule: bool  # not periodic
    positions: FloatArray  # (m, n_atoms, 3) Å
    forces: FloatArray | None  # (m, n_atoms, 3) eV/Å


def stacks(data: LabelledStructures, size: int | None = None) -> Iterator[Stack]:
    """The structures of a data set.

    Arguments:
        size: largest number of structures in a stack; ``None``: all with the same atoms.
    """
    for indices in comparable(data.structures):
        first = data.structures[indices[0]]
        n = size or len(indices)
        for some in (indices[start : start + n] for start in range(0, len(indices), n)):
            yield Stack(
                indices=some,
                numbers=first.numbers,
                is_molecule=not first.pbc.any(),
                positions=np.array([data.structures[index].positions for index in some]),
                forces=None if data.forces is None else np.array([data.forces[index] for index in some]),
            )


def spaced(indices: IndexArray, at_most: int) -> IndexArray:
    """At most so many of the indices, at equal distances."""
    return indices if len(indices) <= at_most else indices[np.arange(at_most) * len(indices) // at_most]
