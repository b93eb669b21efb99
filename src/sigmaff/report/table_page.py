"""A table as a page of its own, in the style of the reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sigmaff.report.page import write_page


def write_table_page(
    path: Path, title: str, rows: Sequence[Sequence[str]], *, notes: Mapping[str, str], force: bool = False
) -> None:
    """``rows`` begin with the header; ``notes`` follow the table, by name."""
    write_page(path, "table_page.html", {"title": title, "rows": rows, "notes": notes}, force=force)
