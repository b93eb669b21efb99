"""The command ``sigmaff generate``."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigmaff.cli.options import config_command
from sigmaff.cli.progress import progress, say
from sigmaff.extras import require

if TYPE_CHECKING:
    from sigmaff_paper.qm7x_like.config import GenerateConfig

app = typer.Typer(
    help="Generate data sets: structures from SMILES, labelled by a QM engine.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Keep ``qm7x-like`` a subcommand: typer drops the name of a single command."""


def _config() -> "type[GenerateConfig]":
    from sigmaff_paper.qm7x_like.config import GenerateConfig

    return GenerateConfig


@app.command("qm7x-like", cls=config_command(_config, only=("conformers", "displaced", "temperature", "seed")))
def qm7x_like(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="directory of the data set", show_default=False)],
    smiles: Annotated[Path | None, typer.Option(help="file of SMILES, one per line; default: the shipped list")] = None,
    molecules: Annotated[
        int | None,
        typer.Option(min=1, help="molecules drawn from the list; default: 600 of the shipped list, all of a file"),
    ] = None,
    geometry: Annotated[str, typer.Option(help="engine for relaxation and normal modes")] = "gfn1-xtb",
    engine: Annotated[
        str, typer.Option(help="engine for all labels: gfn2-xtb, gfn1-xtb, pyscf-pbe, or module:factory")
    ] = "gfn2-xtb",
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine")] = 2,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler to use instead, tcp://host:port")] = None,
) -> None:
    """Generate relaxed and displaced conformers, as in QM7-X. Rerun the same command to resume."""
    from sigmaff.config import validated
    from sigmaff.tasks import ClusterConfig
    from sigmaff.tasks import workers as start_workers
    from sigmaff_paper.qm7x_like import draw_molecules, generate, read_molecules, shipped_molecules

    engines = {"geometry": {"calculator": geometry}, "engine": {"calculator": engine}}
    config = validated(_config(), context.obj | engines, "generate")
    known = shipped_molecules() if smiles is None else read_molecules(smiles)
    drawn = draw_molecules(known, molecules or (600 if smiles is None else len(known)), config.seed)
    require("making molecules from SMILES", "rdkit", "distributed")
    cluster = ClusterConfig(n_workers=workers, scheduler=scheduler)
    with ExitStack() as stack, progress() as terminal:
        terminal.stage(f"molecules by {geometry} and {engine}")
        counts = generate(output, drawn, config, lambda: stack.enter_context(start_workers(cluster)), terminal)
    say(", ".join(f"{count} {name}" for name, count in counts.items()))
    say(f"{output}")
