"""The command that sets structures in motion, and watches σ while they move."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sigmaff.cli.options import Device, ForcesStdOption, ModelArgument, console
from sigmaff.cli.reading import Reading
from sigmaff.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sigmaff.cli.progress import Terminal
    from sigmaff.data import LabelledStructures
    from sigmaff.models import Model
    from sigmaff.models.prediction import ForcesStd
    from sigmaff.simulation.md import MDResult, Scores


def md(
    model: ModelArgument,
    start: Annotated[Path, typer.Argument(help="structures to start from, each of them", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="directory of the run")] = Path("md"),
    ensemble: Annotated[Literal["nve", "nvt", "npt"], typer.Option(help="what is conserved")] = "nvt",
    thermostat: Annotated[
        Literal["langevin", "nose-hoover", "bussi"] | None,
        typer.Option(help="langevin for nvt, nose-hoover for npt, if not told"),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="K; repeated, each start runs at each (300; nve: the velocities of the start)"),
    ] = None,
    pressure: Annotated[float, typer.Option(help="GPa, of npt")] = 0.0,
    cell: Annotated[Literal["isotropic", "full"], typer.Option(help="how the cell of npt changes")] = "isotropic",
    timestep: Annotated[float, typer.Option(help="fs")] = 0.5,
    steps: Annotated[int, typer.Option(help="of each replica")] = 10_000,
    replicas: Annotated[int, typer.Option(help="of each start at each temperature, all in one batch")] = 1,
    damping: Annotated[float, typer.Option(help="fs, time constant of the thermostat")] = 100.0,
    pressure_damping: Annotated[float, typer.Option(help="fs, time constant of the barostat")] = 1000.0,
    stop_above: Annotated[
        str | None, typer.Option(help="largest force σ of an atom, eV/Å; or auto, by --error-above and --risk")
    ] = None,
    error_above: Annotated[float | None, typer.Option(help="eV/Å; the force error that auto guards against")] = None,
    risk: Annotated[float, typer.Option(help="chance of such an error in a structure that is let pass")] = 0.05,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="labelled structures that the model has not seen; auto takes its validation set, if not told"
        ),
    ] = None,
    on_crossing: Annotated[
        Literal["stop", "rollback", "continue"], typer.Option(help="what a replica does that crosses the limit")
    ] = "stop",
    rollback: Annotated[int, typer.Option(help="steps that it is taken back")] = 100,
    max_rollbacks: Annotated[int, typer.Option(help="times that it then goes on, with other velocities")] = 10,
    check_every: Annotated[int, typer.Option(help="steps between looks at σ of forces")] = 10,
    every: Annotated[int, typer.Option(help="steps between frames and lines of the log")] = 10,
    checkpoint_every: Annotated[int, typer.Option(help="steps between states to go on from")] = 500,
    forces_std: ForcesStdOption = "auto",
    seed: Annotated[int, typer.Option(help="of velocities and thermostats")] = 0,
    device: Device = "cpu",
) -> None:
    """Molecular dynamics that stops where the model is lost. The same command goes on after an interruption."""
    from sigmaff.config import validated
    from sigmaff.data import read_structures
    from sigmaff.models.file import load
    from sigmaff.simulation.md import MDConfig, run_md

    options = {
        "ensemble": ensemble,
        "thermostat": thermostat,
        "temperature": temperature or ([] if ensemble == "nve" else [300.0]),
        "pressure": pressure,
        "cell": cell,
        "timestep": timestep,
        "steps": steps,
        "replicas": replicas,
        "damping": damping,
        "pressure_damping": pressure_damping,
        "stop_above": _number_or_auto(stop_above),
        "error_above": error_above,
        "risk": risk,
        "on_crossing": on_crossing,
        "rollback": rollback,
        "max_rollbacks": max_rollbacks,
        "check_every": check_every,
        "every": every,
        "checkpoint_every": checkpoint_every,
        "forces_std": forces_std,
        "seed": seed,
    }
    config = validated(MDConfig, options, "md")
    loaded = load(model, device=device)
    starts = read_structures(Reading().source(start, labels=())).structures
    with _terminal() as terminal:
        scores = _scores(loaded, calibration, config.stop_above == "auto", forces_std, terminal)
        terminal.stage("molecular dynamics")
        result = run_md(loaded, starts, config, output, terminal, calibration=scores)
    _tell(result)


def _terminal() -> "Terminal":
    from sigmaff.cli.progress import Terminal

    return Terminal(console)


def _number_or_auto(text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--stop-above {text}: give a number in eV/Å, or auto") from None


def _scores(
    loaded: "Model", path: Path | None, needed: bool, forces_std: "ForcesStd", terminal: "Terminal"
) -> "Scores | None":
    """Of the calibration structures named, or, where they are needed, of those that the model was validated on."""
    from sigmaff.data import read_structures
    from sigmaff.evaluation.datasets import dataset_for, evaluate_on, leaked_structures
    from sigmaff.simulation.md import structure_scores

    if path is None and not needed:
        return None
    structures = _validation_structures(loaded) if path is None else read_structures(Reading().source(path))
    if path is not None and (n_leaked := leaked_structures(loaded, structures)):
        terminal.warn(f"the model was trained on {n_leaked} of the {len(structures)} calibration structures")
    terminal.stage("σ of calibration structures")
    dataset = dataset_for(loaded, structures)
    return structure_scores(
        evaluate_on(loaded, dataset, name=structures.source, listener=terminal, forces_std=forces_std)
    )


def _validation_structures(loaded: "Model") -> "LabelledStructures":
    from sigmaff.evaluation.datasets import recorded_structures

    try:
        return recorded_structures(loaded, "validation")
    except DataError as error:
        raise DataError(f"{error}; name labelled ones that it has not seen with --calibration") from None


def _tell(result: "MDResult") -> None:
    if result.threshold is not None:
        console.print(result.threshold.statement, soft_wrap=True)
    for origin, record in zip(result.origins, result.records, strict=True):
        temperature = "" if origin.temperature is None else f" at {origin.temperature:g} K"
        text = f"replica {origin.number} (start {origin.start}{temperature}): {record.ending} at step {record.ended_at}"
        drift = "" if record.drift_step is None else f"; σ has left its calibration by step {record.drift_step}"
        console.print(text + (f": {record.message}" if record.message else "") + drift, soft_wrap=True)
    if result.share_above is not None:
        console.print(f"σ above the limit in {result.share_above:.2%} of the looks at it", soft_wrap=True)
    console.print(f"run: {result.directory}", soft_wrap=True)
