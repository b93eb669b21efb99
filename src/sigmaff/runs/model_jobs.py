"""Jobs that make a model: train it, join it from others, or sample another one with dropout."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sigmaff.backbones import AdoptConfig
from sigmaff.errors import ConfigError
from sigmaff.models import Ensemble, MonteCarloDropout
from sigmaff.models.file import load, load_potential, read_header
from sigmaff.models.record import MemberRecord, RunRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import RunData
from sigmaff.runs.jobs import Job, JobFolder
from sigmaff.runs.methods import Method
from sigmaff.runs.run import run
from sigmaff.runs.stages import Made, make_model

KEPT = {"metrics", "ood", "groups", "training", "head_training", "fit", "members", "seconds"}
"""Keys of the model's record that are part of the result."""
ANY_DEVICE = "auto"


class ModelJob(Job):
    """Makes one model in its directory."""

    config: RunConfig = Field(description="settings; the output directory is that of the job")
    force: bool = Field(False, exclude=True, description="replace a finished model")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        make = partial(self.make, folder)  # whoever starts the jobs has checked their structures
        settings = self.settings(folder)
        result = run(settings, listener, force=self.force, make=make, locked=True, skip_checks=True)
        if result is None:
            raise ConfigError("a job trains in one process: set training.devices to 1")
        record = read_header(result.model_path).record
        return {
            "data": ", ".join(str(source.path) for source in self.config.data.sources),
            **record.model_dump(mode="json", include=KEPT),
        }

    def settings(self, folder: JobFolder) -> RunConfig:
        return self.config.model_copy(update={"output": folder.directory(self.name)})

    def specification(self) -> dict[str, Any]:
        """All settings, as on any device: what one device has finished is not made again on another."""
        found = super().specification()
        for training in (found["config"]["training"], found["config"]["head_training"]):
            if training is not None:
                training["accelerator"] = ANY_DEVICE
        return found

    @abstractmethod
    def make(
        self, folder: JobFolder, config: RunConfig, data: RunData, listener: Listener, *, force: bool
    ) -> Made | None:
        """The model and its record."""


class TrainJob(ModelJob):
    """Trains a model. A head that comes after its backbone takes the backbone of the job that it needs.

    An adopted network is read, not taken from a file.
    """

    kind: ClassVar[str] = "Trained"

    def settings(self, folder: JobFolder) -> RunConfig:
        config = super().settings(folder)
        is_adopted = isinstance(config.model.backbone, AdoptConfig)
        if not self.after or not config.model.head.takes_backbone or is_adopted:
            return config
        return config.model_copy(update={"backbone_from": folder.model(self.after[0])})

    def make(
        self, folder: JobFolder, config: RunConfig, data: RunData, listener: Listener, *, force: bool
    ) -> Made | None:
        return make_model(config, data, listener, force=force)


class EnsembleJob(ModelJob):
    """Joins the models of the jobs that it needs."""

    kind: ClassVar[str] = "Joined"

    def make(self, folder: JobFolder, config: RunConfig, data: RunData, listener: Listener, *, force: bool) -> Made:
        members = [load_potential(folder.model(name)) for name in self.after]
        return Ensemble(members), RunRecord(members=[MemberRecord.of(member.record) for member in members])


class DropoutJob(ModelJob):
    """Predicts with the model of the job that it needs and with dropout on."""

    kind: ClassVar[str] = "Sampled"

    def make(self, folder: JobFolder, config: RunConfig, data: RunData, listener: Listener, *, force: bool) -> Made:
        assert config.mc_dropout is not None
        source = load(folder.model(self.after[0]))
        (potential,) = source.potentials
        return MonteCarloDropout(potential, config.mc_dropout), RunRecord.of(source.record)


def method_jobs(
    methods: Mapping[str, Method],
    names: Iterable[str],
    configure: Callable[[Method], RunConfig],
    *,
    prefix: str = "",
    after: tuple[str, ...] = (),
    needs: tuple[Path, ...] = (),
    force: Collection[str] = (),
) -> list[Job]:
    """Return a job for each named method and for all methods that these need, sources first.

    Arguments:
        methods: all methods by name, members of ensembles included.
        configure: the run of a method.
        prefix: of the names of jobs.
        after: jobs that a job without sources needs.
        needs: data files.
        force: names of methods that replace a finished model.
    """
    jobs: list[Job] = []
    for name in _with_sources(methods, names):
        method = methods[name]
        make = EnsembleJob if method.is_joined else DropoutJob if method.sampled_from else TrainJob
        sources = tuple(prefix + source for source in method.sources) or after
        common = {"after": sources, "needs": needs, "cost": method.cost, "force": name in force}
        jobs.append(make(name=prefix + name, config=configure(method), **common))
    return jobs


def _with_sources(methods: Mapping[str, Method], names: Iterable[str]) -> dict[str, None]:
    """Names and the names of all that they need, sources first, each once."""
    ordered: dict[str, None] = {}
    for name in names:
        ordered.update(_with_sources(methods, methods[name].sources))
        ordered[name] = None
    return ordered
