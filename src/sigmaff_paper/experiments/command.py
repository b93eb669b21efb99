"""The command ``sigmaff reproduce``."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from sigmaff.cli.progress import console, progress, say
from sigmaff.errors import SigmaffError
from sigmaff.extras import require
from sigmaff.files import folder_lock

if TYPE_CHECKING:
    from sigmaff.runs.jobs import Results
    from sigmaff_paper.experiments.experiment import Report
    from sigmaff_paper.experiments.reproduce import Plan, PlannedCell

app = typer.Typer(add_completion=False)
UNUSABLE = {"no data": "without data", "other settings": "of other settings"}
"""Words for the states of cells that cannot run."""


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="name of an experiment, or list to show all", show_default=False)],
    scale: Annotated[
        Literal["quick", "hour", "paper"],
        typer.Option(
            help="quick: small networks, minutes; hour: the paper's networks and data sizes, an hour of one core for "
            "a training; paper: the published settings, 15 to 25 hours of one core for a SchNet on MD17 and months "
            "for a DimeNet++ on QM7-X, if patience does not end them"
        ),
    ] = "quick",
    hours: Annotated[float, typer.Option(min=0.01, help="length of a training of scale hour, of one core")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="trainings of every network; tables show means and ranges")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="run some cells, and those that they need: molecule=ethanol,uracil, backbone=schnet or "
            "method=fixed-lnk,lnk-5 (repeatable)",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the cells and their expected hours")] = False,
    force_std: Annotated[
        bool,
        typer.Option(
            help="test analytic σ of forces too, which the paper does not have: of its LNK it takes a derivative for "
            "each coordinate"
        ),
    ] = True,
    device: Annotated[str, typer.Option(help="of the trainings: cpu, cuda, mps or auto")] = "auto",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="SIGMAFF_DATA", help="folder with rmd17/ or md17/ and QM7-X files (repeatable)", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder of all experiments; default: reproduce_ and the scale")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine, with one thread each")] = 2,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://host:port; its workers must see the same folders")
    ] = None,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours. Rerun the same command to resume."""
    require("an experiment of the paper", "lightning_fabric", "tensorboard", "distributed", "jinja2", "matplotlib")
    from sigmaff.tasks import ClusterConfig
    from sigmaff_paper.experiments.reproduce import plan, run_plan, without_result
    from sigmaff_paper.experiments.selection import read_only
    from sigmaff_paper.experiments.settings import Setup
    from sigmaff_paper.experiments.written import write_report

    if name == "list":
        console.print(_experiments_table())
        return
    setup = Setup(scale=scale, hours=hours, n_seeds=seeds, device=device, force_std=force_std)
    folder = output or Path(f"reproduce_{scale}" + (f"_{hours:g}" if hours != 1.0 else ""))
    planned = plan(name, setup, folders=tuple(data or ()), output=folder, only=read_only(only or ()))
    if dry_run:
        _print_plan(planned, workers)
        return
    with folder_lock(planned.directory, wait=False):  # other experiments in this folder wait for its cells
        with progress() as terminal:
            report, results = run_plan(planned, ClusterConfig(n_workers=workers, scheduler=scheduler), terminal)
        paths = write_report(planned, report, results)
    _print_result(planned, report, results, paths)
    if len(without_result(results)) == len(results):
        raise SigmaffError(f"{name}: no job has a result; the first one: {next(iter(results.values())).reason}")


def _print_result(planned: "Plan", report: "Report", results: "Results", paths: list[Path]) -> None:
    """Print the tables, with the paper's numbers in brackets, the jobs without a result, and the files."""
    from sigmaff_paper.experiments.reproduce import without_result
    from sigmaff_paper.experiments.written import left_out_text

    for table in report.tables:
        header, *rows = table.cells({})
        printed = Table(*header, title=Text(table.title), title_justify="left")
        for row in rows:
            printed.add_row(*row)
        console.print(printed)
    for result in without_result(results):
        say(f"{result.name} ({result.status}): {result.reason}")
    if text := left_out_text(planned, planned.left_out()):
        say(text)
    say("\n".join(f"{path}" for path in paths))


def _print_plan(planned: "Plan", workers: int) -> None:
    """Print the cells, whether they are done, and hours: taken by those, expected of the others."""
    from sigmaff_paper.experiments.written import hours_text, left_out_text

    cells = planned.cells()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("cell", no_wrap=True)
    table.add_column("state")
    table.add_column("hours", justify="right")
    for cell in cells:
        table.add_row(cell.name, cell.state, "" if cell.hours is None else hours_text(cell.hours))
    console.print(table)
    for reason in dict.fromkeys(cell.reason for cell in cells if cell.reason is not None):
        say(reason)
    say(_total(planned, cells, workers))
    if text := left_out_text(planned, planned.left_out()):
        say(text)


def _total(planned: "Plan", cells: "list[PlannedCell]", workers: int) -> str:
    """Cells and hours, done and to run."""
    from sigmaff_paper.experiments.written import hours_text

    left = [cell for cell in cells if cell.state in ("to run", "no data")]
    states = Counter[str](cell.state for cell in cells)
    counts = f"{len(cells)} cells: " + ", ".join(f"{states[state]} {state}" for state in ("done", "to run"))
    counts += "".join(f", {states[state]} {words}" for state, words in UNUSABLE.items() if states[state])
    if planned.setup.scale == "quick":
        return f"{counts}. All take about {planned.experiment.quick_minutes} minutes on two cores."
    total = sum(cell.hours or 0.0 for cell in left)
    early = " Patience may end trainings earlier." if planned.setup.scale == "paper" else ""
    time = f"about {hours_text(total)} hours of one core ({hours_text(total / workers)} with {workers} workers)"
    return f"{counts}, {time}: an estimate from steps and the speed of one core of an AMD EPYC.{early}"


def _experiments_table() -> Table:
    """All experiments, what they show, and how long they take."""
    from sigmaff_paper.experiments.data import DataFolders
    from sigmaff_paper.experiments.expected import expected_hours
    from sigmaff_paper.experiments.reproduce import EXPERIMENTS
    from sigmaff_paper.experiments.settings import Scale, Setup
    from sigmaff_paper.experiments.written import hours_text

    nowhere = DataFolders(folders=(), made=Path())
    scales: tuple[Scale, ...] = ("quick", "hour", "paper")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("experiment", no_wrap=True, style="bold")
    table.add_column("shows")
    for column in ("jobs: quick", "hour", "paper", "minutes: quick", "hours: hour", "paper"):
        table.add_column(column, justify="right")
    for name, experiment in EXPERIMENTS.items():
        jobs = {scale: experiment.jobs(Setup(scale=scale), nowhere) for scale in scales}
        times = [hours_text(sum(expected_hours(job) or 0.0 for job in jobs[scale])) for scale in scales[1:]]
        counts = [str(len(jobs[scale])) for scale in scales]
        table.add_row(name, f"{experiment.title}: {experiment.shows}", *counts, str(experiment.quick_minutes), *times)
    table.caption = Text(
        "quick: minutes on two cores from the start; hour and paper: hours of one core from the start, by estimate "
        "(--dry-run shows each cell; at scale paper patience may end trainings earlier). Experiments share jobs.",
        justify="left",
    )
    return table
