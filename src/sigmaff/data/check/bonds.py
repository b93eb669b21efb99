"""Check forces against bonds, in frames that are too far from each other to compare their energies."""

from collections.abc import Iterator

import numpy as np
from ase import Atoms
from ase.data import covalent_radii

from sigmaff.data.check.finding import Finding, findings
from sigmaff.data.check.geometry import BOND, smallest
from sigmaff.data.check.stacks import spaced
from sigmaff.data.overlap import comparable
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.graph.neighbors import neighbor_pairs

MAX_ATOMS = 10_000
"""Atoms whose bonds are looked at."""

MIN_BONDS = 100
MIN_STRETCH = 0.01
"""Å, rms. Bonds at rest tell nothing."""

MIN_PUSH = 0.05
"""eV/Å, rms. Smaller ones are noise, or vanish by symmetry."""

WRONG_SIGN, OTHER_ATOMS = -0.4, 0.3
"""Correlations below which the sign is wrong, or the atoms.

Sound files have 0.6 to 0.9, forces of other atoms −0.25 to 0.2, strained crystals as little as 0.29.
"""


def check_forces_against_bonds(data: LabelledStructures) -> Iterator[Finding]:
    """Compare the force along each bond with its length: a bond pushes where it is shorter than in other frames."""
    if data.forces is None:
        return
    groups = [group for group in comparable(data.structures) if len(group) > 1]
    correlation, found = _correlation(data, data.forces, groups)
    if correlation < WRONG_SIGN:
        message = (
            f"forces shorten short bonds and stretch long ones {found}: the sign of the forces is wrong; are they "
            "gradients? Multiply them by −1"
        )
        yield from findings("error", "force_sign", message, data)
        return
    unstrained = [part for group in groups for part in _in_one_cell(data, group)]
    correlation, found = _correlation(data, data.forces, unstrained)
    if correlation < OTHER_ATOMS:
        message = (
            f"forces do not restore bonds that are too short or too long {found}: they belong to other atoms (another "
            "order) or other structures; write positions and forces from the same output"
        )
        yield from findings("error", "force_order", message, data)


def _in_one_cell(data: LabelledStructures, group: IndexArray) -> Iterator[IndexArray]:
    """Parts of the group with the same cell: strain changes lengths, and forces may vanish by symmetry."""
    if not data.structures[group[0]].pbc.any():
        yield group
        return
    cells = np.array([data.structures[index].cell.array.ravel() for index in group]).round(3)
    _, which = np.unique(cells, axis=0, return_inverse=True)
    for cell in range(which.max() + 1):
        part = group[which == cell]
        if len(part) > 1:
            yield part


def _correlation(
    data: LabelledStructures, forces: tuple[FloatArray, ...], groups: list[IndexArray]
) -> tuple[float, str]:
    """Correlation of push with shortness of bonds, and how it was found; 1 where bonds tell nothing."""
    stretch, push = _bonds(data, forces, groups)
    if len(push) < MIN_BONDS or _rms(stretch) < MIN_STRETCH or _rms(push) < MIN_PUSH:
        return 1.0, ""
    correlation = -float(np.mean(stretch * push)) / (_rms(stretch) * _rms(push))
    return correlation, f"(correlation {correlation:.2f} of {len(push)} bonds with themselves in other frames)"


def _bonds(
    data: LabelledStructures, forces: tuple[FloatArray, ...], groups: list[IndexArray]
) -> tuple[FloatArray, FloatArray]:
    """Length and push of bonds, (n_bonds,) Å and eV/Å, less their means over the frames of a group.

    Molecules are compared with those of the same bonds: lengths of isomers differ, and no force restores that.
    """
    n_atoms = sum(len(group) * len(data.structures[group[0]]) for group in groups)
    share = min(1.0, MAX_ATOMS / max(n_atoms, 1))
    stretches, pushes = [np.zeros(0)], [np.zeros(0)]
    for group in groups:
        some = spaced(group, max(2, round(share * len(group)))).tolist()
        looked_at = [_nearest_bonds(data.structures[index], forces[index]) for index in some]
        isomers, *columns = zip(*looked_at, strict=True)
        bond, length, push = map(np.concatenate, columns)
        isomer = np.repeat(np.unique(isomers, return_inverse=True)[1], [len(bonds) for bonds in columns[0]])
        _, which, times = np.unique([isomer, bond], axis=1, return_inverse=True, return_counts=True)
        again = times[which] > 1
        for values, kept in ((length, stretches), (push, pushes)):
            kept.append((values - (np.bincount(which, values) / times)[which])[again])
    return np.concatenate(stretches), np.concatenate(pushes)


def _nearest_bonds(atoms: Atoms, forces: FloatArray) -> tuple[str, IndexArray, FloatArray, FloatArray]:
    """Bonds of each atom to its nearest neighbour: a number for the pair, its length in Å, and how it pushes, eV/Å.

    Before them a name for all bonds of a molecule; crystals, whose neighbours come and go, have none.
    """
    radii = covalent_radii[atoms.numbers]
    try:
        pairs, shift = neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, 2 * BOND * float(radii.max()))
    except DataError:  # reported with the geometries
        return "", np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
    vector = atoms.positions[pairs[1]] + shift - atoms.positions[pairs[0]]
    length = np.linalg.norm(vector, axis=1)
    ratio = length / radii[pairs].sum(0)
    is_nearest = (ratio == smallest(pairs, ratio, len(atoms))[pairs]).any(0)
    is_bond = (ratio < BOND) & (pairs[0] != pairs[1])
    number = pairs.min(0) * len(atoms) + pairs.max(0)
    isomer = "" if atoms.pbc.any() else str(np.sort(number[is_bond]).tolist())
    kept = is_nearest & is_bond
    first, second = pairs[:, kept]
    push = np.sum((forces[second] - forces[first]) * vector[kept], axis=1) / length[kept]
    return isomer, number[kept], length[kept], push


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2)))
