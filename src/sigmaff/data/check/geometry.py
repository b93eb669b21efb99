"""Check structures: unusable geometries, and geometries that suggest a mistake."""

from collections.abc import Iterator

import numpy as np
from ase import Atoms
from ase.data import covalent_radii

from sigmaff.data.check.finding import Finding, finding
from sigmaff.data.structures import LabelledStructures
from sigmaff.errors import DataError
from sigmaff.graph.neighbors import neighbor_pairs

OVERLAP = 0.5
"""Two atoms closer than this fraction of the sum of their covalent radii overlap."""

LONELY = 5.0
"""Å. An atom without a neighbour within this distance is isolated."""

SMALL_VOLUME = 3.0
"""Å³ per atom of a periodic cell. Diamond, which is very dense, has 5.7."""


def check_geometry(data: LabelledStructures) -> Iterator[Finding]:
    unusable, overlapping, lonely, reasons = [], [], [], []
    for index, atoms in enumerate(data.structures):
        try:
            closest, alone = _neighborhood(atoms)
        except DataError as error:
            unusable.append(index)
            reasons.append(str(error))
            continue
        if closest < OVERLAP:
            overlapping.append(index)
        if alone and len(atoms) > 1:
            lonely.append(index)
    if unusable:
        yield finding("error", "unusable_structure", f"structures cannot be used: {reasons[0]}", data, unusable)
    if overlapping:
        message = f"atoms closer than {OVERLAP} times the sum of their covalent radii"
        yield finding("error", "overlapping_atoms", message, data, overlapping)
    if lonely:
        message = f"atoms without a neighbour within {LONELY:g} Å, as in dissociated molecules"
        yield finding("warning", "lonely_atoms", message, data, lonely)


def _neighborhood(atoms: Atoms) -> tuple[float, bool]:
    """Smallest ratio of a distance to the sum of covalent radii, and whether some atom has no neighbour."""
    (first, second), shift = neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, LONELY)
    distance = np.linalg.norm(atoms.positions[second] + shift - atoms.positions[first], axis=1)
    radii = covalent_radii[atoms.numbers]
    closest = float(np.min(distance / (radii[first] + radii[second]), initial=np.inf))
    return closest, len(np.union1d(first, second)) < len(atoms)


def check_cells(data: LabelledStructures) -> Iterator[Finding]:
    solids = [index for index, atoms in enumerate(data.structures) if atoms.pbc.all()]
    volume = {index: np.linalg.det(data.structures[index].cell.array) for index in solids}
    left_handed = [index for index in solids if volume[index] < 0]
    if left_handed:
        message = "cells are left-handed: energies and forces are correct, but some other programs reject such cells"
        yield finding("warning", "left_handed_cell", message, data, left_handed)
    tiny = [index for index in solids if abs(volume[index]) < SMALL_VOLUME * len(data.structures[index])]
    if tiny:
        message = f"cells have less than {SMALL_VOLUME:g} Å³ per atom: is the length unit correct?"
        yield finding("warning", "tiny_cell", message, data, tiny)
