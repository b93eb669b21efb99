"""Guarded molecular dynamics that is interrupted: the same files in the end, to the last bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

import md_case
from calculator_case import LNK_CONFIG, build_potential, ethanol, water_crystal
from md_case import RESTARTED, WAYS, Wells, at_sites, changed, files, final_state, name_of
from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.files import folder_lock
from sigmaff.graph import skin
from sigmaff.graph.neighbors import search_pairs
from sigmaff.models.prediction import Predictor
from sigmaff.progress import Listener
from sigmaff.simulation.md import MDConfig, Scores, run_md
from sigmaff.simulation.md.checkpoint import Checkpoint, read_checkpoint

SHORT = changed(RESTARTED, steps=60)


class StoppedError(Exception):
    """What a test interrupts a run with."""


class Stopper(Listener):
    """Interrupts a run after so many callbacks."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            raise StoppedError


def interrupted(model: Predictor, start: Atoms, config: MDConfig, directory: Path, *, calls: int) -> None:
    """A run that is broken off after so many steps."""
    with pytest.raises(StoppedError):
        run_md(model, [start], config, directory, Stopper(calls))


def test_resume_after_a_kill_gives_the_uninterrupted_trajectory(tmp_path: Path):
    """kill −9 twice in the middle, between states to go on from."""
    directory = tmp_path / "killed"
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, md_case.__file__, str(directory)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(25):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    config = changed(RESTARTED, steps=100)  # beyond what the two processes have done
    killed = run_md(Wells(), [at_sites()], config, directory)
    unbroken = run_md(Wells(), [at_sites()], config, tmp_path / "unbroken")
    assert files(directory) == files(tmp_path / "unbroken")
    assert killed.records == unbroken.records
    assert {"log.csv", "md.json", "trajectory-0.extxyz", "trajectory-1.extxyz"} <= files(directory).keys()
    assert unbroken.records[1].crossings > 0


def test_resume_between_a_rollback_and_the_next_checkpoint(tmp_path: Path):
    """A rollback of 9 steps cuts the trajectory below its size at the last checkpoint, 7 steps ago at most."""
    config = changed(RESTARTED, temperature=(900.0,), steps=60)
    unbroken = run_md(Wells(), [at_sites()], config, tmp_path / "unbroken")
    assert unbroken.records[0].crossings > 1
    for calls in range(8, 60, 5):
        directory = tmp_path / f"broken-{calls}"
        interrupted(Wells(), at_sites(), config, directory, calls=calls)
        resumed = run_md(Wells(), [at_sites()], config, directory)
        assert resumed.records == unbroken.records, calls
        assert files(directory) == files(tmp_path / "unbroken"), calls


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_resume_after_an_interrupt_with_every_thermostat(way: MDConfig, tmp_path: Path):
    potential, start = build_potential(LNK_CONFIG), water_crystal()
    config = changed(way, steps=12, replicas=2, every=3, check_every=6, drift_every=6, checkpoint_every=5)
    interrupted(potential, start, config, tmp_path / "broken", calls=8)
    run_md(potential, [start], config, tmp_path / "broken")
    run_md(potential, [start], config, tmp_path / "unbroken")
    assert files(tmp_path / "broken") == files(tmp_path / "unbroken")
    for name, values in final_state(tmp_path / "unbroken", 1).items():
        assert values.tobytes() == final_state(tmp_path / "broken", 1)[name].tobytes()


def test_resume_does_not_depend_on_when_neighbours_were_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Hot crystals, whose atoms leave the skin again and again; a resumed run begins with a search of its own."""
    searched: list[int] = []

    def counted(*where: Any) -> Any:
        searched.append(len(where[0]))
        return search_pairs(*where)

    monkeypatch.setattr(skin, "search_pairs", counted)
    potential, start = build_potential(LNK_CONFIG), water_crystal()
    config = MDConfig(temperature=400.0, timestep=1.0, steps=24, replicas=2, every=5, forces_std="none", hottest=1e9)
    config = changed(config, checkpoint_every=3)
    unbroken = run_md(potential, [start], config, tmp_path / "unbroken")
    n_steps = max(record.ended_at or 0 for record in unbroken.records)  # atoms may overlap before the end
    assert len(searched) > 4
    for calls in (n_steps // 3, 2 * n_steps // 3):
        directory = tmp_path / f"broken-{calls}"
        interrupted(potential, start, config, directory, calls=calls)
        run_md(potential, [start], config, directory)
        assert files(directory) == files(tmp_path / "unbroken")
        momenta = [final_state(folder, 1)["momenta"] for folder in (directory, tmp_path / "unbroken")]
        assert momenta[0].tobytes() == momenta[1].tobytes()


@pytest.mark.parametrize("on_crossing", ["stop", "rollback"])
def test_resume_beside_replicas_that_have_ended(on_crossing: str, tmp_path: Path):
    """Some of six end at a crossing, and the others move on in a smaller batch."""
    config = changed(SHORT, temperature=(150.0, 500.0), replicas=3, on_crossing=on_crossing, max_rollbacks=1)
    unbroken = run_md(Wells(), [at_sites()], config, tmp_path / "unbroken")
    endings = {record.ending for record in unbroken.records}
    assert endings == {"finished", "crossing"}
    for calls in (3, 20, 41):
        directory = tmp_path / f"broken-{calls}"
        interrupted(Wells(), at_sites(), config, directory, calls=calls)
        assert run_md(Wells(), [at_sites()], config, directory).records == unbroken.records
        assert files(directory) == files(tmp_path / "unbroken")


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Although another thread writes it."""
    written: list[Checkpoint] = []

    def full(self: Checkpoint, directory: Path) -> None:
        written.append(self)
        if len(written) > 2:
            raise OSError("no space left")

    monkeypatch.setattr(Checkpoint, "write", full)
    with pytest.raises(OSError, match="no space left"):
        run_md(Wells(), [at_sites()], SHORT, tmp_path)
    assert len(written) == 3


def test_a_checkpoint_gives_back_what_it_was_given(tmp_path: Path):
    """Also where replicas have states of other numbers, sizes and names."""
    histories = [
        {"positions": np.arange(12.0).reshape(2, 2, 3), "step": np.array([3, 4])},
        {"positions": np.arange(9.0).reshape(1, 3, 3) / 7, "step": np.array([2]), "thermostat": np.ones((1, 3))},
        {},
    ]
    Checkpoint(sizes={"log.csv": 5}, memories=[{"a": k} for k in range(3)], histories=histories).write(tmp_path)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert (found.sizes, found.memories) == ({"log.csv": 5}, [{"a": 0}, {"a": 1}, {"a": 2}])
    for state, expected in zip(found.histories, histories, strict=True):
        assert state.keys() == expected.keys()
        for name, values in expected.items():
            assert state[name].dtype == values.dtype
            np.testing.assert_array_equal(state[name], values)


def test_resume_keeps_the_drift_monitor(tmp_path: Path):
    """Its alarm comes from frames before and after the interruption."""
    reference = Scores(forces_std=np.linspace(0.1, 0.8, 29), forces_error=np.ones(29))
    way = MDConfig(temperature=500.0, timestep=4.0, steps=40, check_every=2, drift_every=2, checkpoint_every=3)
    config = changed(way, false_alarm=0.1)  # a third of the looks, of which the first are small
    with pytest.raises(StoppedError):
        run_md(Wells(), [at_sites()], config, tmp_path / "broken", Stopper(9), calibration=reference)
    broken, unbroken = (
        run_md(Wells(), [at_sites()], config, tmp_path / name, calibration=reference) for name in ("broken", "unbroken")
    )
    assert broken.records == unbroken.records
    drift = unbroken.records[0].drift_step
    assert drift is not None
    assert drift > 9


def test_resume_with_more_steps_extends_a_finished_run(tmp_path: Path):
    config = changed(SHORT, stop_above=None, on_crossing="stop")
    run_md(Wells(), [at_sites()], changed(config, steps=23), tmp_path / "longer")
    run_md(Wells(), [at_sites()], config, tmp_path / "longer")
    run_md(Wells(), [at_sites()], config, tmp_path / "unbroken")
    assert files(tmp_path / "longer") == files(tmp_path / "unbroken")


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path):
    first = run_md(Wells(), [at_sites()], SHORT, tmp_path)
    before, saved = files(tmp_path), (tmp_path / "checkpoint.npz").stat().st_mtime_ns
    again = run_md(Wells(), [at_sites()], SHORT, tmp_path)
    assert again.records == first.records
    assert len(again.crossings) == len(first.crossings)
    assert files(tmp_path) == before
    assert (tmp_path / "checkpoint.npz").stat().st_mtime_ns == saved


def test_resume_refuses_the_directory_of_another_run(tmp_path: Path):
    potential, other = build_potential(LNK_CONFIG), build_potential(LNK_CONFIG)
    other.backbone.get_parameter(next(name for name, _ in other.backbone.named_parameters())).data += 0.1
    config = MDConfig(temperature=300.0, steps=0)
    run_md(potential, [ethanol()], config, tmp_path)
    with pytest.raises(ConfigError, match=r"another run \(seed: was 0, now 1\)"):
        run_md(potential, [ethanol()], changed(config, seed=1), tmp_path)
    with pytest.raises(ConfigError, match=r"another run \(model changed"):
        run_md(other, [ethanol()], config, tmp_path)
    with pytest.raises(ConfigError, match=r"another run \(starts changed"):
        run_md(potential, [water_crystal()], config, tmp_path)


def test_resume_refuses_a_directory_in_use(tmp_path: Path):
    run_md(Wells(), [at_sites()], SHORT, tmp_path)
    before = files(tmp_path)
    with folder_lock(tmp_path), pytest.raises(SigmaffError, match="another process is at work"):
        run_md(Wells(), [at_sites()], changed(SHORT, steps=2 * SHORT.steps), tmp_path)
    assert files(tmp_path) == before


def test_a_directory_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        run_md(Wells(), [at_sites()], SHORT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_start_leaves_the_directory_free(tmp_path: Path):
    close = at_sites()
    close.positions[1] = close.positions[0] + [0.3, 0.0, 0.0]
    with pytest.raises(DataError, match="start 0"):
        run_md(Wells(), [close], SHORT, tmp_path)
    run_md(Wells(), [at_sites()], SHORT, tmp_path)
    assert not (tmp_path / "broken.extxyz").exists()


@pytest.mark.parametrize("name", ["checkpoint.npz", "log.csv"])
def test_resume_reports_damaged_files(name: str, tmp_path: Path):
    run_md(Wells(), [at_sites()], SHORT, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-200])
    with pytest.raises(DataError, match=f"{name} .*remove"):
        run_md(Wells(), [at_sites()], SHORT, tmp_path)
