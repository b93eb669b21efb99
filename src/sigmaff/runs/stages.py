"""From structures to a model, stage by stage: backbone, head, members."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from sigmaff.backbones import BackboneConfig
from sigmaff.data import DatasetStatistics, GraphDataset
from sigmaff.errors import ConfigError
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, Model, MonteCarloDropout, Potential
from sigmaff.models.file import load, load_potential, save
from sigmaff.models.record import FitRecord, MemberRecord, RunRecord, TrainingRecord
from sigmaff.models.solve import LabelledObservations, solve_head
from sigmaff.progress import Listener
from sigmaff.runs.config import EnsembleConfig, RunConfig
from sigmaff.runs.data import RunData
from sigmaff.runs.record import check_unchanged, record_of
from sigmaff.training import TrainingConfig, TrainingDivergedError, TrainingResult

SECOND_LEARNING_RATE = 0.1
"""Learning rate of a backbone that is trained further together with a head, in units of the first one."""


Make = Callable[[RunConfig, RunData, Listener], tuple[Model, RunRecord] | None]
"""Make a model and its record from settings and structures; ``None`` in a helper process."""
Members = Iterable[Potential | TrainingDivergedError]
"""The members of an ensemble in order, or the error of one that could not be trained."""


def make_model(config: RunConfig, data: RunData, listener: Listener, *, force: bool) -> tuple[Model, RunRecord] | None:
    if config.ensemble is not None:
        return make_ensemble(config.ensemble, _one_by_one(config, config.ensemble, data, listener, force), listener)
    made = _make_potential(config, data, listener, force=force)
    if made is None or config.mc_dropout is None:
        return made
    potential, record = made
    return MonteCarloDropout(potential, config.mc_dropout), record


def make_ensemble(config: EnsembleConfig, members: Members, listener: Listener) -> tuple[Ensemble, RunRecord]:
    """Leave out members that could not be trained, with a warning."""
    trained: list[Potential] = []
    records: list[MemberRecord] = []
    for number, member in enumerate(members):
        if isinstance(member, TrainingDivergedError):
            listener.warn(f"member {number} was not trained and is left out: {member}")
            records.append(MemberRecord(failed=str(member)))
        else:
            trained.append(member)
            records.append(MemberRecord.of(member.record))
    if len(trained) < 2:
        raise TrainingDivergedError(
            f"only {len(trained)} of {config.size} members could be trained, and an ensemble needs 2; "
            f"last error: {records[-1].failed or 'nothing'}"
        )
    return Ensemble(trained), RunRecord(members=records)


def _one_by_one(
    config: RunConfig, ensemble: EnsembleConfig, data: RunData, listener: Listener, force: bool
) -> Iterator[Potential | TrainingDivergedError]:
    for number in range(ensemble.size):
        listener.stage(f"member {number + 1} of {ensemble.size}")
        try:
            yield make_member(config, number, data, listener, force=force)
        except TrainingDivergedError as error:
            yield error


def joining(members: Sequence[Path]) -> Make:
    """An ensemble of potentials from their files."""

    def make(config: RunConfig, data: RunData, listener: Listener) -> tuple[Model, RunRecord]:
        potentials = [load_potential(path) for path in members]
        return Ensemble(potentials), RunRecord(members=[MemberRecord.of(potential.record) for potential in potentials])

    return make


def sampling(source: Path) -> Make:
    """The model of a file, predicting with dropout as the run has it."""

    def make(config: RunConfig, data: RunData, listener: Listener) -> tuple[Model, RunRecord]:
        assert config.mc_dropout is not None
        model = load(source)
        potential = model.potential if isinstance(model, MonteCarloDropout) else model
        assert isinstance(potential, Potential)
        return MonteCarloDropout(potential, config.mc_dropout), RunRecord.of(model.record)

    return make


def member_file(config: RunConfig, number: int) -> Path:
    return config.output / f"member-{number}" / "model.sigmaff"


def make_member(config: RunConfig, number: int, data: RunData, listener: Listener, *, force: bool) -> Potential:
    """Train one member of an ensemble and save it in a directory of its own."""
    path = member_file(config, number)
    own = config.model_copy(
        update={"ensemble": None, "calibration": "none", "seed": config.seed + number, "output": path.parent}
    )
    if path.exists() and not force:
        check_unchanged(own, path)
        return load_potential(path)
    assert config.ensemble is not None
    if config.ensemble.bootstrap:
        drawn = np.random.default_rng([config.seed, number]).integers(len(data.train), size=len(data.train))
        data = replace(data, train=GraphDataset(data.train.structures.subset(drawn), data.train.cutoff))
    made = _make_potential(own, data, listener, force=force)
    assert made is not None  # an ensemble is never distributed
    potential, record = made
    potential.record = record_of(own, data.split, record)
    save(potential, path, force=force)
    return potential


@torch.random.fork_rng(devices=[])  # the random numbers of the caller stay as they were
def _make_potential(
    config: RunConfig, data: RunData, listener: Listener, *, force: bool
) -> tuple[Potential, RunRecord] | None:
    """A trained and fitted potential, and its record."""
    stages, record = config.model.head.stages, dict[str, TrainingRecord | FitRecord]()
    potential, trained = _backbone(config, data, listener, force=force)
    if trained is not None:
        record["training"] = _training_record(trained)
    if config.model.head.trains_on_backbone:
        potential, trained = _train_head(config, potential, data, listener, force=force)
        record["head_training"] = _training_record(trained)
    if trained is not None and not trained.is_main_process:
        return None
    if "solve" in stages:
        potential, record["fit"] = _solve_head(config, potential, data, listener)
    return potential, RunRecord.model_validate(record)


def _backbone(
    config: RunConfig, data: RunData, listener: Listener, *, force: bool
) -> tuple[Potential, TrainingResult | None]:
    """The trained potential: with its own readout first where the head comes second.

    A backbone from a file, or one without weights, is not trained.
    """
    two_stages = config.model.head.takes_backbone
    if config.backbone_from is not None:
        return _backbone_from(config, config.backbone_from, data.statistics), None
    model = config.model.model_copy(update={"head": DeterministicConfig()}) if two_stages else config.model
    torch.default_generator.manual_seed(config.seed)
    potential = Potential(model, data.statistics)
    if two_stages and not list(potential.backbone.parameters()):
        return potential, None
    if not two_stages:
        _initialize_head(potential, data.train)
    listener.stage("training the backbone" if two_stages else "training")
    result = _train(potential, data, config.training, config.output / "backbone", config.seed, listener, force=force)
    if two_stages and result.is_main_process:
        save(potential, config.output / "backbone.sigmaff", force=True)
    return potential, result


def _backbone_from(config: RunConfig, path: Path, statistics: DatasetStatistics) -> Potential:
    potential = load_potential(path)
    if not isinstance(potential.config.head, DeterministicConfig):
        raise ConfigError(
            f"{path}: backbone_from takes a model with a deterministic head, such as the backbone.sigmaff of a run"
        )
    if not _same_weights(potential.config.backbone, config.model.backbone):
        raise ConfigError(f"{path}: its backbone has other settings than model.backbone of this run")
    if not set(statistics.elements) <= set(potential.elements):
        raise ConfigError(f"{path}: it does not know all elements of the training structures of this run")
    wanted = config.model.model_copy(update={"head": potential.config.head})
    taken = Potential(wanted, potential.statistics)
    taken.set_precision(potential.dtype)
    taken.load_state_dict(potential.state_dict())
    return taken


def _same_weights(one: BackboneConfig, other: BackboneConfig) -> bool:
    """Whether two backbones differ at most in dropout, which has no weights."""
    return one.model_dump(exclude={"dropout"}) == other.model_dump(exclude={"dropout"})


def _train_head(
    config: RunConfig, backbone: Potential, data: RunData, listener: Listener, *, force: bool
) -> tuple[Potential, TrainingResult]:
    frozen = "head" in config.model.head.stages
    listener.stage("training the head" if frozen else "training backbone and head")
    potential = backbone.with_head(config.model.head)
    _initialize_head(potential, data.train)
    slower = {"learning_rate": SECOND_LEARNING_RATE * config.training.learning_rate}
    settings = config.head_training or config.training.model_copy(update={} if frozen else slower)
    settings = settings.model_copy(update={"freeze_backbone": frozen})
    return potential, _train(potential, data, settings, config.output / "head", config.seed, listener, force=force)


def _solve_head(
    config: RunConfig, backbone: Potential, data: RunData, listener: Listener
) -> tuple[Potential, FitRecord]:
    listener.stage("fitting the head")
    started = time.monotonic()
    head, seed = config.model.head, config.seed
    potential, summary = solve_head(backbone, head, data.train, data.validation, seed=seed, listener=listener)
    return potential, FitRecord(**asdict(summary), seconds=time.monotonic() - started)


def _initialize_head(potential: Potential, train: GraphDataset) -> None:
    """Inducing points on the embeddings of the training structures."""
    potential.head.initialize(*LabelledObservations(potential.eval(), train).embeddings())


def _train(
    potential: Potential,
    data: RunData,
    training: TrainingConfig,
    directory: Path,
    seed: int,
    listener: Listener,
    *,
    force: bool,
) -> TrainingResult:
    from sigmaff.training.loop import train  # brings Lightning Fabric, which only training needs

    return train(potential, data.train, data.validation, training, directory, seed=seed, listener=listener, force=force)


def _training_record(result: TrainingResult) -> TrainingRecord:
    return TrainingRecord(
        best_epoch=result.best_epoch,
        best_validation_loss=result.best_validation_loss,
        n_epochs=len(result.history),
        seconds=result.seconds,
        stopped_because=result.stopped_because,
    )
