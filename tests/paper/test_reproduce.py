"""The paper's experiments: the settings of every job, and one experiment from end to end."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import ase.io
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cli_case import ether_frames, morse_frames
from dask_case import running_scheduler
from data_files import write_qm7x
from sigmaff.backbones import DimeNetPPConfig, SchNetConfig
from sigmaff.data import DataSource, read_structures
from sigmaff.errors import SigmaffError
from sigmaff.files import folder_lock
from sigmaff.heads import LNKConfig
from sigmaff.models import Ensemble, MonteCarloDropout
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.jobs import Job, JobFolder, JobResult, Results, run_jobs
from sigmaff.runs.model_jobs import DropoutJob, EnsembleJob, ModelJob, TrainJob
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments import settings
from sigmaff_paper.experiments.command import reproduce as command
from sigmaff_paper.experiments.costs import SpeedJob
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.locality import CopiesJob
from sigmaff_paper.experiments.md17 import auroc_map, present_detection
from sigmaff_paper.experiments.reproduce import EXPERIMENTS, plan, run_plan, without_result
from sigmaff_paper.experiments.settings import Scale, Setup
from sigmaff_paper.experiments.study import MD17_MOLECULES, Study
from sigmaff_paper.experiments.written import write_report
from sigmaff_paper.tables import costs as paper_costs
from sigmaff_paper.tables import hyperparameters as published
from sigmaff_paper.tables import md17 as paper_md17
from sigmaff_paper.tables.table import CALIBRATION

SCALES: tuple[Scale, ...] = ("quick", "hour", "paper")
QUICK = Setup(scale="quick")
NOWHERE = DataFolders(folders=(Path("/nowhere"),), made=Path("/nowhere"))


class StopsAfterFirst(Listener):
    """Ctrl-C when one job is done."""

    def advance(self, done: int, total: int) -> None:
        raise KeyboardInterrupt


def experiment_jobs(scale: Scale, data: DataFolders = NOWHERE) -> Iterator[tuple[str, list[Job]]]:
    return ((name, experiment.jobs(Setup(scale=scale), data)) for name, experiment in EXPERIMENTS.items())


# --- jobs


@pytest.mark.parametrize("scale", SCALES)
def test_jobs_are_valid_and_have_directories_of_their_own(scale: Scale):
    known: dict[str, Job] = {}
    for name, jobs in experiment_jobs(scale):
        names = [job.name for job in jobs]
        assert len(set(names)) == len(names), name
        for index, job in enumerate(jobs):
            assert set(job.after) <= set(names[:index]), job.name
            assert known.setdefault(job.name, job) == job, f"{job.name} is not the same in all experiments"
            assert pickle.loads(pickle.dumps(job)) == job
            if isinstance(job, ModelJob):
                assert RunConfig.model_validate(job.config.model_dump(mode="json")) == job.config


def paper_scale_jobs() -> list[TrainJob]:
    jobs = (job for _, jobs in experiment_jobs("paper") for job in jobs if isinstance(job, TrainJob))
    return list({job.name: job for job in jobs}.values())


def test_trainings_at_paper_scale_are_those_of_its_table():
    seen = set()
    for job in paper_scale_jobs():
        _, dataset, backbone, recipe = job.name.split("/")
        kind = "qm7x" if dataset == "qm7x" else "md17"
        method = "evidential" if recipe == "evidential" else "dropout"
        training, sizes = job.config.training, published.SIZES[kind]
        assert (training.batch_size, job.config.data.split.n_train) == (sizes.batch_size, sizes.n_train)
        assert job.config.data.split.n_validation == sizes.n_validation
        if backbone == "nequip":  # which the paper omits
            continue
        row = published.TRAININGS[backbone, method, kind]
        assert training.learning_rate == row.learning_rate, job.name
        assert (training.ema_decay, training.patience) == (row.ema_decay, row.patience)
        assert training.forces_weight == row.forces_weight
        assert training.schedule.warmup_steps == row.warmup_steps
        assert (training.schedule.decay_steps, training.schedule.decay_rate) == (row.decay_steps, row.decay_rate)
        assert training.max_epochs * sizes.n_train >= row.decay_steps * sizes.batch_size
        seen.add((backbone, method, kind))
    assert seen == set(published.TRAININGS)


def test_processes_at_paper_scale_are_those_of_its_table():
    for job in paper_scale_jobs():
        _, dataset, _, recipe = job.name.split("/")
        kind = "qm7x" if dataset == "qm7x" else "md17"
        head, second = job.config.model.head, job.config.head_training
        if isinstance(head, LNKConfig):
            n_atoms = paper_md17.N_ATOMS.get(dataset.removeprefix("md17-"), 1)
            most = published.N_INDUCING[kind]
            assert head.n_inducing % n_atoms == 0
            assert most - n_atoms < head.n_inducing <= most
        if recipe == "fixed-lnk":
            assert second is not None
            assert second.head_learning_rate == published.FIXED_LNK_RATE
        if recipe == "lnk-5":
            assert second is not None
            assert second.learning_rate == published.LNK_RATE
    aspirin = Study(scale="paper", dataset="aspirin", backbone="schnet", methods=("fixed-lnk",)).jobs(NOWHERE)[-1]
    assert isinstance(aspirin, TrainJob)
    assert isinstance(aspirin.config.model.head, LNKConfig)
    assert aspirin.config.model.head.n_inducing == 84


def test_rates_of_dropout_and_numbers_of_samples():
    jobs = {job.name.split("/")[-1]: job for job in EXPERIMENTS["qm7x-ooe"].jobs(Setup(scale="paper"), NOWHERE)}
    for name, rate, n_samples in (
        ("mcd-20", 0.2, 5),
        ("mcd-1", 0.01, 5),
        ("mcd-1-69", 0.01, 69),
        ("mcd-lnk-5", 0.05, 5),
    ):
        job = jobs[name]
        assert isinstance(job, TrainJob | DropoutJob)
        assert job.config.model.backbone.dropout == rate
        assert job.config.mc_dropout is not None
        assert job.config.mc_dropout.n_samples == n_samples
    ensemble = jobs["ensemble"]
    assert isinstance(ensemble, EnsembleJob)
    assert len(ensemble.after) == published.ENSEMBLE_SIZE


def test_published_qm7x_files_are_gathered_first(tmp_path: Path):
    (tmp_path / "qm7x").mkdir()
    files = [write_qm7x(tmp_path / f"qm7x/{n}000.hdf5", np.random.default_rng(n)) for n in (1, 2)]
    jobs = EXPERIMENTS["dropout-rate"].jobs(QUICK, DataFolders(folders=(tmp_path,), made=tmp_path / "made"))
    gathered, *others = jobs
    assert gathered.needs == tuple(files)
    assert gathered.work(JobFolder(tmp_path), Listener()) == {"n_equilibrium": 4, "n_non_equilibrium": 8}
    for job in others:
        assert isinstance(job, TrainJob)
        assert job.after == (gathered.name,)
        structures = read_structures(job.config.data.source)
        assert structures.energy is not None
        assert structures.energy.tolist() == [-2081.1, -2082.1, -2081.1, -2082.1]
        (other,) = job.config.ood.values()
        displaced = read_structures(other.source)
        assert displaced.forces is not None
        assert np.array_equal(np.concatenate(displaced.forces), np.full((24, 3), 0.5))


# --- without data


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("speed", "parameters")])
def test_missing_data_is_reported_and_the_paper_shown(tmp_path: Path, name: str, scale: Scale):
    setup = Setup(scale=scale)
    jobs = EXPERIMENTS[name].jobs(setup, NOWHERE)
    results = {job.name: JobResult(name=job.name, status="missing", reason=job.missing()) for job in jobs}
    assert all(result.reason is None or "/nowhere" in result.reason for result in results.values())
    report = EXPERIMENTS[name].present(results, setup)
    text = "\n".join(table.markdown() for table in report.tables)
    assert "– (" in text
    assert "None" not in text


# --- from end to end, on structures that train in a second


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterConfig]:
    with running_scheduler(1) as client:
        yield ClusterConfig(scheduler=client.scheduler.address)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick scale, quicker."""
    backbone = SchNetConfig(n_hidden=16, n_filters=16, n_interactions=1, n_gaussians=8, cutoff=3.0)
    quick = settings.Quick(epochs=2, head_epochs=1, warmup_steps=2, n_inducing=10)
    sizes = published.Sizes(batch_size=10, n_train=30, n_validation=14, n_test=12, n_ood=6)
    monkeypatch.setitem(settings.BACKBONES["quick"], "schnet", backbone)
    monkeypatch.setitem(settings.SIZES["quick"], "qm7x", sizes)
    monkeypatch.setitem(settings.QUICK, "qm7x", quick)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "qm7x-like").mkdir()
    ase.io.write(folder / "qm7x-like/equilibrium.extxyz", morse_frames(60, seed=1))
    ase.io.write(folder / "qm7x-like/nonequilibrium.extxyz", ether_frames(12))
    return folder


def run_dropout_rate(output: Path, folder: Path, cluster: ClusterConfig, listener: Listener) -> Results:
    """Return the results of all jobs."""
    planned = plan("dropout-rate", QUICK, folders=(folder,), output=output)
    report, results = run_plan(planned, cluster, listener)
    write_report(planned, report, results)
    return results


@pytest.mark.usefixtures("tiny")
def test_an_experiment_is_interrupted_resumed_and_reported(tmp_path: Path, folder: Path, cluster: ClusterConfig):
    study = tmp_path / "cells/quick/qm7x/schnet"
    (study / "mcd-15").mkdir(parents=True)
    (study / "mcd-15/metrics.json").write_text("{}")  # of somebody else: a run does not replace it
    with pytest.raises(KeyboardInterrupt):
        run_dropout_rate(tmp_path, folder, cluster, StopsAfterFirst())
    first = {path: path.stat().st_mtime_ns for path in study.glob("*/cell.json")}
    assert len(first) >= 1

    with_failure = run_dropout_rate(tmp_path, folder, cluster, Listener())
    (failed,) = without_result(with_failure)
    assert failed.name == "quick/qm7x/schnet/mcd-15"
    assert failed.status == "failed"
    assert "exists already" in (failed.reason or "")
    assert all(path.stat().st_mtime_ns == time for path, time in first.items())
    text = (tmp_path / "dropout-rate/results.md").read_text()
    assert "mcd-15 (failed): " in text
    assert "– (0.43)" in text

    (study / "mcd-15/metrics.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in study.glob("*/model.sigmaff")}
    assert len(before) == 4
    done = run_dropout_rate(tmp_path, folder, cluster, Listener())
    assert without_result(done) == []
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())

    content = json.loads((tmp_path / "dropout-rate/results.json").read_text())
    (table,) = content["tables"]
    rows = {row["labels"][0]: row["entries"] for row in table["rows"]}
    text = (tmp_path / "dropout-rate/results.md").read_text()
    for column, rate in enumerate((1, 5, 10, 15, 20)):
        record = load(study / f"mcd-{rate}/model.sigmaff").record
        assert rows["Energy ID"][column]["ours"] == record.metrics["energy_mae"]
        assert rows["AUC-ROC energy"][column]["ours"] == record.ood["non-equilibrium"]["energy_auroc_total"]
        assert rows["Energy OOD"][column]["ours"] == record.ood["non-equilibrium"]["ood_energy_mae"]
        low, high = record.metrics["energy_mae_ci"]
        assert f"{record.metrics['energy_mae']:.3f} [{low:.3f}, {high:.3f}] (0." in text
        assert rows["AUC-ROC energy"][column]["interval"] == record.ood["non-equilibrium"]["energy_auroc_total_ci"]
        assert rows[CALIBRATION][column]["interval"] is None
        assert rows[CALIBRATION][column]["ours"] == record.metrics["energy_calibration_paper_raw"]
        assert rows["AUC-ROC forces (trace)"][column]["ours"] == record.ood["non-equilibrium"]["forces_auroc_trace"]
    assert rows["Energy ID"][4]["paper"] == 0.44
    assert (tmp_path / "dropout-rate/table-22.png").read_bytes().startswith(b"\x89PNG")
    assert "AUC-ROC energy, 20 %" in (tmp_path / "dropout-rate/table-22.svg").read_text()


@pytest.mark.usefixtures("tiny")
def test_results_of_other_data_are_refused(tmp_path: Path, folder: Path, cluster: ClusterConfig):
    study = Study(scale="quick", dataset="qm7x", backbone="schnet", methods=("backbone",))
    jobs = study.jobs(DataFolders(folders=(folder,), made=tmp_path))
    results = run_jobs(jobs, JobFolder(tmp_path), Listener(), cluster)
    assert [result.status for result in results.values()] == ["done"]
    elsewhere = [job.model_copy(update={"needs": (*job.needs, folder / "qm7x-like/other")}) for job in jobs]
    (refused,) = run_jobs(elsewhere, JobFolder(tmp_path), Listener(), cluster).values()
    assert refused.status == "failed"
    assert "other settings or other data" in (refused.reason or "")


@pytest.mark.usefixtures("tiny")
def test_models_are_made_from_the_models_that_they_need(tmp_path: Path, folder: Path, cluster: ClusterConfig):
    methods = ("ensemble", "mcd-20-69", "mcd-lnk-5", "llpr")
    study = Study(scale="quick", dataset="qm7x", backbone="schnet", methods=methods)
    data = DataFolders(folders=(folder,), made=tmp_path)
    jobs = study.jobs(data)
    source = DataSource(path=data.qm7x().equilibrium)
    jobs += [
        CopiesJob(name=f"copies/{recipe}", after=(study.job(recipe),), source=source)
        for recipe in ("ensemble", "llpr", "lnk-5")
    ]
    jobs_folder = JobFolder(tmp_path)
    results = run_jobs(jobs, jobs_folder, Listener(), cluster)
    assert {result.reason for result in results.values()} == {None}

    def model(recipe: str):
        return load(jobs_folder.model(study.job(recipe)))

    backbone = model("backbone")
    ensemble, sampled, lnk = model("ensemble"), model("mcd-20-69"), model("mcd-lnk-5")
    assert isinstance(ensemble, Ensemble)
    members = [ensemble.potentials[0], *ensemble.potentials[1:]]
    assert len(members) == 5
    assert same_weights(members[0], backbone)
    assert not same_weights(members[1], backbone)
    assert isinstance(sampled, MonteCarloDropout)
    assert sampled.config.n_samples == 69
    assert same_weights(sampled.potential, model("mcd-20").potential)
    assert isinstance(lnk, MonteCarloDropout)
    assert same_weights(lnk.potential, model("lnk-5"))
    assert same_weights(model("llpr").backbone, backbone.backbone)
    for recipe, exponent in (("ensemble", 1.0), ("llpr", 1.0), ("lnk-5", 0.5)):  # σ of n far copies grows as nᵏ
        assert results[f"copies/{recipe}"].number("slope") == pytest.approx(exponent, abs=1e-3), recipe
        assert results[f"copies/{recipe}"].number("last") == pytest.approx(8**exponent, rel=1e-3), recipe


def same_weights(one, other) -> bool:
    weights = other.state_dict()
    return all(np.array_equal(value, weights[key]) for key, value in one.state_dict().items())


def test_jobs_that_need_a_failed_job_do_not_run(tmp_path: Path, folder: Path, cluster: ClusterConfig):
    """The data holds too few structures for the quick scale."""
    study = Study(scale="quick", dataset="qm7x", backbone="schnet", methods=("mcd-lnk-5",))
    jobs = study.jobs(DataFolders(folders=(folder,), made=tmp_path))
    results = run_jobs(jobs, JobFolder(tmp_path), Listener(), cluster)
    reasons = {name.split("/")[-1]: result.reason or "" for name, result in results.items()}
    assert "the data has 60 structures, too few" in reasons["backbone"]
    assert reasons["lnk-5"] == f"needs {study.job('backbone')}, which has no result: {reasons['backbone']}"
    assert reasons["mcd-lnk-5"] == f"needs {study.job('lnk-5')}, which has no result: {reasons['lnk-5']}"


# --- those that train nothing


def test_parameters_are_the_published_ones(tmp_path: Path, cluster: ClusterConfig):
    application = typer.Typer()
    application.command()(command)
    arguments = ["parameters", "--output", str(tmp_path), "--scheduler", cluster.scheduler or ""]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    assert "455,809 (455,809)" in result.stdout
    (table,) = json.loads((tmp_path / "parameters/results.json").read_text())["tables"]
    different = {
        ((row["labels"][0],), column)
        for row in table["rows"]
        for column, entry in zip(table["columns"], row["entries"], strict=True)
        if entry["paper"] not in (None, entry["ours"])
    }
    assert different == set(paper_costs.PARAMETERS.slips)


def test_speed_counts_passes(tmp_path: Path):
    """On a small network; the experiment itself takes that of the paper."""
    small = DimeNetPPConfig(n_hidden=16, n_blocks=1, n_directional=8, n_output=16, n_spherical=3, n_output_layers=1)
    content = SpeedJob(name="speed", backbone=small, n_rounds=2).work(JobFolder(tmp_path), Listener())
    results = {"quick/speed": JobResult(name="quick/speed", status="done", content=content)}
    (table,) = EXPERIMENTS["speed"].present(results, QUICK).tables
    shown = zip(table.columns, table.rows["Runtime [ms]",], strict=True)
    milliseconds = {column: entry.ours for column, entry in shown}
    assert milliseconds == content["milliseconds"]
    assert milliseconds["Ensemble"] > 1.5 * milliseconds["backbone alone"]  # five passes, by no precise clock
    assert milliseconds["LNK with force σ"] > milliseconds["LNK"]
    assert [entry.ours for entry in table.rows["#Trainings",]][:4] == [1, 1, 1, 5]
    (job,) = EXPERIMENTS["speed"].jobs(QUICK, NOWHERE)
    assert isinstance(job, SpeedJob)
    assert job.backbone == DimeNetPPConfig()


def test_heat_maps_have_one_half_on_the_diagonal():
    study = Study(scale="quick", dataset="ethanol", backbone="schnet")
    aurocs = {"malonaldehyde": 0.995, "uracil": 0.97}
    content = {"ood": {name: {"energy_auroc": value} for name, value in aurocs.items()}}
    name = study.job("fixed-lnk-closed")
    results = {name: JobResult(name=name, status="done", content=content)}
    values = auroc_map(results, "quick", "schnet", "fixed-lnk-closed", "energy_auroc")
    molecules = MD17_MOLECULES["quick"]
    trained = molecules.index("ethanol")
    assert np.array_equal(np.diag(values), np.where(np.arange(4) == trained, 0.5, np.nan), equal_nan=True)
    row = dict(zip(molecules, values[molecules.index("ethanol")], strict=True))
    assert {name: row[name] for name in aurocs} == aurocs
    assert np.isnan(row["naphthalene"])
    tables = {table.title: table for table in present_detection(results, QUICK).tables}
    shown = tables["AUROC by energy σ per atom: SchNet, fixed-LNK, closed form"].rows["ethanol",]
    assert [entry.ours for entry in shown] == [0.5, 0.995, None, 0.97]


def test_experiments_are_listed():
    application = typer.Typer()
    application.command()(command)
    text = CliRunner().invoke(application, ["list"]).stdout
    for name in EXPERIMENTS:
        assert name in text


def test_the_environment_names_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    second = tmp_path / "two/qm7x-like"
    second.mkdir(parents=True)
    (second / "equilibrium.extxyz").touch()
    monkeypatch.setenv("SIGMAFF_DATA", os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
    application = typer.Typer()
    application.command()(command)
    result = CliRunner().invoke(application, ["qm7x-ooe", "--output", str(tmp_path / "made")])
    assert isinstance(result.exception, SigmaffError)
    assert str(result.exception).startswith("qm7x-ooe: no job has a result; the first one: there is no ")
    assert f"there is no {second / 'nonequilibrium.extxyz'}" in result.stdout.replace("\n", "")


def test_an_experiment_that_is_under_way_is_refused(tmp_path: Path):
    application = typer.Typer()
    application.command()(command)
    with folder_lock(tmp_path / "qm7x-ooe"):
        result = CliRunner().invoke(application, ["qm7x-ooe", "--output", str(tmp_path)])
    assert isinstance(result.exception, SigmaffError)
    assert "another process is at work in this folder" in str(result.exception)
