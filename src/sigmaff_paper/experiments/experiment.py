"""Experiments: the jobs of a table or figure of the paper, and our numbers beside the published ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sigmaff.runs.jobs import Job, Results
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.settings import Setup
from sigmaff_paper.experiments.value import Interval, Value
from sigmaff_paper.tables.table import Labels, PaperTable

Ours = Callable[[Labels, str], Value | None]
"""Our number of a row and a column."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Our number and the published one."""

    ours: float | None
    paper: float | None = None
    note: str | None = None
    interval: Interval | None = None
    trainings: tuple[float, ...] = ()  # our number of each, if there are several

    @classmethod
    def of(cls, value: Value | None, paper: float | None = None, note: str | None = None) -> "Entry":
        if value is None:
            return cls(ours=None, paper=paper, note=note)
        return cls(ours=value.mean, paper=paper, note=note, interval=value.interval, trainings=value.trainings)

    @property
    def is_empty(self) -> bool:
        return self.ours is None and self.paper is None

    def text(self, mark: str) -> str:
        """Return our number with the range of trainings and its interval, and the published one in brackets."""
        ours = "–" if self.ours is None else _shown(self.ours)
        if self.trainings:
            ours += f" {{{_shown(min(self.trainings))} … {_shown(max(self.trainings))}}}"
        if self.interval is not None:
            ours += f" [{', '.join(map(_shown, self.interval))}]"
        return ours if self.paper is None else f"{ours} ({_printed(self.paper)}{mark})"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Rows by their labels, one entry for each column."""

    title: str
    columns: Labels
    rows: dict[Labels, tuple[Entry, ...]]

    @property
    def has_ours(self) -> bool:
        """Whether it has a number of ours."""
        return any(entry.ours is not None for row in self.rows.values() for entry in row)

    def cells(self, marks: Mapping[str, str]) -> list[list[str]]:
        """Return the texts of the header and of each row. ``marks`` are those of notes."""
        n_labels = max(len(labels) for labels in self.rows)
        lines = [[""] * n_labels + list(self.columns)]
        for labels, entries in self.rows.items():
            texts = [entry.text(marks.get(entry.note or "", "")) for entry in entries]
            lines.append([*labels, *[""] * (n_labels - len(labels)), *texts])
        return lines

    def markdown(self) -> str:
        notes = list(dict.fromkeys(entry.note for row in self.rows.values() for entry in row if entry.note is not None))
        header, *rows = self.cells({note: f" [{number}]" for number, note in enumerate(notes, 1)})
        table = "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))
        return "\n\n".join([f"### {self.title}", table, *(f"[{k}] {note}." for k, note in enumerate(notes, 1))])

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [
                {"labels": list(labels), "entries": [vars(entry) for entry in entries]}
                for labels, entries in self.rows.items()
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an experiment shows. ``notes`` list the differences from the paper; figures are by name."""

    tables: list[ResultTable]
    figures: dict[str, Figure]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    title: str
    shows: str  # which tables and figures
    quick_minutes: int  # on two cores, from the start
    jobs: Callable[[Setup, DataFolders], list[Job]]
    present: Callable[[Results, Setup], Report]


def beside(
    paper: PaperTable,
    ours: Ours,
    *,
    rows: Iterable[Labels] | None = None,
    more_columns: Sequence[str] = (),
    title: str = "",
) -> ResultTable:
    """Return our numbers beside those of a published table. A row with neither is left out.

    Arguments:
        rows: those to show; default: all of the paper. A row or column that the paper does not have shows our number
            alone.
        more_columns: columns after those of the paper.
        title: appended to that of the paper.
    """
    shown = (*paper.columns, *more_columns)
    entries = {
        row: tuple(Entry.of(ours(row, column), paper.value(row, column), paper.slip(row, column)) for column in shown)
        for row in (paper.rows if rows is None else rows)
    }
    return ResultTable(
        title=f"{paper.number}: {paper.caption}{title}",
        columns=shown,
        rows={row: found for row, found in entries.items() if any(not entry.is_empty for entry in found)},
    )


def _shown(number: float) -> str:
    """Counts as integers; measures with three decimals, or three significant digits below 0.1."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:.3f}" if abs(number) >= 0.1 else f"{number:.3g}"


def _printed(number: float) -> str:
    """As in the paper."""
    return f"{number:,}" if isinstance(number, int) else f"{round(number, 4):g}"
