"""Arrays of a NumPy archive, checked before use. Pickled objects are never loaded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms
from numpy.lib.npyio import NpzFile

from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.structures import FloatArray, IndexArray
from sigmaff.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]


def load_arrays(path: Path) -> Arrays:
    with _opened(path) as archive:
        return {name: archive[name] for name in archive.files}


def array_names(path: Path) -> list[str]:
    with _opened(path) as archive:
        return list(archive.files)


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    with reading(path, "a NumPy archive"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise DataError(f"{path} contains a single array, not an archive of arrays")
        with archive:
            yield archive


def require(path: Path, arrays: Arrays, layout: str, *names: str) -> None:
    """Raise unless the archive has all these arrays."""
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(
            f"{path} is not in the {layout} layout: it has {', '.join(arrays)}, but no {', '.join(missing)}"
        )


def trajectory_contents(
    path: Path,
    *,
    arrays: Arrays,
    names: dict[str, str],
    cell: FloatArray | None = None,
    time_index: IndexArray | None = None,
    official_splits: dict[str, IndexArray] | None = None,
    energy_unit: str,
    length_unit: str,
    stated_units: tuple[str, ...],
) -> FileContents:
    """Frames of one molecule. ``names``: the arrays of numbers, positions, energy and forces."""
    positions = numbers_array(path, arrays, names["positions"])
    numbers = numbers_array(path, arrays, names["numbers"]).astype(np.int64).reshape(-1)
    n = len(positions)
    _expect(path, names["positions"], positions, (n, len(numbers), 3))
    energy = _rows(path, arrays, names["energy"], n, (n,), (n, 1))
    forces = _rows(path, arrays, names["forces"], n, positions.shape)
    return FileContents(
        structures=[Atoms(numbers=numbers, positions=r, cell=cell, pbc=cell is not None) for r in positions],
        energy=[None if value is None else value.item() for value in energy],
        forces=forces,
        stress=[None] * n,
        sought={"energy": names["energy"], "forces": names["forces"], "stress": "nothing: the layout has none"},
        found=lambda _: list(arrays),
        frame_index=np.arange(n),
        time_index=time_index,
        official_splits=official_splits,
        energy_unit=energy_unit,
        length_unit=length_unit,
        stated_units=stated_units,
    )


def _rows(path: Path, arrays: Arrays, name: str, n: int, *shapes: tuple[int, ...]) -> Sequence[FloatArray | None]:
    """The rows of the array; ``None`` for each if the archive does not have it."""
    return [*_expect(path, name, numbers_array(path, arrays, name), *shapes)] if name in arrays else [None] * n


def numbers_array(path: Path, arrays: Arrays, name: str) -> FloatArray:
    if not np.issubdtype(arrays[name].dtype, np.number):
        raise DataError(f"{path}: array {name} contains {arrays[name].dtype} values, not numbers")
    return arrays[name].astype(np.float64)


def _expect(path: Path, name: str, array: FloatArray, *shapes: tuple[int, ...]) -> FloatArray:
    if array.shape not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise DataError(f"{path}: array {name} has shape {array.shape}, expected {expected}")
    return array
