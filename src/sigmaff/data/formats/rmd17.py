"""rMD17 in its published layout: recomputed labels, and the original MD17 labels of the same structures."""

from pathlib import Path

import numpy as np

from sigmaff.data.formats.contents import FileContents
from sigmaff.data.formats.npz import Arrays, load_arrays, numbers_array, require, trajectory_contents
from sigmaff.data.source import DataSource
from sigmaff.data.structures import IndexArray
from sigmaff.errors import DataError

MARKS = ("nuclear_charges", "coords")
"""Arrays that identify the layout."""


def read_rmd17(path: Path, source: DataSource) -> FileContents:
    return _read(path, source, "")


def read_rmd17_original(path: Path, source: DataSource) -> FileContents:
    return _read(path, source, "old_")


def _read(path: Path, source: DataSource, prefix: str) -> FileContents:
    arrays = load_arrays(path)
    require(path, arrays, source.format, *MARKS)
    return trajectory_contents(
        path,
        arrays=arrays,
        names={
            "numbers": "nuclear_charges",
            "positions": "coords",
            "energy": f"{prefix}energies",
            "forces": f"{prefix}forces",
        },
        time_index=_indices(path, arrays, "old_indices"),
        official_splits=_official_splits(path, arrays),
        energy_unit="kcal/mol",
        length_unit="Angstrom",
        stated_units=(),
    )


def _indices(path: Path, arrays: Arrays, name: str) -> IndexArray | None:
    return numbers_array(path, arrays, name).astype(np.int64) if name in arrays else None


def _official_splits(path: Path, arrays: Arrays) -> dict[str, IndexArray] | None:
    train, test = _indices(path, arrays, "split_train"), _indices(path, arrays, "split_test")
    if train is None or test is None:
        return None
    train, test = np.atleast_2d(train), np.atleast_2d(test)
    rows = np.concatenate([train.ravel(), test.ravel()])
    if len(train) != len(test) or rows.min() < 0 or rows.max() >= len(arrays["coords"]):
        raise DataError(f"{path}: split_train and split_test do not fit the {len(arrays['coords'])} frames")
    return {"train": train, "test": test}
