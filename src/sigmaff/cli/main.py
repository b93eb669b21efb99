"""The commands of ``sigmaff``. Each reads, calls one function of a layer below, and says what came of it."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text
from typer.core import TyperGroup

from sigmaff import __version__
from sigmaff.cli.audit import audit
from sigmaff.cli.learn import learn, select
from sigmaff.cli.md import md
from sigmaff.cli.methods import compare, ensemble, methods
from sigmaff.cli.options import (
    BatchSize,
    DataArgument,
    Device,
    EnergiesOnly,
    EnergyKey,
    EnergyUnit,
    Force,
    ForcesKey,
    ForcesStdOption,
    FormatOption,
    LengthUnit,
    ModelArgument,
    OodOption,
    console,
    errors,
)
from sigmaff.cli.reading import Reading
from sigmaff.errors import SigmaffError

if TYPE_CHECKING:
    from sigmaff.data import DataSource, GraphDataset
    from sigmaff.evaluation import Evaluation
    from sigmaff.models import Model


PAPER_COMMANDS = {"generate": "sigmaff_paper.qm7x_like.command", "reproduce": "sigmaff_paper.experiments.command"}
"""Commands of the second package, by the module that has each as its ``app``. They are imported when asked for."""


class Commands(TyperGroup):
    """The commands. An error meant for people is printed as one, without a traceback."""

    def list_commands(self, context: typer.Context) -> list[str]:  # type: ignore[override]
        return [*super().list_commands(context), *PAPER_COMMANDS]

    def get_command(self, context: typer.Context, name: str) -> Any:  # type: ignore[override]
        if name in PAPER_COMMANDS:
            return typer.main.get_command(import_module(PAPER_COMMANDS[name]).app)
        return super().get_command(context, name)

    def invoke(self, context: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(context)
        except SigmaffError as error:
            _complain(str(error))
        except BrokenPipeError:
            raise
        except OSError as error:
            _complain(str(error))
        except KeyboardInterrupt as interrupt:
            errors.print(str(interrupt) or "interrupted", soft_wrap=True)
            raise typer.Exit(130) from None
        raise typer.Exit(1)


app = typer.Typer(
    name="sigmaff",
    cls=Commands,
    help="Molecular force fields that carry their own error bars.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The program ``sigmaff``."""
    from sigmaff.allocator import keep_large_blocks

    keep_large_blocks()
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"sigmaff {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and stop", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command()
def check(
    data: DataArgument,
    format: FormatOption = "auto",
    energy_unit: EnergyUnit = None,
    length_unit: LengthUnit = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    json_output: Annotated[Path | None, typer.Option("--json", help="write the findings here")] = None,
    force: Force = False,
) -> None:
    """Say what is in a data file, and what is wrong with it."""
    from sigmaff.cli.tables import findings_table
    from sigmaff.data import check_structures, read_structures
    from sigmaff.files import refuse_overwrite, write_json

    if json_output is not None:
        refuse_overwrite(json_output, force)
    reading = Reading(format, energy_unit, length_unit, energy_key, forces_key)
    findings = check_structures(read_structures(reading.source(data, labels=())))
    if json_output is not None:
        write_json(json_output, [asdict(finding) for finding in findings], force=force)
    console.print(findings_table(findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="a YAML file", show_default=False)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override a key: training.max_epochs=10 (may be repeated)")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="directory of the run, instead of the file's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed, instead of the file's")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... instead of the file's accelerator")] = None,
    print_defaults: Annotated[bool, typer.Option("--print-defaults", help="print every key and stop")] = False,
    force: Force = False,
) -> None:
    """Train a model, fit and calibrate its σ, test it. The same command goes on after an interruption."""
    from sigmaff import config as configuration
    from sigmaff.cli.tables import metrics_table
    from sigmaff.runs.config import RunConfig

    if print_defaults:
        console.print(configuration.print_defaults(RunConfig), end="", markup=False, soft_wrap=True)
        return
    if config is None:
        raise SigmaffError("no configuration given; 'sigmaff train --print-defaults' prints one to start from")
    options = {"output": output, "seed": seed, "training.accelerator": device}
    given = {key: value for key, value in options.items() if value is not None}
    settings = configuration.read_config(RunConfig, config, set_ or [], given)

    from sigmaff.cli.progress import Terminal
    from sigmaff.runs.run import run

    with Terminal(console) as terminal:
        result = run(settings, terminal, force=force)
    if result is None:
        return
    if result.already_done:
        console.print("this run is finished; nothing was done", soft_wrap=True)
    if result.metrics is not None:
        console.print(metrics_table(result.metrics, title="test structures"))
    console.print(f"model: {result.model_path}", soft_wrap=True)


@app.command()
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    ood: OodOption = None,
    json_output: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
    format: FormatOption = "auto",
    energy_unit: EnergyUnit = None,
    length_unit: LengthUnit = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    energies_only: EnergiesOnly = False,
    forces_std: ForcesStdOption = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Errors of a model on labelled structures, and whether its σ tells the truth about them."""
    from sigmaff.cli.tables import metrics_table
    from sigmaff.evaluation import summarize
    from sigmaff.files import refuse_overwrite, write_json

    if json_output is not None:
        refuse_overwrite(json_output, force)
    reading = Reading(format, energy_unit, length_unit, energy_key, forces_key, energies_only)
    evaluation, other, _ = _evaluate(model, data, ood, reading, forces_std, batch_size, device)
    summary = summarize(evaluation, other)
    if json_output is not None:
        write_json(json_output, summary, force=force)
    console.print(metrics_table(summary, title=str(data)))


@app.command()
def calibrate(
    model: ModelArgument,
    data: DataArgument,
    method: Annotated[
        Literal["auto", "quantile", "scalar", "isotonic", "conformal"], typer.Option(help="how σ is calibrated")
    ] = "auto",
    output: Annotated[Path | None, typer.Option(help="write the model here, not in its place")] = None,
    format: FormatOption = "auto",
    energy_unit: EnergyUnit = None,
    length_unit: LengthUnit = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    energies_only: EnergiesOnly = False,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Calibrate the σ of a model on held-out structures and keep the calibration in its file."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.evaluation.datasets import calibrate as fit
    from sigmaff.files import refuse_overwrite
    from sigmaff.models.file import load, save

    if output is not None:
        refuse_overwrite(output, force)
    loaded = load(model, device=device)
    reading = Reading(format, energy_unit, length_unit, energy_key, forces_key, energies_only)
    dataset = _dataset(reading.source(data), loaded)
    _warn_of_leakage(loaded, dataset)
    with Terminal(console) as terminal:
        fit(loaded, dataset, method, terminal)
    save(loaded, output or model, force=output is None or force)
    for name, calibration in (("energy", loaded.energy_calibration), ("forces", loaded.forces_calibration)):
        if calibration is not None:
            console.print(f"{name}: σ × {calibration.scale:.4g} ({calibration.method}, {calibration.n_samples} errors)")
    console.print(f"model: {output or model}", soft_wrap=True)


@app.command()
def predict(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="structures", show_default=False)],
    output: Annotated[Path, typer.Argument(help="where to write them with energy, forces and σ (extxyz or traj)")],
    forces_std: ForcesStdOption = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="σ as the head gives it, before calibration")] = False,
    format: FormatOption = "auto",
    length_unit: LengthUnit = None,
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Predict energy, forces and their σ for structures, and write all of it into a file."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.files import refuse_overwrite
    from sigmaff.models import Uncalibrated
    from sigmaff.models.file import load
    from sigmaff.simulation import output_format, predict_structures, write_structures

    refuse_overwrite(output, force)
    _, per_atom = output_format(output)
    loaded = load(model, device=device)
    reading = Reading(format, length_unit=length_unit, energy_key="energy", forces_key="forces")  # REF_* are remarks
    structures = read_structures(reading.source(data, labels=()))
    dataset = dataset_for(loaded, structures.without_labels())
    predictor = Uncalibrated(loaded) if raw else loaded
    with Terminal(console) as terminal:
        terminal.stage("predicting")
        predicted = predict_structures(predictor, dataset, batch_size, forces_std, terminal, per_atom=per_atom)
    write_structures(output, predicted, force=force)
    console.print(f"{len(predicted)} structures: {output}", soft_wrap=True)


for command in (learn, select, methods, compare, ensemble, audit, md):
    app.command()(command)


@app.command()
def info(
    model: ModelArgument,
    json_output: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Say what a model is, what it was trained on, and how its σ was calibrated."""
    from sigmaff.cli.tables import info_table
    from sigmaff.models.file import load, read_header

    header = read_header(model)
    if json_output:
        console.print_json(header.model_dump_json())
        return
    n_parameters = sum(parameter.numel() for parameter in load(model).parameters())
    console.print(info_table(header, n_parameters))


@app.command()
def report(
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[Path, typer.Argument(help="the HTML file to write", show_default=False)],
    ood: OodOption = None,
    format: FormatOption = "auto",
    energy_unit: EnergyUnit = None,
    length_unit: LengthUnit = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    energies_only: EnergiesOnly = False,
    forces_std: ForcesStdOption = "auto",
    batch_size: BatchSize = 32,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Write one HTML page with the errors of a model and what its σ says of them."""
    from sigmaff.files import refuse_overwrite
    from sigmaff.report import model_facts, write_report

    refuse_overwrite(output, force)
    reading = Reading(format, energy_unit, length_unit, energy_key, forces_key, energies_only)
    evaluation, other, loaded = _evaluate(model, data, ood, reading, forces_std, batch_size, device)
    write_report(
        output, evaluation, other, title=f"{model.stem} on {data.stem}", model_info=model_facts(loaded), force=force
    )
    console.print(f"report: {output}", soft_wrap=True)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="directory of the demonstration")] = Path("demo"),
    force: Force = False,
) -> None:
    """Label ethanol with GFN2-xTB, train on it, calibrate σ, meet a molecule it has never seen, report. Minutes."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.cli.tables import metrics_table
    from sigmaff.runs.demo import run_demo

    with Terminal(console) as terminal:
        summary, path = run_demo(output, terminal, force=force)
    console.print(metrics_table(summary, title="ethanol, held out; dimethyl ether as the molecule never seen"))
    console.print(f"report: {path}", soft_wrap=True)


def _dataset(source: "DataSource", loaded: "Model") -> "GraphDataset":
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for

    return dataset_for(loaded, read_structures(source))


def _evaluate(
    model: Path,
    data: Path,
    ood: Path | None,
    reading: Reading,
    forces_std: Literal["auto", "exact", "sampled", "none"],
    batch_size: int,
    device: str,
) -> tuple["Evaluation", "Evaluation | None", "Model"]:
    """A model on its own kind of structures and, if asked for, on another kind."""
    from sigmaff.cli.progress import Terminal
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import evaluate_on, foreign_dataset
    from sigmaff.models.file import load

    loaded = load(model, device=device)
    dataset = _dataset(reading.source(data), loaded)
    other = None if ood is None else foreign_dataset(loaded, read_structures(reading.source(ood, labels=())))
    _warn_of_leakage(loaded, dataset)

    def evaluated(dataset: "GraphDataset", path: Path) -> "Evaluation":
        terminal.stage(f"evaluating {path.name}")
        return evaluate_on(
            loaded, dataset, name=path.stem, listener=terminal, forces_std=forces_std, batch_size=batch_size
        )

    with Terminal(console) as terminal:
        evaluation = evaluated(dataset, data)
        return evaluation, None if other is None or ood is None else evaluated(other, ood), loaded


def _warn_of_leakage(loaded: "Model", dataset: "GraphDataset") -> None:
    from sigmaff.evaluation.datasets import leaked_structures

    if n_leaked := leaked_structures(loaded, dataset.structures):
        text = f"the model was trained on {n_leaked} of these {len(dataset)} structures: errors will look too small"
        errors.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)


def _complain(text: str) -> None:
    errors.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
