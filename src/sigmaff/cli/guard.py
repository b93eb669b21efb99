"""``sigmaff guard``: a limit on σ with a promise about whole MD runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sigmaff as sf
from sigmaff.cli.options import Device, ModelArgument
from sigmaff.cli.progress import progress, say
from sigmaff.config import read_config

if TYPE_CHECKING:
    from sigmaff.simulation.md import GuardConfig


def guard_options() -> "type[GuardConfig]":
    from sigmaff.simulation.md import GuardConfig

    return GuardConfig


def guard(
    context: typer.Context,
    model: ModelArgument,
    start: Annotated[Path, typer.Argument(help="file of structures; starts are drawn from it", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="directory of the guard")] = Path("guard"),
    engine: Annotated[
        str, typer.Option(help="engine of the labels: gfn2-xtb, gfn1-xtb, pyscf-pbe, or module:factory")
    ] = "gfn2-xtb",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="more settings of engine and cluster, such as engine.charge=1 (repeatable)"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine")] = 2,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler to use instead, tcp://host:port")] = None,
    device: Device = "cpu",
) -> None:
    """Make labelled pilot runs. Find the limit on σ that bounds the share of MD runs with a large force error.

    sigmaff md --stop-above guard/guard.json uses it. Rerun the same command to resume.
    """
    given: dict[str, Any] = context.obj
    if given.get("ensemble") == "nve":
        given.setdefault("temperature", ())  # keep the velocities of the start
    given |= {"engine": {"calculator": engine}, "cluster": {"n_workers": workers, "scheduler": scheduler}}
    config = read_config(guard_options(), given, set_ or [])
    loaded = sf.load(model, device=device)
    with progress() as terminal:
        result = sf.guard(loaded, start, config, output, listener=terminal)
    say(result.statement)
    say(result.promise.cost)
    say(f"guard: {result.path}")
