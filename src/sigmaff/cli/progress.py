"""What the commands print: results, errors and progress."""

import re
import time
from collections.abc import Iterator
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.segment import Segment
from rich.text import Text

from sigmaff.progress import Listener, Pace, duration

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class PlainConsole(Console):
    """Prints text of files and paths as it is: no markup, and no characters that control a terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None and CONTROL.search(segment.text)
            yield Segment(CONTROL.sub("\ufffd", segment.text), segment.style) if is_text else segment


console = PlainConsole()
errors = PlainConsole(stderr=True)

PLAIN_INTERVAL = 10.0
"""Seconds between lines where the output is not a terminal."""
N_BARS = 10
"""Bars on a terminal, the last ones: more would push the one at work off the screen."""


class Terminal(Listener):
    """Progress bars on a terminal; a line every few seconds in a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self.text = ""
        self.task: TaskID | None = None
        self.pace = Pace()
        self.last_line = 0.0
        self.unsaid = ""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._say()
        self.progress.stop()

    def stage(self, text: str) -> None:
        self._say()
        self.text, self.task, self.pace = text, None, Pace()
        if not self.console.is_terminal:
            self.console.print(text, soft_wrap=True)

    def tell(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)

    def advance(self, done: int, total: int, note: str = "") -> None:
        now, is_news = time.monotonic(), self.task is None and note != ""
        self.pace.look(now, done)
        left = self._left(done, total)
        if self.task is None:
            self.task = self.progress.add_task(self.text, total=total, note=note, left=left)
            for old in self.progress.task_ids[:-N_BARS]:
                self.progress.remove_task(old)
        self.progress.update(self.task, completed=done, total=total, note=note, left=left)
        if not self.console.is_terminal:
            parts = filter(None, [f"{done}/{total}", left, note])
            self.unsaid = f"  {self.text}: {', '.join(parts)}"
            if is_news or now - self.last_line > PLAIN_INTERVAL or done == total:
                self.last_line = now
                self._say()

    def _say(self) -> None:
        """Print the last line of progress, if it was not: work may end before all is done."""
        if self.unsaid:
            self.console.print(self.unsaid, soft_wrap=True)
        self.unsaid = ""

    def _left(self, done: int, total: int) -> str:
        """The time that the stage has taken if it is done, else that which is left."""
        if done >= total:
            return duration(self.pace.times[-1] - self.pace.times[0])
        seconds = self.pace.seconds_left(total)
        return "" if seconds is None else f"{duration(seconds)} left"


def progress() -> Terminal:
    """Progress on the console, to use in a ``with`` block."""
    return Terminal(console)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)
