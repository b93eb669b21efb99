"""Extended XYZ, and plain XYZ, which has no labels."""

from collections.abc import Iterator
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from sigmaff.data.formats.ase_files import frame_contents
from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.source import DataSource
from sigmaff.errors import DataError


def read_extxyz(path: Path, source: DataSource) -> FileContents:
    from ase.io.extxyz import read_xyz

    with reading(path, "extxyz"):
        texts = list(_frame_texts(path))
    frames = []
    for frame, text in enumerate(texts):
        with reading(f"{path}, frame {frame}", "extxyz"):
            first_atom = text.split("\n", 3)[2]
            comment = partial(_comment, f"{path}, frame {frame}", len(first_atom.split()))
            frames.append(next(read_xyz(StringIO(text), 0, comment)))
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
            if n_atoms == 0:
                raise DataError(f"{place}: the structure has no atoms")
            lines = list(islice(file, n_atoms + 1))
            if len(lines) <= n_atoms:
                found = max(len(lines) - 1, 0)
                raise DataError(f"{place}: truncated, the file ends after {found} of {n_atoms} atoms")
            if not lines[-1].endswith("\n"):
                raise DataError(
                    f"{place}: the last line has no newline, so its last number may be truncated; "
                    "if the file is complete, end it with a newline"
                )
            yield header + "".join(lines)
            frame += 1


def _comment(place: str, n_found: int, line: str) -> dict[str, Any]:
    """The keys of a comment line. Refuse more columns than a line has: ASE would take memory for all of them.

    Arguments:
        n_found: columns of the line of the first atom.
        line: the comment line.
    """
    from ase.io.extxyz import key_val_str_to_dict

    keys: dict[str, Any] = key_val_str_to_dict(line)
    n_columns = sum(max(int(count), 0) for count in str(keys.get("Properties", "")).split(":")[2::3])
    if n_columns > n_found:
        raise DataError(f"{place}: Properties names {n_columns} columns, the line of the first atom has {n_found}")
    return keys
