"""Fixtures for tests of the command line: models that are trained once in a session."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import ase.io
import pytest

from cli_case import COMPARED, Workspace, ether_frames, morse_frames, succeed, write_config, write_files
from sigmaff.files import folder_lock
from sigmaff.heads import SVGPConfig
from sigmaff.runs.methods import METHODS


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


@pytest.fixture(scope="session", autouse=True)
def _timed_once() -> Iterator[None]:
    """Milliseconds are printed and written, and audits are short; how they measure is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        audit, compare = (import_module(f"sigmaff.{name}") for name in ("audit", "runs.compare"))
        patch.setattr(compare, "ROUNDS", 1)
        patch.setattr(audit, "QUICK", audit.QUICK.model_copy(update={"n_rounds": 1, "nve_ps": 0.02}))
        yield


def _compare(folder: Path) -> None:
    ase.io.write(folder / "data.extxyz", morse_frames(sum(COMPARED.values()), seed=1))
    ase.io.write(folder / "other.extxyz", ether_frames(12))
    config = write_config(
        folder / "run.yaml",
        ("data.split", COMPARED),
        ("training.max_epochs", 2),
        ("training.batch_size", 20),
        ("ensemble", {"size": 2}),
        ("ood", {"ether": {"source": str(folder / "other.extxyz")}}),
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("svgp", "svgp_dkl"):
            patch.setitem(METHODS, name, replace(METHODS[name], head=SVGPConfig(n_inducing=12)))
        succeed("compare", config, "--methods", "all")
