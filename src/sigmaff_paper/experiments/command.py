"""The command ``sigmaff reproduce``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from sigmaff.cli.progress import console, progress, say
from sigmaff.errors import SigmaffError
from sigmaff.extras import require

if TYPE_CHECKING:
    from sigmaff.runs.jobs import Results
    from sigmaff_paper.experiments.experiment import Report

app = typer.Typer(add_completion=False)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="name of an experiment, or list to show all", show_default=False)],
    scale: Annotated[
        Literal["quick", "paper"], typer.Option(help="quick: small models, minutes; paper: published settings, days")
    ] = "quick",
    data: Annotated[
        list[Path] | None,
        typer.Option(envvar="SIGMAFF_DATA", help="folder with rmd17/ and QM7-X files (repeatable)", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder of all experiments; default: reproduce_quick or reproduce_paper")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine, with one thread each")] = 2,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://host:port; its workers must see the same folders")
    ] = None,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours. Rerun the same command to resume."""
    require("an experiment of the paper", "lightning_fabric", "tensorboard", "distributed", "jinja2", "matplotlib")
    from sigmaff.tasks import ClusterConfig
    from sigmaff_paper.experiments.reproduce import reproduce as run_experiment
    from sigmaff_paper.experiments.reproduce import without_result

    if name == "list":
        console.print(_experiments_table())
        return
    cluster = ClusterConfig(n_workers=workers, scheduler=scheduler)
    folder = output or Path(f"reproduce_{scale}")
    with progress() as terminal:
        report, results, paths = run_experiment(
            name, scale=scale, folders=tuple(data or ()), output=folder, cluster=cluster, listener=terminal
        )
    _print_result(report, results, paths)
    if len(without_result(results)) == len(results):
        raise SigmaffError(f"{name}: no job has a result")


def _print_result(report: "Report", results: "Results", paths: list[Path]) -> None:
    """Print the tables, with the paper's numbers in brackets, the jobs without a result, and the files."""
    from sigmaff_paper.experiments.reproduce import without_result

    for table in report.tables:
        header, *rows = table.cells({})
        printed = Table(*header, title=Text(table.title), title_justify="left")
        for row in rows:
            printed.add_row(*row)
        console.print(printed)
    for result in without_result(results):
        say(f"{result.name} ({result.status}): {result.reason}")
    say("\n".join(f"{path}" for path in paths))


def _experiments_table() -> Table:
    """All experiments, what they show, and how long they take."""
    from sigmaff_paper.experiments.data import DataFolders
    from sigmaff_paper.experiments.reproduce import EXPERIMENTS

    nowhere = DataFolders(folders=(), made=Path())
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("experiment", no_wrap=True, style="bold")
    table.add_column("shows")
    for column in ("jobs: quick", "paper", "minutes: quick"):
        table.add_column(column, justify="right")
    for name, experiment in EXPERIMENTS.items():
        counts = (len(experiment.jobs("quick", nowhere)), len(experiment.jobs("paper", nowhere)))
        table.add_row(name, f"{experiment.title}: {experiment.shows}", *map(str, (*counts, experiment.quick_minutes)))
    table.caption = Text("minutes on two cores from the start; experiments share jobs", justify="left")
    return table
