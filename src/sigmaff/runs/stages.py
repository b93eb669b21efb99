"""From structures to a model: the stages of a head in order, and the members of an ensemble."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sigmaff.backbones import AdoptConfig, BackboneConfig, HostConfig
from sigmaff.config import with_unnamed
from sigmaff.data import GraphDataset, require_elements
from sigmaff.errors import ConfigError, ModelFileError
from sigmaff.files import changes
from sigmaff.heads import DeterministicConfig, Stage
from sigmaff.models import Ensemble, Model, MonteCarloDropout, Potential, PotentialConfig
from sigmaff.models.adopt import read_potential, with_references
from sigmaff.models.file import load_potential, read_header, save
from sigmaff.models.record import FitRecord, MemberRecord, RunRecord, TrainingRecord
from sigmaff.models.solve import LabelledObservations, solve_head
from sigmaff.progress import Listener
from sigmaff.runs.config import EnsembleConfig, RunConfig
from sigmaff.runs.data import RunData
from sigmaff.runs.record import check_unchanged, record_of
from sigmaff.training import TrainingConfig, TrainingDivergedError

SECOND_LEARNING_RATE = 0.1
"""Learning rate of a backbone that is trained further together with a head, in units of the first one."""
WARMUP_SHARE, WARMUP_STEPS = 0.1, 100
"""Epochs of a warm-up over those of a training, and the longest rise of its learning rate."""

UNKNOWN_TO_HOST = "which the adopted network does not know"
Made = tuple[Model, RunRecord]


def make_model(
    config: RunConfig, data: RunData, listener: Listener, *, force: bool, host: Potential | None = None
) -> Made | None:
    """Train or solve the model of a run. ``None`` in a helper process of a distributed training.

    host: the adopted network, if it is read already.
    """
    if config.ensemble is not None:
        return make_ensemble(config.ensemble, _members(config, config.ensemble.size, data, listener, force), listener)
    made = _make_potential(config, data, listener, force, host)
    if made is None or config.mc_dropout is None:
        return made
    potential, record = made
    return MonteCarloDropout(potential, config.mc_dropout), record


def make_ensemble(
    config: EnsembleConfig, members: Iterable[Potential | TrainingDivergedError], listener: Listener
) -> tuple[Ensemble, RunRecord]:
    """Join members. Leave out those that could not be trained, with a warning.

    Arguments:
        members: in order; the error of a member that could not be trained.
    """
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


def _members(
    config: RunConfig, size: int, data: RunData, listener: Listener, force: bool
) -> Iterator[Potential | TrainingDivergedError]:
    for number in range(size):
        listener.stage(f"member {number + 1} of {size}")
        try:
            yield make_member(config, number, data, listener, force=force)
        except TrainingDivergedError as error:
            yield error


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
    made = _make_potential(own, data, listener, force)
    assert made is not None  # an ensemble is never distributed
    potential, record = made
    potential.record = record_of(own, data.split, record)
    save(potential, path, force=force)
    return potential


@torch.random.fork_rng(devices=[])  # the random numbers of the caller stay as they were
def _make_potential(
    config: RunConfig, data: RunData, listener: Listener, force: bool, host: Potential | None = None
) -> tuple[Potential, RunRecord] | None:
    """Execute the stages of the head in order. ``None`` in a helper process."""
    stages = _Stages(config, data, listener, force, host)
    potential: Potential | None = None
    for stage in config.model.head.stages:
        potential = stages.execute(stage, potential)
    assert potential is not None
    return (potential, RunRecord.model_validate(stages.record)) if stages.is_main_process else None


@dataclass
class _Stages:
    """Each stage takes the potential of the stage before and returns its own."""

    config: RunConfig
    data: RunData
    listener: Listener
    force: bool
    host: Potential | None = None  # the adopted network, if it is read already
    record: dict[str, TrainingRecord | FitRecord] = field(default_factory=dict)
    is_main_process: bool = True  # False in a helper process of a distributed training

    def execute(self, stage: Stage, before: Potential | None) -> Potential:
        if before is None:
            is_adopted = isinstance(self.config.model.backbone, AdoptConfig | HostConfig)
            if stage == "warmup":
                return self._warmup()
            return self._backbone() if stage == "backbone" or is_adopted else self._from_scratch()
        return {"joint": self._joint, "head": self._head, "solve": self._solve}[stage](before)

    def _backbone(self) -> Potential:
        """A backbone with its own readout: adopted, from a file, or trained if it has weights."""
        config, host = self.config, self.host
        if host is None and isinstance(config.model.backbone, AdoptConfig):
            host = read_potential(config.model.backbone)
        if host is not None:
            require_elements(self.data.train.structures, host.elements, reason=UNKNOWN_TO_HOST)
            return with_references(host, self.data.train, config.data.reference_energies)
        if isinstance(config.model.backbone, HostConfig):
            raise ConfigError(
                "model.backbone describes an adopted network without its weights; write adopt: its source"
            )
        if config.backbone_from is not None:
            return _backbone_from(config, config.backbone_from, self.data)
        potential = self._new_backbone()
        if list(potential.backbone.parameters()):
            self._train("training the backbone", potential, config.training, "backbone")
            if self.is_main_process:
                save(potential, config.output / "backbone.sigmaff", force=True)
        return potential

    def _new_backbone(self) -> Potential:
        """A backbone with a readout of its own. One that nothing trains reads nothing."""
        potential = self._new(self.config.model.model_copy(update={"head": DeterministicConfig()}))
        if not list(potential.backbone.parameters()):
            for weight in potential.head.parameters():
                torch.nn.init.zeros_(weight)
        return potential

    def _warmup(self) -> Potential:
        training = self.config.training
        epochs = max(1, round(WARMUP_SHARE * training.max_epochs))
        shorter = {"max_epochs": epochs, "validate_every": 1, "without_dropout": 0.0}
        steps = min(training.schedule.warmup_steps, WARMUP_STEPS)
        schedule = training.schedule.model_copy(update={"warmup_steps": steps})
        warmup = training.model_copy(update={**shorter, "schedule": schedule})
        return self._train("warming up the backbone", self._new_backbone(), warmup, "warmup")

    def _from_scratch(self) -> Potential:
        potential = self._new(self.config.model)
        self._start(potential)
        return self._train("training", potential, self.config.training, "backbone")

    def _joint(self, backbone: Potential) -> Potential:
        """A backbone that is trained already is trained further with a lower rate."""
        training = self.config.training
        if self.config.model.head.takes_backbone:
            rate = SECOND_LEARNING_RATE * training.learning_rate
            training = training.model_copy(update={"learning_rate": rate})
        return self._train_on("training backbone and head", backbone, training, freeze=False)

    def _head(self, backbone: Potential) -> Potential:
        return self._train_on("training the head", backbone, self.config.training, freeze=True)

    def _solve(self, backbone: Potential) -> Potential:
        if not self.is_main_process:
            return backbone
        self.listener.stage("fitting the head")
        started = time.monotonic()
        head, seed, data = self.config.model.head, self.config.seed, self.data
        potential, summary = solve_head(backbone, head, data.train, data.validation, seed=seed, listener=self.listener)
        self.record["fit"] = FitRecord(**asdict(summary), seconds=time.monotonic() - started)
        return potential

    def _new(self, model: PotentialConfig) -> Potential:
        torch.default_generator.manual_seed(self.config.seed)
        return Potential(model, self.data.statistics)

    def _start(self, potential: Potential) -> None:
        """Inducing points on the embeddings of the training structures, and what else a head begins with."""
        self._with_head(potential, potential.head.start)

    def _with_head(self, potential: Potential, fit: Callable[..., None]) -> None:
        """Let a head see the data as it predicts."""
        train, held_out = (LabelledObservations(potential.eval(), part) for part in self._parts)
        fit(train, held_out, seed=self.config.seed, listener=self.listener)

    @property
    def _parts(self) -> tuple[GraphDataset, GraphDataset]:
        return self.data.train, self.data.validation

    def _train_on(self, text: str, backbone: Potential, training: TrainingConfig, *, freeze: bool) -> Potential:
        potential = backbone.with_head(self.config.model.head)
        self._start(potential)
        settings = (self.config.head_training or training).model_copy(update={"freeze_backbone": freeze})
        self._train(text, potential, settings, "head")
        if self.is_main_process:
            self._with_head(potential, partial(potential.head.refit, moved=not freeze))
        return potential

    def _train(self, text: str, potential: Potential, training: TrainingConfig, folder: str) -> Potential:
        from sigmaff.training.loop import train  # brings Lightning Fabric, which only training needs

        self.listener.stage(text)
        directory, seed = self.config.output / folder, self.config.seed
        train_set, held_out = self._parts
        result = train(
            potential, train_set, held_out, training, directory, seed=seed, listener=self.listener, force=self.force
        )
        self.is_main_process = result.is_main_process
        self.record["training" if folder == "backbone" else "head_training"] = TrainingRecord(
            best_epoch=result.best_epoch,
            best_validation_loss=result.best_validation_loss,
            n_epochs=len(result.history),
            seconds=result.seconds,
            stopped_because=result.stopped_because,
            compiled_from=result.compiled_from,
        )
        return potential


def backbone_beside(model: Model) -> Path | None:
    """The file of the network that a model was made from, in its folder or in that of its comparison; else ``None``."""
    if model.file is None:
        return None
    folder = model.file.resolve().parent
    for path in (folder / "backbone.sigmaff", folder.parent / "backbone" / "model.sigmaff"):
        if path.is_file() and path != model.file.resolve() and _is_backbone(path, model):
            return path
    return None


def _is_backbone(path: Path, model: Model) -> bool:
    """Whether a file holds a network without σ, with the settings and elements of each network of the model."""
    try:
        header = read_header(path)
    except ModelFileError:
        return False
    if not isinstance(header.config.head, DeterministicConfig) or header.other_members:
        return False
    return all(
        not _differing(header.config.backbone, part.config.backbone)
        and header.statistics.elements == part.statistics.elements
        for part in model.potentials
    )


def with_backbone_of(config: RunConfig) -> RunConfig:
    """With the settings of the backbone in the file of ``backbone_from``, where nobody names others."""
    if config.backbone_from is None:
        return config
    found = read_header(config.backbone_from).config.backbone
    if found.name == config.model.backbone.name:
        named = {f"model.backbone.{name}": getattr(found, name) for name in type(found).model_fields}
        return with_unnamed(config, named)
    return with_unnamed(config, {"model.backbone": found})


def _backbone_from(config: RunConfig, path: Path, data: RunData) -> Potential:
    potential = load_potential(path)
    if not isinstance(potential.config.head, DeterministicConfig):
        raise ConfigError(
            f"{path}: backbone_from takes a model with a deterministic head, such as the backbone.sigmaff of a run"
        )
    if differing := _differing(potential.config.backbone, config.model.backbone):
        raise ConfigError(
            f"{path}: its backbone has other settings than model.backbone of this run ({'; '.join(differing)}); "
            "leave these keys out of model.backbone: they are taken from the file"
        )
    if not set(data.statistics.elements) <= set(potential.elements):
        raise ConfigError(f"{path}: it does not know all elements of the training structures of this run")
    taken = Potential(config.model.model_copy(update={"head": potential.config.head}), potential.statistics)
    taken.set_precision(potential.dtype)
    taken.load_state_dict(potential.state_dict())
    return taken


def _differing(found: BackboneConfig, asked: BackboneConfig) -> list[str]:
    """The settings that decide the weights and differ."""
    if found.name != asked.name:
        return changes({"name": found.name}, {"name": asked.name})
    return changes(*(backbone.model_dump(exclude={"dropout"}) for backbone in (found, asked)))
