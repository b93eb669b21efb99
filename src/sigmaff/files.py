"""Writing files whole or not at all, and folders that one process at a time works in."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sigmaff.errors import SigmaffError

LOCK = ".sigmaff-lock"


def refuse_overwrite(path: Path, force: bool) -> None:
    """An existing file is replaced only when that was asked for, and nothing but a file ever."""
    if path.is_dir():
        raise SigmaffError(f"{path}: it is a folder; add a file name")
    if path.exists() and not path.is_file():
        raise SigmaffError(f"{path}: it is not a regular file; choose another name")
    if path.exists() and not force:
        raise SigmaffError(f"{path} exists already; use --force (force=True) to replace it, or another name")


@contextmanager
def atomic_write(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to, moved into place only when the block ends without an error.

    Folders that lack are made. A link is followed: the file it names is replaced, not the link.
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
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any, *, force: bool = False) -> None:
    with atomic_write(path, force=force) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def folder_lock(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """No other process that asks for the same works in this folder meanwhile: it is waited for, or an error.

    The system lets go of the lock of a process that dies.
    """
    _make_folder(directory)
    path = directory / LOCK
    with _locked(path, wait):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def holds_files(directory: Path) -> bool:
    """It is there, with more in it than the lock of ``folder_lock``."""
    return directory.is_dir() and any(path.name != LOCK for path in directory.iterdir())


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


def _flush(path: Path) -> None:
    """To the disk, so that a power cut cannot leave an empty file under the final name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
