"""The result of a reader: contents of a file, in the file's units."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ase import Atoms

from sigmaff.data.structures import FloatArray, IndexArray
from sigmaff.errors import DataError, SigmaffError


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """Structures and labels in the file's units. ``None``: the structure does not have the label."""

    structures: Sequence[Atoms]
    energy: Sequence[float | None]
    forces: Sequence[FloatArray | None]  # (n_atoms, 3) each
    stress: Sequence[FloatArray | None]  # (3, 3) each
    sought: Mapping[str, str]  # label: the names that were searched
    found: Callable[[int], Sequence[str]]  # index -> names of all values of that structure
    frame_index: IndexArray  # (n,) numbers of the frames in the file
    time_index: IndexArray | None = None
    official_splits: Mapping[str, IndexArray] | None = None
    energy_unit: str = "eV"
    length_unit: str = "Angstrom"
    stated_units: tuple[str, ...] = ()  # units that the file states; the user cannot override them


@contextmanager
def reading(place: Path | str, kind: str) -> Iterator[None]:
    """Convert any exception of a parser to one clear ``DataError``."""
    try:
        yield
    except SigmaffError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{place}: cannot be read as {kind} ({reason}). "
            "The file may be truncated or in another format; set `format` if it is"
        ) from error
