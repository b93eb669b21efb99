"""Metrics of a training as a CSV table and as TensorBoard events."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from sigmaff.files import atomic_write
from sigmaff.training.state import EpochRecord

COLUMNS = [field.name for field in fields(EpochRecord)]


if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsLog:
    """``metrics.csv`` and ``tensorboard/`` of a run; rows later than ``history`` are dropped first."""

    def __init__(self, directory: Path, history: Sequence[EpochRecord], *, tensorboard: bool) -> None:
        self.path = directory / "metrics.csv"
        with atomic_write(self.path, force=True) as temporary, temporary.open("w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(asdict(record) for record in history)
        next_step = history[-1].step + 1 if history else 1
        self.events = _events(directory / "tensorboard", next_step) if tensorboard else None

    def write(self, record: EpochRecord) -> None:
        row = asdict(record)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        if self.events is not None:
            for name, value in row.items():
                if name != "step" and value is not None:
                    self.events.add_scalar(name, value, record.step)
            self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def _events(directory: Path, next_step: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory), purge_step=next_step)
