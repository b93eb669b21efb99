"""Split a data set into structures for training, validation and test."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from sigmaff.config import Settings
from sigmaff.data.structures import IndexArray, LabelledStructures
from sigmaff.errors import ConfigError


class SplitConfig(Settings):
    """How to split a data set. The split depends only on this and on the number of structures."""

    kind: Literal["random", "blocked", "official"] = Field(
        "random",
        description="random: drawn with seed. blocked: contiguous in time, first train, then validation, then test. "
        "official: the indices in the data file; validation is drawn from the official training set, so that a run "
        "uses no more labels than the benchmark allows",
    )
    n_train: int = Field(1000, ge=1, description="number of structures for training")
    n_validation: int = Field(
        100, ge=0, description="number of structures for early stopping, calibration and model selection"
    )
    n_test: int | None = Field(None, ge=0, description="number of structures for the test; null: all others")
    seed: int = Field(0, ge=0, description="seed of the random draws")
    fold: int = Field(0, ge=0, description="index of the official split")
    gap: int = Field(0, ge=0, description="unused frames between blocks, so that correlated frames do not leak")


@dataclass(frozen=True, kw_only=True)
class Split:
    """Indices of structures in a data set, sorted and disjoint."""

    train: IndexArray
    validation: IndexArray
    test: IndexArray

    def to_dict(self) -> dict[str, list[int]]:
        return {part: indices.tolist() for part, indices in asdict(self).items()}


def split_structures(config: SplitConfig, structures: LabelledStructures) -> Split:
    """Split a data set."""
    return make_split(config, len(structures), structures.official_splits, structures.time_index)


def make_split(
    config: SplitConfig, n: int, official: Mapping[str, IndexArray] | None = None, time_index: IndexArray | None = None
) -> Split:
    """Split n structures.

    Arguments:
        config: kind and sizes of the split.
        n: number of structures.
        official: "train" and "test", (n_folds, n_indices) each; required by the kind "official".
        time_index: (n,) order in time; ``None`` means the order in the file.
    """
    if config.kind == "official":
        return _official(config, official)
    if config.kind == "random":
        return _consecutive(config, np.random.default_rng(config.seed).permutation(n), gap=0)
    return _consecutive(config, np.arange(n) if time_index is None else np.argsort(time_index), gap=config.gap)


def _consecutive(config: SplitConfig, order: IndexArray, gap: int) -> Split:
    """Take train, validation and test consecutively from ``order``."""
    start_validation = config.n_train + gap
    start_test = start_validation + config.n_validation + gap
    needed = start_test + config.n_test if config.n_test else start_test - gap
    if needed > len(order):
        gaps = f" with gaps of {gap}" if gap else ""
        raise ConfigError(f"the data has {len(order)} structures, too few for {_asked(config)}{gaps}")
    rest = order[start_test:]
    return _split(
        order[: config.n_train],
        order[start_validation : start_validation + config.n_validation],
        rest if config.n_test is None else rest[: config.n_test],
    )


def _official(config: SplitConfig, official: Mapping[str, IndexArray] | None) -> Split:
    if official is None:
        raise ConfigError("the data has no official split; an rMD17 file with split_train and split_test has one")
    if config.fold >= len(official["train"]):
        raise ConfigError(f"fold is {config.fold}, but the data has {len(official['train'])} official splits (from 0)")
    generator = np.random.default_rng(config.seed)
    train = generator.permutation(official["train"][config.fold])
    test = generator.permutation(official["test"][config.fold])
    if config.n_train + config.n_validation > len(train) or (config.n_test or 0) > len(test):
        raise ConfigError(
            f"the official split has {len(train)} training and {len(test)} test structures, "
            f"too few for {_asked(config)}"
        )
    n_used = config.n_train + config.n_validation
    return _split(train[: config.n_train], train[config.n_train : n_used], test[: config.n_test])


def _split(train: IndexArray, validation: IndexArray, test: IndexArray) -> Split:
    return Split(train=np.sort(train), validation=np.sort(validation), test=np.sort(test))


def _asked(config: SplitConfig) -> str:
    return f"n_train = {config.n_train}, n_validation = {config.n_validation}, n_test = {config.n_test}"
