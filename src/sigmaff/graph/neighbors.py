"""Neighbour pairs within a cutoff, each pair once, for molecules, slabs and crystals. The search is vesin's."""

import numpy as np
import numpy.typing as npt
from vesin import NeighborList

from sigmaff.errors import DataError

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

MIN_DISTANCE = 0.1
"""Å. Two atoms closer than this are an error in the input."""
MAX_LATTICE = 1e12
"""Å. The normals of a cell with longer vectors may not be finite numbers."""
MAX_CELLS = 100_000
"""Into which the search divides space; it may not survive if this leaves less than two along an axis."""
MAX_OPEN_CELLS = 1000
"""Along an axis that is not periodic beside others that are: the time of the search grows with their square."""
MAX_IMAGES = 100
"""Images of a cell along a lattice vector that reach into it."""


def neighbor_pairs(
    positions: FloatArray,
    cell: FloatArray | None,
    periodic: npt.NDArray[np.bool_] | None,
    cutoff: float,
) -> tuple[IndexArray, FloatArray]:
    """Find all pairs closer than the cutoff.

    Arguments:
        positions: (n, 3) Å.
        cell: (3, 3) Å, rows are lattice vectors; ``None`` for a molecule.
        periodic: (3,) whether each lattice vector is periodic.
        cutoff: Å.

    Returns pair_index (2, n_pairs) and pair_shift (n_pairs, 3) Å: the vector of a pair is
    ``positions[j] + shift - positions[i]``. A pair appears once, in one direction; an atom's own images appear once
    for each pair of opposite images. Order and direction depend only on the numbers of atoms and images, so a
    rotated or mirrored structure has the same pairs in the same order.
    """
    pair_index, images, distance, box = search_pairs(positions, cell, periodic, cutoff, cutoff)
    require_apart(pair_index, distance)
    return pair_index, images @ box


def require_apart(pair_index: IndexArray, distance: FloatArray) -> None:
    """Raise an error if two atoms are closer than ``MIN_DISTANCE``."""
    if len(distance) and distance.min() < MIN_DISTANCE:
        pair = int(distance.argmin())
        first, second = pair_index[:, pair]
        raise DataError(
            f"atoms {first} and {second} are {distance[pair]:.3g} Å apart; they overlap, so the structure is invalid"
        )


def search_pairs(
    positions: FloatArray,
    cell: FloatArray | None,
    periodic: npt.NDArray[np.bool_] | None,
    cutoff: float,
    reach: float,
) -> tuple[IndexArray, IndexArray, FloatArray, FloatArray]:
    """Pairs closer than ``reach``, images (n_pairs, 3), distances, and the cell that the images count in.

    What cannot be searched within ``cutoff`` is an error.
    """
    if not np.isfinite(positions).all():
        atom = int(np.argwhere(~np.isfinite(positions))[0, 0])
        raise DataError(f"atom {atom} has a position that is not a finite number")
    if cell is None or periodic is None or not periodic.any():
        box, periodic = np.zeros((3, 3)), np.zeros(3, dtype=bool)
    else:
        box = _checked_cell(np.asarray(cell, dtype=np.float64), np.asarray(periodic, dtype=bool))
    if len(positions) == 0:
        return np.zeros((2, 0), dtype=np.int64), np.zeros((0, 3), dtype=np.int64), np.zeros(0), box
    _check_size(positions, box, periodic, cutoff)
    search = NeighborList(cutoff=reach, full_list=False, n_threads=1)
    first, second, shift, distance = search.compute(points=positions, box=box, periodic=periodic, quantities="ijSd")
    pair_index, images, order = _ordered(
        np.stack([first, second]).astype(np.int64), shift.astype(np.int64), len(positions)
    )
    return pair_index, images, distance[order], box


def _check_size(positions: FloatArray, box: FloatArray, periodic: npt.NDArray[np.bool_], cutoff: float) -> None:
    """Refuse what the search would crash on or not end with: atoms far from the others, cells of almost no width."""
    widths, away = np.ptp(positions, axis=0), np.abs(positions - np.median(positions, axis=0))  # Å
    if periodic.any():
        normals = np.linalg.inv(box)  # columns, of length 1 / width
        of_cell, cells = 1.0 / np.linalg.norm(normals, axis=0), positions @ normals
        for axis in np.flatnonzero(periodic & (of_cell * MAX_IMAGES < cutoff)):
            raise DataError(
                f"the cell is {of_cell[axis]:.3g} Å wide along lattice vector {axis}, too narrow for a cutoff of "
                f"{cutoff:g} Å; correct the cell, or reduce it (ase.geometry.minkowski_reduce)"
            )
        most = (2**62 / len(positions) ** 2) ** (1 / 3) / 6  # numbers of pairs and images fit 64 bits
        if (far := (np.abs(cells) > most) & periodic).any():
            atom = int(np.argwhere(far)[0, 0])
            where = f"{np.abs(cells[atom] * periodic).max():.3g} cells away from its own"
            raise DataError(f"atom {atom} is {where}; wrap the positions")
        widths = np.where(periodic, of_cell, np.ptp(cells, axis=0) * of_cell)
        away = np.abs(cells - np.median(cells, axis=0)) * of_cell * ~periodic
    n_cells = np.clip(np.floor(widths / cutoff), 1.0, 1e9)
    is_thin = n_cells.prod() > MAX_CELLS and n_cells.min() * np.cbrt(MAX_CELLS / n_cells.prod()) < 2.0
    if is_thin or (periodic.any() and (n_cells * ~periodic).max() > MAX_OPEN_CELLS):
        atom = int(away.max(1).argmax())
        remedy = f"atom {atom} is {away[atom].max():.3g} Å away from the others: correct its position"
        raise DataError(
            f"the structure is {widths.max():.3g} Å long, too long and thin for the neighbour search; "
            f"{remedy if away[atom].any() else 'correct the cell'}"
        )


def _ordered(pair_index: IndexArray, shift: IndexArray, n_atoms: int) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Direct pairs from the lower to the higher atom (between images of one atom, to the higher image); sort them.

    Returns also their former places.
    """
    base = 2 * int(np.abs(shift).max(initial=0)) + 1
    image = shift @ np.array([base**2, base, 1])
    reverse = (pair_index[0] > pair_index[1]) | ((pair_index[0] == pair_index[1]) & (image < 0))
    pair_index = np.where(reverse, pair_index[::-1], pair_index)
    shift, image = np.where(reverse[:, None], -shift, shift), np.where(reverse, -image, image)
    order = np.argsort((pair_index[0] * n_atoms + pair_index[1]) * base**3 + image)
    return pair_index[:, order], shift[order], order


def _checked_cell(cell: FloatArray, periodic: npt.NDArray[np.bool_]) -> FloatArray:
    """Check the cell. Replace its non-periodic vectors by unit vectors normal to the periodic ones: it has a volume."""
    if not (np.abs(cell) <= MAX_LATTICE).all():
        raise DataError(f"the cell contains values that are not finite numbers, or above {MAX_LATTICE:g} Å")
    for axis in range(3):
        if periodic[axis] and np.linalg.norm(cell[axis]) < MIN_DISTANCE:
            raise DataError(
                f"the cell is periodic along axis {axis} but lattice vector {axis} has zero length; "
                "set pbc to false along it, or give the lattice vector"
            )
    repeating = cell[periodic]
    if np.linalg.matrix_rank(repeating) < len(repeating):
        raise DataError("the periodic lattice vectors are linearly dependent: the cell has no volume")
    box = cell.copy()
    box[~periodic] = np.linalg.svd(repeating)[2][len(repeating) :]
    return box
