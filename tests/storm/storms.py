"""The storms: what strikes a command, and what must hold afterwards."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from math import ceil
from pathlib import Path

import numpy as np

from sigmaff.files import TEMPORARY
from storm.commands import Command
from storm.layer import GROWS, Blow, What
from storm.results import contents, differences, same_states
from storm.trial import Ended, Running, clear, run

INTERRUPTED = 130
SIGNALS: tuple[What, ...] = ("SIGINT", "SIGTERM", "SIGHUP", "twice")
RIVAL = "at work"
"""In the line that refuses the second of two commands."""
PAGE, PARTS = 4096, (0.1, 0.3, 0.5, 0.7, 0.9)
"""Bytes; the room on a small disk, of what the command needs."""
FINISHED = ("this run is finished", "exists already")
"""What the second is told if the first has written its result, and not yet let go of its lock."""
NAMES = ("SIGKILL", "SIGKILL", "SIGINT", "SIGTERM", "SIGHUP")
"""Of which one is drawn for a random time."""
MOST_KILLS = 6
"""Of one storm of kills at random times."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How often a trial struck, how often of these a worker, and what it broke."""

    struck: int = 1
    workers: int = 0
    broken: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What will be done, for people, and how."""

    name: str
    run: Callable[[], Outcome]


class Storms:
    """Trials of one command, each in a new copy of a folder."""

    def __init__(self, name: str, command: Command, template: Path, work: Path) -> None:
        self.name, self.command, self.template, self.work = name, command, template, work

    @cached_property
    def unbroken(self) -> Ended:
        """The command without a storm; ``expected`` is what it leaves."""
        self._anew()
        began = time.monotonic()
        ended = run(self.command.arguments, self.work)
        self.seconds = time.monotonic() - began
        if ended.code or ended.has_traceback:
            raise RuntimeError(f"{self.name} does not even run in calm weather: {ended.text}")
        self.expected, self.n_pages = contents(self.work), _n_pages(self.work)
        return ended

    def kills(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """Before every file operation, in the middle of every write, and after the last operation."""
        kinds = self.unbroken.kinds
        blows = [Blow(what="kill", at=number) for number in range(1, len(kinds) + 1)]
        blows += [Blow(what="half", at=number) for number, kind in enumerate(kinds, 1) if kind == "write"]
        for blow in _drawn(blows, share, rng):
            yield Trial(name=f"{blow.what} at {blow.at}", run=partial(self._killed, blow))

    def _killed(self, blow: Blow) -> Outcome:
        struck = self._run_anew(blow).code == -signal.SIGKILL
        return Outcome(struck=struck, broken=self._resumed())

    def cuts(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """As ``kills``, in a third of the time: a kill leaves the files of its moment, so these are copied in one run.

        Equal files are tried once. An outcome counts the kills that would leave them.
        """
        _, states = self.unbroken, self.work.parent / "states"
        shutil.rmtree(states, ignore_errors=True)
        self._anew()
        run(self.command.arguments, self.work, states=states)
        groups = same_states(states)
        chosen = rng.permutation(len(groups))[: max(1, round(share * len(groups)))]
        for same in [groups[index] for index in np.sort(chosen)]:
            yield Trial(name=f"{same[0].name}, {len(same)} such", run=partial(self._cut, same))

    def _cut(self, same: Sequence[Path]) -> Outcome:
        clear()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(same[0], self.work)
        return Outcome(struck=len(same), broken=self._resumed())

    def full(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """A disk that is full from each operation on that takes room."""
        numbers = [number for number, kind in enumerate(self.unbroken.kinds, 1) if kind in GROWS]
        for blow in _drawn([Blow(what="full", at=number) for number in numbers], share, rng):
            yield Trial(name=f"full from {blow.at}", run=partial(self._filled, blow))

    def _filled(self, blow: Blow) -> Outcome:
        ended = self._run_anew(blow)
        broken = None if ended.code == 0 else _badly_told(ended) or self._left()
        return Outcome(struck=ended.code != 0, broken=broken or self._resumed())

    def signals(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """Signals at every operation: Ctrl-C once and twice, and those that end a session or a job."""
        blows = [Blow(what=what, at=number) for number in range(1, len(self.unbroken.kinds) + 1) for what in SIGNALS]
        for blow in _drawn(blows, share, rng):
            yield Trial(name=f"{blow.what} at {blow.at}", run=partial(self._signalled, blow))

    def _signalled(self, blow: Blow) -> Outcome:
        ended = self._run_anew(blow)
        return Outcome(struck=ended.code != 0, broken=_badly_ended(ended) or self._resumed())

    def random(self, seeds: Sequence[int]) -> Iterator[Trial]:
        """Kills and signals at random times, again and again, until the command ends. There is no end of trials."""
        _ = self.unbroken
        for number in count():
            yield Trial(name=f"random {number}", run=partial(self._struck, np.random.default_rng([*seeds, number])))

    def _struck(self, rng: np.random.Generator) -> Outcome:
        self._anew()
        struck = 0
        while struck < MOST_KILLS:
            name, after = NAMES[rng.integers(len(NAMES))], rng.uniform(0.0, 0.7 * self.seconds)
            running = Running(self.command.arguments, self.work)
            is_struck, workers = running.wait(after), running.workers()
            is_bereaved = is_struck and bool(workers) and rng.random() < 0.5
            if is_bereaved:  # it goes on without this worker
                name = "SIGKILL of a worker"
                os.kill(workers[rng.integers(len(workers))], signal.SIGKILL)
            elif is_struck:
                os.kill(running.process, signal.Signals[name])
            ended = running.end()
            if self._has_its_file(ended):
                break
            struck += is_bereaved or ended.code != 0
            broken = None if name == "SIGKILL" else _badly_ended(ended)
            if broken or not is_struck or is_bereaved:
                words = f"{name}: {broken}" if broken else self._resumed()
                return Outcome(struck=struck, workers=int(is_bereaved), broken=words)
        return Outcome(struck=struck, broken=self._resumed())

    def rivals(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """A second command while the first is at work: it is refused, and the first ends as if alone."""
        n = len(self.unbroken.kinds)
        for blow in _drawn([Blow(what="wait", at=number) for number in sorted({min(n, 5), n // 2 + 1, n})], share, rng):
            yield Trial(name=f"rival at {blow.at}", run=partial(self._rivalled, blow))

    def _rivalled(self, blow: Blow) -> Outcome:
        self._anew()
        first = Running(self.command.arguments, self.work, blow, name="first")
        if not first.is_waiting():
            first.end()
            return Outcome(struck=0)
        second = run(self.command.arguments, self.work)
        refused = second.code == 1 and RIVAL in (second.error or "") and not second.has_traceback
        refused = refused or any(words in second.text for words in FINISHED)
        first.go_on()
        ended = first.end()
        broken = None if refused else f"the second was not refused: {second.code} {second.text[-300:]}"
        return Outcome(broken=broken or (f"the first failed: {ended.text[-300:]}" if ended.code else self._other()))

    def small_disks(self, share: float, rng: np.random.Generator) -> Iterator[Trial]:
        """A real file system that is too small, and then larger. Only where one may mount it."""
        _ = self.unbroken
        for part in PARTS[: round(share * len(PARTS))]:
            yield Trial(name=f"room for {part:.0%}", run=partial(self._confined, part))

    def _confined(self, part: float) -> Outcome:
        before = _n_pages(self.template)
        shutil.rmtree(self.work, ignore_errors=True)
        with small_disk(self.work, before + int(part * (self.n_pages - before))) as grow:
            if grow is None:
                return Outcome(struck=0)
            shutil.copytree(self.template, self.work, dirs_exist_ok=True)
            ended = run(self.command.arguments, self.work)
            grow()
            broken = None if ended.code == 0 else _badly_told(ended) or self._left()
            return Outcome(struck=ended.code != 0, broken=broken or self._resumed())

    def _run_anew(self, blow: Blow) -> Ended:
        self._anew()
        return run(self.command.arguments, self.work, blow)

    def _anew(self) -> None:
        clear()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.template, self.work)

    def _resumed(self) -> str | None:
        """What is wrong after the same command has run again."""
        ended = run(self.command.arguments, self.work)
        if self._has_its_file(ended):
            ended = run((*self.command.arguments, "--force"), self.work)
        if ended.code or ended.has_traceback:
            return f"the same command ends with {ended.code}: {ended.text[-1500:]}"
        return self._other()

    def _has_its_file(self, ended: Ended) -> bool:
        """Whether a command did nothing, for the file that it makes is there."""
        return self.command.forced and ended.code == 1 and "exists already" in ended.text

    def _other(self) -> str | None:
        return "; ".join(differences(contents(self.work), self.expected)) or None

    def _left(self) -> str | None:
        """Temporary files that a command left which was not killed."""
        left = [path.name for path in self.work.rglob(".sigmaff-*") if "lock" not in path.name]
        return f"left {', '.join(left)}" if left else None


def _drawn(blows: Sequence[Blow], share: float, rng: np.random.Generator) -> list[Blow]:
    """This share of the blows, at random and in order; all if it is 1."""
    chosen = rng.permutation(len(blows))[: max(1, round(share * len(blows)))]
    return [blows[index] for index in np.sort(chosen)]


def _badly_ended(ended: Ended) -> str | None:
    """Of a command that got a signal: what is wrong, unless it ended as told, or was done."""
    is_unborn = ended.code in (-signal.SIGTERM, -signal.SIGHUP) and not ended.text
    if (ended.code in (0, INTERRUPTED) or is_unborn) and not ended.has_traceback:
        return None
    return f"ended with {ended.code}: {ended.text[-1500:]}"


def _badly_told(ended: Ended) -> str | None:
    """What is wrong with the message of a full disk: one line that names a file."""
    named = re.search(r"([\w./-]+): No space left on device", ended.error or "")
    is_known = named is not None and not TEMPORARY.fullmatch(Path(named[1]).name)
    if ended.code == 1 and is_known and not ended.has_traceback:
        return None
    return f"a full disk is told badly: {ended.code}: {ended.text[-1500:]}"


def _n_pages(folder: Path) -> int:
    """Of memory, that the files of a folder take on a file system in memory."""
    return sum(ceil(path.stat().st_size / PAGE) for path in folder.rglob("*") if path.is_file())


@contextmanager
def small_disk(place: Path, n_pages: int) -> Iterator[Callable[[], None] | None]:
    """A file system of this size, and a function that makes it larger; ``None`` where nobody may mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_pages * PAGE}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=256m", str(place)], check=True) and None
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


KINDS: dict[str, Callable[..., Iterator[Trial]]] = {
    "kills": Storms.kills,
    "cuts": Storms.cuts,
    "full": Storms.full,
    "signals": Storms.signals,
    "rivals": Storms.rivals,
    "small_disks": Storms.small_disks,
}
