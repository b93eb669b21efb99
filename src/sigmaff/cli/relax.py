"""``sigmaff relax``: relaxation that stops where σ leaves its range."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sigmaff as sf
from sigmaff.cli.options import Device, Force, ModelArgument, claim_outputs
from sigmaff.cli.progress import progress, say
from sigmaff.config import validated

if TYPE_CHECKING:
    from ase import Atoms

    from sigmaff.simulation.relaxation import RelaxConfig


def relax_options() -> "type[RelaxConfig]":
    from sigmaff.simulation.relaxation import RelaxConfig

    return RelaxConfig


def relax(
    context: typer.Context,
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="file of structures, in any format of ASE", show_default=False)],
    output: Annotated[Path, typer.Argument(help="file to write: .extxyz, .xyz or .traj", show_default=False)],
    trajectory: Annotated[Path | None, typer.Option(help="file of all good steps: .extxyz, .xyz or .traj")] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Relax structures. Stop each at its last good step when a σ leaves its range on calibration structures."""
    from sigmaff.simulation import output_format, write_structures

    given: dict[str, Any] = context.obj
    config = validated(relax_options(), given, "relax")
    claim_outputs([output, trajectory], force)
    _, per_atom = output_format(output)
    steps: list[Atoms] | None = None if trajectory is None else []
    loaded = sf.load(model, device=device)
    with progress() as terminal:
        found = sf.relax(loaded, data, config, trajectory=steps, per_atom=per_atom, listener=terminal)
    write_structures(output, [relaxed.atoms for relaxed in found], force=force)
    if trajectory is not None and steps is not None:
        write_structures(trajectory, steps, force=force)
    for index, relaxed in enumerate(found):
        outcome, energy = relaxed.outcome, relaxed.atoms.get_potential_energy()
        message = f": {outcome.message}" if outcome.message else ""
        say(f"structure {index}: {outcome.ending} at step {outcome.step}, {energy:.4f} eV{message}")
    n_good = sum(relaxed.outcome.is_good for relaxed in found)
    say(f"{n_good} of {len(found)} converged, with every σ below its limit: {output}")
