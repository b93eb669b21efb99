"""The structures of a run: read, split, and with their statistics."""

from dataclasses import dataclass

import numpy as np

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
from sigmaff.runs.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The parts of a split, as graphs."""

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
    return split_data(structures, split, config)


def split_data(structures: LabelledStructures, split: Split, config: RunConfig) -> RunData:
    """Return the parts of a split. An element that no training structure has is an error."""

    def part(indices: np.ndarray) -> GraphDataset:
        return GraphDataset(structures.subset(indices), config.model.backbone.cutoff)

    train, validation = part(split.train), part(split.validation)
    test = part(split.test) if len(split.test) else None
    for other in (validation, test):
        if other is not None:
            reason = "which no training structure of this split has"
            require_elements(other.structures, train.structures.elements, reason=reason)
    reference = config.data.reference_energies
    references = reference_energies(train.structures if reference == "least_squares" else structures, reference)
    statistics = compute_statistics(train, references)
    return RunData(split=split, train=train, validation=validation, test=test, statistics=statistics)
