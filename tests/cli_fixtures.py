"""Fixtures for tests of the command line: models that are trained once in a session."""

from pathlib import Path

import ase.io
import pytest

from cli_case import Workspace, ether_frames, morse_frames, succeed, write_config, write_files
from sigmaff.files import folder_lock


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The folder after ``sigmaff train run.yaml``."""
    folder = tmp_path_factory.mktemp("workspace")
    write_files(folder)
    succeed("train", write_config(folder / "run.yaml"))
    return Workspace(folder=folder)


@pytest.fixture(scope="session")
def deterministic(workspace: Workspace) -> Path:
    """A model without σ."""
    output = workspace / "deterministic"
    head = ("--set", "model.head={name: deterministic}", "--set", "training.max_epochs=3")
    succeed("train", workspace / "run.yaml", "--output", output, *head)
    return output / "model.sigmaff"


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Workspace:
    """The folder after ``sigmaff compare run.yaml --methods all``: a model of every method, not to be changed.

    Processes of one test session share it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "compared"
    with folder_lock(folder):
        if not (folder / "run" / "comparison.json").exists():
            _compare(folder)
    return Workspace(folder=folder)


def _compare(folder: Path) -> None:
    ase.io.write(folder / "data.extxyz", morse_frames(150, seed=1))
    ase.io.write(folder / "other.extxyz", ether_frames(12))
    config = write_config(
        folder / "run.yaml",
        ("data.split", {"n_train": 110, "n_validation": 20, "n_test": 20}),
        ("training.max_epochs", 2),
        ("ood", {"ether": {"source": str(folder / "other.extxyz")}}),
    )
    succeed("compare", config, "--methods", "all")
