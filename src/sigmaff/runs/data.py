"""The structures of a run: read, split, and with their statistics."""

from dataclasses import dataclass

from sigmaff.data import (
    DatasetStatistics,
    GraphDataset,
    LabelledStructures,
    Split,
    compute_statistics,
    read_structures,
    reference_energies,
    require_elements,
    split_structures,
)
from sigmaff.errors import ConfigError
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.runs.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Structures, and how they are split."""

    structures: LabelledStructures
    split: Split
    train: GraphDataset
    validation: GraphDataset
    test: GraphDataset | None
    statistics: DatasetStatistics


def load_data(config: RunConfig) -> RunData:
    """Read, split and check the structures; raise an error before hours of training."""
    structures = read_structures(config.data.source)
    split = split_structures(config.data.split, structures)
    if not len(split.validation):
        raise ConfigError("data.split.n_validation is 0: a run needs validation structures to stop and calibrate by")
    if config.calibration != "none" and config.has_std and len(split.validation) < MIN_SAMPLES:
        raise ConfigError(
            f"data.split.n_validation is {len(split.validation)}, but calibrating σ takes {MIN_SAMPLES} structures "
            "or more; give it as many, or set calibration to none"
        )
    return split_data(structures, split, config)


def split_data(structures: LabelledStructures, split: Split, config: RunConfig) -> RunData:
    """The parts of a split as a run takes them. An element that only a part that does not train has is an error."""
    cutoff = config.model.backbone.cutoff
    train = GraphDataset(structures.subset(split.train), cutoff)
    validation = GraphDataset(structures.subset(split.validation), cutoff)
    test = GraphDataset(structures.subset(split.test), cutoff) if len(split.test) else None
    for part in (validation, test):
        if part is not None:
            reason = "which no training structure of this split has"
            require_elements(part.structures, train.structures.elements, reason=reason)
    references = reference_energies(structures, config.data.reference_energies)
    if config.data.reference_energies == "least_squares":
        references = reference_energies(train.structures, "least_squares")
    return RunData(
        structures=structures,
        split=split,
        train=train,
        validation=validation,
        test=test,
        statistics=compute_statistics(train, references),
    )
