"""``sigmaff evaluate``, ``report``, ``calibrate`` and ``predict``: a model on a file of structures."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import sigmaff as sf
from sigmaff.cli.options import (
    BatchSize,
    DataArgument,
    Device,
    Force,
    ForcesStd,
    JsonOption,
    ModelArgument,
    OodOption,
    Reading,
    SkipChecks,
    claim_outputs,
)
from sigmaff.cli.progress import console, progress, say
from sigmaff.cli.stability import MdOption, Picoseconds, Starts, Temperature, stability_table, stability_test
from sigmaff.errors import ConfigError
from sigmaff.files import write_json


def evaluate(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    ood: OodOption = None,
    md: MdOption = None,
    temperature: Temperature = None,
    picoseconds: Picoseconds = 2.0,
    starts: Starts = 5,
    json_output: JsonOption = None,
    forces_std: ForcesStd = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
    skip_checks: SkipChecks = False,
) -> None:
    """Compute the errors of a model on labelled structures, and metrics of its σ."""
    from sigmaff.cli.tables import groups_table, metrics_table, ood_table

    claim_outputs([json_output], force)
    loaded, reading = sf.load(model, device=device), Reading(**context.obj)
    known, other = reading.labelled(data), None if ood is None else reading.unlabelled(ood)
    with progress() as terminal:
        summary = sf.evaluate(
            loaded,
            known,
            ood=other,
            forces_std=forces_std,
            batch_size=batch_size,
            listener=terminal,
            skip_checks=skip_checks,
        )
        stable = stability_test(loaded, reading.unlabelled(data), md, temperature, picoseconds, starts, terminal)
    if json_output is not None:
        more = {} if stable is None else {"stability": stable.to_dict()}
        write_json(json_output, summary | more, force=force)
    console.print(metrics_table(summary, title=str(data)))
    if "groups" in summary:
        console.print(groups_table(summary["groups"]))
    if ood is not None:
        console.print(ood_table(summary, str(ood)))
    if stable is not None:
        console.print(stability_table(stable))


def report(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[Path, typer.Argument(help="HTML file to write", show_default=False)],
    ood: OodOption = None,
    path: Annotated[
        Path | None, typer.Option(help="structures in order, such as a bond scan, to show energies along")
    ] = None,
    beside: Annotated[Path | None, typer.Option(help="another model, to show its σ along the path as well")] = None,
    md: MdOption = None,
    temperature: Temperature = None,
    picoseconds: Picoseconds = 2.0,
    starts: Starts = 5,
    forces_std: ForcesStd = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
    skip_checks: SkipChecks = False,
) -> None:
    """Write an HTML report on the errors and the σ of a model on labelled structures."""
    from sigmaff.api import evaluations
    from sigmaff.data import read_structures
    from sigmaff.report import follow_path, model_facts, write_report

    claim_outputs([output], force)
    if beside is not None and path is None:
        raise ConfigError("--beside is a model to compare with along a path: give --path")
    loaded, reading = sf.load(model, device=device), Reading(**context.obj)
    known, other = reading.labelled(data), None if ood is None else reading.unlabelled(ood)
    steps = None if path is None else read_structures(reading.unlabelled(path))
    models = [(_name(model, beside), loaded)]
    models += [] if beside is None else [(_name(beside, model), sf.load(beside, device=device))]
    along = None
    with progress() as terminal:
        found = evaluations(loaded, known, other, forces_std, batch_size, terminal, skip_checks)
        if steps is not None:
            along = follow_path(steps, models, forces_std=forces_std, batch_size=batch_size, listener=terminal)
        stable = stability_test(loaded, reading.unlabelled(data), md, temperature, picoseconds, starts, terminal)
    title, facts = f"{model.stem} on {data.stem}", model_facts(loaded)
    write_report(output, *found, title=title, model_info=facts, along=along, stability=stable, force=force)
    say(f"report: {output}")


def _name(model: Path, other: Path | None) -> str:
    """The name of its file, with its folder if the other's is the same."""
    same = other is not None and other.stem == model.stem
    return f"{model.resolve().parent.name}/{model.stem}" if same else model.stem


def calibrate(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    method: Annotated[
        Literal["auto", "quantile", "scalar", "isotonic", "conformal"], typer.Option(help="calibration method")
    ] = "auto",
    force_growth: Annotated[bool, typer.Option(help="let force σ grow with energy σ, as fitted on the data")] = True,
    output: Annotated[Path | None, typer.Option(help="model file to write; default: overwrite the model")] = None,
    device: Device = "cpu",
    force: Force = False,
    skip_checks: SkipChecks = False,
) -> None:
    """Calibrate the σ of a model on held-out structures and save the calibration in the model file."""
    in_place = model if output is None and model.is_file() else None
    claim_outputs([output or in_place], force or output is None)
    loaded = sf.load(model, device=device)
    with progress() as terminal:
        structures = Reading(**context.obj).labelled(data)
        fitted = sf.calibrate(
            loaded, structures, method=method, force_growth=force_growth, listener=terminal, skip_checks=skip_checks
        )
    sf.save(loaded, output or model, force=output is None or force)
    for name, calibration in fitted._asdict().items():
        say(f"{name}: {'σ is raw, not calibrated' if calibration is None else calibration}")
    say(f"model: {output or model}")


def predict(
    context: typer.Context,
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="file of structures; labels are kept and not used", show_default=False)],
    output: Annotated[
        Path, typer.Argument(help="file to write: .extxyz, .xyz or .traj; eV and eV/Å", show_default=False)
    ],
    forces_std: ForcesStd = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="write σ as it is before calibration")] = False,
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Predict energies, forces and their σ, and write them to a file: sigmaff_energy, sigmaff_forces.

    Labels of the file stay as they are. A structure without labels has the predictions as energy and forces, too.
    """
    from sigmaff.data import read_structures, with_ase_names
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.models.prediction import NO_CALIBRATIONS
    from sigmaff.simulation import output_format, predict_structures, write_structures

    claim_outputs([output], force)
    _, per_atom = output_format(output)
    loaded = sf.load(model, device=device)
    structures = read_structures(with_ase_names(Reading(**context.obj).unlabelled(data)))
    dataset = dataset_for(loaded, structures.without_labels())
    with progress() as terminal:
        terminal.stage("predicting")
        if raw:
            loaded.calibrations = NO_CALIBRATIONS
        predicted = predict_structures(
            loaded, dataset, batch_size, forces_std, terminal, per_atom=per_atom, labels=structures
        )
    write_structures(output, predicted, force=force)
    say(f"{len(predicted)} structures: {output}")
