"""Run a command in a copy of this process, which has imported all it needs: a trial costs what the work costs."""

import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storm.layer import Blow, Kind, Layer

SECONDS = 600.0
"""Of the wall, after which a command hangs."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = re.compile(r"^error: .+", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended: its exit code, negative for a signal, what it printed, and its file operations."""

    code: int
    text: str
    kinds: tuple[Kind, ...]

    @property
    def has_traceback(self) -> bool:
        return "Traceback" in self.text or "Exception ignored" in self.text

    @property
    def error(self) -> str | None:
        """The one line for people."""
        found = LINE.findall(self.text)
        return found[-1] if found else None


class Running:
    """A command under way in a folder."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        blow: Blow | None = None,
        *,
        states: Path | None = None,
        name: str = "log",
    ) -> None:
        """states: a folder for those before each operation; name: of the files beside the folder that tell of it."""
        self.log, self.counted = folder.parent / f"{name}.txt", folder.parent / f"{name}.json"
        for left in (self.log, self.counted):
            left.unlink(missing_ok=True)
        read, self.line = os.pipe()
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the program begins
        self.process = os.fork()
        if self.process == 0:
            os.close(self.line)
            _run(arguments, Layer(folder, blow, states), folder, read, self.log, self.counted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(read)

    def go_on(self) -> None:
        """After it has waited."""
        os.write(self.line, b"\n")

    def is_waiting(self, seconds: float = SECONDS) -> bool:
        """Whether it came to the operation before which it waits; false if it ended before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.log.exists() and "waiting" in self.log.read_text():
                return True
            if os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return False
            time.sleep(0.01)
        raise TimeoutError("it does not come to that operation")

    def wait(self, seconds: float) -> bool:
        """So long; false if it has ended before."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return False
            time.sleep(min(left, 0.005))
        return True

    def workers(self) -> list[int]:
        """Processes that Dask has started for it."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):  # it has just ended
                group = int((path / "stat").read_text().rpartition(")")[2].split()[2])
                if group == self.process and b"spawn_main" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return sorted(found)

    def end(self, seconds: float = SECONDS) -> Ended:
        descriptor = os.pidfd_open(self.process)
        is_over = select.select([descriptor], [], [], seconds)[0]
        os.close(descriptor)
        if not is_over:
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        _groups.append(self.process)
        os.close(self.line)
        kinds = tuple(json.loads(self.counted.read_text())) if self.counted.exists() else ()
        code = os.waitstatus_to_exitcode(status) if is_over else -1000
        return Ended(code=code, text=self.log.read_text(), kinds=kinds)


_groups: list[int] = []
"""Of commands that have ended; workers that they started may be left for a while."""


def clear() -> None:
    """End the workers that are left of killed commands."""
    while _groups:
        with suppress(ProcessLookupError):
            os.killpg(_groups.pop(), signal.SIGKILL)


def run(arguments: Sequence[str], folder: Path, blow: Blow | None = None, *, states: Path | None = None) -> Ended:
    """Run a command in a folder to its end."""
    return Running(arguments, folder, blow, states=states).end()


def _run(arguments: Sequence[str], layer: Layer, folder: Path, read: int, log: Path, counted: Path) -> None:
    """In the copy."""
    code = 99
    try:
        os.setpgid(0, 0)
        os.dup2(read, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        os.environ["XDG_CONFIG_HOME"] = str(folder / "settings")  # where the list of trusted files is
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts this in the background ignores it
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        layer.install()
        code = _called(arguments)
        counted.write_text(json.dumps(layer.kinds))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _called(arguments: Sequence[str]) -> int:
    """The exit code of the program."""
    from sigmaff.cli.main import main

    sys.argv = ["sigmaff", *arguments]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    except KeyboardInterrupt:
        return 130
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    return 1
