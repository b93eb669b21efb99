"""Atomic writes, folder locks, and run folders: directories of long jobs that can be resumed."""

import fcntl
import hashlib
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel

from sigmaff.errors import ConfigError, DataError, SigmaffError

LOCK = ".sigmaff-lock"
DIGEST = re.compile("[0-9a-f]{64}")
TEMPORARY = re.compile(r"\..{1,32}-[a-z0-9_]{8}(\.\w+)?")
"""Names of temporary files of ``atomic_write``."""


def refuse_overwrite(path: Path, force: bool) -> None:
    """Raise an error if ``path`` exists and ``force`` is not set, or if it is not a regular file."""
    if path.is_dir():
        raise SigmaffError(f"{path}: it is a folder; add a file name")
    if path.exists() and not path.is_file():
        raise SigmaffError(f"{path}: it is not a regular file; choose another name")
    if path.exists() and not force:
        raise SigmaffError(f"{path} exists already; use --force (force=True) to replace it, or another name")


@contextmanager
def atomic_write(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; move it into place when the block ends without an error.

    Missing parent folders are created. A link is followed: the file it names is replaced, not the link.
    """
    refuse_overwrite(path, force)
    path = path.resolve()
    _make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:32]}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # a power cut cannot leave an empty file under the final name
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any, *, force: bool = False) -> None:
    with atomic_write(path, force=force) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of all parts in turn."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def folder_lock(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a folder; wait for it, or raise an error if ``wait`` is false.

    The system releases the lock of a process that dies.
    """
    _make_folder(directory)
    path = directory / LOCK
    with _locked(path, wait):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_locked(directory: Path) -> bool:
    """Whether a process is at work in a folder."""
    try:
        with (directory / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def holds_files(directory: Path) -> bool:
    """Whether the folder exists and holds files other than the lock, and what a killed ``atomic_write`` leaves."""
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return any(name != LOCK and not TEMPORARY.fullmatch(name) for name in names)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by dotted name, such as ``training.batch_size``; of lists of mappings by number."""
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            value = {str(number): each for number, each in enumerate(value)}
        leaves |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One text for each setting that differs: ``training.batch_size: was 5, now 10``; digests ``changed``."""
    old, new = flatten(before), flatten(now)
    return [_change(name, old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)]


def _change(name: str, was: Any, now: Any) -> str:
    if any(isinstance(value, str) and DIGEST.fullmatch(value) for value in (was, now)):
        return f"{name} changed"
    return f"{name}: was {was}, now {now}"


def refuse_changes(where: Path, changed: list[str], remedy: str) -> None:
    """Raise an error if anything changed since the run in ``where`` began."""
    if changed:
        raise ConfigError(f"{where} belongs to another run ({'; '.join(changed)}); {remedy}")


class RunFile(BaseModel, ABC):
    """The JSON file of a run folder. It says which run the folder belongs to."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Settings and digests by name. All must stay the same for the run to resume."""


Content = TypeVar("Content", bound=RunFile)


@dataclass(frozen=True)
class RunFolder:
    """The directory of one long job."""

    path: Path
    name: str  # of its RunFile
    remedy: str  # what to do if it belongs to another run

    @property
    def file(self) -> Path:
        return self.path / self.name

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes out; raise an error if one is at work here."""
        return folder_lock(self.path, wait=False)

    def claim(self, run: Content) -> Content:
        """Begin ``run`` in an empty folder, or resume it: the content of its file.

        Another run, other files or a damaged file raise an error.
        """
        if self.file.exists():
            before = self.read(type(run))
            refuse_changes(self.path, changes(before.identity(), run.identity()), self.remedy)
            return before
        if holds_files(self.path):
            raise ConfigError(f"{self.path} holds other files and no {self.name}; choose another directory")
        self.write(run)
        return run

    def read(self, kind: type[Content]) -> Content:
        try:
            return kind.model_validate_json(self.file.read_text(encoding="utf-8"))
        except ValueError:
            raise DataError(
                f"{self.file} is damaged or not written by sigmaff; remove {self.path} to start anew, or choose "
                "another directory"
            ) from None

    def write(self, run: RunFile) -> None:
        write_json(self.file, run.model_dump(mode="json"), force=True)


def _locked(path: Path, wait: bool) -> TextIO:
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise SigmaffError(
                f"{path.parent}: another process is at work in this folder; wait until it is done, or choose another"
            ) from None
        except FileNotFoundError:  # removed by the one that had it, between our opening and our turn
            pass
        lock.close()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise SigmaffError(f"{path} cannot be a folder: a file is in its way") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
