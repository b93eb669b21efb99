"""Progress on the terminal."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from sigmaff.training import EpochRecord

PLAIN_INTERVAL = 10.0
"""Seconds between lines where the output is not a terminal."""


class Terminal:
    """Tells a person how a run goes: bars on a terminal, a line now and then in a log file."""

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

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def stage(self, text: str) -> None:
        self.text, self.task = text, None
        if not self.console.is_terminal:
            self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)

    def advance(self, done: int, total: int) -> None:
        self._show(done, total, "")

    def start(self, total_steps: int, done_steps: int) -> None:
        if done_steps:
            self.console.print(f"{self.text}: going on from step {done_steps} of {total_steps}")
        self.total_steps = total_steps
        self.note = ""
        self._show(done_steps, total_steps, "")

    def step(self, epoch: int, step: int, loss: float) -> None:
        self._show(step, self.total_steps, self.note or f"epoch {epoch}, loss {loss:.4f}")

    def epoch(self, record: EpochRecord) -> None:
        if record.energy_mae is None:
            return
        forces = "" if record.forces_mae is None else f", F {1000 * record.forces_mae:.1f} meV/Å"
        self.note = f"epoch {record.epoch}: validation MAE E {1000 * record.energy_mae:.2f} meV{forces}"

    def _show(self, done: int, total: int, note: str) -> None:
        if self.task is None:
            self.task = self.progress.add_task(self.text, total=total, note=note)
        self.progress.update(self.task, completed=done, total=total, note=note)
        now = time.monotonic()
        if not self.console.is_terminal and (now - self.last_line > PLAIN_INTERVAL or done == total):
            self.last_line = now
            self.console.print(f"  {self.text}: {done}/{total} {note}".rstrip(), soft_wrap=True)
