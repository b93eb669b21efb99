"""The command ``sigmaff generate``."""

from pathlib import Path
from typing import Annotated

import typer

from sigmaff.cli.progress import Terminal, console

app = typer.Typer(
    help="Generate data sets: structures from SMILES, labelled by a QM engine.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Generate data sets: structures from SMILES, labelled by a QM engine."""


@app.command("qm7x-like")
def qm7x_like(
    output: Annotated[Path, typer.Option("--output", "-o", help="directory of the data set", show_default=False)],
    smiles: Annotated[Path | None, typer.Option(help="file of SMILES, one per line; default: the shipped list")] = None,
    molecules: Annotated[
        int | None,
        typer.Option(min=1, help="molecules drawn from the list; default: 600 of the shipped list, all of a file"),
    ] = None,
    conformers: Annotated[int, typer.Option(min=1, help="maximum number of conformers of a molecule")] = 8,
    displaced: Annotated[int, typer.Option(min=0, help="non-equilibrium structures of each conformer")] = 4,
    temperature: Annotated[
        float, typer.Option(min=1.0, help="temperature of displacements along normal modes, K")
    ] = 1500.0,
    geometry: Annotated[str, typer.Option(help="engine for relaxation and normal modes")] = "gfn1-xtb",
    engine: Annotated[
        str, typer.Option(help="engine for all labels: gfn2-xtb, gfn1-xtb, pyscf-pbe, or module:factory")
    ] = "gfn2-xtb",
    seed: Annotated[int, typer.Option(min=0, help="seed of molecules, conformers and displacements")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="processes on this machine")] = 2,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler to use instead, tcp://host:port")] = None,
) -> None:
    """Generate relaxed and displaced conformers, as in QM7-X. Rerun the same command to resume."""
    from pydantic import ValidationError

    from sigmaff.data.labelling import EngineConfig
    from sigmaff.errors import ConfigError
    from sigmaff.tasks import ClusterConfig
    from sigmaff.tasks import workers as start_workers
    from sigmaff_paper.qm7x_like import GenerateConfig, draw_molecules, generate, read_molecules, shipped_molecules

    try:
        config = GenerateConfig(
            conformers=conformers,
            displaced=displaced,
            temperature=temperature,
            seed=seed,
            geometry=EngineConfig(calculator=geometry),
            engine=EngineConfig(calculator=engine),
        )
    except ValidationError as error:
        raise ConfigError(f"--geometry, --engine: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    known = shipped_molecules() if smiles is None else read_molecules(smiles)
    n_drawn = molecules or (600 if smiles is None else len(known))
    drawn = draw_molecules(known, n_drawn, seed)
    with start_workers(ClusterConfig(n_workers=workers, scheduler=scheduler)) as client, Terminal(console) as terminal:
        terminal.stage(f"molecules by {geometry} and {engine}")
        counts = generate(output, drawn, config, client, terminal)
    console.print(", ".join(f"{count} {name}" for name, count in counts.items()), soft_wrap=True)
    console.print(f"{output}", soft_wrap=True)
