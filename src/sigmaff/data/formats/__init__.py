"""Readers of file formats. To add one: a file here, a line in ``READERS``, and its name in ``source.Format``."""

from collections.abc import Callable
from pathlib import Path

from sigmaff.data.formats.ase_files import read_ase_db, read_ase_traj
from sigmaff.data.formats.contents import FileContents
from sigmaff.data.formats.extxyz import read_extxyz
from sigmaff.data.formats.npz import detect_layout, read_md17, read_rmd17
from sigmaff.data.formats.qm7x import read_qm7x
from sigmaff.data.source import DataSource
from sigmaff.errors import DataError

READERS: dict[str, Callable[[Path, DataSource], FileContents]] = {
    "extxyz": read_extxyz,
    "ase_db": read_ase_db,
    "ase_traj": read_ase_traj,
    "md17": read_md17,
    "rmd17": read_rmd17,
    "rmd17_original": read_rmd17,
    "qm7x": read_qm7x,
}

ENDINGS: dict[str, str] = {
    ".extxyz": "extxyz",
    ".xyz": "extxyz",
    ".db": "ase_db",
    ".traj": "ase_traj",
    ".npz": "npz",
    ".hdf5": "qm7x",
    ".h5": "qm7x",
}


def detect_format(path: Path) -> str:
    """Detect the format of a file from its ending, and of a NumPy archive from its arrays."""
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"{path}: the ending {path.suffix!r} is unknown (known: {', '.join(ENDINGS)}); "
            f"set `format` to one of {', '.join(READERS)}"
        )
    return detect_layout(path) if kind == "npz" else kind
