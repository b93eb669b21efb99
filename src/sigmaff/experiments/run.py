"""One run: labelled structures in, a calibrated force field out, in a directory that can be taken up again."""

import hashlib
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from ase.data import chemical_symbols
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sigmaff.data import (
    DatasetStatistics,
    DataSource,
    GraphDataset,
    LabelledStructures,
    ReferenceEnergies,
    Split,
    SplitConfig,
    compute_statistics,
    find_overlap,
    read_structures,
    reference_energies,
    split_structures,
)
from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.evaluation import (
    CalibrationMethod,
    Evaluation,
    Summary,
    calibrate_evaluation,
    evaluate_model,
    summarize,
)
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.files import refuse_overwrite, write_json
from sigmaff.heads import HEADS, DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.model_file import read_header, save
from sigmaff.potential import Model, Potential, PotentialConfig, Uncalibrated
from sigmaff.prediction import UNCALIBRATED, ForcesStd
from sigmaff.training import Progress, TrainingConfig, TrainingResult
from sigmaff.training.checkpoint import flatten


class DataConfig(BaseModel):
    """Which structures to learn from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: DataSource = Field(description="the labelled structures: a path, or a path and how to read it")
    split: SplitConfig = Field(default=SplitConfig(), description="which of them train, validate and test")
    reference_energies: ReferenceEnergies = Field(
        default="least_squares",
        description="energy of each element: least_squares, isolated_atoms, or values in eV by symbol",
    )


class RunConfig(BaseModel):
    """A whole training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataConfig = Field(description="which structures to learn from")
    model: PotentialConfig = Field(default=PotentialConfig(), description="what to train")
    training: TrainingConfig = Field(default=TrainingConfig(), description="how to train the backbone")
    head_training: TrainingConfig | None = Field(
        default=None, description="how to train a variational head on the frozen backbone; null is as the backbone"
    )
    calibration: Literal[CalibrationMethod, "none"] = Field(
        default="quantile", description="how σ is calibrated on the validation structures"
    )
    output: Path = Field(default=Path("run"), description="directory of checkpoints, logs, model and metrics")
    seed: int = Field(default=0, ge=0, description="of initial weights and of the order of batches")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Contradictions are said before hours of training, not after."""
        head = self.model.head
        if isinstance(head, LNKConfig) and head.fit == "closed_form" and head.mean == "constant":
            raise ValueError(
                "model.head: mean 'constant' goes with fit 'variational'; closed_form takes backbone or residual"
            )
        if self.head_training is not None and head.trained != "after_backbone":
            raise ValueError("head_training is for a head that is trained on a frozen backbone; leave it out")
        return self


class Listener(Progress, Protocol):
    """Who is told how a run goes: the training's progress, and what comes before and after it."""

    def stage(self, text: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunResult:
    model_path: Path
    metrics: Summary | None  # of the test structures
    already_done: bool = False


@dataclass(frozen=True, kw_only=True)
class _Data:
    structures: LabelledStructures
    split: Split
    train: GraphDataset
    validation: GraphDataset
    test: GraphDataset | None
    statistics: DatasetStatistics


def run(config: RunConfig, listener: Listener, *, force: bool = False) -> RunResult | None:
    """Train, fit, calibrate, test, save. ``None`` in the helper processes of a distributed training."""
    model_path = config.output / "model.sigmaff"
    if model_path.exists() and not force:
        return _finished(config, model_path)
    _refuse_foreign_files(config.output, force)
    listener.stage(f"reading {config.data.source.path}")
    data = _load(config)
    started = time.monotonic()
    head = config.model.head
    potential, trained = _train_backbone(config, data, listener, force=force)
    record: dict[str, Any] = {"training": _training_record(trained)}
    if head.trained == "after_backbone":
        potential, trained = _train_head(config, head, potential, data, listener, force=force)
        record["head_training"] = _training_record(trained)
    if not trained.is_main_process:
        return None
    if head.trained == "solved":
        potential, record["fit"] = _fit_head(config, head, potential, data, listener)
    metrics = _calibrate_and_test(config, potential, data, listener, record)
    record["seconds"] = time.monotonic() - started
    potential.record = _record(config, data.split, record)
    save(potential, model_path, force=force)
    if metrics is not None:
        write_json(config.output / "metrics.json", metrics, force=True)
    return RunResult(model_path=model_path, metrics=metrics)


def _finished(config: RunConfig, model_path: Path) -> RunResult:
    """A run that is over is not run again, unless it was another run."""
    record = read_header(model_path).record
    if changes := _changes(record, config):
        raise ConfigError(
            f"{model_path} is the model of another run ({'; '.join(changes)}); choose another output directory, "
            "or use --force to replace it"
        )
    metrics, metrics_path = record.get("metrics"), config.output / "metrics.json"
    if metrics is not None and not metrics_path.exists():  # killed just before its last file
        write_json(metrics_path, metrics)
    return RunResult(model_path=model_path, metrics=metrics, already_done=True)


def _changes(record: dict[str, Any], config: RunConfig) -> list[str]:
    """What decides a model and is not as it was when the recorded one was made."""
    try:
        before = _decisive(RunConfig.model_validate(record["config"]))
    except (KeyError, ValidationError):
        return ["its settings are not recorded, or not those of this version of sigmaff"]
    now, path = _decisive(config), config.data.source.path
    changes = [
        f"{key}: was {before.get(key)}, now {now.get(key)}" for key in before | now if before.get(key) != now.get(key)
    ]
    if path.is_file() and record.get("data_sha256") != _digest(path):
        changes.append(f"{path} has changed")
    return changes


def _refuse_foreign_files(directory: Path, force: bool) -> None:
    """Files that a run would write and that no run of this directory has written."""
    if not (directory / "backbone" / "checkpoint.safetensors").exists():
        for name in ("backbone.sigmaff", "metrics.json"):
            refuse_overwrite(directory / name, force)


def _load(config: RunConfig) -> _Data:
    structures = read_structures(config.data.source)
    split = split_structures(config.data.split, structures)
    if not len(split.validation):
        raise ConfigError("data.split.n_validation is 0: a run needs validation structures to stop and calibrate by")
    if (
        config.calibration != "none"
        and HEADS[config.model.head.name].kind is not None
        and len(split.validation) < MIN_SAMPLES
    ):
        raise ConfigError(
            f"data.split.n_validation is {len(split.validation)}, but calibrating σ takes {MIN_SAMPLES} structures "
            "or more; give it as many, or set calibration to none"
        )
    cutoff = config.model.backbone.cutoff
    train = GraphDataset(structures.subset(split.train), cutoff)
    validation = GraphDataset(structures.subset(split.validation), cutoff)
    test = GraphDataset(structures.subset(split.test), cutoff) if len(split.test) else None
    for part in (validation, test):
        if part is not None:
            _require_elements(
                part.structures, train.structures.elements, "which no training structure of this split has"
            )
    references = reference_energies(structures, config.data.reference_energies)
    if config.data.reference_energies == "least_squares":
        references = reference_energies(train.structures, "least_squares")
    return _Data(
        structures=structures,
        split=split,
        train=train,
        validation=validation,
        test=test,
        statistics=compute_statistics(train, references),
    )


def _train_backbone(
    config: RunConfig, data: _Data, listener: Listener, *, force: bool
) -> tuple[Potential, TrainingResult]:
    """The trained potential: with its own readout first where the head comes second."""
    head = config.model.head
    two_stages = head.trained != "with_backbone"
    model = config.model.model_copy(update={"head": DeterministicConfig()}) if two_stages else config.model
    torch.manual_seed(config.seed)
    potential = Potential(model, data.statistics)
    if not two_stages:
        _initialize_head(potential, data.train)
    listener.stage("training the backbone" if two_stages else "training")
    result = _train(potential, data, config.training, config.output / "backbone", config.seed, listener, force=force)
    if two_stages and result.is_main_process:
        save(potential, config.output / "backbone.sigmaff", force=True)
    return potential, result


def _train_head(
    config: RunConfig, head: HeadConfig, backbone: Potential, data: _Data, listener: Listener, *, force: bool
) -> tuple[Potential, TrainingResult]:
    listener.stage("training the head")
    potential = backbone.with_head(head)
    _initialize_head(potential, data.train)
    settings = (config.head_training or config.training).model_copy(update={"freeze_backbone": True})
    return potential, _train(potential, data, settings, config.output / "head", config.seed, listener, force=force)


def _fit_head(
    config: RunConfig, head: HeadConfig, backbone: Potential, data: _Data, listener: Listener
) -> tuple[Potential, dict[str, Any]]:
    from sigmaff.training.fits import fit_head

    listener.stage("fitting the head")
    started = time.monotonic()
    potential, result = fit_head(
        backbone, head, data.train, data.validation, seed=config.seed, progress=listener.advance
    )
    return potential, result | {"seconds": time.monotonic() - started}


def _initialize_head(potential: Potential, train: GraphDataset) -> None:
    """Inducing points on the embeddings of the training structures."""
    from sigmaff.training.rows import node_features

    potential.head.initialize(*node_features(potential.eval(), train))


def _train(
    potential: Potential,
    data: _Data,
    training: TrainingConfig,
    directory: Path,
    seed: int,
    listener: Listener,
    *,
    force: bool,
) -> TrainingResult:
    from sigmaff.training.loop import train  # brings Lightning Fabric, which only training needs

    return train(potential, data.train, data.validation, training, directory, seed=seed, progress=listener, force=force)


def _training_record(result: TrainingResult) -> dict[str, Any]:
    return {
        "best_epoch": result.best_epoch,
        "best_validation_loss": result.best_validation_loss,
        "n_epochs": len(result.history),
        "seconds": result.seconds,
        "stopped_because": result.stopped_because,
    }


def _calibrate_and_test(
    config: RunConfig, potential: Potential, data: _Data, listener: Listener, record: dict[str, Any]
) -> Summary | None:
    if config.calibration != "none" and potential.head.kind is not None:
        calibrate(potential, data.validation, config.calibration, listener)
    if data.test is None:
        return None
    listener.stage("testing")
    metrics = summarize(evaluate_on(potential, data.test, name="test", listener=listener))
    record["metrics"] = metrics
    return metrics


def calibrate(model: Model, dataset: GraphDataset, method: CalibrationMethod, listener: Listener) -> Evaluation:
    """Fit the model's calibrations on held-out structures and keep them in it."""
    listener.stage("calibrating σ")
    evaluation = evaluate_on(model, dataset, name="held out", listener=listener)
    model.energy_calibration, model.forces_calibration = calibrate_evaluation(evaluation, method)
    return evaluation


def evaluate_on(
    model: Model,
    dataset: GraphDataset,
    *,
    name: str,
    listener: Listener,
    forces_std: ForcesStd = "auto",
    batch_size: int = 32,
) -> Evaluation:
    """Errors and σ on a data set, raw and with the model's calibrations."""
    return evaluate_model(
        Uncalibrated(model),
        dataset,
        name=name,
        batch_size=dataset.batch_size(batch_size),
        forces_std=forces_std,
        energy_calibration=model.energy_calibration or UNCALIBRATED,
        forces_calibration=model.forces_calibration or UNCALIBRATED,
        progress=lambda done: listener.advance(done, len(dataset)),
    )


def dataset_for(model: Model, structures: LabelledStructures) -> GraphDataset:
    """Structures as a model takes them. One that it cannot know is an error that names the frame."""
    known = ", ".join(chemical_symbols[number] for number in model.elements)
    remedy = (
        f"an element this model was not trained on (it knows {known}); leave the structure out, or train on such ones"
    )
    _require_elements(structures, model.elements, remedy)
    return GraphDataset(structures, model.cutoff, model.dtype)


def _require_elements(structures: LabelledStructures, elements: tuple[int, ...], otherwise: str) -> None:
    for index, atoms in enumerate(structures.structures):
        unknown = np.flatnonzero(~np.isin(atoms.numbers, elements))
        if unknown.size:
            symbol = chemical_symbols[atoms.numbers[unknown[0]]]
            raise DataError(f"{structures.frame_name(index)}: atom {unknown[0]} is {symbol}, {otherwise}")


def leaked_structures(model: Model, structures: LabelledStructures) -> int:
    """How many of these structures the model was trained on; 0 where its training file cannot be read any more."""
    try:
        source = DataSource.model_validate(model.record["config"]["data"]["source"])
        training = read_structures(source.model_copy(update={"labels": ()}))
        return len(find_overlap(training.subset(model.record["split"]["train"]), structures))
    except (LookupError, TypeError, ValueError, SigmaffError):  # an old, a foreign or an altered record or file
        return 0


def _record(config: RunConfig, split: Split, results: dict[str, Any]) -> dict[str, Any]:
    """How the model was made, for its file."""
    return results | {
        "config": config.model_dump(mode="json"),
        "data_sha256": _digest(config.data.source.path),
        "split": split.to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy")},
    }


def _decisive(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the model, by name: not where it is written, nor how fast."""
    content = config.model_dump(mode="json", exclude={"output", "training", "head_training"})
    for name, training in (("training", config.training), ("head_training", config.head_training)):
        limits = (
            {} if training is None else training.model_dump(include={"max_epochs", "patience", "time_limit_minutes"})
        )
        content[name] = None if training is None else training.trajectory() | limits
    return flatten("", content)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
