"""``sigmaff watch``: the learning curve of a training, while it runs and afterwards."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from sigmaff.cli.progress import console
from sigmaff.progress import duration

if TYPE_CHECKING:
    from sigmaff.training.watched import WatchedTraining

PLOT_ROWS = 10
ROWS: tuple[tuple[str, str, float], ...] = (  # label, column of the metrics, unit
    ("training loss", "train_loss", 1.0),
    ("validation loss", "validation_loss", 1.0),
    ("energy MAE (meV, validation)", "energy_mae", 1e-3),
    ("forces MAE (meV/Å, validation)", "forces_mae", 1e-3),
    ("learning rate", "learning_rate", 1.0),
)


def watch(
    run: Annotated[Path, typer.Argument(help="directory of a run, comparison or campaign", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="print once and exit")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="seconds between looks")] = 2.0,
) -> None:
    """Show the learning curve, errors and time left of a training. End it with Ctrl-C; the training goes on."""
    from sigmaff.training.watched import trainings_in

    if once or not console.is_terminal:
        console.print(view(trainings_in(run), console.width))
        return
    with Live(view(trainings_in(run), console.width), console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(view(trainings_in(run), console.width), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def view(trainings: "Sequence[WatchedTraining]", width: int) -> RenderableType:
    """The training that was written to last, in full, below one line for each of the others.

    Arguments:
        trainings: in the order of their last writing.
        width: of the text, in columns.
    """
    others = [Text(_headline(training), no_wrap=True, overflow="ellipsis") for training in trainings[:-1]]
    latest = trainings[-1]
    parts: list[RenderableType] = [*others, Text(_headline(latest), style="bold"), _numbers(latest)]
    losses = [_column(latest, name) for name in ("train_loss", "validation_loss")]
    return Group(*parts, *plot(losses, width, PLOT_ROWS)) if latest.history else Group(*parts)


def _headline(training: "WatchedTraining") -> str:
    """Where, how far, and how long still."""
    if not training.history:
        return f"{training.name}: no epoch is done yet"
    last, total = training.history[-1], training.total_steps
    of = "" if total is None else f" of {total}"
    left = training.seconds_left
    state = "stopped" if total is None or last.step < total else "done"
    if training.is_running:
        state = "running" if left is None else f"{duration(left)} left"
    return f"{training.name}: epoch {last.epoch}, step {last.step}{of}, {duration(last.seconds)}, {state}"


def _numbers(training: "WatchedTraining") -> Table:
    """First, best and last values."""
    best = training.best
    where = "best" if best is None else f"best (epoch {best.epoch})"
    columns = [Column(name, justify="right") for name in ("first", where, "last")]
    table = Table(Column(""), *columns, box=None, padding=(0, 2, 0, 0))
    for label, name, unit in ROWS:
        known = [value for _, value in _column(training, name)]
        if known:
            at_best = getattr(best, name) if best is not None else None
            shown = ("–" if value is None else f"{value / unit:.4g}" for value in (known[0], at_best, known[-1]))
            table.add_row(label, *shown)
    return table


def _column(training: "WatchedTraining", name: str) -> list[tuple[int, float]]:
    """Epochs and values of a metric, where it is known."""
    values = [(record.epoch, getattr(record, name)) for record in training.history]
    return [(epoch, value) for epoch, value in values if value is not None]


def plot(curves: Sequence[Sequence[tuple[int, float]]], width: int, n_rows: int) -> list[Text]:
    """Losses over epochs as text: · training, ● validation; logarithmic where all are positive.

    Arguments:
        curves: epochs and losses, of training and of validation.
        width: of the text, in columns.
        n_rows: lines of the plot, without its axis.
    """
    every = [point for curve in curves for point in curve]
    is_log = min(loss for _, loss in every) > 0
    scale = math.log if is_log else float
    low, high = (scale(pick(loss for _, loss in every)) for pick in (min, max))
    labels = [f"{math.exp(value) if is_log else value:.3g}" for value in (high, low)]
    margin = max(map(len, labels)) + 1
    n_columns, last = max(10, width - margin - 1), max(epoch for epoch, _ in every)
    cells = [[" "] * n_columns for _ in range(n_rows)]
    for mark, curve in zip("·●", curves, strict=True):
        for epoch, loss in curve:
            column = round((epoch - 1) / max(1, last - 1) * (n_columns - 1))
            row = round((high - scale(loss)) / ((high - low) or 1.0) * (n_rows - 1))
            cells[row][column] = mark
    edges = [labels[0], *[""] * (n_rows - 2), labels[1]]
    lines = [f"{edge:>{margin - 1}} │{''.join(row)}" for edge, row in zip(edges, cells, strict=True)]
    axis = f"{'':{margin}}└ epoch 1 to {last}; loss: · training, ● validation" + (", logarithmic" if is_log else "")
    return [Text(line, no_wrap=True, overflow="crop") for line in (*lines, axis)]
