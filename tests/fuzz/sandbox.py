"""Trials in processes of their own, with limits of time and memory."""

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmaff.errors import SigmaffError

SECONDS = 10
"""Of the processor that a trial may take; none needs more than one."""
WAITING = 10
"""Seconds of the wall for each of these, on a machine that is busy with other work."""
LONG_ENOUGH = 3
"""Seconds of the wall for each of these, if a trial may be at work then."""
HARD_LIMIT = 4_000_000_000
"""Bytes that a trial can take at all."""
SPARE = 200_000_000
"""Bytes that a trial may take beside 10 times the size of its file."""


class BrokenPromiseError(Exception):
    """A promise that a trial found broken."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Something to run.

    Arguments:
        run: returns a verdict. An error for users is the verdict "refused"; any other exception breaks a promise.
        kind: what was tried, for people.
        size: bytes of the file.
        seconds: of the processor, after which the trial and what it has started are killed.
        may_be_long: whether it may be at work then.
    """

    run: Callable[[], str]
    kind: str = ""
    size: int = 0
    seconds: float = SECONDS
    may_be_long: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended: a verdict, or what it broke."""

    kind: str
    verdict: str
    broken: str | None = None


def tried(make: Callable[[int], Trial], n: int, *, together: int = 500) -> Iterator[Outcome]:
    """Make and run n trials in copies of this process.

    Arguments:
        make: the trial of a number, made in the copy.
        together: trials in one copy. The one that dies takes none with it: the others go on in the next.
    """
    done = 0
    while done < n:
        for outcome in _in_a_copy(make, range(done, min(done + together, n))):
            done += 1
            yield outcome


def _in_a_copy(make: Callable[[int], Trial], numbers: Sequence[int]) -> Iterator[Outcome]:
    """Outcomes up to the first trial that kills the copy."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run_all(make, numbers, write)
    os.close(write)
    lines = _Lines(read)
    try:
        for _ in numbers:
            begun = lines.next(WAITING * SECONDS)
            ended = lines.next(_patience(begun)) if begun else None
            if begun and ended:
                yield Outcome(kind=begun["kind"], **ended)
                continue
            has_died = lines.has_ended
            _kill(child)
            _, status = os.waitpid(child, 0)
            child = 0
            yield _killed(begun or {"kind": "mutator", "may_be_long": False}, status if has_died else None)
            return
    finally:
        os.close(read)
        if child:
            _kill(child)
            os.waitpid(child, 0)


def _patience(begun: dict[str, Any]) -> float:
    """Seconds of the wall for a trial."""
    return float(begun["seconds"] * (LONG_ENOUGH if begun["may_be_long"] else WAITING))


def _killed(begun: dict[str, Any], status: int | None) -> Outcome:
    """Of a trial that wrote nothing: it died by itself with this status, or was killed because it did not end."""
    if status is not None and os.WTERMSIG(status) != signal.SIGPROF:
        return Outcome(kind=begun["kind"], verdict="crash", broken=f"ended with signal {os.WTERMSIG(status)}")
    if begun["may_be_long"]:
        return Outcome(kind=begun["kind"], verdict="at work")
    return Outcome(kind=begun["kind"], verdict="hang", broken="not finished in its time")


class _Lines:
    """Lines of JSON from a pipe."""

    def __init__(self, read: int) -> None:
        self.read, self.rest, self.has_ended = read, b"", False

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next line; ``None`` if there is none in this time, or no more at all."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            if not select.select([self.read], [], [], max(end - time.monotonic(), 0.0))[0]:
                return None
            if not (part := os.read(self.read, 65536)):
                self.has_ended = True
                return None
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def _run_all(make: Callable[[int], Trial], numbers: Sequence[int], write: int) -> None:
    """The trials, in the copy."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + HARD_LIMIT, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _write_all(make, numbers, write)
    finally:
        os._exit(1)


def _write_all(make: Callable[[int], Trial], numbers: Sequence[int], write: int) -> None:
    with os.fdopen(write, "w", buffering=1) as file:
        for number in numbers:
            trial = make(number)
            begun = {"kind": trial.kind, "seconds": trial.seconds, "may_be_long": trial.may_be_long}
            file.write(json.dumps(begun) + "\n")
            signal.setitimer(signal.ITIMER_PROF, trial.seconds)  # limits of the system count in whole seconds
            file.write(json.dumps(_run(trial)) + "\n")


def _run(trial: Trial) -> dict[str, str | None]:
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory so far is that of now
    before = _status("VmRSS")
    try:
        verdict = trial.run()
    except SigmaffError:
        verdict = "refused"
    except BrokenPromiseError as broken:
        return {"verdict": "broken", "broken": str(broken)}
    except BaseException:
        return {"verdict": "exception", "broken": traceback.format_exc()[-3000:]}
    taken = _status("VmHWM") - before
    if taken > 10 * trial.size + SPARE:
        return {"verdict": "memory", "broken": f"took {taken / 1e6:.0f} MB for {trial.size} bytes"}
    return {"verdict": verdict, "broken": None}


def _kill(group: int) -> None:
    """A copy and all that it has started."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _status(name: str) -> int:
    """Bytes of memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
