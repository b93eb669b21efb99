"""Weights & Biases and MLflow, the real packages without a network: what they keep of a training is its history."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import training_case as case
from sigmaff.training import TrainingResult

NAMES = ("train_loss", "validation_loss", "energy_mae", "forces_mae", "learning_rate", "seconds")


def resumed(directory: Path, name: str) -> TrainingResult:
    """Two epochs, and one more after a pause."""
    config = case.CONFIG.model_copy(update={name: True})
    case.run(case.potential(), config.model_copy(update={"max_epochs": 2}), directory)
    return case.run(case.potential(), config, directory)


def log_records(content: bytes, header: int = 7, block: int = 32768) -> Iterator[bytes]:
    """Records of a file in the log format of LevelDB: pieces of blocks, each with checksum, length and kind."""
    place, parts = header, []
    while place + 7 <= len(content):
        if block - place % block < 7:  # no room for another piece
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield b"".join(parts)
            parts = []


def wandb_history(directory: Path) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Run, step and values of each row that the offline files of Weights & Biases hold, in order of time."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        for content in log_records(path.read_bytes()):
            record = Record.FromString(content)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                yield path.stem, values["_step"], values


def test_wandb_keeps_one_run_of_a_resumed_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = resumed(tmp_path, "wandb")
    runs, steps, rows = zip(*wandb_history(tmp_path), strict=True)
    assert len(set(runs)) == 1
    assert list(steps) == [record.step for record in result.history]
    for name in NAMES:
        assert [row[name] for row in rows] == pytest.approx([getattr(record, name) for record in result.history])


def test_mlflow_keeps_one_run_of_a_resumed_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = resumed(tmp_path / "run", "mlflow")
    client = tracking.MlflowClient()
    experiment = client.get_experiment_by_name("sigmaff")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["learning_rate"] == "0.005"
    for name in NAMES:
        kept = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert kept == [(record.step, getattr(record, name)) for record in result.history]
