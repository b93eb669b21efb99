"""A Dask scheduler of the user, which commands and settings name by its address."""

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster

from sigmaff.tasks import closed_late


@contextmanager
def running_scheduler(n_workers: int = 1, *, processes: bool = False) -> Iterator[Client]:
    """Workers of a scheduler without a key, on this machine alone.

    Arguments:
        processes: for tasks that may kill their worker; threads of this one cost less.
    """
    options = {
        "threads_per_worker": 1,
        "processes": processes,
        "protocol": "tcp://",
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": "CRITICAL",
    }
    settings = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.profile.enabled": False}
    with (
        dask.config.set(settings),
        closed_late(LocalCluster(n_workers=n_workers, **options)) as cluster,
        closed_late(Client(cluster, set_as_default=False)) as client,
    ):
        yield client
