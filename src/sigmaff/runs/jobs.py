"""Jobs that need each other's results: run what is ready, keep what is done, report what fails."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field

from sigmaff.allocator import keep_large_blocks
from sigmaff.config import Settings
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.files import folder_lock, remove_traces, write_json
from sigmaff.progress import Collecting, Listener
from sigmaff.tasks import ClusterConfig, run_tasks, workers

if TYPE_CHECKING:
    from distributed import Client


class Job(Settings, ABC):
    """All settings of a piece of work: jobs with equal settings have equal results."""

    kind: ClassVar[str]  # written to cell.json

    name: str = Field(description="its directory within the job folder")
    after: tuple[str, ...] = Field((), description="jobs whose results it needs")
    needs: tuple[Path, ...] = Field((), description="data files that it needs")
    cost: int = Field(0, exclude=True, description="of the jobs that are ready, those of lower cost run first")

    @abstractmethod
    def work(self, folder: "JobFolder", listener: Listener) -> dict[str, Any]:
        """Do the job and return its result as JSON. Resume from the job's directory after an interruption."""

    def missing(self) -> str | None:
        """Name a data file that does not exist; ``None`` if all exist."""
        missing = [path for path in self.needs if not path.is_file()]
        return f"there is no {missing[0]}" if missing else None

    def specification(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.model_dump(mode="json")}


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job, or the reason why it has none."""

    name: str
    status: Literal["done", "failed", "missing"]  # missing: a data file does not exist
    reason: str | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)

    def number(self, *path: str) -> float | None:
        """Look up a number of the result by its keys; ``None`` if it does not exist."""
        value = self._value(path)
        return value if isinstance(value, int | float) else None

    def interval(self, *path: str) -> tuple[float, float] | None:
        """Look up the interval of a number of the result; ``None`` if it does not exist."""
        value = self._value((*path[:-1], f"{path[-1]}_ci"))
        return (value[0], value[1]) if isinstance(value, Sequence) else None

    def _value(self, path: Sequence[str]) -> Any:
        value: Any = self.content
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


Results = Mapping[str, JobResult]
"""By name of the job."""


@dataclass(frozen=True)
class JobFolder:
    """Directories of jobs."""

    root: Path

    def directory(self, name: str) -> Path:
        return self.root / name

    def model(self, name: str) -> Path:
        """Return the model file of a job that makes a model."""
        return self.directory(name) / "model.sigmaff"

    def result(self, job: Job) -> JobResult | None:
        """Read the kept result of a job. Raise ``ConfigError`` if a job with other settings has left one."""
        path = self._file(job)
        if not path.exists():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["specification"] != job.specification():
            raise ConfigError(f"{path} was made with other settings or other data; choose another --output")
        kept = {"seconds": content["seconds"], "warnings": tuple(content["warnings"]), "content": content["result"]}
        return JobResult(name=job.name, status="done", **kept)

    def keep(self, job: Job, result: JobResult) -> None:
        kept = {"seconds": result.seconds, "warnings": result.warnings, "result": result.content}
        write_json(self._file(job), {"specification": job.specification()} | kept, force=True)

    def _file(self, job: Job) -> Path:
        return self.directory(job.name) / "cell.json"


def run_jobs(
    jobs: Sequence[Job], folder: JobFolder, listener: Listener, cluster: ClusterConfig | None = None
) -> dict[str, JobResult]:
    """Run the jobs that are left, and return the results of all by name.

    A failed job is reported. Jobs that need its result do not run; all others do, the cheapest first.

    Arguments:
        jobs: each listed after the jobs that it needs.
        cluster: workers that run jobs side by side, on one thread each, and keep results in ``cell.json``. They are
            started only if a job is left. ``None`` runs one job after the other in this process; each job then has to
            recognise its own finished work.
    """
    results = {job.name: known for job in jobs if (known := _known(job, folder)) is not None}
    run: Callable[[list[Job]], Iterator[JobResult]] = partial(_run_here, folder, listener)
    with ExitStack() as stack:
        if cluster is not None and _ready(jobs, results):
            run = partial(_run_on_workers, folder, listener, stack.enter_context(workers(cluster)))
        while ready := _ready(jobs, results):
            listener.stage(f"{len(results)} of {len(jobs)} jobs done, {len(ready)} ready to run")
            for result in run(ready):
                results[result.name] = result
                if result.reason is not None:
                    listener.warn(f"{result.name} has no result: {result.reason}")
    for job in jobs:
        if job.name not in results:
            results[job.name] = _blocked(job, results)
    return {job.name: results[job.name] for job in jobs}


def _known(job: Job, folder: JobFolder) -> JobResult | None:
    """The result of a job that need not or cannot run."""
    try:
        if (result := folder.result(job)) is not None:
            remove_traces(folder.directory(job.name))
            return result
    except ConfigError as error:
        return JobResult(name=job.name, status="failed", reason=str(error))
    missing = job.missing()
    return None if missing is None else JobResult(name=job.name, status="missing", reason=missing)


def _ready(jobs: Sequence[Job], results: Results) -> list[Job]:
    """Jobs that have not run and whose sources are done."""
    done = {name for name, result in results.items() if result.status == "done"}
    ready = [job for job in jobs if job.name not in results and done.issuperset(job.after)]
    return sorted(ready, key=lambda job: job.cost)


def _blocked(job: Job, results: Results) -> JobResult:
    """The result of a job that needs another without a result."""
    source = next(results[name] for name in job.after if results[name].status != "done")
    reason = f"needs {source.name}, which has no result: {source.reason}"
    return JobResult(name=job.name, status=source.status, reason=reason)


def _run_here(folder: JobFolder, listener: Listener, jobs: list[Job]) -> Iterator[JobResult]:
    """Run the first job alone: cheaper ones may be ready after it."""
    job = jobs[0]
    listener.stage(job.name)
    try:
        yield _finished(job, folder, listener)
    except SigmaffError as error:
        yield JobResult(name=job.name, status="failed", reason=str(error))


def _finished(job: Job, folder: JobFolder, listener: Listener) -> JobResult:
    began = time.monotonic()
    content = job.work(folder, listener)
    return JobResult(name=job.name, status="done", seconds=time.monotonic() - began, content=content)


def _run_on_workers(folder: JobFolder, listener: Listener, client: "Client", jobs: list[Job]) -> Iterator[JobResult]:
    for n_done, outcome in enumerate(run_tasks(partial(_run_and_keep, folder), jobs, client), start=1):
        failed = JobResult(name=jobs[outcome.index].name, status="failed", reason=outcome.error)
        yield outcome.value or failed
        listener.advance(n_done, len(jobs))


class _Kept(Collecting):
    """Keeps each warning in a file: a job that resumes after a kill does not repeat those of what is done."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        if file.exists():
            self.texts = json.loads(file.read_text(encoding="utf-8"))

    def warn(self, text: str) -> None:
        if text not in self.texts:
            super().warn(text)
            write_json(self.file, self.texts, force=True)


def _run_and_keep(folder: JobFolder, job: Job) -> JobResult:
    """Run one job in a process of its own, on one thread."""
    keep_large_blocks()
    torch.set_num_threads(1)
    with folder_lock(folder.directory(job.name)):
        if (kept := folder.result(job)) is not None:
            return kept
        listener = _Kept(folder.directory(job.name) / "warnings.json")
        result = replace(_finished(job, folder, listener), warnings=tuple(listener.texts))
        folder.keep(job, result)
        return result
