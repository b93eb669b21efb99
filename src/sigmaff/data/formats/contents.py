"""What a reader hands over: a file's contents in the file's own units."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ase import Atoms

from sigmaff.data.structures import FloatArray, IndexArray
from sigmaff.errors import DataError, SigmaffError


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """Structures and labels in the file's own units. ``None``: that structure has no such label."""

    structures: Sequence[Atoms]
    energy: Sequence[float | None]
    forces: Sequence[FloatArray | None]  # (n_atoms, 3) each
    stress: Sequence[FloatArray | None]  # (3, 3) each
    sought: Mapping[str, str]  # label: the names it was looked for under
    found: Callable[[int], Sequence[str]]  # names of everything that comes with a structure
    frame_index: IndexArray  # (n,) their numbers within the file
    time_index: IndexArray | None = None
    official_splits: Mapping[str, IndexArray] | None = None
    energy_unit: str = "eV"
    length_unit: str = "Angstrom"
    stated_units: tuple[str, ...] = ()  # those of the two that the file itself names: not to be contradicted


@contextmanager
def reading(place: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises on foreign or damaged bytes into one clear error."""
    try:
        yield
    except SigmaffError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{place}: cannot be read as {kind} ({reason}). "
            "The file may be cut short, or be of another format: then say which with `format`"
        ) from error
