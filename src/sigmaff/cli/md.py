"""``sigmaff md``: molecular dynamics with a limit on σ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigmaff.cli.options import Device, ModelArgument, progress, say
from sigmaff.cli.reading import Reading, warn_of_leakage
from sigmaff.errors import DataError

if TYPE_CHECKING:
    from sigmaff.cli.progress import Terminal
    from sigmaff.data import LabelledStructures
    from sigmaff.models import Model
    from sigmaff.simulation.md import MDConfig, MDResult, Scores


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
    """Run MD and stop a replica when its force σ exceeds a limit. Rerun the same command to resume."""
    from sigmaff.config import validated
    from sigmaff.data import read_structures
    from sigmaff.models.file import load
    from sigmaff.simulation.md import run_md

    given: dict[str, Any] = context.obj
    if given.get("ensemble") == "nve":
        given.setdefault("temperature", ())  # keep the velocities of the start
    config = validated(md_options(), given, "md")
    loaded = load(model, device=device)
    starts = read_structures(Reading().source(start, labels=())).structures
    with progress() as terminal:
        scores = _scores(loaded, calibration, config, terminal)
        terminal.stage("molecular dynamics")
        result = run_md(loaded, starts, config, output, terminal, calibration=scores)
    _print_result(result)


def _scores(loaded: "Model", path: Path | None, config: "MDConfig", terminal: "Terminal") -> "Scores | None":
    """Errors and σ on the calibration structures: those of the file, or the validation set of the model."""
    from sigmaff.data import read_structures
    from sigmaff.evaluation import evaluate
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.simulation.md import structure_scores

    if path is None and config.stop_above != "auto":
        return None
    structures = _validation_structures(loaded) if path is None else read_structures(Reading().source(path))
    if path is not None:
        warn_of_leakage(loaded, structures, terminal.warn)
    terminal.stage("σ of calibration structures")
    dataset = dataset_for(loaded, structures)
    return structure_scores(
        evaluate(loaded, dataset, name=structures.source, forces_std=config.forces_std, progress=terminal.advance)
    )


def _validation_structures(loaded: "Model") -> "LabelledStructures":
    from sigmaff.evaluation.datasets import recorded_structures

    try:
        return recorded_structures(loaded, "validation")
    except DataError as error:
        raise DataError(f"{error}; give labelled structures unseen by the model with --calibration") from None


def _print_result(result: "MDResult") -> None:
    if result.threshold is not None:
        say(result.threshold.statement)
    for origin, record in zip(result.origins, result.records, strict=True):
        temperature = "" if origin.temperature is None else f" at {origin.temperature:g} K"
        text = f"replica {origin.number} (start {origin.start}{temperature}): {record.ending} at step {record.ended_at}"
        message = f": {record.message}" if record.message else ""
        drift = "" if record.drift_step is None else f"; drift of σ detected by step {record.drift_step}"
        say(text + message + drift)
    if result.share_above is not None:
        say(f"σ above the limit in {result.share_above:.2%} of the checks")
    say(f"run: {result.directory}")
