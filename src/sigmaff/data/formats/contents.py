"""The result of a reader: contents of a file, in the file's units."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from ase import Atoms

from sigmaff.data.structures import FloatArray, IndexArray
from sigmaff.errors import DataError, SigmaffError

UNIT_NAMES = {
    "Ang": "Angstrom",
    "Angstrom": "Angstrom",
    "A": "Angstrom",
    "bohr": "Bohr",
    "Bohr": "Bohr",
    "nm": "nm",
    "kcal/mol": "kcal/mol",
    "kJ/mol": "kJ/mol",
    "eV": "eV",
    "Ha": "Hartree",
    "Hartree": "Hartree",
}
"""Spelling in files: name in ``sigmaff.units``."""


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """Structures and labels in the file's units.

    ``labels`` has for each label one value per structure: energy float, forces (n_atoms, 3), stress (3, 3), or ``None``
    if the structure does not have it. Labels that the format cannot hold are left out.
    """

    structures: Sequence[Atoms]
    labels: Mapping[str, Sequence[Any]]
    sought: Mapping[str, str]  # label: the names that were searched
    found: Callable[[int], Sequence[str]]  # index -> names of all values of that structure
    frame_index: IndexArray  # (n,) numbers of the frames in the file
    time_index: IndexArray | None = None
    official_splits: Mapping[str, IndexArray] | None = None
    predicted: Callable[[str, int], str | None] = lambda label, index: None
    """label, index -> name of a prediction that stands where the label is sought"""
    energy_unit: str = "eV"
    length_unit: str = "Angstrom"
    stated_units: tuple[str, ...] = ()  # units that the file states; the user cannot override them

    def with_stated_units(self, path: Path, energy: str | None, length: str | None) -> Self:
        """Set the units that the file states, in its own spelling. ``None`` keeps the unit of the format."""
        stated = {name: unit for name, unit in (("energy", energy), ("length", length)) if unit is not None}
        for name, unit in stated.items():
            if unit not in UNIT_NAMES:
                raise DataError(f"{path}: the unit of {name} is {unit!r}; known: {', '.join(UNIT_NAMES)}")
        return replace(
            self,
            energy_unit=self.energy_unit if energy is None else UNIT_NAMES[energy],
            length_unit=self.length_unit if length is None else UNIT_NAMES[length],
            stated_units=tuple(UNIT_NAMES[unit] for unit in stated.values()),
        )


@contextmanager
def reading(place: Path | str, kind: str) -> Iterator[None]:
    """Convert any exception of a parser to one clear ``DataError``."""
    try:
        yield
    except SigmaffError:
        raise
    except Exception as error:
        raise DataError(
            f"{place}: cannot be read as {kind} ({str(error) or type(error).__name__}). "
            "The file may be truncated or in another format; set `format` if it is"
        ) from error


def atomic_numbers(place: Path | str, values: FloatArray) -> IndexArray:
    """Numbers of a file as atomic numbers, (n_atoms,); others than whole numbers are an error."""
    flat = values.reshape(-1)
    if (broken := ~np.isfinite(flat) | (flat != np.floor(flat))).any():
        atom = int(np.flatnonzero(broken)[0])
        raise DataError(f"{place}: atom {atom} has the atomic number {flat[atom]:g}, which is not a whole number")
    return flat.astype(np.int64)


def refuse_swollen(path: Path, n_bytes: int) -> None:
    """Refuse a compressed file that would take far more memory than its size lets one expect.

    Arguments:
        n_bytes: of all arrays; reading takes up to twice as much.
    """
    if n_bytes > 5 * path.stat().st_size + 100_000_000:
        raise DataError(
            f"{path}: its arrays take {n_bytes / 1e9:.3g} GB of memory, {n_bytes / path.stat().st_size:.0f} times the "
            "size of the file; it may be damaged: write the arrays without compression if they are right"
        )
