"""What the files of a training tell about it, while it runs and afterwards."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from sigmaff.errors import DataError
from sigmaff.files import is_locked
from sigmaff.progress import Pace
from sigmaff.training.logs import METRICS, SETTINGS
from sigmaff.training.state import EpochRecord

WHOLE = {"epoch", "step"}


@dataclass(frozen=True, kw_only=True)
class WatchedTraining:
    """The metrics of a training so far."""

    name: str  # its folder within that of the run
    history: tuple[EpochRecord, ...]
    total_steps: int | None  # None: not known, of an earlier version
    is_running: bool
    changed: float  # when its metrics were written last, s since 1970

    @property
    def seconds_left(self) -> float | None:
        """At its present pace; ``None`` if it does not run, or before two epochs."""
        if not self.is_running or self.total_steps is None:
            return None
        pace = Pace()
        for record in self.history:
            pace.look(record.seconds, record.step)
        return pace.seconds_left(self.total_steps)

    @property
    def best(self) -> EpochRecord | None:
        """The epoch with the lowest validation loss."""
        validated = [record for record in self.history if record.validation_loss is not None]
        return min(validated, key=lambda record: record.validation_loss or 0.0, default=None)


def trainings_in(folder: Path) -> list[WatchedTraining]:
    """All trainings of a run, a comparison or a campaign; the one that was written to last comes last."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the output directory of a run")
    found = [_read(path.parent, folder) for path in folder.glob(f"**/{METRICS}")]
    if not found:
        raise DataError(f"{folder}: no {METRICS} in it or below; a training writes it when it begins")
    return sorted(found, key=lambda training: training.changed)


def _read(directory: Path, folder: Path) -> WatchedTraining:
    path = directory / METRICS
    with path.open(encoding="utf-8", newline="") as file:
        rows = [_record(row) for row in csv.DictReader(file)]
    try:
        total_steps = json.loads((directory / SETTINGS).read_text(encoding="utf-8"))["total_steps"]
    except (OSError, ValueError, LookupError, TypeError):
        total_steps = None
    return WatchedTraining(
        name=str(directory.relative_to(folder)) if directory != folder else directory.resolve().name,
        history=tuple(row for row in rows if row is not None),
        total_steps=total_steps,
        is_running=is_locked(directory),
        changed=path.stat().st_mtime,
    )


def _record(row: Mapping[str, str | None]) -> EpochRecord | None:
    """A row of the table; ``None`` for one that is being written, or of another program."""
    values: dict[str, float | int | None] = {}
    try:
        for field in fields(EpochRecord):
            text = row[field.name]
            values[field.name] = None if text == "" else int(text or "") if field.name in WHOLE else float(text or "")
        return EpochRecord(**values)  # type: ignore[arg-type]
    except (KeyError, ValueError):
        return None
