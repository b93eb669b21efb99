"""Pages of one file each, without network: templates on one base, with style and script inside."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sigmaff.files import atomic_write, refuse_overwrite


def write_page(path: Path, template: str, values: Mapping[str, object], *, force: bool = False) -> None:
    """Whole or not at all; an existing file is replaced only with ``force``."""
    refuse_overwrite(path, force)
    loader = PackageLoader("sigmaff.report", package_path="")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    style, script = (Markup((files("sigmaff.report") / name).read_text("utf-8")) for name in ("style.css", "viewer.js"))
    page = environment.get_template(template).render(values, style=style, script=script)
    with atomic_write(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


def write_table_page(
    path: Path, title: str, sections: Sequence[object], *, notes: Sequence[str], force: bool = False
) -> None:
    """Tables as a page. A section has a ``title``, a ``lead`` and ``rows``, the header first; ``notes`` follow."""
    write_page(path, "table_page.html", {"title": title, "sections": sections, "notes": notes}, force=force)
