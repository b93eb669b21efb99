"""Runs that go on: with raised limits, with files elsewhere, and never two in one folder."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cli_case import Workspace, fail, succeed, write_config
from sigmaff import load
from sigmaff.files import LOCK, folder_lock
from sigmaff.models.file import read_header
from sigmaff.training import TrainingConfig
from sigmaff.training.processes import RANKS, is_helper

pytest_plugins = ["cli_fixtures"]

HOLDER = """
import sys, time
from pathlib import Path
from sigmaff.files import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def epochs(n: int) -> tuple[str, str]:
    return "--set", f"training.max_epochs={n}"


def train(workspace: Workspace, output: Path, *options: str | Path) -> str:
    return succeed("train", workspace / "run.yaml", "--output", output, *options)


def same_weights(a: Path, b: Path) -> bool:
    first, second = (load(folder / "model.sigmaff").state_dict() for folder in (a, b))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "model.head={name: llpr}"),
        ("--set", "ensemble={size: 2}", "--set", "model.head={name: deterministic}"),
        ("--set", "model.head={name: svgp, n_inducing: 12}", "--set", "head_training={max_epochs: 2, threads: 1}"),
    ],
    ids=["solved head", "ensemble", "trained head"],
)
def test_a_finished_run_with_more_epochs_equals_one_that_asked_for_them(
    workspace: Workspace, tmp_path: Path, options: tuple[str, ...]
) -> None:
    train(workspace, tmp_path / "extended", *epochs(2), *options)
    out = train(workspace, tmp_path / "extended", *epochs(4), *options)
    assert "training goes on, up to epoch 4" in out.replace("\n", " ")
    train(workspace, tmp_path / "once", *epochs(4), *options)
    assert same_weights(tmp_path / "extended", tmp_path / "once")
    extended, once = (read_header(tmp_path / name / "model.sigmaff") for name in ("extended", "once"))
    assert extended.energy_calibration == once.energy_calibration
    assert extended.record.metrics["forces_mae"] == once.record.metrics["forces_mae"]


def test_only_raised_limits_extend_a_run(workspace: Workspace, tmp_path: Path) -> None:
    cosine = ("--set", "training.schedule={name: cosine, warmup_steps: 0}")
    train(workspace, tmp_path / "run", *epochs(2), *cosine)
    refused = lambda *options: fail("train", workspace / "run.yaml", "--output", tmp_path / "run", *options)  # noqa: E731
    assert "not that of a cosine schedule, which ends with max_epochs" in refused(*epochs(3), *cosine)
    assert "training.max_epochs: was 2, now 1" in refused(*epochs(1), *cosine)
    assert "training.learning_rate: was 0.005" in refused(*epochs(2), *cosine, "--set", "training.learning_rate=1")


def test_a_run_and_its_model_know_files_by_their_content(workspace: Workspace, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for name in ("data.extxyz", "other.extxyz"):
        shutil.copy(workspace / name, old)
    changes = [("training.max_epochs", 1), ("model.head", {"name": "llpr"})]

    def written(folder: Path) -> Path:
        other = ("ood", {"ether": {"source": str(folder / "other.extxyz")}})
        return write_config(folder / "run.yaml", *changes, other)

    succeed("train", written(old))
    old.rename(new)
    assert "nothing was done" in succeed("train", written(new))
    options = ("--steps", "2", "--stop-above", "auto", "--error-above", "100", "--risk", "0.5")
    succeed("md", new / "run" / "model.sigmaff", new / "other.extxyz", *options, "-o", new / "md")
    (new / "other.extxyz").write_text((new / "other.extxyz").read_text() + "\n")
    assert "ood.ether.source.path: was " in fail("train", new / "run.yaml")
    (new / "data.extxyz").rename(new / "elsewhere.extxyz")
    message = fail("md", new / "run" / "model.sigmaff", new / "other.extxyz", *options, "-o", new / "md2")
    assert "data.extxyz is missing" in message
    assert "--calibration" in message


def test_an_interrupted_run_resumes_with_moved_data(workspace: Workspace, tmp_path: Path) -> None:
    train(workspace, tmp_path / "run", *epochs(2))
    (tmp_path / "run" / "model.sigmaff").unlink()
    data = shutil.copy(workspace / "data.extxyz", tmp_path / "moved.extxyz")
    before = (tmp_path / "run" / "backbone" / "metrics.csv").read_text()
    train(workspace, tmp_path / "run", *epochs(2), "--set", f"data.source={data}")
    assert (tmp_path / "run" / "backbone" / "metrics.csv").read_text() == before


def test_a_second_training_in_a_folder_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """Also between two stages, where no network is trained; what a killed process leaves blocks nobody."""
    with folder_lock(tmp_path / "run"):
        message = fail("train", workspace / "run.yaml", "--output", tmp_path / "run", *epochs(2))
    assert "another process is at work in this folder" in message
    assert not (tmp_path / "run" / "split.json").exists()
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run" / LOCK).exists()
    train(workspace, tmp_path / "run", *epochs(1), "--set", "model.head={name: deterministic}")
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_finished_run_removes_what_a_kill_at_its_very_end_left(workspace: Workspace, tmp_path: Path) -> None:
    train(workspace, tmp_path / "run", *epochs(1))
    (tmp_path / "run" / LOCK).touch()
    (tmp_path / "run" / ".sigmaff-a1b2c3d4-metrics.json").touch()
    assert "nothing was done" in train(workspace, tmp_path / "run", *epochs(1))
    assert not list((tmp_path / "run").glob(".*"))


def test_two_comparisons_in_a_folder_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "run"):
        message = fail("compare", workspace / "run.yaml", "--output", tmp_path / "run", "--methods", "backbone")
    assert "another process is at work" in message


@pytest.mark.parametrize("name", RANKS)
def test_processes_of_one_training_share_its_lock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    one, two = TrainingConfig(), TrainingConfig(devices=2)
    assert not is_helper(two)
    monkeypatch.setenv(name, "1")
    assert is_helper(two)
    assert not is_helper(one)
