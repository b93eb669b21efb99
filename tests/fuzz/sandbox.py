"""A trial in a process of its own, with limits of time and memory."""

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sigmaff.errors import SigmaffError

SECONDS = 10
"""Of the processor that a trial may take; none needs more than one."""
WAITING = 10
"""Seconds of the wall for each of these, on a machine that is busy with other work."""
HARD_LIMIT = 4_000_000_000
"""Bytes that a trial can take at all."""
SPARE = 200_000_000
"""Bytes that a trial may take beside 10 times the size of its file."""


class BrokenPromiseError(Exception):
    """A promise that a trial found broken."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended: a verdict, or what it broke."""

    verdict: str
    broken: str | None = None


def tried(trial: Callable[[], str], size: int, *, seconds: int = SECONDS, may_be_long: bool = False) -> Outcome:
    """Run a trial in a copy of this process.

    Arguments:
        trial: returns its verdict. An error for users is the verdict "refused"; any other exception breaks a promise.
        size: bytes of the file.
        seconds: of the processor, after which the trial and what it has started are killed.
        may_be_long: whether it may be at work then.
    """
    began_with = _resident()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run(trial, write, seconds)
    os.close(write)
    answer = _answer(read, WAITING * seconds)
    os.close(read)
    if not answer:
        _kill(child)
    _, status, usage = os.wait4(child, 0)
    _kill(child)  # what it has started
    if answer is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        if may_be_long:
            return Outcome(verdict="at work")
        return Outcome(verdict="hang", broken=f"not finished after {seconds} s of the processor")
    if not answer:
        return Outcome(verdict="crash", broken=f"ended with signal {os.WTERMSIG(status)}, status {status}")
    found: dict[str, str | None] = json.loads(answer)
    taken = usage.ru_maxrss * 1024 - began_with
    if found["broken"] is None and taken > 10 * size + SPARE:
        return Outcome(verdict="memory", broken=f"took {taken / 1e6:.0f} MB for {size} bytes")
    return Outcome(verdict=str(found["verdict"]), broken=found["broken"])


def _run(trial: Callable[[], str], write: int, seconds: int) -> None:
    """The trial, in the copy."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_AS, (_virtual() + HARD_LIMIT, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    found: dict[str, str | None] = {"verdict": "exception", "broken": None}
    try:
        found["verdict"] = trial()
    except SigmaffError:
        found["verdict"] = "refused"
    except BrokenPromiseError as broken:
        found |= {"verdict": "broken", "broken": str(broken)}
    except BaseException:
        found["broken"] = traceback.format_exc()[-3000:]
    try:
        with os.fdopen(write, "w") as file:
            json.dump(found, file)
    finally:
        os._exit(0)


def _answer(read: int, seconds: float) -> str | None:
    """What the copy writes before it ends; nothing if it dies, ``None`` if it is at work after this time."""
    end, content = time.monotonic() + seconds, b""
    while select.select([read], [], [], max(end - time.monotonic(), 0.0))[0]:
        if not (part := os.read(read, 65536)):
            return content.decode()
        content += part
    return None


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _pages(index: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[index]) * resource.getpagesize()


def _virtual() -> int:
    return _pages(0)


def _resident() -> int:
    return _pages(1)
