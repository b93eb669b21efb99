"""Help with configurations: a file written from the data, the schema for editors, completion in the shell."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import yaml
from ase import Atoms
from typer.testing import CliRunner

from cli_case import fail, morse_frames, succeed
from sigmaff.cli.main import app
from sigmaff.config import read_config
from sigmaff.data import DataSource, LabelledStructures
from sigmaff.runs.config import RunConfig
from sigmaff.runs.plan import BATCH_SIZE, FEWEST_EPOCHS, MAX_EPOCHS, Cost, plan, timed_parts
from sigmaff.runs.run import run

ROOT = Path(__file__).parents[2]


@cache
def validator(command: str) -> Any:
    kind = pytest.importorskip("jsonschema").Draft202012Validator
    schema = json.loads(succeed("schema", command))
    kind.check_schema(schema)
    assert schema["$schema"] == kind.META_SCHEMA["$id"]
    return kind(schema)


def errors(command: str, content: Any) -> list[str]:
    return [error.message for error in validator(command).iter_errors(content)]


def test_examples_fit_the_schema() -> None:
    paths = sorted((ROOT / "examples").glob("*.yaml"))
    assert paths
    for path in paths:
        content, command = yaml.safe_load(path.read_text()), "learn" if "campaign" in path.stem else "train"
        assert errors(command, content) == [], path
        assert len(errors(command, content | {"trainning": {}})) == 1
        assert len(errors(command, content | {"training": {"max_epoch": 3}})) == 1


def test_schemas_take_what_commands_take() -> None:
    content = {"data": {"source": {"path": "data.extxyz", "energy_unit": "kcal/mol"}}}
    assert errors("train", content) == errors("compare", content) == []
    assert errors("train", {"data": {"source": 3}}) != []
    assert errors("train", content | {"model": {"backbone": {"adopt": "mace:small"}}}) == []
    assert errors("train", content | {"model": {"head": {"name": "unknown"}}}) != []
    assert errors("md", {"temperature": 300, "stop_above": "auto"}) == errors("md", {"temperature": [300, 400]}) == []
    assert errors("md", {"temprature": 300}) != []
    assert errors("guard", {"temperature": 300, "steps": 10, "error_above": 0.5, "risk": 0.1}) == []


def test_completion_in_the_shell() -> None:
    environment = {"_SIGMAFF_COMPLETE": "complete_bash", "COMP_WORDS": "sigmaff tr", "COMP_CWORD": "1"}
    out = CliRunner().invoke(app, prog_name="sigmaff", env=environment).stdout
    assert out.split() == ["train", "trust"]
    assert "--install-completion" in succeed("--help")


def test_init_writes_a_run_that_can_be_trained(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "data.extxyz", morse_frames(60, seed=1))
    source, minutes = DataSource(path=tmp_path / "data.extxyz"), 0.04
    planned = plan(source, tmp_path / "run", minutes, networks=[(16, 1)])
    (tmp_path / "run.yaml").write_text(planned.text)
    for told in ("60 structures of 3 to 9 atoms", "elements H, C, O", "energies as eV (assumed)", planned.estimate[5:]):
        assert told in planned.text
    config = read_config(RunConfig, tmp_path / "run.yaml")
    assert config.training.max_epochs >= FEWEST_EPOCHS
    assert planned.seconds > 0
    result = run(config)
    assert result is not None
    assert result.metrics is not None


@pytest.mark.parametrize("seconds", [2.0, 60.0, 1800.0, 1e5])
def test_the_time_is_used(seconds: float) -> None:
    cost = Cost(start=1.0, step=0.02, validation=0.001, fit=0.002, prediction=0.05)
    sizes, epochs = cost.fitting({"train": 1000, "validation": 100, "test": 1000}, seconds)
    planned = cost.rest(sizes) + epochs * cost.epoch(sizes)
    if seconds == 1e5:
        assert epochs == MAX_EPOCHS
    elif seconds == 2.0:  # the least that there is
        assert (sizes["train"], sizes["test"], epochs) == (BATCH_SIZE, 100, FEWEST_EPOCHS)
    else:
        assert seconds - 2 * cost.epoch(sizes) < planned <= seconds


def test_large_structures_are_timed_as_often_as_they_are_met() -> None:
    """The cost of a prediction grows with the square of the size: its mean is that of all structures."""
    n_atoms = np.r_[np.full(80, 3), np.full(20, 40)]
    structures = LabelledStructures(
        structures=tuple(Atoms(f"H{n}", np.arange(3 * n).reshape(-1, 3)) for n in n_atoms),
        energy=np.zeros(100),
        forces=None,
        source="sizes",
        frame_index=np.arange(100),
    )
    for seed in range(5):
        parts = timed_parts(structures, {"train": 40, "validation": 20, "test": 10}, seed)
        assert [len(parts[name]) for name in ("train", "validation", "test")] == [40, 20, 10]
        assert len(np.unique(np.concatenate(list(parts.values())))) == 70
        for part in parts.values():
            assert np.mean(n_atoms[part] ** 2) == pytest.approx(np.mean(n_atoms**2), rel=0.1)
    first, other = (timed_parts(structures, {"test": 10}, seed)["test"] for seed in (0, 1))
    assert set(first) != set(other)


def test_init_refuses(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "few.extxyz", morse_frames(8, seed=1))
    asked = ("init", tmp_path / "few.extxyz", "-o", tmp_path / "a.yaml")
    assert "8 structures; a training takes 30 or more" in fail(*asked)
    shutil.copy(tmp_path / "few.extxyz", tmp_path / "a.yaml")
    assert "exists already" in fail(*asked)
