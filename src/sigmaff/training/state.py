"""The state of a training, its history, and when it stops."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from sigmaff.errors import SigmaffError
from sigmaff.training.config import TrainingConfig

StoppedBecause = Literal["max_epochs", "patience", "time_limit"]


class TrainingDivergedError(SigmaffError):
    """A loss or a gradient is not a finite number."""


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One row of the metrics. Validation values are of the averaged weights; ``None`` without a validation."""

    epoch: int  # from 1
    step: int  # optimiser steps taken
    learning_rate: float  # of the backbone
    train_loss: float  # mean over the batches of the epoch
    validation_loss: float | None = None
    energy_mae: float | None = None  # eV
    forces_mae: float | None = None  # eV/Å
    seconds: float  # since the start, pauses between resumptions left out

    @property
    def note(self) -> str:
        """The validation errors in one line; empty where none was made."""
        if self.energy_mae is None:
            return ""
        forces = "" if self.forces_mae is None else f", F {1000 * self.forces_mae:.1f} meV/Å"
        return f"epoch {self.epoch}: validation MAE E {1000 * self.energy_mae:.2f} meV{forces}"


class TrainingState(BaseModel):
    """The numbers of a checkpoint; its tensors are the rest."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches done of the current epoch
    step: int = 0  # optimiser steps taken
    seconds: float = 0.0
    loss_sum: float = 0.0  # over the batches done of the current epoch
    best_epoch: int | None = None  # 0: before the first step, of a head alone
    best_loss: float | None = None
    compile_from: int | None = None  # step from which ``compile: auto`` compiles; None: never
    compiled_from: int | None = None  # step from which the loss is compiled; None: it is not, so far
    history: list[EpochRecord] = []

    def stopped_because(self, config: TrainingConfig) -> StoppedBecause | None:
        """Why this training is over, or ``None``. Raise the limits to resume it."""
        if self.epoch >= config.max_epochs:
            return "max_epochs"
        validated = [record.epoch for record in self.history if record.validation_loss is not None]
        since_best = validated[-1] - (self.best_epoch or 0) if validated else 0  # up to the last validation
        if config.patience is not None and since_best >= config.patience:
            return "patience"
        return "time_limit" if self.is_late(config) else None

    def is_late(self, config: TrainingConfig) -> bool:
        return config.time_limit_minutes is not None and self.seconds >= 60 * config.time_limit_minutes


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a training. The potential holds the averaged weights of the best epoch."""

    best_epoch: int
    best_validation_loss: float
    history: tuple[EpochRecord, ...]
    seconds: float
    stopped_because: StoppedBecause
    compiled_from: int | None = None  # step from which the loss was compiled; None: it was not
    is_main_process: bool  # the one process of a distributed training that should write files
