"""``sigmaff md``: molecular dynamics with a limit on σ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sigmaff as sf
from sigmaff.cli.options import Device, ModelArgument
from sigmaff.cli.progress import progress, say
from sigmaff.config import validated

if TYPE_CHECKING:
    from sigmaff.simulation.md import MDConfig, MDResult


def md_options() -> "type[MDConfig]":
    from sigmaff.simulation.md import MDConfig

    return MDConfig


def md(
    context: typer.Context,
    model: ModelArgument,
    start: Annotated[Path, typer.Argument(help="file of structures; each is a start", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="directory of the run")] = Path("md"),
    calibration: Annotated[
        Path | None,
        typer.Option(help="labelled, unseen by the model; for --stop-above auto; default: its validation set"),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Run MD and stop a replica when a σ of it exceeds its limit. Rerun the same command to resume."""
    given: dict[str, Any] = context.obj
    if given.get("ensemble") == "nve":
        given.setdefault("temperature", ())  # keep the velocities of the start
    config = validated(md_options(), given, "md")
    loaded = sf.load(model, device=device)
    with progress() as terminal:
        result = sf.run_md(loaded, start, config, output, calibration=calibration, listener=terminal)
    _print_result(result)


def _print_result(result: "MDResult") -> None:
    if result.threshold is not None:
        say(result.threshold.statement)
    if result.safety is not None:
        say(result.safety.statement)
    if result.drift is not None:
        say(result.drift.statement)
    for origin, record in zip(result.origins, result.records, strict=True):
        temperature = "" if origin.temperature is None else f" at {origin.temperature:g} K"
        text = f"replica {origin.number} (start {origin.start}{temperature}): {record.ending} at step {record.ended_at}"
        message = f": {record.message}" if record.message else ""
        drift = "" if record.drift_step is None else f"; drift of σ detected by step {record.drift_step}"
        say(text + message + drift)
    if result.share_above is not None:
        say(f"σ above a limit in {result.share_above:.2%} of the checks")
    say(f"run: {result.directory}")
