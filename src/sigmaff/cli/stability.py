"""The stability test of ``sigmaff evaluate`` and ``sigmaff report``: its options and its table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

import sigmaff as sf
from sigmaff.errors import ConfigError

if TYPE_CHECKING:
    from sigmaff.data import DataSource
    from sigmaff.evaluation.stability import Stability
    from sigmaff.models import Model
    from sigmaff.progress import Listener

MdOption = Annotated[
    Path | None,
    typer.Option("--md", help="make a stability test: short dynamics from some of the structures, in this directory"),
]
Temperature = Annotated[
    float | None, typer.Option(help="K, of the stability test; default: as in the data, or 300", show_default=False)
]
Picoseconds = Annotated[float, typer.Option(help="length of each run of the stability test")]
Starts = Annotated[int, typer.Option(min=1, help="runs of the stability test")]


def stability_test(
    model: "Model",
    structures: "DataSource",
    directory: Path | None,
    temperature: float | None,
    picoseconds: float,
    starts: int,
    listener: "Listener",
) -> "Stability | None":
    """The stability test that the options ask for; ``None``: they ask for none."""
    if directory is None:
        if temperature is not None:
            raise ConfigError("--temperature is that of the stability test: give --md, the directory of its runs")
        return None
    settings = {"temperature": temperature, "picoseconds": picoseconds, "starts": starts}
    return sf.stability(model, structures, settings, directory=directory, listener=listener)


def stability_table(found: "Stability") -> Table:
    header, *rows = found.rows()
    table = Table(*map(Column, header), title=Text(f"stability: {found.headline}"), title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    if found.limits:
        table.caption = Text(f"limits on σ: {found.limits}", justify="left")
    return table
