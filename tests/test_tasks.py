"""Work on Dask: real worker processes, which are killed."""

import errno
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from sigmaff import tasks
from sigmaff.errors import ConfigError
from sigmaff.tasks import ClusterConfig, SlurmConfig, _attempt, _outcome, closed_late, run_tasks, slurm_cluster, workers


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with workers(ClusterConfig(n_workers=2)) as client:
        yield client


def square(number: int) -> int:
    if number == 3:
        raise ValueError("three is not wanted")
    return number**2


def crash(path: Path | None) -> int:
    """Dies at every call with a path, which counts them."""
    if path is None:
        return 1
    with path.open("a") as file:
        file.write("x")
    os._exit(1)


def hang(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def crash_once(path: Path) -> str:
    if not path.exists():
        path.touch()
        os._exit(1)
    return "done"


def test_every_piece_has_its_outcome_and_one_that_raises_says_why(client: Client) -> None:
    outcomes = {outcome.index: outcome for outcome in run_tasks(square, range(6), client)}
    assert {index: outcome.value for index, outcome in outcomes.items()} == {0: 0, 1: 1, 2: 4, 3: None, 4: 16, 5: 25}
    assert outcomes.pop(3).error == "ValueError: three is not wanted"
    assert all(outcome.error is None for outcome in outcomes.values())


def test_what_tasks_were_given_is_not_kept(client: Client) -> None:
    """A campaign sends structures for weeks. Dask logs a thousand messages, each with all that was in it."""

    assert [outcome.value for outcome in run_tasks(len, [np.zeros(10**5)] * 20, client)] == [10**5] * 20
    gc.collect()
    n_bytes = 0
    for item in gc.get_objects():
        if type(item) is memoryview:
            with suppress(ValueError):  # it has been released
                n_bytes += item.nbytes
    assert n_bytes < 10 * 800_000


def fill(path: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_full_disk_names_the_file(client: Client) -> None:
    (outcome,) = run_tasks(fill, ["a/b.json"], client)
    assert outcome.error == "OSError: a/b.json: No space left on device; make room, and run the same command again"


def test_a_crash_costs_its_own_piece_alone(client: Client, tmp_path: Path) -> None:
    counter = tmp_path / "calls"
    outcomes = {outcome.index: outcome for outcome in run_tasks(crash, [None, counter, *[None] * 10], client)}
    assert [outcomes[index].value for index in range(12)] == [1, None, *[1] * 10]
    assert outcomes[1].error == "every process that worked on it died"
    assert len(counter.read_text()) == 2


def test_a_worker_that_is_lost_is_replaced_and_its_piece_done(client: Client, tmp_path: Path) -> None:
    assert [outcome.value for outcome in run_tasks(crash_once, [tmp_path / "tried"], client)] == ["done"]


def crash_again(path: Path) -> int:
    """The number of the process that does it; a second one dies."""
    if path.exists():
        os._exit(1)
    path.touch()
    return os.getpid()


def test_a_value_that_is_lost_with_its_worker_is_no_error_of_ours(client: Client, tmp_path: Path) -> None:
    """The worker is killed when it is done, before anybody has fetched the value; then the piece kills another."""
    future = client.submit(partial(_attempt, crash_again, None), tmp_path / "seen", pure=False)
    while not future.done():
        time.sleep(0.05)
    [where] = client.who_has(future)[future.key]
    os.kill(client.run(os.getpid, workers=[where])[where], signal.SIGKILL)
    assert _outcome(0, future) is None


def test_a_process_that_starts_slowly_keeps_its_place(client: Client) -> None:
    """Dask gave a place up 15 s after its process had died; on a busy machine a new one takes longer."""
    timeout = dask.config.get("distributed.deploy.lost-worker-timeout")
    assert dask.utils.parse_timedelta(timeout) > 3600


def test_a_piece_that_hangs_is_given_up(client: Client) -> None:
    began = time.monotonic()
    outcomes = {outcome.index: outcome for outcome in run_tasks(hang, [300.0, 0.01], client, time_limit=0.5)}
    assert outcomes[1].value == 0.01
    assert outcomes[0].error == "every process that worked on it died or took longer than 0.5 s"
    assert time.monotonic() - began < 100


def test_nothing_to_do(client: Client) -> None:
    assert list(run_tasks(square, [], client)) == []


def kill_starting_workers(n_killed: int, over: threading.Event) -> None:
    """Kill the first processes that this one starts for Dask, each as soon as it is there."""
    seen: set[int] = set()
    while not over.is_set():
        for process in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if process.pid not in seen and len(seen) < n_killed and "spawn_main" in " ".join(process.cmdline()):
                    seen.add(process.pid)
                    process.kill()
        time.sleep(0.01)


@pytest.mark.parametrize(("n_killed", "starts"), [(2, 3), (99, 2)])
def test_a_process_killed_while_it_starts(n_killed: int, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask gives up a cluster of which one process dies while the first ones start."""
    monkeypatch.setattr(tasks, "STARTS", starts)
    over = threading.Event()
    killer = threading.Thread(target=kill_starting_workers, args=(n_killed, over))
    killer.start()
    with ExitStack() as stack:
        stack.callback(killer.join)
        stack.callback(over.set)
        if n_killed > starts:
            stack.enter_context(pytest.raises(ConfigError, match=r"processes for the work do not start, tried 2 times"))
        client = stack.enter_context(workers(ClusterConfig(n_workers=1)))
        assert [outcome.value for outcome in run_tasks(square, [4], client)] == [16]


def test_workers_of_a_running_scheduler_are_used_and_left_alone() -> None:
    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        for number in (2, 5):
            with workers(ClusterConfig(scheduler=cluster.scheduler_address)) as client:
                assert [outcome.value for outcome in run_tasks(square, [number], client)] == [number**2]


def test_no_scheduler_at_the_address() -> None:
    with (
        pytest.raises(ConfigError, match=r"no Dask scheduler answers at nonsense://"),
        workers(ClusterConfig(scheduler="nonsense://127.0.0.1:1")),
    ):
        pass


def test_slurm_jobs_ask_for_what_was_configured() -> None:
    config = SlurmConfig(
        queue="long", account="chem", cores=3, memory="7GB", walltime="01:30:00", prologue=("module x",)
    )
    with slurm_cluster(config) as cluster:
        script = cluster.job_script()
    for line in ("#SBATCH -p long", "#SBATCH -A chem", "#SBATCH --cpus-per-task=3", "-t 01:30:00", "module x"):
        assert line in script


def test_work_that_is_done_is_not_lost_when_its_processes_close_late():
    class Slow:
        def close(self) -> None:
            raise TimeoutError

    with closed_late(Slow()):
        done = "result"
    assert done == "result"


def test_strangers_are_let_in_nowhere(client: Client) -> None:
    """Every port of the cluster, tried by one without the key: for work, and for pages."""
    pids = {os.getpid(), *client.run(os.getpid).values()}
    sockets = {
        connection.laddr
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(sockets) >= 4
    assert {address.ip for address in sockets} == {"127.0.0.1"}
    for address in sockets:
        with pytest.raises(OSError, match=r"(?i)certificate|version|reset|closed|timed out|EOF"):
            talk_without_key(address.port)
        for page in ("", "status", "json/identity.json", "info/main/workers.html"):
            with pytest.raises(OSError, match=r"404|reset|closed"):
                urllib.request.urlopen(f"http://127.0.0.1:{address.port}/{page}", timeout=5)


def talk_without_key(port: int) -> bytes:
    """What a port answers over TLS to one who trusts everybody and has no certificate; it should not."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=1) as plain, context.wrap_socket(plain) as secret:
        secret.sendall(bytes(8))
        if answer := secret.recv(1):
            return answer
        raise ConnectionError("closed without an answer")


WAITING = """
import numpy as np, psutil
from storm.here import HereClient, without_dask
from sigmaff.allocator import keep_large_blocks
from sigmaff.tasks import run_tasks

def held(_=None):
    return psutil.Process().memory_info().rss / 2**20

keep_large_blocks()
without_dask()
before = held()
blocks = [np.ones(2**20) for _ in range(20)]
last = np.ones(2**10)  # above them, so that the top of the heap is not free
del blocks
freed = held()
(outcome,) = run_tasks(held, [None], HereClient())
print(freed - before, outcome.value - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is of glibc, on Linux")
def test_who_waits_holds_no_free_memory() -> None:
    tests = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=True, cwd=tests)
    freed, waiting = map(float, done.stdout.split())
    assert freed > 150, "this allocator returns blocks by itself: the test shows nothing"
    assert waiting < 10
