"""Check geometries: atoms too close or too far, lengths in another unit, cells that look wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.units import Bohr
from numpy.typing import NDArray

from sigmaff.data.check.finding import Finding, findings
from sigmaff.data.check.stacks import Stack, spaced, stacks
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.graph.neighbors import MIN_DISTANCE, neighbor_pairs

OVERLAP = 0.5
"""Two atoms closer than this fraction of the sum of their covalent radii overlap."""

LONELY = 5.0
"""Å. An atom without a neighbour within this distance is isolated."""

TOLERANCE = 1e-3
"""Å. Distances in files are rounded: an atom at exactly 5 Å has a neighbour."""

SMALL_VOLUME = 3.0
"""Å³ per atom of a periodic cell. Diamond, which is very dense, has 5.7."""

BONDS = (0.75, 1.15)
"""Distances of nearest neighbours in units of the sum of covalent radii: medians of data sets."""

BOND = 1.3
"""Longest bond, in the same unit."""

LOOSE = frozenset((2, 10, 18, 36, 54, 86))
"""Noble gases, which have no bonds."""

SYMMETRIC = 1e-2
"""Sum of forces on an atom over the sum of their sizes. A cutoff cuts shells of distorted crystals."""

STACKED_ATOMS = 60
"""Up to this size, all distances in a molecule cost less than a search for neighbours."""

AT_ONCE = 2**21
"""Distances computed at once; bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Of nearest neighbours in each structure, (n,); NaN in structures that were not looked at."""

    closest: FloatArray  # smallest distance / sum of covalent radii
    typical: FloatArray  # the same, median over atoms
    farthest: FloatArray  # Å; largest distance of an atom to its nearest neighbour
    unusable: dict[int, str] = field(default_factory=dict)  # reason by index

    def put(self, indices: IndexArray | int, ratio: FloatArray, nearest: FloatArray) -> None:
        """Arguments: of the nearest neighbour of each atom, (..., n_atoms): distance / sum of radii, distance in Å."""
        self.closest[indices], self.typical[indices] = ratio.min(-1), np.median(ratio, axis=-1)
        self.farthest[indices] = nearest.max(-1)


def check_geometry(data: LabelledStructures, max_searched: int | None = None) -> Iterator[Finding]:
    """Find atoms that overlap or have no neighbours, and lengths in another unit.

    Arguments:
        max_searched: atoms whose neighbours are searched for, in periodic and large structures; ``None``: all.
    """
    found, n_left_out = measure(data, max_searched)
    yield from _length_unit(data, found)
    message = f"structures cannot be used: {next(iter(found.unusable.values()), '')}; remove them"
    yield from findings("error", "unusable_structure", message, data, sorted(found.unusable))
    message = f"atoms closer than {OVERLAP} times the sum of their covalent radii; remove these frames"
    yield from findings("error", "overlapping_atoms", message, data, np.flatnonzero(found.closest < OVERLAP))
    message = f"atoms without a neighbour within {LONELY:g} Å, as in dissociated molecules"
    yield from findings("warning", "lonely_atoms", message, data, np.flatnonzero(found.farthest > LONELY + TOLERANCE))
    if n_left_out:
        n = len(data) - n_left_out
        message = f"distances were computed in {n} of {len(data)} structures; 'sigmaff check' computes them in all"
        yield from findings("info", "sampled", message, data)


def measure(data: LabelledStructures, max_searched: int | None = None) -> tuple[Distances, int]:
    """Distances between neighbours, and in how many structures they were not computed for ``max_searched``."""
    to_search = [np.zeros(0, dtype=np.int64)]
    closest, typical, farthest = np.full((3, len(data)), np.nan)
    found = Distances(closest=closest, typical=typical, farthest=farthest)
    for stack in stacks(data, size=2048):
        if stack.is_molecule and 1 < len(stack.numbers) <= STACKED_ATOMS:
            _measure_molecules(stack, found)
        elif not stack.is_molecule or len(stack.numbers) > 1:
            to_search.append(stack.indices)
    searched, n = np.sort(np.concatenate(to_search)), 0
    if max_searched is not None and len(searched):
        mean = np.mean([len(data.structures[index]) for index in searched])
        n, searched = len(searched), spaced(searched, max(1, int(max_searched / mean)))
        n -= len(searched)
    for index in searched.tolist():
        _search(data, index, found)
    return found, n


def _measure_molecules(stack: Stack, found: Distances) -> None:
    n_atoms = len(stack.numbers)
    radii = covalent_radii[stack.numbers]
    sums = radii[:, None] + radii
    at_once = max(1, AT_ONCE // n_atoms**2)
    for start in range(0, len(stack.indices), at_once):
        x = stack.positions[start : start + at_once]
        x = x - x.mean(1, keepdims=True)
        square = np.sum(x**2, axis=2)
        distances = square[:, :, None] + square[:, None, :] - 2 * x @ x.transpose(0, 2, 1)
        distances = np.sqrt(np.maximum(distances, 0.0))
        distances[:, np.arange(n_atoms), np.arange(n_atoms)] = np.inf
        nearest, some = distances.min(2), stack.indices[start : start + at_once]
        found.put(some, (distances / sums).min(2), nearest)
        for row in np.flatnonzero(nearest.min(1) < MIN_DISTANCE):
            one, two = np.unravel_index(np.argmin(distances[row]), sums.shape)
            found.unusable[int(some[row])] = f"atoms {one} and {two} are {nearest[row].min():.3g} Å apart; they overlap"
            found.closest[some[row]] = np.nan


def _search(data: LabelledStructures, index: int, found: Distances) -> None:
    atoms = data.structures[index]
    try:
        pairs, shift = neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, LONELY + TOLERANCE)
    except DataError as error:
        found.unusable[index] = str(error)
        return
    distance = np.linalg.norm(atoms.positions[pairs[1]] + shift - atoms.positions[pairs[0]], axis=1)
    ratio = distance / covalent_radii[atoms.numbers][pairs].sum(0)
    if len(atoms) == 1 and not len(distance):
        return
    found.put(index, smallest(pairs, ratio, len(atoms)), smallest(pairs, distance, len(atoms)))


def smallest(pairs: IndexArray, values: FloatArray, n_atoms: int) -> FloatArray:
    """Of the pairs of each atom, (n_atoms,); infinite without a pair."""
    smallest = np.full(n_atoms, np.inf)
    np.minimum.at(smallest, pairs[0], values)
    np.minimum.at(smallest, pairs[1], values)
    return smallest


def _length_unit(data: LabelledStructures, found: Distances) -> Iterator[Finding]:
    """Compare distances of nearest neighbours with bonds. A few frames that dissociate do not move the medians."""
    bonded = [len(atoms) > 2 and _has_bonds(atoms) for atoms in data.structures]
    ratios = found.typical[np.array(bonded) & np.isfinite(found.typical)]
    if not len(ratios):
        return
    median = float(np.median(ratios))
    for factor, is_unit, was_unit in ((1 / Bohr, "Bohr", "Angstrom"), (Bohr, "Angstrom", "Bohr")):
        if BONDS[0] * factor < median < BONDS[1] * factor and np.quantile(ratios, 0.1) > 0.7 * BONDS[0] * factor:
            message = (
                f"nearest neighbours are {median:.2f} times as far apart as bonds are long: lengths are in {is_unit}, "
                f"not in {was_unit}; read them with length_unit: {is_unit} (--length-unit {is_unit})"
            )
            yield from findings("error", "length_unit", message, data)


def _has_bonds(atoms: Atoms) -> bool:
    """Whether bonds of usual length are to be expected. Chains of H atoms are made to be stretched."""
    return bool((atoms.numbers > 1).any()) and LOOSE.isdisjoint(atoms.numbers.tolist())


def is_more_bonded(data: LabelledStructures, index: int) -> bool:
    """Whether a structure has more bonds than most others of its composition: then its energy should be lower."""
    own = np.sort(data.structures[index].numbers)
    alike = [k for k, atoms in enumerate(data.structures) if np.array_equal(np.sort(atoms.numbers), own)]
    others = [_n_bonds(data.structures[k]) for k in spaced(np.array(alike), 20)]
    return bool(_n_bonds(data.structures[index]) > np.median(others))


def _n_bonds(atoms: Atoms) -> int:
    radii = covalent_radii[atoms.numbers]
    try:
        pairs, shift = neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, 2 * BOND * float(radii.max()))
    except DataError:
        return 0
    distance = np.linalg.norm(atoms.positions[pairs[1]] + shift - atoms.positions[pairs[0]], axis=1)
    return int(np.sum(distance < BOND * radii[pairs].sum(0)))


def rests_by_symmetry(atoms: Atoms) -> NDArray[np.bool_]:
    """Whether forces between pairs of atoms cancel on each atom, as at the sites of a perfect crystal, (n_atoms,)."""
    try:
        (first, second), shift = neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, 2 * LONELY)
    except DataError:
        return np.zeros(len(atoms), dtype=bool)
    vectors = atoms.positions[second] + shift - atoms.positions[first]
    pushes = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) ** 4
    total, size = np.zeros((len(atoms), 3)), np.zeros(len(atoms))
    for one, sign in ((first, 1.0), (second, -1.0)):
        np.add.at(total, one, sign * pushes)
        np.add.at(size, one, np.linalg.norm(pushes, axis=1))
    resting: NDArray[np.bool_] = np.linalg.norm(total, axis=1) <= SYMMETRIC * size
    return resting


def check_cells(data: LabelledStructures) -> Iterator[Finding]:
    solids = [index for index, atoms in enumerate(data.structures) if atoms.pbc.all()]
    volume = {index: np.linalg.det(data.structures[index].cell.array) for index in solids}
    left_handed = [index for index in solids if volume[index] < 0]
    message = "cells are left-handed: energies and forces are correct, but some other programs reject such cells"
    yield from findings("warning", "left_handed_cell", message, data, left_handed)
    tiny = [index for index in solids if abs(volume[index]) < SMALL_VOLUME * len(data.structures[index])]
    message = f"cells have less than {SMALL_VOLUME:g} Å³ per atom: is the length unit correct?"
    yield from findings("warning", "tiny_cell", message, data, tiny)
