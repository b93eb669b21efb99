"""A published table: its numbers, and known errors in some of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Labels = tuple[str, ...]
Numbers = tuple[float | None, ...]

CALIBRATION = "Calibration per sample, raw σ"
CALIBRATION_RANGE = (0.922, 1.688)
"""Range of calibration scores of single structures, √Σ(p − 0 or 1)², and so of their mean: √0.85 … √2.85."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """Rows by their labels, one number for each column; ``None`` is a dash."""

    number: str  # "Table 2"
    caption: str
    columns: Labels
    rows: Mapping[Labels, Numbers]
    slips: Mapping[tuple[Labels, str], str] = field(default_factory=dict)  # by row and column

    def value(self, row: Labels, column: str) -> float | None:
        """Return a number; ``None`` if there is no such row or column."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]

    def slip(self, row: Labels, column: str) -> str | None:
        """Return what is wrong with a number; ``None`` if nothing is known."""
        number = self.value(row, column)
        low, high = CALIBRATION_RANGE
        if number is None or row[-1] != CALIBRATION or low <= number <= high:
            return self.slips.get((row, column))
        return f"impossible: the mean score of single structures is between {low} and {high} for any σ"


def read_numbers(text: str) -> Numbers:
    """Read numbers between spaces. A dash is ``None``."""
    return tuple(None if word == "-" else float(word) for word in text.split())
