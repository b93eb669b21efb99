"""Atomic writes, folder locks, and run folders: directories of long jobs that can be resumed."""

import fcntl
import glob
import hashlib
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel

from sigmaff.errors import ConfigError, DataError, SigmaffError

LOCK = ".sigmaff-lock"
DIGEST = re.compile("[0-9a-f]{64}")
TEMPORARY = re.compile(r"\.sigmaff-[a-z0-9_]{8}-.*", re.DOTALL)
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
    target = path.resolve()
    _make_folder(target.parent)
    with naming(path), _temporary(target) as temporary:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # a power cut cannot leave an empty file under the final name
        temporary.replace(target)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system that names no file, or a temporary one, name ``path``."""
    try:
        yield
    except OSError as error:
        named = isinstance(error.filename, str | bytes | os.PathLike)
        if error.errno is None or (named and not TEMPORARY.fullmatch(Path(os.fsdecode(error.filename)).name)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a new file beside ``path``. It is locked: one that is not was left by a process that was killed."""
    held, temporary = _held(path)
    with held:
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _held(path: Path) -> tuple[TextIO, Path]:
    """A new file that is locked. Another process may take it for left before it is: then there is a next one."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".sigmaff-", suffix=f"-{_ending(path)}")
        file = os.fdopen(handle, "w")
        with suppress(OSError):  # a file system without locks: then nobody finds it unlocked either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return file, Path(name)
        file.close()


def _ending(path: Path) -> str:
    """Of the names of temporary files: the name of the file, if it is not too long, and its suffix."""
    return path.stem[:32] + path.suffix[:32]


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files of processes that were killed, here and in folders within."""
    for folder, _, names in os.walk(directory):
        for name in filter(TEMPORARY.fullmatch, names):
            _remove_if_left(Path(folder, name))


def _remove_if_left(path: Path) -> None:
    with suppress(OSError), path.open("r+b") as file:  # in use, gone, or not ours to remove
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


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

    The system releases the lock of a process that dies. The temporary files that it left are removed.
    """
    _make_folder(directory)
    refusal = f"{directory}: another process is at work in this folder; wait until it is done, or choose another"
    with _lock(directory / LOCK, None if wait else refusal):
        remove_leftovers(directory)
        yield


def remove_traces(directory: Path) -> None:
    """Remove lock and temporary files that a killed process left; do nothing if a process is at work here."""
    if any(directory.glob(".sigmaff-*")):
        with suppress(SigmaffError, OSError), folder_lock(directory, wait=False):
            pass


@contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file that will be written; raise an error if another process holds it."""
    refusal = f"{path}: another process is at work on this file; wait until it is done, or choose another name"
    target = path.resolve()
    _make_folder(target.parent)
    name = os.fsdecode(os.fsencode(target.name)[:200])  # of bytes a name may have 255
    with _lock(target.parent / f"{LOCK}-{name}", refusal):
        for left in target.parent.glob(f".sigmaff-*-{glob.escape(_ending(target))}"):
            if TEMPORARY.fullmatch(left.name):
                _remove_if_left(left)
        yield


@contextmanager
def _lock(path: Path, refusal: str | None) -> Iterator[None]:
    with _locked(path, refusal):
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
    """Whether the folder exists and holds files other than locks, and what a killed ``atomic_write`` leaves."""
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return any(not name.startswith(LOCK) and not TEMPORARY.fullmatch(name) for name in names)


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


def _locked(path: Path, refusal: str | None) -> TextIO:
    """The locked file; wait for it, or raise an error with the text of ``refusal``."""
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise SigmaffError(refusal) from None
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
