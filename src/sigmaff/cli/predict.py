"""``sigmaff predict``: energies, forces and their σ for a file of structures."""

from pathlib import Path
from typing import Annotated

import typer

from sigmaff.cli.options import (
    BatchSize,
    Device,
    Force,
    ForcesStdOption,
    ModelArgument,
    progress,
    refuse_overwrites,
    say,
)
from sigmaff.cli.reading import Reading


def predict(
    context: typer.Context,
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="file of structures; labels are ignored", show_default=False)],
    output: Annotated[
        Path, typer.Argument(help="file to write: .extxyz, .xyz or .traj; eV and eV/Å", show_default=False)
    ],
    forces_std: ForcesStdOption = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="write σ as it is before calibration")] = False,
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Predict energies, forces and their σ, and write them to a file."""
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.models import Uncalibrated
    from sigmaff.models.file import load
    from sigmaff.simulation import output_format, predict_structures, write_structures

    refuse_overwrites([output], force)
    _, per_atom = output_format(output)
    loaded = load(model, device=device)
    reading = Reading(**context.obj, energy_key="energy", forces_key="forces")  # REF_* stay in the file as they are
    structures = read_structures(reading.source(data, labels=()))
    dataset = dataset_for(loaded, structures.without_labels())
    predictor = Uncalibrated(loaded) if raw else loaded
    with progress() as terminal:
        terminal.stage("predicting")
        predicted = predict_structures(predictor, dataset, batch_size, forces_std, terminal, per_atom=per_atom)
    write_structures(output, predicted, force=force)
    say(f"{len(predicted)} structures: {output}")
