"""A published table: its numbers where it has them, and what is known to be wrong with some of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Labels = tuple[str, ...]
Numbers = tuple[float | None, ...]
Rows = Mapping[Labels, Numbers]
Slips = Mapping[tuple[Labels, str], str]

CALIBRATION = "Calibration"
CALIBRATION_RANGE = (0.922, 1.688)
"""Of the mean of calibration scores of single samples: √Σ(p − 0 or 1)² lies in it for each of them, √0.85 … √2.85."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """``rows`` by their labels, one number for each column; ``None`` is a dash."""

    number: str  # "Table 2"
    caption: str
    columns: Labels
    rows: Rows
    slips: Slips = field(default_factory=dict)  # by row and column

    def value(self, row: Labels, column: str) -> float | None:
        """``None`` also for rows and columns that it does not have."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]

    def slip(self, row: Labels, column: str) -> str | None:
        """What is wrong with a number."""
        number = self.value(row, column)
        low, high = CALIBRATION_RANGE
        if number is None or row[-1] != CALIBRATION or low <= number <= high:
            return self.slips.get((row, column))
        return f"not between {low} and {high}, where the mean score of single structures lies whatever σ is"
