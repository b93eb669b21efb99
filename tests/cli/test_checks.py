"""Commands that learn from data, or measure with it, check the data first: errors stop, warnings are told once."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
import yaml

import sigmaff as sf
from cli_case import Workspace, fail, labelled, morse_frames, succeed, write_config
from sigmaff.errors import DataError
from sigmaff.files import holds_files
from sigmaff.progress import Collecting
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def permuted(tmp_path: Path) -> Path:
    """Forces of other atoms: each frame has a net torque."""
    frames = morse_frames(24, seed=5)
    path = tmp_path / "data.extxyz"
    rolled = [labelled(atoms, atoms.get_potential_energy(), np.roll(atoms.get_forces(), 1, 0)) for atoms in frames]
    ase.io.write(path, rolled)
    return path


def campaign(folder: Path, data: Path) -> Path:
    content = {"start": {"source": str(data), "use_labels": True}, "output": str(folder / "campaign")}
    (folder / "campaign.yaml").write_text(yaml.safe_dump(content))
    return folder / "campaign.yaml"


@pytest.mark.parametrize("command", ["train", "compare", "learn", "evaluate", "calibrate", "report"])
def test_errors_in_the_data_stop_it(workspace: Workspace, tmp_path: Path, permuted: Path, command: str) -> None:
    arguments = {
        "train": [write_config(tmp_path / "run.yaml")],
        "compare": [tmp_path / "run.yaml", "--methods", "fixed_lnk"],
        "learn": [campaign(tmp_path, permuted)],
        "evaluate": [workspace.model, permuted],
        "calibrate": [workspace.copied_model(tmp_path), permuted],
        "report": [workspace.model, permuted, tmp_path / "report.html"],
    }[command]
    message = fail(command, *arguments)
    assert message.startswith(f"{permuted}, frame 0: the forces have a net torque")
    assert "or go on with --skip-checks" in message
    assert not holds_files(tmp_path / "run")
    assert not (tmp_path / "campaign" / "campaign.json").exists()


def test_they_can_be_skipped(workspace: Workspace, permuted: Path, tmp_path: Path) -> None:
    assert "MAE" in succeed("evaluate", workspace.model, permuted, "--skip-checks", "--forces-std", "none")
    model = sf.load(workspace.model)
    with pytest.raises(DataError, match="skip_checks=True"):
        sf.calibrate(model, permuted)
    assert sf.calibrate(model, permuted, skip_checks=True).energy is not None


def test_warnings_are_told_once(tmp_path: Path) -> None:
    frames = morse_frames(60, seed=1)
    ase.io.write(tmp_path / "data.extxyz", [*frames, frames[3]])
    config = RunConfig.model_validate(yaml.safe_load(write_config(tmp_path / "run.yaml").read_text()))
    first, resumed, skipped = Collecting(), Collecting(), Collecting()
    load_data(config, first)
    load_data(config, resumed)
    assert first.texts == [f"{tmp_path / 'data.extxyz'}, frame 60: {text}" for text in duplicates(tmp_path)]
    assert resumed.texts == []
    ase.io.write(tmp_path / "data.extxyz", [*frames, frames[4]])  # other data are checked again
    load_data(config, skipped, skip_checks=True)
    assert skipped.texts == []


def duplicates(folder: Path) -> list[str]:
    from sigmaff.data import check_structures, read_structures

    found = check_structures(read_structures(folder / "data.extxyz"))
    return [finding.message for finding in found if finding.code == "duplicates"]


def test_check_says_that_there_is_nothing(workspace: Workspace, tmp_path: Path) -> None:
    out = succeed("check", workspace / "data.extxyz")
    assert out.rstrip().endswith("no problems found")
    assert "energies as eV (assumed)" in " ".join(out.split())
    frames = ase.io.read(workspace / "data.extxyz", ":")
    ase.io.write(tmp_path / "twice.extxyz", [*frames, frames[0]])
    assert "no problems found" not in succeed("check", tmp_path / "twice.extxyz")
