"""Plans of the paper's experiments: which cells, how long, and what tables say of those that were left out."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cli_case import morse_frames
from sigmaff.data import read_structures
from sigmaff.errors import ConfigError, DataError
from sigmaff.progress import Listener
from sigmaff.runs.jobs import Job, JobFolder, JobResult
from sigmaff.runs.model_jobs import EnsembleJob, ModelJob, TrainJob
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments.command import reproduce as command
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.expected import expected_hours, step_seconds
from sigmaff_paper.experiments.experiment import ResultTable
from sigmaff_paper.experiments.reproduce import EXPERIMENTS, Plan, plan, run_plan
from sigmaff_paper.experiments.selection import Cell, read_only
from sigmaff_paper.experiments.settings import Setup, sizes_of
from sigmaff_paper.experiments.study import METHODS, Study
from sigmaff_paper.experiments.value import Value, mean_of, value_of
from sigmaff_paper.experiments.written import write_report
from sigmaff_paper.tables import hyperparameters as published
from sigmaff_paper.tables.md17 import MOLECULES, N_ATOMS

NOWHERE = DataFolders(folders=(Path("/nowhere"),), made=Path("/nowhere"))
HOUR = Setup(scale="hour")


def planned(tmp_path: Path, name: str, *only: str, setup: Setup = HOUR, folders: Iterable[Path] = ()) -> Plan:
    return plan(name, setup, folders=tuple(folders), output=tmp_path, only=read_only(only))


def keep(plan: Plan, job: Job, content: dict) -> None:
    """Pretend that a job is done, after an hour."""
    plan.folder.keep(job, JobResult(name=job.name, status="done", seconds=3600.0, content=content))


def invoke(*arguments: str):
    application = typer.Typer()
    application.command()(command)
    return CliRunner().invoke(application, arguments, env={"COLUMNS": "200", "SIGMAFF_DATA": "/nowhere"})


# --- choice


def test_chosen_cells_come_with_those_that_they_need(tmp_path: Path):
    chosen = planned(tmp_path, "md17-accuracy", "molecule=ethanol", "backbone=schnet", "method=fixed-lnk,ensemble")
    names = [job.name.removeprefix("hour/md17-ethanol/schnet/") for job in chosen.chosen]
    assert sorted(names) == ["backbone", "ensemble", "fixed-lnk", *(f"member-{n}" for n in range(1, 5))]
    for index, job in enumerate(chosen.chosen):
        assert set(job.after) <= {other.name for other in chosen.chosen[:index]}
    assert len(chosen.chosen) + len(chosen.others) == len(EXPERIMENTS["md17-accuracy"].jobs(HOUR, NOWHERE))


def test_names_of_one_key_add_up_and_keys_narrow(tmp_path: Path):
    chosen = planned(tmp_path, "md17-ood", "molecule=uracil,aspirin", "molecule=ethanol", "backbone=nequip")
    cells = {(cell.molecule, cell.backbone) for job in chosen.chosen if (cell := Cell.of(job))}
    assert cells == {(molecule, "nequip") for molecule in ("uracil", "aspirin", "ethanol")}


def test_copies_belong_to_their_method(tmp_path: Path):
    chosen = planned(tmp_path, "locality", "method=lnk-5")
    assert [job.name.rpartition("/")[2] for job in chosen.chosen] == ["backbone", "lnk-5", "lnk-5-copies"]


@pytest.mark.parametrize(
    ("only", "text"),
    [
        ("method=fixed-lnkk", "gmdn at scale hour has no method fixed-lnkk; known: backbone, fixed-lnk, gmdn"),
        ("molecule=benzene", f"no molecule benzene; known: {', '.join(MOLECULES)}"),
        ("size=3", "--only size=3: write molecule=NAME,NAME, backbone=NAME,NAME, method=NAME,NAME"),
        ("method=", "--only method=: write"),
    ],
)
def test_unknown_names_are_told_with_the_known_ones(tmp_path: Path, only: str, text: str):
    with pytest.raises(ConfigError, match=re.escape(text)):
        planned(tmp_path, "gmdn", only)


def test_names_that_never_meet_are_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="no cell with all of these names"):
        planned(tmp_path, "md17-accuracy", "backbone=nequip", "method=lnk-5")
    with pytest.raises(ConfigError, match="no experiment 'locals'; known: locality"):
        planned(tmp_path, "locals")


# --- settings


def test_hours_are_of_scale_hour():
    with pytest.raises(ConfigError, match="--hours is the length of trainings of --scale hour, not of paper"):
        Setup(scale="paper", hours=2.0)
    assert Setup(scale="hour", hours=2.0, n_seeds=3).options == "--scale hour --hours 2 --seeds 3"
    assert Setup(scale="hour", hours=0.5).title == "scale hour, trainings of 0.5 hours"


def test_force_std_may_stay_untested(tmp_path: Path):
    """Which changes no cell of a method without analytic force σ."""
    setup = Setup(scale="hour", hours=0.5, force_std=False)
    assert setup.options == "--scale hour --hours 0.5 --no-force-std"
    names = ("backbone", "mcd-20", "evidential", "ensemble", "fixed-lnk", "lnk-5", "fixed-lnk-closed")
    both = [
        {job.name.rpartition("/")[2]: job for job in EXPERIMENTS["md17-accuracy"].jobs(each, NOWHERE)}
        for each in (setup, Setup(scale="hour", hours=0.5))
    ]
    changed = [name for name in names if both[0][name].specification() != both[1][name].specification()]
    assert changed == ["fixed-lnk", "lnk-5", "fixed-lnk-closed"]
    assert all(expected_hours(both[0][name]) < 0.5 * expected_hours(both[1][name]) for name in changed[2:])


def test_short_trainings_are_not_compiled():
    compiled = [
        job.config.training.compile
        for hours in (0.05, 0.5)
        for job in Study("hour", "ethanol", "schnet", ("backbone",), hours=hours).jobs(NOWHERE)
        if isinstance(job, TrainJob)
    ]
    assert compiled == [False, True]


def test_scale_hour_has_the_papers_networks_sizes_and_losses():
    for _, experiment in EXPERIMENTS.items():
        hour = {job.name: job for job in experiment.jobs(HOUR, NOWHERE) if isinstance(job, TrainJob)}
        for job in experiment.jobs(Setup(scale="paper"), NOWHERE):
            if not isinstance(job, TrainJob):
                continue
            other = hour[job.name.replace("paper/", "hour/", 1)]
            assert other.config.model == job.config.model
            assert other.config.training.forces_weight == job.config.training.forces_weight
            for name in ("n_train", "n_validation", "n_test"):
                assert getattr(other.config.data.split, name) == getattr(job.config.data.split, name)


def test_another_seed_shares_no_member_and_the_split():
    first, second = (Study("hour", "ethanol", "schnet", ("ensemble",), seed=seed).jobs(NOWHERE) for seed in (0, 1))
    seeds = [{job.config.seed for job in jobs if isinstance(job, TrainJob)} for jobs in (first, second)]
    assert seeds == [set(range(5)), set(range(5, 10))]
    assert {job.config.data.split.seed for job in (*first, *second) if isinstance(job, ModelJob)} == {0}
    assert first[0].name == "hour/md17-ethanol/schnet/backbone"
    assert second[0].name == "hour/md17-ethanol/schnet/seed-1/backbone"
    assert isinstance(second[-1], EnsembleJob)
    assert all(name.startswith("hour/md17-ethanol/schnet/seed-1/") for name in second[-1].after)


def test_a_device_goes_to_all_trainings_and_keeps_results(tmp_path: Path):
    for method in ("backbone", "fixed-lnk"):
        study = Study("hour", "ethanol", "schnet", (method,))
        (*_, job), (*_, on_device) = study.jobs(NOWHERE), replace(study, device="cuda").jobs(NOWHERE)
        assert isinstance(on_device, TrainJob)
        trainings = [on_device.config.training, on_device.config.head_training]
        assert {one.accelerator for one in trainings if one is not None} == {"cuda"}
        folder = JobFolder(tmp_path)
        folder.keep(job, JobResult(name=job.name, status="done"))
        assert folder.result(on_device) is not None


# --- data


def write_md17(path: Path, n: int = 3) -> None:
    """In the layout of the published files."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"z": np.array([6, 8]), "R": rng.normal(size=(n, 2, 3)), "E": np.arange(n)[:, None] + 1.0}
    np.savez(path, **arrays, F=rng.normal(size=(n, 2, 3)), e_unit="kcal/mol", r_unit="Ang")


def test_the_published_md17_is_read_where_there_is_no_rmd17(tmp_path: Path):
    write_md17(tmp_path / "md17/md17_ethanol.npz")
    data = DataFolders(folders=(tmp_path,), made=tmp_path)
    (job,) = Study("hour", "ethanol", "schnet", ("backbone",)).jobs(data)
    assert isinstance(job, TrainJob)
    assert job.missing() is None
    energy = read_structures(job.config.data.source).energy
    assert energy == pytest.approx(np.arange(1, 4) * 0.0433641, rel=1e-5)  # kcal/mol in eV
    (tmp_path / "rmd17").mkdir()
    (tmp_path / "rmd17/rmd17_ethanol.npz").touch()
    assert data.md17("ethanol").format == "rmd17_original"


def test_notes_tell_whose_labels_were_used(tmp_path: Path):
    name = "hour/md17-ethanol/schnet/backbone"
    for path, text in (
        ("/data/md17/md17_ethanol.npz", "structures are those of the published MD17 (md17_ethanol.npz)."),
        ("/data/rmd17/rmd17_ethanol.npz", "Labels are the original ones of MD17, for the structures of rMD17."),
    ):
        results = {name: JobResult(name=name, status="done", content={"data": path})}
        assert text in "\n".join(EXPERIMENTS["md17-accuracy"].present(results, HOUR).notes)


def test_sizes_of_scale_hour_follow_the_data(tmp_path: Path):
    folder = tmp_path / "qm7x-like"
    folder.mkdir()
    ase.io.write(folder / "equilibrium.extxyz", morse_frames(57, seed=1))
    data = DataFolders(folders=(tmp_path,), made=tmp_path)
    assert data.qm7x().n_equilibrium == 57
    for method in ("backbone", "fixed-lnk"):
        config = Study("hour", "qm7x", "schnet").config(METHODS[method], data)
        split = config.data.split
        assert (split.n_train, split.n_validation, split.n_test) == (45, 5, None)
    assert expected_hours(Study("hour", "qm7x", "schnet", ("backbone",)).jobs(data)[0]) == pytest.approx(1.0, rel=0.3)
    assert sizes_of("hour", "qm7x", 41_537).n_train == published.SIZES["qm7x"].n_train
    assert sizes_of("paper", "qm7x", 57).n_train == published.SIZES["qm7x"].n_train
    (folder / "equilibrium.extxyz").write_text("no number\n")
    with pytest.raises(DataError, match="structure 1 does not begin with its number of atoms"):
        Study("hour", "qm7x", "schnet", ("backbone",)).jobs(DataFolders(folders=(tmp_path,), made=tmp_path / "x"))


# --- expected hours


@pytest.mark.parametrize("backbone", ["schnet", "dimenet++", "nequip"])
def test_trainings_of_scale_hour_take_the_hours_asked_for(backbone: str):
    for molecule in MOLECULES:
        for hours in (0.5, 1.0, 3.0):
            study = Study("hour", molecule, backbone, ("backbone",), hours=hours)
            (job,) = study.jobs(NOWHERE)
            assert expected_hours(job) == pytest.approx(hours, rel=0.15), job.name


def test_hours_of_scale_paper_are_steps_times_seconds():
    (job,) = Study("paper", "ethanol", "schnet", ("backbone",)).jobs(NOWHERE)
    training = published.TRAININGS["schnet", "dropout", "md17"].decay_steps * step_seconds("schnet", 1, 9) / 3600
    assert expected_hours(job) == pytest.approx(training, rel=0.02)  # beside the test
    assert 8 < training < 32
    (job,) = Study("paper", "qm7x", "dimenet++", ("backbone",)).jobs(NOWHERE)
    hours = expected_hours(job)
    assert hours is not None
    assert 24 * 30 < hours < 24 * 365  # months


def test_a_step_takes_longer_with_more_structures_and_atoms():
    for backbone in ("schnet", "dimenet++", "nequip"):
        times = [step_seconds(backbone, n, N_ATOMS["ethanol"]) for n in (1, 10, 32)]
        assert times == sorted(times)
        assert 0 < 10 * times[0] > times[1]  # in one step they take less than one by one
        assert step_seconds(backbone, 10, N_ATOMS["aspirin"]) > times[1]


def test_a_process_on_a_trained_network_takes_its_share(tmp_path: Path):
    chosen = planned(tmp_path, "md17-accuracy", "molecule=ethanol", "backbone=schnet")
    hours = {job.name.rpartition("/")[2]: expected_hours(job) for job in chosen.chosen}
    assert hours["fixed-lnk"] == pytest.approx(0.2, abs=0.05)
    assert hours["lnk-5"] == pytest.approx(0.4, abs=0.05)
    assert hours["fixed-lnk-closed"] < 0.1
    assert hours["mcd-20"] < hours["mcd-20"] + hours["mcd-20-69"] < 1.5
    assert expected_hours(Study("quick", "ethanol", "schnet", ("backbone",)).jobs(NOWHERE)[0]) is None


# --- dry runs


def test_a_dry_run_lists_cells_and_hours_and_writes_nothing(tmp_path: Path):
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "made")]
    write_md17(tmp_path / "data/md17/md17_ethanol.npz")
    arguments = ["md17-accuracy", "--scale", "hour", "--dry-run", *folders, "--only", "molecule=ethanol"]
    before = planned(tmp_path / "made", "md17-accuracy", "molecule=ethanol", folders=[tmp_path / "data"])
    text = invoke(*arguments, "--only", "backbone=schnet").stdout
    assert re.search(r"hour/md17-ethanol/schnet/backbone +to run +1\.\d", text)
    assert "13 cells: 0 done, 13 to run, about" in text
    assert "an estimate from steps and the speed of one core" in text
    assert "cells are left out" in text
    assert "sigmaff reproduce md17-accuracy --scale hour" in text
    assert not (tmp_path / "made").exists()
    keep(before, before.chosen[0], {})
    again = invoke(*arguments, "--only", "backbone=schnet").stdout
    assert re.search(r"hour/md17-ethanol/schnet/backbone +done +1\.0", again)
    other = invoke(*arguments, "--hours", "2", "--only", "backbone=schnet").stdout
    assert re.search(r"hour/md17-ethanol/schnet/backbone +other settings", other)


def test_a_dry_run_tells_missing_data_and_patience():
    text = invoke("qm7x-ooe", "--scale", "paper", "--dry-run").stdout
    assert "there is no /nowhere/qm7x-like/equilibrium.extxyz" in text
    assert "Patience may end trainings earlier." in text
    assert "minutes on two cores" in invoke("qm7x-ooe", "--dry-run").stdout


# --- tables of made-up results


def energy(value: float) -> dict:
    return {"metrics": {"energy_mae": value, "forces_mae": value, "energy_mae_ci": [0.9 * value, 1.2 * value]}}


def table_of(tables: Iterable[ResultTable], title: str) -> ResultTable:
    return next(table for table in tables if table.title.startswith(title))


def test_tables_show_what_exists_and_tell_what_was_left_out(tmp_path: Path):
    """A cell of another choice is done; the chosen one has no data."""
    only = ("molecule=uracil", "backbone=schnet", "method=backbone")
    first = planned(tmp_path, "md17-accuracy", *only)
    done = next(job for job in first.others if job.name == "hour/md17-ethanol/schnet/backbone")
    keep(first, done, energy(0.0433641))
    report, results = run_plan(first, ClusterConfig(n_workers=1), Listener())
    assert {name: result.status for name, result in results.items()} == {
        "hour/md17-uracil/schnet/backbone": "missing",
        "hour/md17-ethanol/schnet/backbone": "done",
    }
    table = table_of(report.tables, "Table 2")
    entry = dict(zip(table.columns, table.rows["ethanol", "Energy"], strict=True))["Backbone"]
    assert entry.text("") == "1.000 [0.900, 1.200] (0.064)"  # kcal/mol
    assert len({molecule for molecule, _ in table.rows}) == 7
    assert not any(table.title.startswith("Table 14") for table in report.tables)  # nothing of ours
    write_report(first, report, results)
    text = (tmp_path / "md17-accuracy/results.md").read_text()
    assert "Trained on 1000 and validated on 1000 structures of rmd17/rmd17_ethanol.npz." in text
    n = len(first.others) - 1
    assert re.search(rf"{n} cells are left out, about \d+ hours of one core, by estimate", text)
    assert "```bash\nsigmaff reproduce md17-accuracy --scale hour\n```" in text
    assert re.search(r"- hour/md17-aspirin/nequip: backbone, .*ensemble \(\d\.\d hours\)", text)
    content = json.loads((tmp_path / "md17-accuracy/results.json").read_text())
    assert len(content["left_out"]) == n
    assert (content["hours"], content["n_seeds"]) == (1.0, 1)


def test_other_hours_are_told(tmp_path: Path):
    setup = Setup(scale="hour", hours=0.5)
    short = planned(tmp_path, "gmdn", "molecule=ethanol", setup=setup)
    report, results = run_plan(short, ClusterConfig(n_workers=1), Listener())
    write_report(short, report, results)
    text = (tmp_path / "gmdn/results.md").read_text()
    assert "at scale hour, trainings of 0.5 hours." in text
    assert "as one core does in 0.5 hours" in text
    assert "--scale hour --hours 0.5" in text
    assert json.loads((tmp_path / "gmdn/results.json").read_text())["hours"] == 0.5


def test_seeds_are_averaged_and_their_range_is_shown():
    setup, study = Setup(scale="hour", n_seeds=2), Study("hour", "ethanol", "schnet")
    results = {
        name: JobResult(name=name, status="done", content=energy(0.0433641 * value))
        for value, name in ((1.0, study.job("backbone")), (3.0, replace(study, seed=1).job("backbone")))
    }
    report = EXPERIMENTS["md17-accuracy"].present(results, setup)
    table = table_of(report.tables, "Table 2")
    entry = dict(zip(table.columns, table.rows["ethanol", "Energy"], strict=True))["Backbone"]
    assert entry.text("") == "2.000 {1.000 … 3.000} [1.800, 2.400] (0.064)"
    assert "2 trainings" in report.notes[2]
    average = table_of(report.tables, "Table 3")
    assert average.rows["SchNet: ethanol", "Energy"][average.columns.index("Backbone")].ours == pytest.approx(2.0, 1e-5)


def test_both_rates_of_dropout_have_a_column():
    """The paper names no rate for MD17: 5 % is in its columns, 1 % beside them, where LNK is trained end to end."""
    studies = [Study("hour", "ethanol", backbone) for backbone in ("schnet", "nequip")]
    errors = {studies[0].job("lnk-5"): 0.5, studies[0].job("lnk-1"): 0.1, studies[1].job("fixed-lnk"): 0.2}
    results = {name: JobResult(name=name, status="done", content=energy(value)) for name, value in errors.items()}
    tables = EXPERIMENTS["md17-accuracy"].present(results, Setup(scale="hour")).tables
    table = table_of(tables, "Table 16")
    row = dict(zip(table.columns, table.rows["ethanol", "Energy"], strict=True))
    assert (row["LNK"].ours, row["LNK, 1 % dropout"].ours) == pytest.approx((0.5 / 0.0433641, 0.1 / 0.0433641), 1e-5)
    assert row["LNK, 1 % dropout"].paper is None
    assert "LNK, 1 % dropout" not in table_of(tables, "Table 15").columns


def test_means_over_molecules_keep_trainings_apart():
    values = [Value(mean=2.0, trainings=(1.0, 3.0)), Value(mean=6.0, trainings=(5.0, 7.0))]
    assert mean_of(values) == Value(mean=4.0, trainings=(3.0, 5.0))
    assert mean_of([*values, Value(mean=1.0)]) == Value(mean=3.0)
    assert mean_of([*values, None]) is None
    scores = JobResult(name="a", status="done", content={"x_calibration": 0.5, "x_calibration_ci": [0.4, 0.6]})
    assert value_of([scores], "x_calibration") == Value(mean=0.5)
    assert value_of([scores], "nothing") is None


def test_force_rows_titled_trace_are_the_trace():
    measured = {"energy_auroc_total": 0.6, "forces_auroc": 0.7, "forces_auroc_trace": 0.8}
    study = Study("hour", "qm7x", "dimenet++")
    names = [study.job(method) for method in ("mcd-20", "mcd-lnk-5")]
    content = {"ood": {"non-equilibrium": measured}}
    results = {name: JobResult(name=name, status="done", content=content) for name in names}
    tables = [
        table for name in ("qm7x-ooe", "force-uncertainty") for table in EXPERIMENTS[name].present(results, HOUR).tables
    ]
    traces = {
        (table.title, column): entry.ours
        for table in tables
        for labels, row in table.rows.items()
        if labels[-1] == "AUC-ROC forces (trace)"
        for column, entry in zip(table.columns, row, strict=True)
        if entry.ours is not None
    }
    assert set(traces.values()) == {0.8}
    assert {"LNK + Drop 5 %", "20 %"} <= {column for _, column in traces}
    rms = table_of(tables, "Table 5").rows["AUC-ROC forces (rms)",]
    assert rms[0].ours == 0.7


def test_calibration_beside_the_papers_numbers_is_of_raw_std_per_sample():
    keys = ("paper_raw", "paper", "raw", "")
    scores = {
        f"energy_calibration{'_' * bool(key)}{key}": value
        for key, value in zip(keys, (1.6, 1.2, 0.9, 0.1), strict=True)
    }
    name = Study("hour", "qm7x", "dimenet++").job("fixed-lnk")
    results = {name: JobResult(name=name, status="done", content={"metrics": scores})}
    report = EXPERIMENTS["qm7x-calibration"].present(results, HOUR)
    table = table_of(report.tables, "Table 4")
    shown = {labels[0]: row[table.columns.index("fixed-LNK")] for labels, row in table.rows.items()}
    assert {label: entry.ours for label, entry in shown.items() if entry.ours is not None} == {
        "Calibration per sample, raw σ": 1.6,
        "Calibration global, raw σ": 0.9,
        "Calibration global, calibrated σ": 0.1,
    }
    assert [label for label, entry in shown.items() if entry.paper is not None] == ["Calibration per sample, raw σ"]


def test_the_claim_of_lower_errors_is_computed_from_table_5():
    study = Study("hour", "qm7x", "schnet")
    aurocs = {"mcd-20": 0.5, "mcd-1": 0.6, "evidential": 0.7, "lnk-5": 0.9, "fixed-lnk": 0.8}
    results = {
        study.job(method): JobResult(
            name=study.job(method), status="done", content={"ood": {"non-equilibrium": {"energy_auroc_total": value}}}
        )
        for method, value in aurocs.items()
    }
    tables = EXPERIMENTS["qm7x-ooe"].present(results, HOUR).tables
    claim = next(table for table in tables if table.title.startswith("Claim") and table.has_ours)
    assert claim.title.endswith("here SchNet instead of DimeNet++")
    assert [entry.ours for entry in claim.rows["LNK",]] == pytest.approx([5.0, 4.0, 3.0])
    assert [entry.ours for entry in claim.rows["fixed-LNK",]] == pytest.approx([2.5, 2.0, 1.5])
    told = [entry.paper for entry in claim.rows["LNK",]]
    assert max(told[:2]) == pytest.approx(2.5, abs=0.05)  # as in the abstract of the paper
    assert told[2] == pytest.approx(2.1, abs=0.05)


def test_incomplete_heat_maps_say_how_many_molecules():
    study = Study("hour", "ethanol", "nequip")
    others = {
        molecule: {"energy_auroc": 0.9, "energy_auroc_total": 0.8} for molecule in MOLECULES if molecule != "ethanol"
    }
    name = study.job("ensemble")
    results = {name: JobResult(name=name, status="done", content={"ood": others})}
    report = EXPERIMENTS["md17-ood"].present(results, HOUR)
    (labels,) = report.tables[0].rows
    assert list(report.tables[1].rows) == [("ethanol",)]
    assert labels == ("NequIP", "Ensemble")
    shown = dict(zip(report.tables[0].columns, report.tables[0].rows[labels], strict=True))
    assert shown["least AUROC, σ of the whole"].text("") == "0.800 (1)"
    assert shown["molecules trained on"].text("") == "1"
    assert list(report.figures) == ["nequip"]
