"""Metrics of a training: a CSV table, and what other programs show: TensorBoard, Weights & Biases, MLflow."""

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from sigmaff.files import atomic_write, flatten, naming, write_json
from sigmaff.training.config import TrainingConfig
from sigmaff.training.state import EpochRecord

METRICS, SETTINGS = "metrics.csv", "settings.json"
COLUMNS = [field.name for field in fields(EpochRecord)]
PROJECT = "sigmaff"


class Logger(Protocol):
    """Takes the numbers of an epoch. A resumed training continues what it began."""

    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """``metrics.csv``, ``settings.json`` and the loggers of a run; rows later than ``history`` are dropped first."""

    def __init__(
        self, directory: Path, history: Sequence[EpochRecord], config: TrainingConfig, total_steps: int
    ) -> None:
        self.path = directory / METRICS
        with atomic_write(self.path, force=True) as temporary, temporary.open("w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(asdict(record) for record in history)
        settings = config.model_dump(mode="json")
        write_json(directory / SETTINGS, {"total_steps": total_steps, "training": settings}, force=True)
        chosen = [make for name, make in LOGGERS.items() if getattr(config, name)]
        self.loggers = [make(directory, history, flatten(settings)) for make in chosen]

    def write(self, record: EpochRecord) -> None:
        row = asdict(record)
        with naming(self.path), self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        values = {name: value for name, value in row.items() if name != "step" and value is not None}
        for logger in self.loggers:
            logger.write(values, record.step)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


class TensorBoard:
    """Events in ``tensorboard/``."""

    def __init__(self, directory: Path, history: Sequence[EpochRecord], settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        next_step = history[-1].step + 1 if history else 1
        self.events = SummaryWriter(str(directory / "tensorboard"), purge_step=next_step)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.events.add_scalar(name, value, step)
        self.events.flush()

    def close(self) -> None:
        self.events.close()


class WeightsAndBiases:
    """A run of ``WANDB_PROJECT``, with files in ``wandb/``. Other variables count too, as ``WANDB_MODE=offline``."""

    def __init__(self, directory: Path, history: Sequence[EpochRecord], settings: dict[str, Any]) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", _name(directory)),
            id=_kept(directory / "wandb.txt", history, lambda: uuid4().hex[:12]),
            resume="allow",
            dir=directory,
            config=settings,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of ``MLFLOW_EXPERIMENT_NAME`` in the store of ``MLFLOW_TRACKING_URI``, else in that of MLflow's choice."""

    def __init__(self, directory: Path, history: Sequence[EpochRecord], settings: dict[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        self.run_id = _kept(directory / "mlflow.txt", history, lambda: self._begun(_name(directory), settings))
        self.client.update_run(self.run_id, status="RUNNING")

    def _begun(self, name: str, settings: dict[str, Any]) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(title)
        experiment = self.client.create_experiment(title) if known is None else known.experiment_id
        run_id: str = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(run_id, key, value)
        return run_id

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run_id, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


LOGGERS: dict[str, Callable[[Path, Sequence[EpochRecord], dict[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""By the setting that asks for each, which is also the module that it needs."""


def _name(directory: Path) -> str:
    """Of a run for people: its folder and its stage, such as ``run/backbone``."""
    return "/".join(directory.resolve().parts[-2:])


def _kept(file: Path, history: Sequence[EpochRecord], begin: Callable[[], str]) -> str:
    """The identity of a run elsewhere: that of the training which is resumed, or a new one."""
    if history and file.exists():
        return file.read_text(encoding="utf-8").strip()
    found = begin()
    with atomic_write(file, force=True) as temporary:
        temporary.write_text(found + "\n", encoding="utf-8")
    return found
