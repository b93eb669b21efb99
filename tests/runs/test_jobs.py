"""Jobs that need each other, in this process and on workers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dask_case import running_scheduler
from sigmaff.errors import DataError
from sigmaff.files import LOCK
from sigmaff.progress import Collecting, Listener
from sigmaff.runs.jobs import Job, JobFolder, run_jobs
from sigmaff.runs.model_jobs import DropoutJob, EnsembleJob, TrainJob
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments.costs import ParametersJob, SpeedJob
from sigmaff_paper.experiments.data import GatherJob
from sigmaff_paper.experiments.locality import CopiesJob


class Sum(Job):
    """A number, plus those of the jobs that it needs."""

    kind: ClassVar[str] = "Sum"

    number: int

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        if self.number < 0:
            raise DataError("negative numbers are not allowed")
        files = [folder.directory(name) / "number" for name in self.after]
        total = self.number + sum(int(file.read_text()) for file in files)
        listener.warn(f"the sum is {total}")
        folder.directory(self.name).mkdir(parents=True, exist_ok=True)
        (folder.directory(self.name) / "number").write_text(f"{total}")
        return {"total": total}


CHAIN = [Sum(name="a", number=1), Sum(name="b", number=2, after=("a",)), Sum(name="c", number=3, after=("a", "b"))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterConfig]:
    with running_scheduler(1) as client:
        yield ClusterConfig(scheduler=client.scheduler.address)


@pytest.mark.parametrize("here", [True, False], ids=["here", "workers"])
def test_a_failure_is_reported_and_the_other_jobs_run(tmp_path: Path, cluster: ClusterConfig, here: bool):
    bad = [Sum(name="bad", number=-1), Sum(name="blocked", number=1, after=("a", "bad"))]
    jobs = [*CHAIN, *bad, Sum(name="without data", number=1, needs=(tmp_path / "data.xyz",))]
    listener = Collecting()
    results = run_jobs(jobs, JobFolder(tmp_path), listener, None if here else cluster)
    assert list(results) == [job.name for job in jobs]
    assert [results[name].number("total") for name in "abc"] == [1, 3, 7]
    assert [result.status for result in results.values()] == ["done"] * 3 + ["failed"] * 2 + ["missing"]
    assert "negative numbers are not allowed" in (results["bad"].reason or "")
    assert results["blocked"].reason == f"needs bad, which has no result: {results['bad'].reason}"
    assert results["without data"].reason == f"there is no {tmp_path / 'data.xyz'}"
    assert f"bad has no result: {results['bad'].reason}" in listener.texts


class Killed(Sum):
    """Warns, and is killed; then it has nothing left to warn of."""

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        if (folder.directory(self.name) / "number").exists():
            return {"total": self.number}
        super().work(folder, listener)
        raise DataError("as if it were killed")


def test_a_job_that_is_killed_after_its_work_keeps_its_warnings(tmp_path: Path, cluster: ClusterConfig):
    for status in ("failed", "done"):
        result = run_jobs([Killed(name="a", number=1)], JobFolder(tmp_path), Listener(), cluster)["a"]
        assert result.status == status
    assert result.warnings == ("the sum is 1",)


def test_the_lock_of_a_worker_that_was_killed_when_its_job_was_done_goes(tmp_path: Path, cluster: ClusterConfig):
    for _ in range(2):
        run_jobs([Sum(name="a", number=1)], JobFolder(tmp_path), Listener(), cluster)
        assert not (tmp_path / "a" / LOCK).exists()
        (tmp_path / "a" / LOCK).touch()


def test_workers_keep_results_and_warnings(tmp_path: Path, cluster: ClusterConfig):
    first = run_jobs(CHAIN, JobFolder(tmp_path), Collecting(), cluster)
    files = [tmp_path / name / "cell.json" for name in "abc"]
    before = [file.stat().st_mtime_ns for file in files]
    assert first["c"].warnings == ("the sum is 7",)
    assert run_jobs(CHAIN, JobFolder(tmp_path), Collecting(), cluster) == first
    assert run_jobs(CHAIN, JobFolder(tmp_path), Collecting()) == first
    assert [file.stat().st_mtime_ns for file in files] == before


def test_kept_results_of_other_settings_are_refused(tmp_path: Path, cluster: ClusterConfig):
    run_jobs(CHAIN, JobFolder(tmp_path), Collecting(), cluster)
    changed = run_jobs([Sum(name="a", number=5), *CHAIN[1:]], JobFolder(tmp_path), Collecting())
    assert "other settings or other data" in (changed["a"].reason or "")
    assert changed["b"].status == "done"


def test_the_format_of_kept_results_stays(tmp_path: Path):
    """Files that earlier versions wrote."""
    specification = {"kind": "Sum", "name": "a", "after": [], "needs": [], "number": 1}
    content = {"specification": specification, "seconds": 2.5, "warnings": ["w"], "result": {"total": 4}}
    (tmp_path / "a").mkdir()
    (tmp_path / "a/cell.json").write_text(json.dumps(content))
    (result,) = run_jobs(CHAIN[:1], JobFolder(tmp_path), Collecting()).values()
    assert (result.seconds, result.warnings, result.number("total")) == (2.5, ("w",), 4)
    kinds = (TrainJob, EnsembleJob, DropoutJob, CopiesJob, SpeedJob, ParametersJob, GatherJob)
    assert [kind.kind for kind in kinds] == ["Trained", "Joined", "Sampled", "Copies", "Timed", "Counted", "Gathered"]
