"""Independent tasks in parallel on Dask: in processes of this machine, on a cluster, or under SLURM.

If a task raises an error, crashes its process or hangs, only that task fails, and its error is reported.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pydantic import Field

from sigmaff.allocator import return_free_memory
from sigmaff.config import Settings
from sigmaff.errors import ConfigError, in_words
from sigmaff.extras import require

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

LOCAL: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.admin.low-level-log-length": 0,
    "distributed.deploy.lost-worker-timeout": "1d",
    "distributed.worker.profile.enabled": False,
    **{f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker", "nanny")},
}
"""Dask's settings on this machine: no second try beside ours, no pages, no profile. Its logs of the last thousand
messages hold the arguments of all tasks in them, so they are empty. A process that dies is started again, however long
that takes: after 15 s Dask would give its place up, and without a place, on a busy machine, all tasks wait for ever.
"""

FREED_FOR = 10.0
"""Seconds for which free memory stays returned: short tasks in many batches are not held up."""
STARTS = 3
"""How often processes of this machine may die while they start."""

T = TypeVar("T")
R = TypeVar("R")


class Closable(Protocol):
    def close(self) -> Any: ...


Resource = TypeVar("Resource", bound=Closable)


class SlurmConfig(Settings):
    """Workers as SLURM jobs, through dask-jobqueue."""

    jobs: int = Field(default=4, ge=1, description="jobs, of one worker each")
    queue: str | None = Field(default=None, description="partition; null is the cluster's default")
    account: str | None = Field(default=None, description="account that is charged; null is the user's default")
    cores: int = Field(default=1, ge=1, description="cores of each job")
    memory: str = Field(default="4GB", description="memory of each job")
    walltime: str = Field(default="04:00:00", description="time limit of each job")
    prologue: tuple[str, ...] = Field(default=(), description="shell lines before the worker starts")


class ClusterConfig(Settings):
    """Where tasks run."""

    n_workers: int = Field(default=2, ge=1, description="processes on this machine, if no scheduler is given")
    scheduler: str | None = Field(default=None, description="address of a running Dask scheduler, tcp://host:port")
    slurm: SlurmConfig | None = Field(default=None, description="start workers as SLURM jobs; null: no SLURM")


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[R]):
    """The result of one task."""

    index: int  # among the arguments
    value: R | None = None
    error: str | None = None


@contextmanager
def workers(config: ClusterConfig) -> Iterator["Client"]:
    """Yield a client of the workers; stop the workers at the end if they were started here."""
    require("work in parallel", "distributed", "cryptography")
    import dask
    from distributed import Client

    with ExitStack() as stack:
        if config.scheduler is not None:
            try:
                client = Client(config.scheduler, timeout=30, set_as_default=False)
            except (OSError, ValueError) as error:
                raise ConfigError(f"no Dask scheduler answers at {config.scheduler}: {error}") from None
        elif config.slurm is not None:
            cluster = stack.enter_context(slurm_cluster(config.slurm))
            cluster.scale(jobs=config.slurm.jobs)
            client = Client(cluster, set_as_default=False)
        else:
            stack.enter_context(dask.config.set(LOCAL))
            cluster = stack.enter_context(closed_late(_local_cluster(config.n_workers)))
            client = Client(cluster, set_as_default=False)
        yield stack.enter_context(closed_late(client))


def _local_cluster(n_workers: int) -> "LocalCluster":
    """Processes of this machine. Dask replaces one that dies, but not one that dies while the first ones start."""
    from distributed import LocalCluster

    for _ in range(STARTS):
        try:
            return LocalCluster(n_workers=n_workers, **_locked_up())
        except RuntimeError as error:
            reason = error.__cause__ or error
    raise ConfigError(f"the processes for the work do not start, tried {STARTS} times: {in_words(reason)}")


def _locked_up() -> dict[str, Any]:
    """Options of a cluster that answers nobody on this machine or elsewhere who does not hold its throw-away key."""
    from distributed import Security

    return {
        "host": "127.0.0.1",
        "protocol": "tls://",
        "security": Security.temporary(),
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
        "threads_per_worker": 1,
        "silence_logs": "CRITICAL",
    }


@contextmanager
def closed_late(resource: Resource) -> Iterator[Resource]:
    """Close it at the end. On a busy machine that may take longer than Dask waits: the work is done by then."""
    try:
        yield resource
    finally:
        with suppress(TimeoutError):
            resource.close()


def run_tasks(
    function: Callable[[T], R], arguments: Sequence[T], client: "Client", *, time_limit: float | None = None
) -> Iterator[Outcome[R]]:
    """Yield the outcome of function(argument) for each argument, in the order in which the tasks end.

    All tasks of a worker that dies are tried again at the end, one by one. A task that kills its worker twice is
    marked as failed. Memory that is free here is given back before: to wait needs none.

    Arguments:
        time_limit: seconds, after which a worker that still runs the task is killed.
    """
    from distributed import as_completed

    work = partial(_attempt, function, time_limit)
    futures = {client.submit(work, argument, pure=False): index for index, argument in enumerate(arguments)}
    return_free_memory(not_within=FREED_FOR)
    suspects = []
    for future in as_completed(list(futures), loop=client.loop) if futures else ():
        outcome = _outcome(futures[future], future)
        if outcome is None:
            suspects.append(futures[future])
        else:
            yield outcome
        future.release()
    late = "" if time_limit is None else f" or took longer than {time_limit:g} s"
    for index in sorted(suspects):
        outcome = _outcome(index, client.submit(work, arguments[index], pure=False))
        yield outcome or Outcome(index=index, error=f"every process that worked on it died{late}")


def slurm_cluster(config: SlurmConfig) -> Any:
    """A dask-jobqueue cluster, not scaled yet."""
    require("work under SLURM", "dask_jobqueue")
    from dask_jobqueue.slurm import SLURMCluster

    return SLURMCluster(
        **config.model_dump(exclude={"jobs", "prologue"}),
        processes=1,
        job_script_prologue=list(config.prologue),
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
    )


def _attempt(function: Callable[[T], R], time_limit: float | None, argument: T) -> tuple[R | None, str | None]:
    """The value, or the error message. A process that hangs has to die: nothing else stops compiled code."""
    watchdog = threading.Timer(time_limit or 0.0, os._exit, (1,))
    watchdog.daemon = True
    if time_limit is not None:
        watchdog.start()
    try:
        return function(argument), None
    except Exception as error:  # any: it is the outcome of this task
        return None, f"{type(error).__name__}: {in_words(error)}"
    finally:
        watchdog.cancel()


def _outcome(index: int, future: "Future") -> Outcome[Any] | None:
    """``None``: the worker died, while it worked or when it was done and had the value still."""
    from distributed import KilledWorker

    try:
        value, message = future.result()
    except KilledWorker:
        return None
    except Exception as error:  # any: it is the outcome of this task
        return Outcome(index=index, error=f"{type(error).__name__}: {error}")
    return Outcome(index=index, value=value, error=message)
