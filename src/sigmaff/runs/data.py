"""The structures of a run: read, split, and with their statistics."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from sigmaff.backbones import AdoptConfig
from sigmaff.config import with_unnamed
from sigmaff.data import (
    DatasetStatistics,
    GraphDataset,
    LabelledStructures,
    ReferenceEnergies,
    Split,
    common_state,
    compute_statistics,
    join_structures,
    overlap_warnings,
    read_parts,
    require_elements,
    split_parts,
)
from sigmaff.data.check.gate import require_sound
from sigmaff.data.files import Parts
from sigmaff.data.splits import PARTS
from sigmaff.data.statistics import remedy
from sigmaff.errors import ConfigError, ModelFileError
from sigmaff.files import write_json
from sigmaff.heads.base import FORMER_DEFAULTS
from sigmaff.models.adopt import read_potential
from sigmaff.models.record import SplitRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import DataConfig, RunConfig
from sigmaff.training.checkpoint import CHECKPOINT, read_checkpoint
from sigmaff.training.weights import check_groups

SPLIT_FILE = "split.json"
MADE = ("model.sigmaff", "backbone.sigmaff", "checkpoint.safetensors")
"""Files that a run makes."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The parts of a split, as graphs."""

    split: Split
    train: GraphDataset
    validation: GraphDataset
    test: GraphDataset | None
    statistics: DatasetStatistics


def load_data(config: RunConfig, listener: Listener | None = None, *, skip_checks: bool = False) -> RunData:
    """Read, check and split the structures; raise an error before hours of training.

    What was checked when a run began is not checked again when it resumes.
    """
    parts = read_parts(config.data)
    for part in () if skip_checks or _is_begun(config) else parts.values():
        require_sound(part, listener)
    structures, split = join_structures(list(parts.values())), _split(config, parts)
    if not len(split.validation):
        raise ConfigError("data.split.n_validation is 0: a run needs validation structures to stop and calibrate by")
    for text in overlap_warnings(structures, split) if len(config.data.sources) > 1 else ():
        (listener or Listener()).warn(text)
    data = split_data(structures, split, config)
    kept = SplitFile(data=config.data, data_sha256=config.data.digest(), split=split.to_dict())
    write_json(config.output / SPLIT_FILE, kept.model_dump(mode="json"), force=True)
    return data


class SplitFile(BaseModel):
    """The split of a run, so that it stays the same in a run that resumes, on another machine or version."""

    data: DataConfig
    data_sha256: str | None
    split: SplitRecord

    def is_of(self, data: DataConfig) -> bool:
        """Whether the settings and the content of the files are these, wherever the files are now."""

        def anywhere(files: DataConfig) -> DataConfig:
            return files.changed(lambda source: source.model_copy(update={"path": Path()}))

        return (anywhere(self.data), self.data_sha256) == (anywhere(data), data.digest())


def settled(config: RunConfig) -> RunConfig:
    """The settings with the kind of split and the settings of the head that the run began with.

    A directory with models or checkpoints and without a split file is from before ``auto``: its split is random.
    """
    config = _with_head_begun(config)
    split, before = config.data.split, _kept(config)
    if split.kind != "auto" or not _has_made(config):
        return config
    kind = "random" if before is None else before.data.split.kind
    data = config.data.model_copy(update={"split": split.model_copy(update={"kind": kind})})
    return config.model_copy(update={"data": data})


def _has_made(config: RunConfig) -> bool:
    """Whether the directory of the run has models or checkpoints."""
    return any(any(config.output.glob(f"**/{name}")) for name in MADE)


def _with_head_begun(config: RunConfig) -> RunConfig:
    """With what an interrupted training of the head began with, where nobody names something else."""
    path = config.output / "head" / CHECKPOINT
    try:
        began = read_checkpoint(path)[-1]
    except (FileNotFoundError, ModelFileError):  # nothing to resume, or nothing that can be read: told on resuming
        return config
    of_head = {name: was for name, was in FORMER_DEFAULTS.items() if name.startswith("model.head.")}
    return with_unnamed(config, {name: began.get(name, was) for name, was in of_head.items()})


def _split(config: RunConfig, parts: Parts) -> Split:
    """The split that the run began with, or a new one."""
    before = _kept(config)
    if before is None or not _is_begun(config):
        return split_parts(config.data.split, parts)
    kept = before.split
    indices = (np.array(part, dtype=np.int64) for part in (kept.train, kept.validation, kept.test))
    return Split(**dict(zip(PARTS, indices, strict=True)), reason=kept.reason)


def tell_compositions(
    statistics: DatasetStatistics, data: RunData, listener: Listener, key: str = "data.reference_energies"
) -> None:
    """Tell which energies the training set does not determine, and what to do about it.

    Arguments:
        statistics: of the model that is made of the data.
        key: of reference energies in the configuration.
    """
    if not statistics.open_compositions or statistics.reference_std is None:
        return
    if statistics.has_references:
        listener.tell(f"compositions: {statistics.compositions}")
    else:
        listener.warn(f"{statistics.compositions}. If you need these energies, {remedy(data.train.structures, key)}")


def references_begun(output: Path) -> ReferenceEnergies | None:
    """How the run of a directory obtains reference energies; ``None`` if none has begun there."""
    try:
        kept = SplitFile.model_validate_json((output / SPLIT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return "least_squares" if any(any(output.glob(f"**/{name}")) for name in MADE) else None
    return kept.data.reference_energies


def _is_begun(config: RunConfig) -> bool:
    """Whether an earlier start of the run has split the same structures, or an earlier version has begun it."""
    before = _kept(config)
    if before is None:
        return _has_made(config)
    return before.is_of(config.data)


def _kept(config: RunConfig) -> SplitFile | None:
    """What an earlier start of the run has written; ``None`` if there is nothing that can be read."""
    try:
        return SplitFile.model_validate_json((config.output / SPLIT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def split_data(structures: LabelledStructures, split: Split, config: RunConfig) -> RunData:
    """Return the parts of a split. An element that no training structure has, or a mix of charges, is an error."""
    common_state(structures)
    check_groups(config.training, structures)
    if config.head_training is not None:
        check_groups(config.head_training, structures, "head_training")
    backbone = config.model.backbone
    cutoff = read_potential(backbone).cutoff if isinstance(backbone, AdoptConfig) else backbone.cutoff

    def part(indices: np.ndarray) -> GraphDataset:
        return GraphDataset(structures.subset(indices), cutoff)

    train, validation = part(split.train), part(split.validation)
    test = part(split.test) if len(split.test) else None
    for other in (validation, test):
        if other is not None:
            reason = "which no training structure of this split has"
            require_elements(other.structures, train.structures.elements, reason=reason)
    statistics = compute_statistics(train, config.data.reference_energies, atoms_in=structures)
    return RunData(split=split, train=train, validation=validation, test=test, statistics=statistics)
