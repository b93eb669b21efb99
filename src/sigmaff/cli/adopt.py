"""``sigmaff adopt``, ``trust`` and ``export``: the potential of another program with σ, and potentials as programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sigmaff.cli.options import DataArgument, Force, ModelArgument, Reading, Seed, SetOption, claim_outputs
from sigmaff.cli.progress import console, progress, say


def adopt(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="adapter:source, as in mace:my.model or sevennet:7net-0", show_default=False),
    ],
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="model file to write", show_default=False)],
    trust: Annotated[
        bool, typer.Option("--trust", help="read a file that can run programs: a pickle, TorchScript")
    ] = False,
    mean: Annotated[
        Literal["residual", "backbone"],
        typer.Option(help="residual: lower the errors of the potential; backbone: keep its energies, only add σ"),
    ] = "residual",
    set_: SetOption = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Give a potential of another program a calibrated σ, with a few labelled structures."""
    from sigmaff.backbones import AdoptConfig
    from sigmaff.cli.tables import adopted_table
    from sigmaff.models.file import save
    from sigmaff.runs.adopt import adopt as adopt_potential

    claim_outputs([output], force)
    kept = mean if mean != "residual" else None
    values = {"model.head.mean": kept, "seed": seed, "data.split.seed": seed}
    with progress() as terminal:
        model = adopt_potential(
            AdoptConfig(adopt=source, trust=trust),
            Reading(**context.obj).labelled(data),
            overrides=set_ or [],
            values=values,
            listener=terminal,
        )
    save(model, output, force=force)
    if (beside := model.record.adopted) is not None:
        console.print(adopted_table(beside))
    say(f"model: {output}")


def export(
    model: ModelArgument,
    output: Annotated[Path, typer.Argument(help="artefact to write, *.pt2", show_default=False)],
    energy_only: Annotated[
        bool, typer.Option("--energy-only", help="without force σ, which is then computed as by the model file")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="that the program uses at most")] = 1,
    force: Force = False,
) -> None:
    """Compile a model for this machine: the same numbers to rounding, faster. It takes minutes."""
    import torch

    import sigmaff as sf

    claim_outputs([output], force)
    torch.set_num_threads(threads)
    with progress() as terminal:
        made = sf.export(sf.load(model), output, forces_std=not energy_only, force=force, listener=terminal)
    worst = max(made.errors, key=lambda name: made.errors[name])
    say(f"largest difference to the model: {made.errors[worst]:.1e} of the largest value, of {worst}")
    say(f"artefact: {output}")


def trust(
    file: Annotated[
        Path,
        typer.Argument(help="an artefact (.pt2), a campaign, or a file that a model refers to", show_default=False),
    ],
) -> None:
    """Allow the program in a file to run, or that a campaign names. It is remembered by content, for you."""
    from sigmaff.backbones.hosts.trust import trust_file, trusted_list

    say(f"{file}: trusted, SHA-256 {trust_file(file)}")
    say(f"to take it back, remove its line from {trusted_list()}")
