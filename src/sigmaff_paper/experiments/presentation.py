"""What an experiment shows: tables in the paper's layout with its number beside ours, and figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sigmaff_paper.tables.table import Labels, PaperTable

Ours = Callable[[Labels, str], float | None]
"""Our number of a row and a column."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One place of a table."""

    ours: float | None
    paper: float | None = None
    note: str | None = None

    def text(self, mark: str) -> str:
        """Ours, and the paper's in brackets."""
        ours = "–" if self.ours is None else _shown(self.ours)
        return ours if self.paper is None else f"{ours} ({_printed(self.paper)}{mark})"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows by their labels, one entry for each column."""

    title: str
    columns: Labels
    rows: dict[Labels, tuple[Entry, ...]]

    def notes(self) -> list[str]:
        """Of its entries, in their order, each once."""
        return list(dict.fromkeys(entry.note for row in self.rows.values() for entry in row if entry.note is not None))

    def markdown(self) -> str:
        notes = self.notes()
        n_labels = max(len(labels) for labels in self.rows)
        lines = [[""] * n_labels + list(self.columns), ["---"] * (n_labels + len(self.columns))]
        for labels, entries in self.rows.items():
            texts = [entry.text(f" [{notes.index(entry.note) + 1}]" if entry.note else "") for entry in entries]
            lines.append([*labels, *[""] * (n_labels - len(labels)), *texts])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
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
class Presentation:
    """``notes`` tell what differs from the paper; figures are by name."""

    tables: list[Table]
    figures: dict[str, Figure]
    notes: list[str] = field(default_factory=list)


def beside(
    paper: PaperTable,
    ours: Ours,
    *,
    rows: Iterable[Labels] | None = None,
    columns: Sequence[str] | None = None,
    more_columns: Sequence[str] = (),
) -> Table:
    """Our numbers beside those of a published table.

    rows, columns: those that are shown, in place of all; rows that the paper lacks are ours alone, as ``more_columns``.
    """
    shown = (*(paper.columns if columns is None else columns), *more_columns)
    return Table(
        title=f"{paper.number}: {paper.caption}",
        columns=shown,
        rows={
            row: tuple(
                Entry(ours=ours(row, column), paper=paper.value(row, column), note=paper.slip(row, column))
                for column in shown
            )
            for row in (paper.rows if rows is None else rows)
        },
    )


def _shown(number: float) -> str:
    """Counts whole; measures with three digits after the point, or three that count where they are smaller."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:.3f}" if abs(number) >= 0.1 else f"{number:.3g}"


def _printed(number: float) -> str:
    """As the paper has it."""
    return f"{number:,}" if isinstance(number, int) else f"{round(number, 4):g}"
