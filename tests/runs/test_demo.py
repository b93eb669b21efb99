"""The demonstration, with fewer frames: labels are those of GFN2-xTB, and the page is there at the end."""

import json
import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import psutil
import pytest
from ase import units
from ase.build import molecule
from tblite.ase import TBLite

from cli_case import succeed
from sigmaff.errors import SigmaffError
from sigmaff.files import folder_lock
from sigmaff.models.file import read_header
from sigmaff.progress import Listener
from sigmaff.runs import demo
from sigmaff.runs.config import RunConfig


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes alone differ from the real thing, and the number of epochs."""
    sizes = {"N_ETHANOL": 50, "N_TRAIN": 20, "N_VALIDATION": 20, "N_ETHER": 12, "N_REPLICAS": 2, "N_WORKERS": 1}
    for name, size in (sizes | {"EQUILIBRATION": 5, "SAMPLE_EVERY": 3}).items():
        monkeypatch.setattr(demo, name, size)
    whole = demo.demo_config

    def shorter(*arguments: Any) -> RunConfig:
        config = whole(*arguments)
        return config.model_copy(update={"training": config.training.model_copy(update={"max_epochs": 10})})

    monkeypatch.setattr(demo, "demo_config", shorter)


def killed(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("_small")
def test_a_process_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "simulate", killed)
    monkeypatch.setattr(demo, "get_context", lambda _: get_context("fork"))  # finds this function at once
    with pytest.raises(SigmaffError, match="was killed, perhaps for lack of memory; run the same command again"):
        demo.sample("H2O", 4, Listener())


def begin_and_sleep(*arguments: object) -> None:
    Path("begun").touch()
    time.sleep(1e6)


ENDLESS = """
import test_demo
from sigmaff.progress import Listener
from sigmaff.runs import demo
demo.simulate, demo.N_WORKERS = test_demo.begin_and_sleep, 1
demo.sample("H2O", 6, Listener())
"""


def test_workers_end_with_a_demonstration_that_is_killed(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = psutil.Popen([sys.executable, "-c", ENDLESS], cwd=tmp_path, env=os.environ | paths)
    while not (tmp_path / "begun").exists():
        assert program.is_running()
        time.sleep(0.05)
    workers = program.children()
    program.kill()
    program.wait()
    _, left = psutil.wait_procs(workers, timeout=30.0)
    for worker in left:
        worker.kill()
    assert not left


def test_a_second_demonstration_is_refused_before_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And temporary files of one that was killed go."""
    left = tmp_path / ".sigmaff-abcd1234-ethanol.extxyz"
    left.touch()
    monkeypatch.setattr(demo, "sample", None)
    with folder_lock(tmp_path):
        assert not left.exists()
        with pytest.raises(SigmaffError, match="another process is at work in this folder"):
            demo.run_demo(tmp_path)


@pytest.mark.usefixtures("_small")
def test_one_replica_is_dynamics_on_the_labelled_surface() -> None:
    frames = demo.simulate(molecule("CH3CH2OH"), 3, seed=0)
    again = demo.simulate(molecule("CH3CH2OH"), 1, seed=0)
    other = demo.simulate(molecule("CH3CH2OH"), 1, seed=1)
    np.testing.assert_array_equal(frames[0].positions, again[0].positions)
    assert np.abs(frames[0].positions - other[0].positions).max() > 0.01
    for frame in frames:
        atoms = frame.copy()
        atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
        assert frame.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
        np.testing.assert_allclose(frame.get_forces(), atoms.get_forces(), atol=1e-3)
    moved = np.abs(frames[1].positions - frames[0].positions).max()
    light = units.kB * demo.TEMPERATURE / 1.008  # mean square speed of a hydrogen atom along an axis
    assert 0 < moved < 6 * np.sqrt(light) * 3 * demo.STEP * units.fs


@pytest.mark.usefixtures("_small")
def test_the_whole_demonstration(tmp_path: Path) -> None:
    """Taken up after the labelling of ethanol, then once more when all is done."""
    folder = tmp_path / "demo"
    folder.mkdir()
    ethanol = [frame for seed in range(2) for frame in demo.simulate(molecule("CH3CH2OH"), 25, seed)]
    ase.io.write(folder / "ethanol.extxyz", ethanol)
    out = succeed("demo", "--output", folder)
    assert "AUROC" in out
    assert f"report: {folder / 'report.html'}" in out
    assert "labelling ethanol" not in out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "dimethyl ether" in page
    assert "training the backbone" in page
    ether = ase.io.read(folder / "dimethyl_ether.extxyz", ":")
    assert len(ether) == 12
    assert {str(frame.symbols) for frame in ether} == {"COCH6"}
    header = read_header(folder / "run" / "model.sigmaff")
    assert header.energy_calibration is not None
    n_tested = json.loads((folder / "run" / "metrics.json").read_text())["n_structures"]
    assert 5 <= n_tested < 10, "gaps in time take up to half of the frames for the test"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.suffix != ".html"}
    succeed("demo", "--output", folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
