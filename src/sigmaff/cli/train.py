"""``sigmaff train``, ``demo``, ``methods``, ``compare`` and ``ensemble``: make models."""

from pathlib import Path
from typing import Annotated

import typer

import sigmaff as sf
from sigmaff.cli.options import ConfigFile, Force, SetOption, SkipChecks, Trust, claim_outputs
from sigmaff.cli.progress import console, progress, say
from sigmaff.config import print_defaults as defaults_text
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.extras import require


def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file", show_default=False)] = None,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option(help="directory of the run; overrides the file")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="random seed; overrides the file")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; overrides training.accelerator")] = None,
    print_defaults: Annotated[
        bool, typer.Option("--print-defaults", help="print every key with its default and exit")
    ] = False,
    force: Force = False,
    skip_checks: SkipChecks = False,
    trust: Trust = False,
) -> None:
    """Train, calibrate and test a model. Rerun the same command to resume."""
    from sigmaff.cli.tables import result_tables
    from sigmaff.inputs import settings_of
    from sigmaff.runs.config import RunConfig
    from sigmaff.runs.run import run

    if print_defaults:
        console.print(defaults_text(RunConfig), end="", markup=False, soft_wrap=True)
        return
    if config is None:
        raise ConfigError("missing configuration file; 'sigmaff train --print-defaults' prints one to start from")
    options = {"output": output, "seed": seed, "training.accelerator": device}
    settings = settings_of(RunConfig, config, set_ or [], options, trust=trust)
    with progress() as terminal:
        result = run(settings, terminal, force=force, skip_checks=skip_checks)
    if result is None:
        return
    if result.already_done:
        say("this run is finished; nothing was done")
    for table in result_tables(result.record):
        console.print(table)
    say(f"model: {result.model_path}")


def demo(
    output: Annotated[Path, typer.Option(help="directory of the demo")] = Path("demo"), force: Force = False
) -> None:
    """Label ethanol with GFN2-xTB, train and calibrate a model, test it on an unseen molecule. Takes minutes."""
    from sigmaff.cli.tables import metrics_table, ood_table
    from sigmaff.runs.demo import run_demo

    with progress() as terminal:
        summary, path = run_demo(output, terminal, force=force)
    console.print(metrics_table(summary, title="ethanol, held out"))
    console.print(ood_table(summary, "dimethyl ether, an unseen molecule"))
    say(f"report: {path}")


def methods(backbone: Annotated[str, typer.Option(help="backbone for the numbers of parameters")] = "schnet") -> None:
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
    config: ConfigFile,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="name of a method, see 'sigmaff methods' (repeatable); default: all"),
    ] = None,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option(help="directory of the comparison; overrides the file")] = None,
    force: Force = False,
    skip_checks: SkipChecks = False,
    trust: Trust = False,
) -> None:
    """Train several uncertainty methods on the same data and compare them. Rerun the same command to resume."""
    from sigmaff.cli.tables import comparison_tables
    from sigmaff.inputs import settings_of
    from sigmaff.runs.compare import compare_and_write
    from sigmaff.runs.config import RunConfig

    require("a comparison", "jinja2", "matplotlib")
    settings = settings_of(RunConfig, config, set_ or [], {"output": output}, trust=trust)
    with progress() as terminal:
        results, paths = compare_and_write(settings, methods or ["all"], terminal, force=force, skip_checks=skip_checks)
    for table in comparison_tables(results, console.width):
        console.print(table)
    say("\n".join(f"{path}" for path in paths))


def ensemble(
    models: Annotated[list[Path], typer.Argument(help="model files of the members", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="model file to write", show_default=False)],
    force: Force = False,
) -> None:
    """Combine models into an ensemble, with σ from their disagreement. Calibrate it before use."""
    from sigmaff.models import Ensemble
    from sigmaff.models.file import load_potential
    from sigmaff.models.record import MemberRecord, RunRecord

    claim_outputs([output], force)
    joined = Ensemble([load_potential(model) for model in models])
    joined.record = RunRecord(members=[MemberRecord(file=str(model)) for model in models])
    sf.save(joined, output, force=force)
    say(f"ensemble of {len(models)} models: {output}")
    say("its σ is not calibrated: run 'sigmaff calibrate' with held-out structures")
