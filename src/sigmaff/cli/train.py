"""``sigmaff train``, and ``sigmaff demo``, which trains on data that it makes itself."""

from pathlib import Path
from typing import Annotated

import typer

from sigmaff.cli.options import Force, SetOption, console, progress, say
from sigmaff.errors import ConfigError


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
) -> None:
    """Train, calibrate and test a model. Rerun the same command to resume."""
    from sigmaff import config as configuration
    from sigmaff.cli.tables import metrics_table
    from sigmaff.runs.config import RunConfig

    if print_defaults:
        console.print(configuration.print_defaults(RunConfig), end="", markup=False, soft_wrap=True)
        return
    if config is None:
        raise ConfigError("missing configuration file; 'sigmaff train --print-defaults' prints one to start from")
    options = {"output": output, "seed": seed, "training.accelerator": device}
    settings = configuration.read_config(RunConfig, config, set_ or [], options)

    from sigmaff.runs.run import run

    with progress() as terminal:
        result = run(settings, terminal, force=force)
    if result is None:
        return
    if result.already_done:
        say("this run is finished; nothing was done")
    if result.metrics is not None:
        console.print(metrics_table(result.metrics, title="test structures"))
    say(f"model: {result.model_path}")


def demo(
    output: Annotated[Path, typer.Option(help="directory of the demo")] = Path("demo"),
    force: Force = False,
) -> None:
    """Label ethanol with GFN2-xTB, train and calibrate a model, test it on an unseen molecule. Takes minutes."""
    from sigmaff.cli.tables import metrics_table
    from sigmaff.runs.demo import run_demo

    with progress() as terminal:
        summary, path = run_demo(output, terminal, force=force)
    console.print(metrics_table(summary, title="ethanol, held out; unseen molecule: dimethyl ether"))
    say(f"report: {path}")
