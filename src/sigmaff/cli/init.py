"""``sigmaff init``, a configuration from the data, and ``sigmaff schema``, what an editor needs to know of one."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from sigmaff.cli.options import DataArgument, Force, Reading, Seed, SkipChecks, claim_outputs
from sigmaff.cli.progress import progress, say
from sigmaff.config import Settings, json_schema
from sigmaff.files import atomic_write


def init(
    context: typer.Context,
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="YAML file to write")] = Path("run.yaml"),
    minutes: Annotated[float, typer.Option(min=0.1, help="time that the whole run may take on this machine")] = 30.0,
    seed: Seed = 0,
    force: Force = False,
    skip_checks: SkipChecks = False,
) -> None:
    """Write a configuration for 'sigmaff train' from the data, with a network that trains in the given time."""
    from sigmaff.runs.plan import plan

    claim_outputs([output], force)
    source = Reading(**context.obj).labelled(data)
    with progress() as terminal:
        made = plan(source, output.with_suffix(""), minutes, seed=seed, listener=terminal, skip_checks=skip_checks)
    with atomic_write(output, force=force) as temporary:
        temporary.write_text(made.text, encoding="utf-8")
    say(made.estimate)
    say(f"configuration: {output}; train with 'sigmaff train {output}'")


def schema(
    command: Annotated[
        Literal["train", "compare", "learn", "md", "guard"],
        typer.Argument(help="command whose YAML file is described", show_default=False),
    ],
) -> None:
    """Print the JSON schema of a YAML file, by which an editor completes and checks it."""
    from sigmaff.learning import CampaignConfig
    from sigmaff.runs.config import RunConfig
    from sigmaff.simulation.md import GuardConfig, MDConfig

    models: dict[str, type[Settings]] = {
        "train": RunConfig,
        "compare": RunConfig,
        "learn": CampaignConfig,
        "md": MDConfig,
        "guard": GuardConfig,
    }
    say(json.dumps(json_schema(models[command]), indent=2, ensure_ascii=False))
