"""A training that was stopped, however rudely, and called again ends as one that was not."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import training_case as case
from sigmaff.errors import ConfigError, ModelFileError, SigmaffError
from sigmaff.files import folder_lock
from sigmaff.training import CosineSchedule, ExponentialSchedule, TrainingResult, compiling, loop
from sigmaff.training.objective import Batch, LossTerms, Objective


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, TrainingResult]:
    model = case.potential(dropout=0.1)
    result = case.run(model, case.CONFIG, tmp_path_factory.mktemp("unbroken"))
    return case.weights(model), result


def losses(result: TrainingResult) -> list[tuple[float, float | None]]:
    return [(record.train_loss, record.validation_loss) for record in result.history]


def test_resume_after_a_kill_within_an_epoch(tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult]) -> None:
    command = [sys.executable, case.__file__, "kill", str(tmp_path), "8"]  # 5 steps an epoch
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    model, reporter = case.potential(dropout=0.1), case.Reporter()
    result = case.run(model, case.CONFIG, tmp_path, reporter)
    assert reporter.steps[0] == 6
    assert torch.equal(case.weights(model), unbroken[0])
    assert losses(result) == losses(unbroken[1])


@pytest.mark.parametrize(
    ("crash", "resumes_after"),
    [
        (case.Reporter(at_step=2), 0),
        (case.Reporter(at_step=11), 10),
        (case.Reporter(at_epoch=2), 5),  # after the row of the epoch is in the metrics, before its checkpoint
        (case.Reporter(at_epoch=3), 10),
    ],
)
def test_resume_after_a_crash_anywhere(
    tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult], crash: case.Reporter, resumes_after: int
) -> None:
    model = case.potential(dropout=0.1)
    start = case.weights(model)
    with pytest.raises(ZeroDivisionError):
        case.run(model, case.CONFIG, tmp_path, crash)
    assert torch.equal(case.weights(model), start)
    reporter = case.Reporter()
    result = case.run(model, case.CONFIG, tmp_path, reporter)
    assert reporter.done_steps == resumes_after
    assert torch.equal(case.weights(model), unbroken[0])
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert [float(row["validation_loss"]) for row in rows] == [r.validation_loss for r in result.history]


def test_resume_from_checkpoints_within_an_epoch(tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult]) -> None:
    often = case.CONFIG.model_copy(update={"checkpoint_minutes": 1e-9})
    model, reporter = case.potential(dropout=0.1), case.Reporter()
    with pytest.raises(ZeroDivisionError):
        case.run(model, often, tmp_path, case.Reporter(at_step=9))
    result = case.run(model, often, tmp_path, reporter)
    assert reporter.steps[0] == 9
    assert torch.equal(case.weights(model), unbroken[0])
    assert losses(result) == losses(unbroken[1])


def test_resume_after_an_interrupt(tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult]) -> None:
    model, reporter = case.potential(dropout=0.1), case.Reporter()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="after step 8 of 15; run the same command to resume"):
        case.run(model, case.CONFIG, tmp_path, case.Interrupter(at_step=7))
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt, match="after step 15 of 15"):
        case.run(model, case.CONFIG, tmp_path, case.Interrupter(at_epoch=3))
    case.run(model, case.CONFIG, tmp_path, reporter)
    assert reporter.done_steps == 15
    assert torch.equal(case.weights(model), unbroken[0])


def test_resume_after_the_last_step_of_an_epoch(tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult]) -> None:
    """The epoch is closed by the resumed run, with the learning rate of that step."""
    with pytest.raises(KeyboardInterrupt, match="after step 5 of 15"):
        case.run(case.potential(dropout=0.1), case.CONFIG, tmp_path, case.Interrupter(at_step=4))
    result = case.run(case.potential(dropout=0.1), case.CONFIG, tmp_path)
    rates = [[record.learning_rate for record in one.history] for one in (result, unbroken[1])]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_resume_after_the_signals_that_end_jobs_and_sessions(
    tmp_path: Path,
    unbroken: tuple[torch.Tensor, TrainingResult],
    number: signal.Signals,
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    request.addfinalizer(lambda: signal.signal(number, before))
    model, interrupter = case.potential(dropout=0.1), case.Interrupter(at_step=7)
    interrupter.number = number
    with pytest.raises(KeyboardInterrupt, match="after step 8 of 15; run the same command to resume"):
        case.run(model, case.CONFIG, tmp_path, interrupter)
    case.run(model, case.CONFIG, tmp_path)
    assert torch.equal(case.weights(model), unbroken[0])


def test_a_training_under_nohup_outlives_its_session(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupter = case.Interrupter(at_step=7)
        interrupter.number = signal.SIGHUP
        assert case.run(case.potential(), case.CONFIG, tmp_path, interrupter).history[-1].step == 15
    finally:
        signal.signal(signal.SIGHUP, before)


def compiler_with_other_rounding(objective: Objective) -> None:
    def compiled(batch: Batch) -> LossTerms:
        terms = objective._terms(batch)
        return terms._replace(forces_loss=terms.forces_loss * (1 + 1e-6))

    objective._compiled = compiled


@pytest.mark.parametrize("killed_at", [4, 9, 13])
def test_resume_compiles_at_the_step_of_an_unbroken_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    """Before, shortly after and long after that step. The compiled loss rounds differently, as real ones do."""
    monkeypatch.setattr(compiling, "MOST_STEPS", 7)
    monkeypatch.setattr(Objective, "_compile", compiler_with_other_rounding)
    models = {name: case.potential() for name in ("eager", "unbroken", "killed")}
    case.run(models["eager"], case.CONFIG.model_copy(update={"compile": False}), tmp_path / "eager")
    result = case.run(models["unbroken"], case.CONFIG, tmp_path / "unbroken")
    assert result.compiled_from == 7
    with pytest.raises(ZeroDivisionError):
        case.run(models["killed"], case.CONFIG, tmp_path / "killed", case.Reporter(at_step=killed_at))
    again = case.run(models["killed"], case.CONFIG, tmp_path / "killed")
    assert again.compiled_from == 7
    assert losses(again) == losses(result)
    assert torch.equal(case.weights(models["killed"]), case.weights(models["unbroken"]))
    assert not torch.equal(case.weights(models["eager"]), case.weights(models["unbroken"]))
    assert case.run(models["killed"], case.CONFIG, tmp_path / "killed") == again


def test_resume_of_a_run_of_an_earlier_version_stays_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_STEPS", 7)
    monkeypatch.setattr(Objective, "_compile", compiler_with_other_rounding)
    model, eager = case.potential(), case.potential()
    case.run(eager, case.CONFIG.model_copy(update={"compile": False}), tmp_path / "eager")
    with monkeypatch.context() as earlier:
        earlier.setattr(loop, "compile_step", lambda *_: None)  # checkpoints did not have this number
        with pytest.raises(ZeroDivisionError):
            case.run(model, case.CONFIG, tmp_path / "run", case.Reporter(at_step=6))
    assert case.run(model, case.CONFIG, tmp_path / "run").compiled_from is None
    assert torch.equal(case.weights(model), case.weights(eager))


def test_resume_of_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    model, reporter = case.potential(), case.Reporter()
    first = case.run(model, case.CONFIG, tmp_path)
    again = case.potential()
    assert case.run(again, case.CONFIG, tmp_path, reporter) == first
    assert case.run(model, case.CONFIG, tmp_path, reporter) == first
    assert reporter.steps == []
    assert torch.equal(case.weights(again), case.weights(model))


def test_resume_with_raised_limits_extends_a_run(tmp_path: Path, unbroken: tuple[torch.Tensor, TrainingResult]) -> None:
    model = case.potential(dropout=0.1)
    no_time = case.CONFIG.model_copy(update={"time_limit_minutes": 1e-9})
    assert case.run(model, no_time, tmp_path).stopped_because == "time_limit"
    one_epoch = case.CONFIG.model_copy(update={"max_epochs": 2})
    assert case.run(model, one_epoch, tmp_path).stopped_because == "max_epochs"
    result = case.run(model, case.CONFIG, tmp_path)
    assert torch.equal(case.weights(model), unbroken[0])
    assert [record.step for record in result.history] == [1, 5, 10, 15]


def test_resume_refuses_a_changed_run(tmp_path: Path) -> None:
    model = case.potential()
    case.run(model, case.CONFIG, tmp_path)
    slower = case.CONFIG.model_copy(update={"learning_rate": 1e-4})
    with pytest.raises(ConfigError, match=r"training.learning_rate: was 0.005, now 0.0001\).*--force"):
        case.run(case.potential(), slower, tmp_path)
    with pytest.raises(ConfigError, match="starting weights changed"):
        case.run(case.potential(seed=1), case.CONFIG, tmp_path)
    with pytest.raises(ConfigError, match="training set changed"):
        case.train(case.potential(), case.train_set(20), case.validation_set(), case.CONFIG, tmp_path, seed=7)
    forced, fresh = case.potential(), case.potential()
    data = case.train_set(), case.validation_set()
    case.train(forced, *data, slower, tmp_path, seed=7, force=True)
    case.train(fresh, *data, slower, tmp_path / "fresh", seed=7)
    assert torch.equal(case.weights(forced), case.weights(fresh))


def test_end_of_a_cosine_cannot_be_moved() -> None:
    longer = {"max_epochs": 4}
    cosine = case.CONFIG.model_copy(update={"schedule": CosineSchedule(warmup_steps=5)})
    exponential = case.CONFIG.model_copy(update={"schedule": ExponentialSchedule(warmup_steps=5)})
    assert cosine.trajectory() != cosine.model_copy(update=longer).trajectory()
    assert exponential.trajectory() == exponential.model_copy(update=longer).trajectory()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", (2**62).to_bytes(8, "little") + b"{}"])
def test_resume_reports_a_damaged_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged or no checkpoint"):
        case.run(case.potential(), case.CONFIG, tmp_path)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(SigmaffError, match="another process is at work"):
        case.run(case.potential(), case.CONFIG, tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()
