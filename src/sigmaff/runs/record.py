"""The record of a run in its model file, and the check that a run is still the same."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sigmaff.config import with_unnamed
from sigmaff.data import Split
from sigmaff.files import changes, flatten, refuse_changes
from sigmaff.heads.base import FORMER_DEFAULTS
from sigmaff.models.file import read_header
from sigmaff.models.record import RunRecord, SplitRecord
from sigmaff.runs.config import RunConfig


def check_unchanged(config: RunConfig, model_path: Path) -> RunRecord:
    """Return the record of the model that this run made; raise an error if another run made it."""
    record = read_header(model_path).record
    remedy = "choose another output directory, or use --force to replace it"
    refuse_changes(model_path, _changes(record, config), remedy)
    return record


def record_of(config: RunConfig, split: Split, record: RunRecord) -> RunRecord:
    """Add the settings, data, date and versions of its run to a record, for the model file."""
    return record.model_copy(
        update={
            "config": config.model_dump(mode="json"),
            "data_sha256": config.data.digest(),
            "data_files": config.data.digests(),
            "split": SplitRecord.model_validate(split.to_dict()),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "versions": {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy")},
        }
    )


def _decisive(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the model: not where it is written, nor how fast."""
    content = config.model_dump(mode="json", exclude={"output", "training", "head_training"})
    limits = {"max_epochs", "patience", "time_limit_minutes"}
    for name, training in (("training", config.training), ("head_training", config.head_training)):
        content[name] = None if training is None else training.trajectory() | training.model_dump(include=limits)
    return content


def _changes(record: RunRecord, config: RunConfig) -> list[str]:
    """The settings and data that decide the model and have changed."""
    recorded = flatten(record.config or {})
    began = {name: recorded.get(name, was) for name, was in FORMER_DEFAULTS.items()}
    try:
        before = _decisive(with_unnamed(RunConfig.model_validate(record.config), began))
    except ValidationError:
        return ["its settings are not recorded, or not those of this version of sigmaff"]
    config = with_unnamed(config, began)
    name, digest = "data files", config.data.digest() or record.data_sha256
    if len(config.data.sources) == 1:
        name = str(config.data.sources[0].path)
    return changes(before | {name: record.data_sha256}, _decisive(config) | {name: digest})
