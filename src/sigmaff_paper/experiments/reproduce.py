"""The paper's experiments by name: plan one, run it, and show our numbers beside the published ones."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sigmaff.errors import ConfigError
from sigmaff.progress import Listener
from sigmaff.runs.jobs import Job, JobFolder, JobResult, Results, run_jobs
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments import costs, locality, md17, qm7x, svgp_dkl
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.expected import expected_hours
from sigmaff_paper.experiments.experiment import Experiment, Report
from sigmaff_paper.experiments.selection import Only, select
from sigmaff_paper.experiments.settings import Setup

EXPERIMENTS: dict[str, Experiment] = {
    **locality.EXPERIMENTS,
    **md17.EXPERIMENTS,
    **qm7x.EXPERIMENTS,
    **svgp_dkl.EXPERIMENTS,
    **costs.EXPERIMENTS,
}
"""``sigmaff audit`` measures Table 1, the desiderata. Tables 8 to 10 are the settings of scale paper."""


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A job before it runs."""

    name: str
    state: Literal["done", "to run", "no data", "other settings"]
    hours: float | None  # of one core: taken if it is done, else expected; None at scale quick
    reason: str | None = None  # for the last two states


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs of an experiment, those that were chosen and those that were left out."""

    name: str
    setup: Setup
    output: Path  # of all experiments, which share the jobs in its folder "cells"
    chosen: tuple[Job, ...]
    others: tuple[Job, ...] = ()

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.name]

    @property
    def directory(self) -> Path:
        """Of the files of this experiment."""
        return self.output / self.name

    @property
    def folder(self) -> JobFolder:
        return JobFolder(self.output / "cells")

    @property
    def command(self) -> str:
        """The command for all jobs; it keeps those that are done."""
        return f"sigmaff reproduce {self.name} {self.setup.options}"

    def cells(self) -> list[PlannedCell]:
        """Return what would be run, and what is done."""
        return [self._cell(job) for job in self.chosen]

    def left_out(self) -> list[PlannedCell]:
        """Return the cells that were not chosen and are not done."""
        return [cell for job in self.others if (cell := self._cell(job)).state != "done"]

    def kept(self) -> dict[str, JobResult]:
        """Return results of jobs that were not chosen, by name."""
        found = {job.name: self._kept(job) for job in self.others}
        return {name: result for name, result in found.items() if isinstance(result, JobResult)}

    def _kept(self, job: Job) -> JobResult | str | None:
        """The result of a job, ``None`` if there is none, or why it cannot be used."""
        try:
            return self.folder.result(job)
        except ConfigError as error:
            return str(error)

    def _cell(self, job: Job) -> PlannedCell:
        kept = self._kept(job)
        if isinstance(kept, JobResult):
            return PlannedCell(name=job.name, state="done", hours=kept.seconds / 3600)
        if isinstance(kept, str):
            return PlannedCell(name=job.name, state="other settings", hours=0.0, reason=kept)
        missing, hours = job.missing(), expected_hours(job)
        return PlannedCell(name=job.name, state="no data" if missing else "to run", hours=hours, reason=missing)


def plan(name: str, setup: Setup, *, folders: tuple[Path, ...], output: Path, only: Only | None = None) -> Plan:
    """List the jobs of an experiment.

    Arguments:
        folders: with data sets.
        output: folder of all experiments.
        only: which jobs to run, with those that they need; ``None``: all.
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    output = output.resolve()
    data = DataFolders(folders=tuple(folder.resolve() for folder in folders), made=output / "data")
    jobs = EXPERIMENTS[name].jobs(setup, data)
    chosen = select(jobs, only or {}, f"{name} at scale {setup.scale}")
    names = {job.name for job in chosen}
    others = tuple(job for job in jobs if job.name not in names)
    return Plan(name=name, setup=setup, output=output, chosen=tuple(chosen), others=others)


def run_plan(plan: Plan, cluster: ClusterConfig, listener: Listener) -> tuple[Report, Results]:
    """Run the chosen jobs that are left. Rerun to try failed jobs again.

    Return the report, which also shows what is known of jobs that were left out, and the results of all of these.
    """
    results = run_jobs(plan.chosen, plan.folder, listener, cluster) | plan.kept()
    report = plan.experiment.present(results, plan.setup)
    tables = [table for table in report.tables if table.has_ours]
    return replace(report, tables=tables or report.tables), results


def without_result(results: Results) -> list[JobResult]:
    return [result for result in results.values() if result.status != "done"]
