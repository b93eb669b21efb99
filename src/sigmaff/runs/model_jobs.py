"""Jobs that make a model: train it, join it from others, or sample another one with dropout."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sigmaff.errors import ConfigError
from sigmaff.models.file import read_header
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.jobs import Job, JobFolder
from sigmaff.runs.methods import Method
from sigmaff.runs.run import RunResult, run, run_with
from sigmaff.runs.stages import joining, sampling

KEPT = {"metrics", "ood", "training", "head_training", "fit", "members", "seconds"}
"""Keys of the model's record that are part of the result."""


class ModelJob(Job):
    """Makes one model in its directory."""

    config: RunConfig = Field(description="settings; the output directory is that of the job")
    force: bool = Field(default=False, exclude=True, description="replace a finished model")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        result = self.make(self.config.model_copy(update={"output": folder.directory(self.name)}), folder, listener)
        if result is None:
            raise ConfigError("a job trains in one process: set training.devices to 1")
        record = read_header(result.model_path).record
        return {"data": str(self.config.data.source.path), **record.model_dump(mode="json", include=KEPT)}

    @abstractmethod
    def make(self, config: RunConfig, folder: JobFolder, listener: Listener) -> RunResult | None: ...


class TrainJob(ModelJob):
    """Trains a model. A head that comes after its backbone takes the backbone of the job that it needs."""

    kind: ClassVar[str] = "Trained"

    def make(self, config: RunConfig, folder: JobFolder, listener: Listener) -> RunResult | None:
        if self.after and config.model.head.takes_backbone:
            config = config.model_copy(update={"backbone_from": folder.model(self.after[0])})
        return run(config, listener, force=self.force)


class EnsembleJob(ModelJob):
    """Joins the models of the jobs that it needs."""

    kind: ClassVar[str] = "Joined"

    def make(self, config: RunConfig, folder: JobFolder, listener: Listener) -> RunResult | None:
        members = [folder.model(name) for name in self.after]
        return run_with(joining(members), config, listener, force=self.force)


class DropoutJob(ModelJob):
    """Predicts with the model of the job that it needs and with dropout on."""

    kind: ClassVar[str] = "Sampled"

    def make(self, config: RunConfig, folder: JobFolder, listener: Listener) -> RunResult | None:
        return run_with(sampling(folder.model(self.after[0])), config, listener, force=self.force)


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
        is_joined, is_sampled = method.ensemble is not None, method.sampled_from is not None
        make = EnsembleJob if is_joined else DropoutJob if is_sampled else TrainJob
        jobs.append(
            make(
                name=prefix + name,
                after=tuple(prefix + source for source in method.sources) or after,
                needs=needs,
                config=configure(method),
                force=name in force,
            )
        )
    return jobs


def _with_sources(methods: Mapping[str, Method], names: Iterable[str]) -> dict[str, None]:
    """Names and the names of all that they need, sources first, each once."""
    ordered: dict[str, None] = {}
    for name in names:
        ordered.update(_with_sources(methods, methods[name].sources))
        ordered[name] = None
    return ordered
