"""The learning curve of a run: read from its files, while it trains and afterwards."""

import shutil
from pathlib import Path

import pytest

import training_case as case
from cli_case import Workspace, fail, succeed
from sigmaff.cli.watch import plot
from sigmaff.training.watched import trainings_in

pytest_plugins = ["cli_fixtures"]


class Watching(case.Reporter):
    """Looks at a training from outside at the end of one of its epochs."""

    def __init__(self, folder: Path, at_epoch: int) -> None:
        super().__init__(at_epoch=at_epoch)
        self.folder, self.text = folder, ""

    def act(self) -> None:
        (training,) = trainings_in(self.folder)
        assert training.is_running
        last = training.history[-1]
        assert (last.epoch, last.step, training.total_steps) == (3, 15, 25)
        assert 0 < (training.seconds_left or 0) <= 10 * last.seconds
        self.text = succeed("watch", self.folder, "--once")


def test_a_training_is_watched_while_it_runs(tmp_path: Path) -> None:
    watching = Watching(tmp_path, at_epoch=3)
    result = case.run(case.potential(), case.CONFIG.model_copy(update={"max_epochs": 5}), tmp_path / "a", watching)
    assert "epoch 3, step 15 of 25" in watching.text
    assert " left" in watching.text
    (training,) = trainings_in(tmp_path)
    assert training.history == result.history
    assert not training.is_running
    assert training.best is not None
    assert training.best.epoch == result.best_epoch


def test_a_finished_run_shows_its_curve_within_80_columns(workspace: Workspace) -> None:
    text = succeed("watch", workspace / "run", "--once")
    (training,) = trainings_in(workspace / "run")
    last = training.history[-1]
    assert ", done" in text
    assert f"{1000 * last.forces_mae:.4g}" in text
    assert f"best (epoch {training.best.epoch})" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "●" in text


def test_what_is_half_written_is_left_out(workspace: Workspace, tmp_path: Path) -> None:
    """And runs of earlier versions, which have no settings.json, are shown without a total."""
    shutil.copy(workspace / "run" / "backbone" / "metrics.csv", tmp_path)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("16,80,0.0")
    (training,) = trainings_in(tmp_path)
    assert [record.epoch for record in training.history] == list(range(1, 16))
    assert "step 75, " in succeed("watch", tmp_path)


def test_nothing_to_watch(tmp_path: Path) -> None:
    assert "no metrics.csv" in fail("watch", tmp_path)
    assert "no such folder" in fail("watch", tmp_path / "nowhere")


def test_curves_fall_where_losses_fall() -> None:
    """A geometric series is a straight line on the logarithmic scale; the axis tells its ends."""
    series = [(epoch, 2.0 ** -(epoch - 1)) for epoch in range(1, 12)]
    *lines, axis = (text.plain for text in plot([series, []], width=21, n_rows=11))
    start = lines[0].index("│") + 1
    assert [line[start:].index("·") for line in lines] == list(range(11))
    assert lines[0].split()[0] == "1"
    assert float(lines[-1].split()[0]) == pytest.approx(2**-10, rel=1e-2)
    assert "epoch 1 to 11" in axis
    assert "logarithmic" in axis
    negative = [text.plain for text in plot([[(1, 1.0), (2, -1.0)], [(2, 0.0)]], width=40, n_rows=3)]
    assert "●" in negative[1]
