"""What a model file tells of the run that made it, and whether a run is still that run."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sigmaff.data import Split
from sigmaff.errors import ConfigError
from sigmaff.files import file_digest
from sigmaff.models.file import read_header
from sigmaff.runs.config import RunConfig
from sigmaff.training.checkpoint import flatten


def check_unchanged(config: RunConfig, model_path: Path) -> dict[str, Any]:
    """The record of a model that this run made, or an error where another run made it."""
    record = read_header(model_path).record
    if changes := _changes(record, config):
        raise ConfigError(
            f"{model_path} is the model of another run ({'; '.join(changes)}); choose another output directory, "
            "or use --force to replace it"
        )
    return record


def record_of(config: RunConfig, split: Split, results: dict[str, Any]) -> dict[str, Any]:
    """How the model was made, for its file."""
    return results | {
        "config": config.model_dump(mode="json"),
        "data_sha256": file_digest(config.data.source.path),
        "split": split.to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy")},
    }


def _decisive(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the model, by name: not where it is written, nor how fast."""
    content = config.model_dump(mode="json", exclude={"output", "training", "head_training"})
    for name, training in (("training", config.training), ("head_training", config.head_training)):
        limits = (
            {} if training is None else training.model_dump(include={"max_epochs", "patience", "time_limit_minutes"})
        )
        content[name] = None if training is None else training.trajectory() | limits
    return flatten("", content)


def _changes(record: dict[str, Any], config: RunConfig) -> list[str]:
    """What decides a model and is not as it was when the recorded one was made."""
    try:
        before = _decisive(RunConfig.model_validate(record["config"]))
    except (KeyError, ValidationError):
        return ["its settings are not recorded, or not those of this version of sigmaff"]
    now, path = _decisive(config), config.data.source.path
    changes = [
        f"{key}: was {before.get(key)}, now {now.get(key)}" for key in before | now if before.get(key) != now.get(key)
    ]
    if path.is_file() and record.get("data_sha256") != file_digest(path):
        changes.append(f"{path} has changed")
    return changes
