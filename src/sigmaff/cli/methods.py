"""The commands that know more than one method: what there is, side by side, and joined."""

from pathlib import Path
from typing import Annotated

import typer

from sigmaff.cli.options import Force, console
from sigmaff.errors import SigmaffError


def methods(
    backbone: Annotated[str, typer.Option(help="backbone to count parameters on")] = "schnet",
) -> None:
    """List the methods that put a σ on energies and forces, and what to expect of each."""
    from pydantic import TypeAdapter, ValidationError

    from sigmaff.backbones import BACKBONES, BackboneConfig
    from sigmaff.cli.tables import methods_table

    try:
        config = TypeAdapter[BackboneConfig](BackboneConfig).validate_python({"name": backbone})
    except ValidationError:
        raise SigmaffError(f"no backbone {backbone!r} to count on; known: {', '.join(BACKBONES)}") from None
    console.print(methods_table(config))


def compare(
    config: Annotated[Path, typer.Argument(help="a YAML file, as for train", show_default=False)],
    methods: Annotated[
        list[str] | None, typer.Option("--methods", help="a method, or all (may be repeated); see 'sigmaff methods'")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="override a key (may be repeated)")] = None,
    output: Annotated[Path | None, typer.Option(help="directory of the comparison, instead of the file's")] = None,
    force: Force = False,
) -> None:
    """Train or fit methods on the same structures and compare them. Finished methods are kept."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.cli.tables import comparison_table
    from sigmaff.config import read_config
    from sigmaff.runs.compare import compare as run_comparison
    from sigmaff.runs.comparison import write_comparison
    from sigmaff.runs.config import RunConfig

    settings = read_config(RunConfig, config, set_ or [], {} if output is None else {"output": output})
    with Terminal(console) as terminal:
        cells = run_comparison(settings, methods or ["all"], terminal, force=force)
    paths = write_comparison(settings.output, cells)
    console.print(comparison_table(cells))
    console.print("\n".join(f"{path}" for path in paths), soft_wrap=True)


def ensemble(
    models: Annotated[list[Path], typer.Argument(help="model files of the members", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write", show_default=False)],
    force: Force = False,
) -> None:
    """Join models into an ensemble, whose σ is their disagreement. Calibrate it then on held-out structures."""
    from sigmaff.files import refuse_overwrite
    from sigmaff.models import Ensemble
    from sigmaff.models.file import load_potential, save
    from sigmaff.models.record import MemberRecord, RunRecord

    refuse_overwrite(output, force)
    joined = Ensemble([load_potential(model) for model in models])
    joined.record = RunRecord(members=[MemberRecord(file=str(model)) for model in models])
    save(joined, output, force=force)
    console.print(f"ensemble of {len(models)}: {output}", soft_wrap=True)
    console.print("its σ is raw: calibrate it on held-out structures with 'sigmaff calibrate'")
