"""``sigmaff evaluate``, ``report`` and ``calibrate``: a model on labelled structures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sigmaff.cli.options import (
    BatchSize,
    DataArgument,
    Device,
    Force,
    ForcesStdOption,
    JsonOption,
    ModelArgument,
    OodOption,
    console,
    progress,
    refuse_overwrites,
    say,
    warn,
)
from sigmaff.cli.reading import Reading, warn_of_leakage

if TYPE_CHECKING:
    from sigmaff.data import GraphDataset
    from sigmaff.evaluation import Evaluation
    from sigmaff.models import Model
    from sigmaff.models.prediction import ForceStdMethod


def evaluate(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    ood: OodOption = None,
    json_output: JsonOption = None,
    forces_std: ForcesStdOption = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Compute the errors of a model on labelled structures, and metrics of its σ."""
    from sigmaff.cli.tables import metrics_table
    from sigmaff.evaluation import summarize
    from sigmaff.files import write_json
    from sigmaff.models.file import load

    refuse_overwrites([json_output], force)
    loaded = load(model, device=device)
    summary = summarize(*_evaluations(loaded, data, ood, Reading(**context.obj), forces_std, batch_size))
    if json_output is not None:
        write_json(json_output, summary, force=force)
    console.print(metrics_table(summary, title=str(data)))


def report(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[Path, typer.Argument(help="HTML file to write", show_default=False)],
    ood: OodOption = None,
    forces_std: ForcesStdOption = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Write an HTML report on the errors and the σ of a model on labelled structures."""
    from sigmaff.models.file import load
    from sigmaff.report import model_facts, write_report

    refuse_overwrites([output], force)
    loaded = load(model, device=device)
    evaluations = _evaluations(loaded, data, ood, Reading(**context.obj), forces_std, batch_size)
    title = f"{model.stem} on {data.stem}"
    write_report(output, *evaluations, title=title, model_info=model_facts(loaded), force=force)
    say(f"report: {output}")


def calibrate(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    method: Annotated[
        Literal["auto", "quantile", "scalar", "isotonic", "conformal"], typer.Option(help="calibration method")
    ] = "auto",
    output: Annotated[Path | None, typer.Option(help="model file to write; default: overwrite the model")] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Calibrate the σ of a model on held-out structures and save the calibration in the model file."""
    from sigmaff.evaluation.datasets import calibrate as fit
    from sigmaff.models.file import load, save

    refuse_overwrites([output], force)
    loaded = load(model, device=device)
    dataset = _dataset(loaded, data, Reading(**context.obj))
    with progress() as terminal:
        fit(loaded, dataset, method, terminal)
    save(loaded, output or model, force=output is None or force)
    for name, calibration in (("energy", loaded.energy_calibration), ("forces", loaded.forces_calibration)):
        if calibration is not None:
            say(f"{name}: σ × {calibration.scale:.4g} ({calibration.method}, {calibration.n_samples} errors)")
    say(f"model: {output or model}")


def _dataset(loaded: "Model", data: Path, reading: Reading) -> "GraphDataset":
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for

    dataset = dataset_for(loaded, read_structures(reading.source(data)))
    warn_of_leakage(loaded, dataset.structures, warn)
    return dataset


def _evaluations(
    loaded: "Model", data: Path, ood: Path | None, reading: Reading, forces_std: "ForceStdMethod", batch_size: int
) -> tuple["Evaluation", "Evaluation | None"]:
    """Evaluations on labelled structures and, if given, on structures unlike the training set."""
    from sigmaff.data import read_structures
    from sigmaff.evaluation import evaluate as evaluate_model
    from sigmaff.evaluation.datasets import foreign_dataset

    dataset = _dataset(loaded, data, reading)
    other = None if ood is None else foreign_dataset(loaded, read_structures(reading.source(ood, labels=())))

    def evaluated(dataset: "GraphDataset", path: Path) -> "Evaluation":
        terminal.stage(f"evaluating {path.name}")
        return evaluate_model(
            loaded, dataset, name=path.stem, forces_std=forces_std, batch_size=batch_size, progress=terminal.advance
        )

    with progress() as terminal:
        return evaluated(dataset, data), None if other is None or ood is None else evaluated(other, ood)
