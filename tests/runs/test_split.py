"""The split of a run: said, kept in its directory, and the same when the run resumes."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.calculators.morse import MorsePotential

from cli_case import labelled, succeed, write_config
from sigmaff.config import read_config
from sigmaff.data.order import find_series
from sigmaff.data.read import read_structures
from sigmaff.models.file import read_header
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data, settled
from training_case import labelled_structures

SHORT = ("--set", "training.max_epochs=3", "--set", "model.head={name: deterministic}")


@pytest.fixture(scope="module")
def trajectory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings, and frames of one molecule that resemble those before."""
    folder = tmp_path_factory.mktemp("trajectory")
    start = labelled_structures(1, 3).structures[0]
    random, step, frames = np.random.default_rng(0), np.zeros((len(start), 3)), []
    for _ in range(120):
        step = 0.8 * step + 0.6 * random.normal(0.0, 0.05, step.shape)
        moved = start.copy()
        moved.positions += step
        moved.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        frames.append(labelled(moved, moved.get_potential_energy(), moved.get_forces()))
    ase.io.write(folder / "data.extxyz", frames)
    return write_config(folder / "run.yaml")


def configured(trajectory: Path, output: Path, *overrides: str) -> RunConfig:
    return read_config(RunConfig, trajectory, overrides, {"output": output})


def spacing(parts: dict[str, list[int]]) -> int:
    return int(np.abs(np.array(parts["train"])[:, None] - np.array(parts["test"])).min())


def test_train_and_check_say_how_they_split(trajectory: Path, tmp_path: Path):
    (series,) = find_series(read_structures(trajectory.parent / "data.extxyz"))
    said = succeed("train", trajectory, "--output", tmp_path / "run", *SHORT)
    assert f"split in blocks of time: consecutive frames are correlated ({series.correlation:.2f}" in said
    record = read_header(tmp_path / "run" / "model.sigmaff").record
    assert record.split.reason in said
    kept = json.loads((tmp_path / "run" / "split.json").read_text())["split"]
    assert kept == record.split.model_dump()
    assert spacing(kept) > series.memory > 0
    assert "order in time" in succeed("check", trajectory.parent / "data.extxyz")
    assert "nothing was done" in succeed("train", trajectory, "--output", tmp_path / "run", *SHORT)


def test_random_remains_an_option(trajectory: Path, tmp_path: Path):
    random = load_data(configured(trajectory, tmp_path, "data.split.kind=random")).split
    assert random.reason == ""
    assert spacing(random.to_dict()) == 1
    order = np.random.default_rng(0).permutation(120)
    np.testing.assert_array_equal(random.train, np.sort(order[:30]))


def test_a_resumed_run_keeps_its_split(trajectory: Path, tmp_path: Path):
    """Also where another version or machine would measure another correlation; a changed setting is not ignored."""
    config = configured(trajectory, tmp_path)
    before = load_data(config).split
    content = json.loads((tmp_path / "split.json").read_text())
    content["split"]["train"], content["split"]["test"] = content["split"]["test"][:30], content["split"]["train"]
    (tmp_path / "split.json").write_text(json.dumps(content))
    swapped = load_data(config).split
    np.testing.assert_array_equal(swapped.test, before.train)
    other = load_data(configured(trajectory, tmp_path, "data.split.seed=1")).split
    assert other.train.tolist() not in (before.train.tolist(), swapped.train.tolist())


@pytest.mark.parametrize("made", ["backbone/checkpoint.safetensors", "member-0/model.sigmaff", "model.sigmaff"])
def test_a_run_from_before_keeps_its_random_split(trajectory: Path, tmp_path: Path, made: str):
    """Its directory has no split file."""
    config = configured(trajectory, tmp_path)
    assert settled(config) == config
    (tmp_path / made).parent.mkdir(exist_ok=True)
    (tmp_path / made).touch()
    assert settled(config).data.split.kind == "random"
    load_data(settled(config))
    assert settled(config).data.split.kind == "random", "and again"


def test_a_training_from_before_resumes(trajectory: Path, tmp_path: Path):
    """As ``train`` began it when random was the default: a checkpoint of three epochs, no split file, no model."""
    output = ("--output", tmp_path / "run", *SHORT[2:])
    succeed("train", trajectory, *output, "--set", "training.max_epochs=3", "--set", "data.split.kind=random")
    for name in ("split.json", "model.sigmaff", "backbone.sigmaff", "metrics.json"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    assert "in blocks" not in succeed("train", trajectory, *output, "--set", "training.max_epochs=5")
    record = read_header(tmp_path / "run" / "model.sigmaff").record
    assert record.training.n_epochs == 5
    assert record.config["data"]["split"]["kind"] == "random"
    assert spacing(record.split.model_dump()) == 1
    anew = succeed("train", trajectory, *output, "--set", "training.max_epochs=3", "--force")
    assert "split in blocks of time" in anew


def test_fitted_reference_energies_leave_other_compositions_open(trajectory: Path, tmp_path: Path):
    """All of the energy per atom had to be shared out."""
    data = load_data(configured(trajectory, tmp_path))
    train = data.train.structures
    sizes = np.array([len(atoms) for atoms in train.structures])
    assert data.statistics.reference_std == pytest.approx(np.mean(np.abs(train.energy) / sizes))
