"""The record of a run in its model file, and the check that a run is still the same."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sigmaff.config import with_unnamed
from sigmaff.data import Split
from sigmaff.files import changes, file_digest, flatten, refuse_changes
from sigmaff.heads.base import FORMER_DEFAULTS
from sigmaff.models.file import read_header
from sigmaff.models.record import RunRecord, SplitRecord
from sigmaff.runs.config import RunConfig

LIMITS = ("max_epochs", "patience", "time_limit_minutes")
"""Settings of a training that end it. A run with raised limits goes on."""


def check_unchanged(config: RunConfig, model_path: Path) -> RunRecord:
    """Return the record of the model that this run made; raise an error if another run made it."""
    record = read_header(model_path).record
    changed = _changes(record, config)
    remedy = "choose another output directory, or use --force to replace it"
    if any("max_epochs: " in text for text in changed):
        remedy += ". A higher max_epochs extends a run, but not that of a cosine schedule, which ends with max_epochs"
    refuse_changes(model_path, changed, remedy)
    return record


def only_raises_limits(config: RunConfig, model_path: Path) -> bool:
    """Whether all that differs from the run that made this model are limits of its training, which are raised.

    With a cosine schedule a longer training is another one from its first step: it is not the same run.
    """
    try:
        before, now = _identities(read_header(model_path).record, config)
    except ValidationError:
        return False
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    return bool(changed) and all(_is_raised(name, before.get(name), now.get(name), config) for name in changed)


def _is_raised(name: str, was: Any, now: Any, config: RunConfig) -> bool:
    section, _, limit = name.rpartition(".")
    if section not in ("training", "head_training") or limit not in LIMITS:
        return False
    training = getattr(config, section)
    if limit == "max_epochs" and "max_epochs" in training.trajectory():
        return False
    return was is not None and (now is None or now > was)


def as_begun(config: RunConfig, model_path: Path) -> RunConfig:
    """With what the run of this model began with, where nobody names something else."""
    return with_unnamed(config, _began(read_header(model_path).record))


def record_of(config: RunConfig, split: Split, record: RunRecord) -> RunRecord:
    """Add the settings, data, date and versions of its run to a record, for the model file."""
    return record.model_copy(
        update={
            "config": config.model_dump(mode="json"),
            "data_sha256": config.data.digest(),
            "files_sha256": {name: file_digest(path) for name, path in _files(config).items() if path.is_file()},
            "split": SplitRecord.model_validate(split.to_dict()),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "versions": {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy")},
        }
    )


def _decisive(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the model: not where it is written, nor how fast."""
    content = config.model_dump(mode="json", exclude={"output", "training", "head_training"})
    for name, training in (("training", config.training), ("head_training", config.head_training)):
        content[name] = None if training is None else training.trajectory() | training.model_dump(include=set(LIMITS))
    return flatten(content)


def _files(config: RunConfig) -> dict[str, Path]:
    """Files that decide the model, by the name of their setting."""
    settings = flatten(config.model_dump(exclude={"output"}))
    return {name: path for name, path in settings.items() if isinstance(path, Path)}


def _began(record: RunRecord) -> dict[str, Any]:
    recorded = flatten(record.config or {})
    return {name: recorded.get(name, was) for name, was in FORMER_DEFAULTS.items()}


def _changes(record: RunRecord, config: RunConfig) -> list[str]:
    """The settings and files that decide the model and have changed."""
    try:
        return changes(*_identities(record, config))
    except ValidationError:
        return ["its settings are not recorded, or not those of this version of sigmaff"]


def _identities(record: RunRecord, config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and files that decide the model, by name: as recorded, and now.

    A file is known by its content, wherever it is; by its path where its content is not recorded or it is missing.
    """
    began = _began(record)
    before = _decisive(with_unnamed(RunConfig.model_validate(record.config), began))
    now = _decisive(with_unnamed(config, began))
    recorded = {"data.source.path": record.data_sha256} | record.files_sha256
    for name, path in _files(config).items():
        was, digest = recorded.get(name), file_digest(path) if path.is_file() else None
        if was is None or digest is None:
            continue
        if was == digest:
            before[name] = now[name]
        elif before.get(name) == now[name] and name != "backbone_from":  # a backbone trained further is still the same
            before[str(path)], now[str(path)] = was, digest
    return before, now
