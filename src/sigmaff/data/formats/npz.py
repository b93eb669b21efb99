"""NumPy archives of one molecule's trajectory: MD17 and rMD17. Pickled objects are never loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms
from numpy.lib.npyio import NpzFile

from sigmaff.data.formats.contents import FileContents, atomic_numbers, reading, refuse_swollen
from sigmaff.data.source import DataSource
from sigmaff.data.structures import FloatArray, IndexArray
from sigmaff.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]

LAYOUTS = {"md17": ("z", "R"), "rmd17": ("nuclear_charges", "coords")}
"""Arrays that identify a layout: atomic numbers and positions."""


def read_md17(path: Path, source: DataSource) -> FileContents:
    """MD17 in the sGDML layout: arrays z, R, E, F, and the units r_unit, e_unit."""
    arrays = _load(path, source, "md17")
    cell = _numbers(path, arrays, "lattice").T if "lattice" in arrays else None
    contents = _trajectory(path, arrays, (*LAYOUTS["md17"], "E", "F"), cell)
    return contents.with_stated_units(path, _text(arrays, "e_unit"), _text(arrays, "r_unit"))


def read_rmd17(path: Path, source: DataSource) -> FileContents:
    """rMD17 in its published layout: recomputed labels, or the original MD17 labels of the same structures."""
    arrays = _load(path, source, "rmd17")
    prefix = "old_" if source.format == "rmd17_original" else ""
    contents = _trajectory(path, arrays, (*LAYOUTS["rmd17"], f"{prefix}energies", f"{prefix}forces"))
    times = _indices(path, arrays, "old_indices")
    return replace(
        contents,
        time_index=None if times is None else _expect(path, "old_indices", times, (len(contents.structures),)),
        official_splits=_official_splits(path, arrays),
    )


def detect_layout(path: Path) -> str:
    with _opened(path) as archive:
        names = archive.files
    for layout, marks in LAYOUTS.items():
        if set(marks) <= set(names):
            return layout
    raise DataError(
        f"{path} is in neither the MD17 layout (z, R, E, F) nor the rMD17 layout "
        f"(nuclear_charges, coords, energies, forces); it has {', '.join(names) or 'no arrays'}"
    )


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    with reading(path, "a NumPy archive"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise DataError(f"{path} contains a single array, not an archive of arrays")
        with archive:
            yield archive


def _load(path: Path, source: DataSource, layout: str) -> Arrays:
    with _opened(path) as archive:
        refuse_swollen(path, sum(member.file_size for member in archive.zip.infolist()) if archive.zip else 0)
        arrays = {name: archive[name] for name in archive.files}
    if missing := [name for name in LAYOUTS[layout] if name not in arrays]:
        raise DataError(
            f"{path} is not in the {source.format} layout: it has {', '.join(arrays)}, but no {', '.join(missing)}"
        )
    return arrays


def _trajectory(
    path: Path, arrays: Arrays, names: tuple[str, str, str, str], cell: FloatArray | None = None
) -> FileContents:
    """The frames of one molecule. ``names``: the arrays of numbers, positions, energy and forces."""
    numbers_name, positions_name, energy_name, forces_name = names
    positions = _numbers(path, arrays, positions_name)
    numbers = atomic_numbers(path, _numbers(path, arrays, numbers_name))
    n = len(positions)
    _expect(path, positions_name, positions, (n, len(numbers), 3))
    energy = _rows(path, arrays, energy_name, n, (n,), (n, 1))
    forces = _rows(path, arrays, forces_name, n, positions.shape)
    return FileContents(
        structures=[Atoms(numbers=numbers, positions=r, cell=cell, pbc=cell is not None) for r in positions],
        labels={"energy": [None if value is None else value.item() for value in energy], "forces": forces},
        sought={"energy": energy_name, "forces": forces_name},
        found=lambda _: list(arrays),
        frame_index=np.arange(n),
        energy_unit="kcal/mol",
    )


def _rows(path: Path, arrays: Arrays, name: str, n: int, *shapes: tuple[int, ...]) -> list[FloatArray] | list[None]:
    """The rows of the array; ``None`` for each if the archive does not have it."""
    return [*_expect(path, name, _numbers(path, arrays, name), *shapes)] if name in arrays else [None] * n


def _numbers(path: Path, arrays: Arrays, name: str) -> FloatArray:
    if not np.issubdtype(arrays[name].dtype, np.number) or np.iscomplexobj(arrays[name]):
        raise DataError(f"{path}: array {name} contains {arrays[name].dtype} values, not real numbers")
    return arrays[name].astype(np.float64)


def _expect(path: Path, name: str, array: npt.NDArray[Any], *shapes: tuple[int, ...]) -> npt.NDArray[Any]:
    if array.shape not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise DataError(f"{path}: array {name} has shape {array.shape}, expected {expected}")
    return array


def _text(arrays: Arrays, name: str) -> str | None:
    if name not in arrays:
        return None
    value = arrays[name].item()
    return value.decode() if isinstance(value, bytes) else str(value)


def _indices(path: Path, arrays: Arrays, name: str) -> IndexArray | None:
    if name not in arrays:
        return None
    numbers = _numbers(path, arrays, name)
    if not (np.abs(numbers) < 2**53).all() or (numbers != np.floor(numbers)).any():
        raise DataError(f"{path}: array {name} contains values that are not whole numbers")
    return numbers.astype(np.int64)


def _official_splits(path: Path, arrays: Arrays) -> dict[str, IndexArray] | None:
    train, test = _indices(path, arrays, "split_train"), _indices(path, arrays, "split_test")
    if train is None or test is None:
        return None
    train, test = np.atleast_2d(train), np.atleast_2d(test)
    rows = np.concatenate([train.ravel(), test.ravel()])
    if len(train) != len(test) or rows.min() < 0 or rows.max() >= len(arrays["coords"]):
        raise DataError(f"{path}: split_train and split_test do not fit the {len(arrays['coords'])} frames")
    return {"train": train, "test": test}
