"""The commands of active learning: a whole campaign, and the selection alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from sigmaff.cli.options import Device, Force, FormatOption, ModelArgument, console
from sigmaff.cli.reading import Reading
from sigmaff.errors import SigmaffError

if TYPE_CHECKING:
    from sigmaff.learning import CampaignResult

BLANK = "–"


def learn(
    config: Annotated[Path, typer.Argument(help="a YAML file", show_default=False)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override a key: select.n=20 (may be repeated)")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="directory of the campaign, instead of the file's")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler whose workers see the same folders, tcp://host:port")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="remove a campaign with other settings, and begin anew")
    ] = False,
) -> None:
    """Explore, select, label and learn until it is enough. The same command goes on after an interruption."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.config import read_config
    from sigmaff.learning import CampaignConfig
    from sigmaff.learning import learn as run_campaign

    given = {"output": output, "cluster.scheduler": scheduler}
    values = {key: value for key, value in given.items() if value is not None}
    settings = read_config(CampaignConfig, config, set_ or [], values)
    with Terminal(console) as terminal:
        result = run_campaign(settings, terminal, force=force)
    _tell(result)


def select(
    model: ModelArgument,
    pool: Annotated[Path, typer.Argument(help="structures to choose from; labels are not looked at")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the file to write, .extxyz")],
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="structures to choose")] = 50,
    method: Annotated[
        Literal["variance_reduction", "sigma", "random"],
        typer.Option(help="by the variance that they would take away, by largest σ, or at random"),
    ] = "variance_reduction",
    lower: Annotated[float, typer.Option(min=0.0, help="eV/Å; structures of smaller force σ are left out")] = 0.0,
    upper: Annotated[float | None, typer.Option(help="eV/Å; structures of larger force σ are left out")] = None,
    format: FormatOption = "auto",
    seed: Annotated[int, typer.Option(min=0, help="of what is drawn")] = 0,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Choose the structures of a file whose labels would teach a model most. They are written in order of choice."""
    import numpy as np

    from sigmaff.cli.progress import Terminal
    from sigmaff.config import validated
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.files import refuse_overwrite
    from sigmaff.learning import SelectConfig
    from sigmaff.learning import select as choose
    from sigmaff.models.file import load
    from sigmaff.simulation import output_format, predict_structures, write_structures

    refuse_overwrite(output, force)
    if output_format(output)[1] != "arrays":
        raise SigmaffError(f"{output}: choices are written as .extxyz, which keeps σ of every atom")
    window = {"lower": lower, "upper": np.inf if upper is None else upper}
    settings = validated(SelectConfig, {"n": n, "method": method} | window, "select")
    loaded = load(model, device=device)
    structures = read_structures(Reading(format).source(pool, labels=()))
    with Terminal(console) as terminal:
        terminal.stage("σ of the pool")
        dataset = dataset_for(loaded, structures)
        frames = predict_structures(loaded, dataset, 64, "auto", terminal)
        terminal.stage("selecting")
        picks = choose(loaded, frames, settings, limit=1.0, rng=np.random.default_rng(seed))
    chosen = [frames[pick.index] for pick in picks]
    write_structures(output, chosen, force=force)
    console.print(f"{len(chosen)} of {len(frames)} structures: {output}", soft_wrap=True)


def _tell(result: "CampaignResult") -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = ("round", "labels", "engine calls", "set aside", "F MAE of new ones", "test F MAE (eV/Å)")
    for column in columns:
        table.add_column(column, justify="right")
    for figures in result.rounds:
        counts = (figures.round, figures.n_labels, figures.engine_calls, figures.n_set_aside)
        errors = (None if figures.fresh is None else figures.fresh.forces_mae, figures.test_value("forces_mae"))
        table.add_row(*map(str, counts), *map(_error, errors))
    console.print(table)
    console.print(result.reason, soft_wrap=True)
    console.print(f"model: {result.model_path}", soft_wrap=True)
    console.print(f"report: {result.directory / 'report.html'}", soft_wrap=True)


def _error(value: Any) -> str:
    return BLANK if value is None else f"{value:.4f}"
