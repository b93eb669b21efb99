"""Extended XYZ, and plain XYZ, which has no labels."""

import re
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path

from ase.io.extxyz import read_xyz

from sigmaff.data.formats.ase_files import frame_contents
from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.source import DataSource
from sigmaff.errors import DataError


def read_extxyz(path: Path, source: DataSource) -> FileContents:
    with reading(path, "extxyz"):
        texts = list(_frame_texts(path))
    frames = []
    for frame, text in enumerate(texts):
        with reading(f"{path}, frame {frame}", "extxyz"):
            frames.append(next(read_xyz(StringIO(text), 0)))
    return frame_contents(path, frames, source)


def _frame_texts(path: Path) -> Iterator[str]:
    """The text of each frame. ASE's reader would stop at an empty line and ignore the rest."""
    frame = 0
    with path.open(encoding="utf-8") as file:
        while header := file.readline():
            if not header.strip():
                continue
            place = f"{path}, frame {frame}"
            if not header.strip().isdigit():
                raise DataError(
                    f"{place}: expected the number of atoms, found {header.strip()[:60]!r}; "
                    "the previous frame has more lines than its number of atoms, or this is not an extxyz file"
                )
            n_atoms = int(header)
            lines = list(islice(file, n_atoms + 1))
            if len(lines) <= n_atoms:
                found = max(len(lines) - 1, 0)
                raise DataError(f"{place}: truncated, the file ends after {found} of {n_atoms} atoms")
            if not lines[-1].endswith("\n"):
                raise DataError(
                    f"{place}: the last line has no newline, so its last number may be truncated; "
                    "if the file is complete, end it with a newline"
                )
            _check_columns(place, lines)
            yield header + "".join(lines)
            frame += 1


def _check_columns(place: str, lines: list[str]) -> None:
    """Refuse a comment line that names more columns than a line has: ASE would take memory for all of them."""
    named = re.search(r'Properties="?([^"\s]+)', lines[0])
    counts = named[1].split(":")[2::3] if named else []
    n_columns = sum(int(count) for count in counts if count.isdigit() and len(count) < 20)
    if len(lines) > 1 and n_columns > (n_found := len(lines[1].split())):
        raise DataError(f"{place}: Properties names {n_columns} columns, the line of the first atom has {n_found}")
