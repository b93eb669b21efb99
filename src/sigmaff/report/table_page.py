"""A table as a page of its own, in the style of the reports."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sigmaff.files import written_whole


def write_table_page(
    path: Path, title: str, rows: Sequence[Sequence[str]], *, notes: Mapping[str, str], force: bool = False
) -> None:
    """``rows`` begin with the header; ``notes`` follow the table, by name."""
    folder = files("sigmaff.report")
    template = folder.joinpath("table_page.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(template)
    text = page.render(
        title=title, rows=rows, notes=notes, style=Markup(folder.joinpath("style.css").read_text(encoding="utf-8"))
    )
    with written_whole(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")
