"""Structures that occur more than once: within a data set, or in a training and a test set."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms

from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures

TOLERANCE = 1e-6
"""Å. Two structures are equal if no coordinate or cell component differs by more than this."""


def find_overlap(a: LabelledStructures, b: LabelledStructures) -> IndexArray:
    """Return the indices of the structures of ``b`` that are also in ``a``."""
    first = first_occurrence([*a.structures, *b.structures])[len(a) :]
    return np.flatnonzero(first < len(a))


def overlapping(a: LabelledStructures, b: LabelledStructures) -> list[tuple[int, int]]:
    """Return for each structure of ``b`` that is also in ``a`` its indices in both, in the order of ``b``."""
    first = first_occurrence([*a.structures, *b.structures])
    return [(int(first[len(a) + index]), int(index)) for index in find_overlap(a, b)]


def first_occurrence(structures: Sequence[Atoms]) -> IndexArray:
    """Return for each structure the index of the first equal structure, (n,): its own index if there is none before."""
    first = np.arange(len(structures))
    for indices, coordinates in _comparable(structures):
        for members in _candidates(coordinates):
            distinct: list[int] = []
            for member in np.sort(members).tolist():
                same = [k for k in distinct if np.abs(coordinates[k] - coordinates[member]).max() <= TOLERANCE]
                if same:
                    first[indices[member]] = indices[same[0]]
                else:
                    distinct.append(member)
    return first


def comparable(structures: Sequence[Atoms]) -> list[IndexArray]:
    """Group structures with the same elements in the same order and the same periodicity: indices of each group."""
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    for index, atoms in enumerate(structures):
        groups.setdefault((atoms.numbers.tobytes(), atoms.pbc.tobytes()), []).append(index)
    return [np.array(indices) for indices in groups.values()]


def _comparable(structures: Sequence[Atoms]) -> Iterator[tuple[IndexArray, FloatArray]]:
    """Groups of comparable structures with their coordinates."""
    for indices in comparable(structures):
        yield indices, np.array([_coordinates(structures[index]) for index in indices])


def _coordinates(atoms: Atoms) -> FloatArray:
    cell = atoms.cell.array if atoms.pbc.any() else np.zeros((3, 3))
    return np.concatenate([atoms.positions.ravel(), cell.ravel()])


def _candidates(coordinates: FloatArray) -> Iterator[IndexArray]:
    """Find rows that can be equal: neighbours along one direction in the space of all coordinates.

    Rows that differ by at most t in each of d coordinates differ by at most t √d along a unit vector.
    """
    size = coordinates.shape[1]
    direction = np.random.default_rng(0).normal(size=size)
    projected = coordinates @ (direction / np.linalg.norm(direction))
    order = np.argsort(projected)
    breaks = np.flatnonzero(np.diff(projected[order]) > TOLERANCE * np.sqrt(size)) + 1
    yield from (members for members in np.split(order, breaks) if len(members) > 1)
