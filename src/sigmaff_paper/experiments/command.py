"""The command ``sigmaff reproduce``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from sigmaff.cli.progress import Terminal, console
from sigmaff.errors import SigmaffError

if TYPE_CHECKING:
    from sigmaff_paper.experiments.experiment import ResultTable

DATA_VARIABLE = "SIGMAFF_DATA"

app = typer.Typer(add_completion=False)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="name of an experiment, or list to show all", show_default=False)],
    scale: Annotated[
        Literal["quick", "paper"], typer.Option(help="quick: small models, minutes; paper: published settings, days")
    ] = "quick",
    data: Annotated[
        list[Path] | None,
        typer.Option(help=f"folder with rmd17/ and QM7-X files (may be repeated); default: ${DATA_VARIABLE}"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder of all experiments; default: reproduce_quick or reproduce_paper")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine, with one thread each")] = 2,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Dask scheduler, tcp://host:port; its workers must see the same folders"),
    ] = None,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours. Rerun the same command to resume."""
    from sigmaff.tasks import ClusterConfig
    from sigmaff_paper.experiments.reproduce import reproduce as run_experiment
    from sigmaff_paper.experiments.reproduce import without_result

    if name == "list":
        console.print(experiments_table())
        return
    with Terminal(console) as terminal:
        report, results, paths = run_experiment(
            name,
            scale=scale,
            folders=_folders(data),
            output=output or Path(f"reproduce_{scale}"),
            cluster=ClusterConfig(n_workers=workers, scheduler=scheduler),
            listener=terminal,
        )
    for table in report.tables:
        console.print(_printed(table))
    for result in without_result(results):
        console.print(f"{result.name} ({result.status}): {result.reason}", soft_wrap=True)
    console.print("\n".join(f"{path}" for path in paths), soft_wrap=True)
    if len(without_result(results)) == len(results):
        raise SigmaffError(f"{name}: no job has a result")


def _folders(data: list[Path] | None) -> tuple[Path, ...]:
    if data:
        return tuple(data)
    named = os.environ.get(DATA_VARIABLE)
    return (Path(named),) if named else ()


def experiments_table() -> Table:
    """All experiments, what they show, and how long they take."""
    from sigmaff_paper.experiments.data import DataFolders
    from sigmaff_paper.experiments.reproduce import EXPERIMENTS

    nowhere = DataFolders(folders=(), made=Path())
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("experiment", no_wrap=True)
    table.add_column("shows")
    for column in ("jobs: quick", "paper", "minutes: quick"):
        table.add_column(column, justify="right")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(
            Text(name, style="bold"),
            f"{experiment.title}: {experiment.shows}",
            f"{len(experiment.jobs('quick', nowhere))}",
            f"{len(experiment.jobs('paper', nowhere))}",
            f"{experiment.quick_minutes}",
        )
    table.caption = Text("minutes on two cores from the start; experiments share jobs", justify="left")
    return table


def _printed(table: "ResultTable") -> Table:
    """The paper's numbers in brackets."""
    printed = Table(title=Text(table.title), title_justify="left")
    n_labels = max(len(labels) for labels in table.rows)
    for column in ("",) * n_labels + table.columns:
        printed.add_column(column)
    for labels, entries in table.rows.items():
        texts = (entry.text("") for entry in entries)
        printed.add_row(*labels, *[""] * (n_labels - len(labels)), *texts)
    return printed
