"""A layer between a command and the disk: it counts what changes files, and strikes at one of these operations.

It is put in a process of its own, which ends with it. Python tells of most operations by audit events; writes and
syncs, of which it tells nothing, go through functions that are replaced here.
"""

import builtins
import errno
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["open", "write", "sync", "rename", "remove", "mkdir", "truncate", "chmod"]
What = Literal["kill", "half", "full", "once", "SIGINT", "SIGTERM", "SIGHUP", "twice", "wait"]
GROWS: tuple[Kind, ...] = ("open", "write", "sync", "mkdir")
"""Operations that fail on a full disk."""
EVENTS: dict[str, Kind] = {
    "os.rename": "rename",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.mkdir": "mkdir",
    "os.truncate": "truncate",
    "os.chmod": "chmod",
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What happens, and before which operation, counted from 1.

    ``kill``: SIGKILL. ``half``: SIGKILL in the middle of a write. ``full``: from here on the disk is full, and a first
    write still gets half of its bytes; ``once``: for this operation alone. A name of a signal: this signal, to itself.
    ``twice``: SIGINT, and once more at the next operation. ``wait``: for a line on standard input.
    """

    what: What
    at: int


class Layer:
    """Counts the operations within a folder."""

    def __init__(self, folder: Path, blow: Blow | None, states: Path | None = None) -> None:
        """states: a folder for copies, of the files as a kill at each operation would leave them."""
        self.folder, self.blow, self.states = str(folder.resolve()), blow, states
        self.kinds: list[Kind] = []
        self.lock = threading.RLock()
        self.sync = os.fsync
        self.open: Callable[..., Any] = io.open

    def install(self) -> None:
        """For the rest of the process."""
        sys.addaudithook(self._heard)
        os.fsync = self._synced
        io.open = builtins.open = self._opened  # type: ignore[assignment]

    def passes(self, kind: Kind, path: str) -> bool:
        """Count an operation; strike if it is its turn. False: the disk is full."""
        with self.lock:
            self.kinds.append(kind)
            number = len(self.kinds)
            self.keep(f"kill at {number}")
        if self.blow is None or number < self.blow.at:
            return True
        what, is_now = self.blow.what, number == self.blow.at
        if what == "kill" and is_now:
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "wait" and is_now:
            os.write(1, b"waiting\n")
            os.read(0, 1)
        elif what.startswith("SIG") and is_now:
            os.kill(os.getpid(), signal.Signals[what])
        elif what == "twice" and number <= self.blow.at + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return not (kind in GROWS and (what == "full" or (what == "once" and is_now)))

    def keep(self, name: str) -> None:
        """Copy the files of now, if states are wanted."""
        if self.states is not None:
            shutil.copytree(self.folder, self.states / name)

    def is_broken(self, *what: What) -> bool:
        """Whether the write that was just counted is the one to be broken in the middle."""
        return self.blow is not None and self.blow.what in what and len(self.kinds) == self.blow.at

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not flags & WRITES:
                return
            kind: Kind = "open"
        elif event in EVENTS:
            path, kind = arguments[0], EVENTS[event]
            if kind in ("remove", "mkdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0:
                path = Path(f"/proc/self/fd/{arguments[-1]}").readlink() / os.fsdecode(path)
        else:
            return
        place = self._place(path)
        if place is None or (kind in ("remove", "mkdir") and (kind == "mkdir") == os.path.lexists(place)):
            return  # elsewhere, or nothing will change
        is_new = kind != "open" or not Path(place).exists()
        if not self.passes(kind, place) and is_new:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    def _place(self, path: Any) -> str | None:
        """The path, if it is in the folder."""
        is_open = isinstance(path, int)
        found = str(Path(f"/proc/self/fd/{path}").readlink() if is_open else Path.cwd() / os.fsdecode(path))
        return found if found.startswith(self.folder + os.sep) else None

    def _synced(self, descriptor: int) -> None:
        place = self._place(descriptor)
        if place is not None and not self.passes("sync", place):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.sync(descriptor)

    def _opened(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """``open``; files that are written have a raw layer that asks this one."""
        if isinstance(file, int) or not set(mode) & set("wax+") or self._place(file) is None:
            return self.open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Watched(self, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class Watched(io.FileIO):
    """A file that is written: each write is an operation."""

    def __init__(self, layer: Layer, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        super().__init__(file, mode, closefd, opener)
        self.layer, self.place = layer, os.fsdecode(file)

    def write(self, data: Any) -> int:
        passes, content = self.layer.passes("write", self.place), bytes(data)
        if self.layer.states is not None:
            begun = super().write(content[: len(content) // 2])
            self.layer.keep(f"half at {len(self.layer.kinds)}")
            return begun + super().write(content[begun:])
        if self.layer.is_broken("half", "full", "once"):
            super().write(content[: len(content) // 2])
        if self.layer.is_broken("half"):
            os.kill(os.getpid(), signal.SIGKILL)
        if not passes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)
