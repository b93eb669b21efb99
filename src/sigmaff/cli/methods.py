"""``sigmaff methods``, ``compare`` and ``ensemble``: uncertainty methods, compared and combined."""

from pathlib import Path
from typing import Annotated

import typer

from sigmaff.cli.options import ConfigArgument, Force, SetOption, console, progress, refuse_overwrites, say
from sigmaff.errors import SigmaffError


def methods(
    backbone: Annotated[str, typer.Option(help="backbone for the numbers of parameters")] = "schnet",
) -> None:
    """List the uncertainty methods with their cost and properties."""
    from pydantic import TypeAdapter, ValidationError

    from sigmaff.backbones import BACKBONES, BackboneConfig
    from sigmaff.cli.tables import methods_table

    try:
        config = TypeAdapter[BackboneConfig](BackboneConfig).validate_python({"name": backbone})
    except ValidationError:
        raise SigmaffError(f"unknown backbone {backbone!r}; known: {', '.join(BACKBONES)}") from None
    console.print(methods_table(config))


def compare(
    config: ConfigArgument,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="name of a method, see 'sigmaff methods' (repeatable); default: all"),
    ] = None,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option(help="directory of the comparison; overrides the file")] = None,
    force: Force = False,
) -> None:
    """Train several uncertainty methods on the same data and compare them. Rerun the same command to resume."""
    from sigmaff.cli.tables import comparison_table
    from sigmaff.config import read_config
    from sigmaff.runs.compare import compare as run_comparison
    from sigmaff.runs.compare import write_comparison
    from sigmaff.runs.config import RunConfig

    settings = read_config(RunConfig, config, set_ or [], {"output": output})
    with progress() as terminal:
        results = run_comparison(settings, methods or ["all"], terminal, force=force)
    paths = write_comparison(settings.output, results)
    console.print(comparison_table(results))
    say("\n".join(f"{path}" for path in paths))


def ensemble(
    models: Annotated[list[Path], typer.Argument(help="model files of the members", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="model file to write", show_default=False)],
    force: Force = False,
) -> None:
    """Combine models into an ensemble, with σ from their disagreement. Calibrate it before use."""
    from sigmaff.models import Ensemble
    from sigmaff.models.file import load_potential, save
    from sigmaff.models.record import MemberRecord, RunRecord

    refuse_overwrites([output], force)
    joined = Ensemble([load_potential(model) for model in models])
    joined.record = RunRecord(members=[MemberRecord(file=str(model)) for model in models])
    save(joined, output, force=force)
    say(f"ensemble of {len(models)} models: {output}")
    say("its σ is not calibrated: run 'sigmaff calibrate' with held-out structures")
