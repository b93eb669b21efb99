"""``sigmaff learn``, an active-learning campaign, and ``sigmaff select``, its selection step alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Column

import sigmaff as sf
from sigmaff.cli.options import (
    ConfigFile,
    Device,
    Force,
    ModelArgument,
    Reading,
    Seed,
    SetOption,
    SkipChecks,
    Trust,
    claim_outputs,
)
from sigmaff.cli.progress import console, progress, say
from sigmaff.config import validated
from sigmaff.errors import SigmaffError

if TYPE_CHECKING:
    from sigmaff.learning import CampaignResult


def learn(
    config: ConfigFile,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option(help="directory of the campaign; overrides the file")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://host:port; its workers need the same file system")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="delete a campaign with other settings and start again")
    ] = False,
    skip_checks: SkipChecks = False,
    trust: Trust = False,
) -> None:
    """Run active learning: explore, select, label, train. Rerun the same command to resume."""
    from sigmaff.inputs import settings_of
    from sigmaff.learning import CampaignConfig

    given = {"output": output, "cluster.scheduler": scheduler}
    settings = settings_of(CampaignConfig, config, set_ or [], given, trust=trust)
    with progress() as terminal:
        result = sf.learn(settings, listener=terminal, force=force, skip_checks=skip_checks)
    _print_result(result)


def select(
    context: typer.Context,
    model: ModelArgument,
    pool: Annotated[Path, typer.Argument(help="file of candidate structures; labels are kept and not used")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, .extxyz", show_default=False)],
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="number of structures to select")] = 50,
    method: Annotated[
        Literal["max_det", "k_centre", "variance_reduction", "sigma", "random"],
        typer.Option(
            help="largest energy variance given earlier choices (max_det), farthest from earlier choices (k_centre), "
            "largest reduction of the force variance, largest force σ, or random"
        ),
    ] = "max_det",
    cost_power: Annotated[
        float, typer.Option(min=0.0, help="divide the gain of a label by (number of atoms)**power; 0: equal costs")
    ] = 1.0,
    lower: Annotated[float, typer.Option(min=0.0, help="eV/Å; ignore structures with smaller force σ")] = 0.0,
    upper: Annotated[float | None, typer.Option(help="eV/Å; ignore structures with larger force σ")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Select the structures whose labels would improve a model most, in this order.

    Labels of the file stay as they are; predictions stand beside them as sigmaff_energy and sigmaff_forces.
    --lower and --upper are in eV/Å. (The keys select.lower and select.upper of a campaign are in units of its limit.)
    """
    import numpy as np

    from sigmaff.data import read_structures, with_ase_names
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.learning import SelectConfig
    from sigmaff.learning import select as choose
    from sigmaff.learning.selection import replaced_method
    from sigmaff.simulation import output_format, predict_structures, write_structures

    claim_outputs([output], force)
    if output_format(output)[1] != "arrays":
        raise SigmaffError(f"{output}: selected structures are written as .extxyz, which keeps σ of every atom")
    window = {"lower": lower, "upper": np.inf if upper is None else upper}
    settings = validated(SelectConfig, {"n": n, "method": method, "cost_power": cost_power} | window, "select")
    loaded = sf.load(model, device=device)
    structures = read_structures(with_ase_names(Reading(**context.obj).unlabelled(pool)))
    with progress() as terminal:
        terminal.stage("predicting σ of the candidates")
        dataset = dataset_for(loaded, structures.without_labels())
        frames = predict_structures(loaded, dataset, 64, "auto", terminal, stress_std=False, labels=structures)
        if words := replaced_method(loaded, settings.method):
            terminal.warn(words)
        terminal.stage("selecting")
        picks = choose(loaded, frames, settings, limit=1.0, rng=np.random.default_rng(seed))
    write_structures(output, [frames[pick.index] for pick in picks], force=force)
    say(f"{len(picks)} of {len(frames)} structures: {output}")


def _print_result(result: "CampaignResult") -> None:
    from sigmaff.cli.tables import plain_table

    columns = ("round", "labels", "held out", "engine calls", "failed labels", "F MAE of selected", "test F MAE (eV/Å)")
    table = plain_table(*(Column(name, justify="right") for name in columns))
    for figures in result.rounds:
        held_out = "–" if figures.n_held_out is None else figures.n_held_out
        counts = (figures.round, figures.n_labels, held_out, figures.engine_calls, figures.n_set_aside)
        maes = (None if figures.fresh is None else figures.fresh.forces_mae, figures.test_value("forces_mae"))
        table.add_row(*map(str, counts), *("–" if mae is None else f"{mae:.4f}" for mae in maes))
    console.print(table)
    say(result.reason)
    say(f"model: {result.model_path}")
    say(f"report: {result.directory / 'report.html'}")
