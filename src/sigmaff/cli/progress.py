"""What the commands print: results, errors and progress."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from sigmaff.progress import Listener

console = Console(highlight=False, markup=False, emoji=False)  # no markup: printed text contains paths of the user
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)

PLAIN_INTERVAL = 10.0
"""Seconds between lines where the output is not a terminal."""


class Terminal(Listener):
    """Progress bars on a terminal; a line every few seconds in a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self.text = ""
        self.task: TaskID | None = None
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
        self.text, self.task = text, None
        if not self.console.is_terminal:
            self.console.print(text, soft_wrap=True)

    def tell(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)

    def advance(self, done: int, total: int, note: str = "") -> None:
        is_news = self.task is None and note != ""
        if self.task is None:
            self.task = self.progress.add_task(self.text, total=total, note=note)
        self.progress.update(self.task, completed=done, total=total, note=note)
        now = time.monotonic()
        if not self.console.is_terminal:
            self.unsaid = f"  {self.text}: {done}/{total} {note}".rstrip()
            if is_news or now - self.last_line > PLAIN_INTERVAL or done == total:
                self.last_line = now
                self._say()

    def _say(self) -> None:
        """Print the last line of progress, if it was not: work may end before all is done."""
        if self.unsaid:
            self.console.print(self.unsaid, soft_wrap=True)
        self.unsaid = ""


def progress() -> Terminal:
    """Progress on the console, to use in a ``with`` block."""
    return Terminal(console)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)
