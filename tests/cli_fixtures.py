"""Fixtures for tests of the command line: models that are trained once in a session."""

from pathlib import Path

import pytest

from cli_case import Workspace, succeed, write_config, write_files


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
