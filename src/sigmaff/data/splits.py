"""Split a data set into structures for training, validation and test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from sigmaff.config import Settings
from sigmaff.data.order import Series, describe, find_series
from sigmaff.data.structures import IndexArray, LabelledStructures
from sigmaff.errors import ConfigError

PARTS = ("train", "validation", "test")
TEST, UNUSED = 2, -1
"""Numbers of parts in the layout of a series."""


class SplitConfig(Settings):
    """How to split a data set."""

    kind: Literal["auto", "random", "blocked", "official"] = Field(
        "auto",
        description="auto: where consecutive frames are correlated, as in a trajectory, from blocks of time with gaps "
        "between them; else random. random: drawn with seed. blocked: contiguous in time, first train, then "
        "validation, then test. official: the indices in the data file; validation is drawn from the official training "
        "set, so that a run uses no more labels than the benchmark allows",
    )
    n_train: int | None = Field(
        1000, ge=1, description="number of structures for training; null: all others, and no test if n_test is null too"
    )
    n_validation: int = Field(
        100, ge=0, description="number of structures for early stopping, calibration and model selection"
    )
    n_test: int | None = Field(None, ge=0, description="number of structures for the test; null: all others")
    seed: int = Field(0, ge=0, description="seed of the random draws")
    fold: int = Field(0, ge=0, description="index of the official split")
    gap: int = Field(
        0,
        ge=0,
        description="unused frames between blocks, so that correlated frames do not leak; for auto the fewest, if "
        "frames are correlated for less",
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    """Indices of structures in a data set, sorted and disjoint."""

    train: IndexArray
    validation: IndexArray
    test: IndexArray
    reason: str = ""  # why the split is what it is, for people

    def to_dict(self) -> dict[str, Any]:
        return {part: getattr(self, part).tolist() for part in PARTS} | ({"reason": self.reason} if self.reason else {})


def split_structures(config: SplitConfig, structures: LabelledStructures) -> Split:
    """Split a data set."""
    series = find_series(structures) if config.kind == "auto" else ()
    return make_split(config, len(structures), structures.official_splits, structures.time_index, series)


def make_split(
    config: SplitConfig,
    n: int,
    official: Mapping[str, IndexArray] | None = None,
    time_index: IndexArray | None = None,
    series: Sequence[Series] = (),
) -> Split:
    """Split n structures.

    Arguments:
        config: kind and sizes of the split.
        n: number of structures.
        official: "train" and "test", (n_folds, n_indices) each; required by the kind "official".
        time_index: (n,) order in time; ``None`` means the order in the file.
        series: frames with the same atoms in their order in time, for the kind "auto".
    """
    config = _counted(config, n, official)
    if config.kind == "official":
        return _official(config, official)
    if config.kind == "blocked":
        return _consecutive(config, np.arange(n) if time_index is None else np.argsort(time_index), gap=config.gap)
    split = _consecutive(config, np.random.default_rng(config.seed).permutation(n), gap=0)
    return split if config.kind == "random" else _in_time(config, split, series)


def _counted(config: SplitConfig, n: int, official: Mapping[str, IndexArray] | None) -> SplitConfig:
    """With the number of training structures, if they are all that others leave."""
    if config.n_train is not None:
        return config
    n_test = config.n_test or 0
    if config.kind == "official" and official is not None:
        n, n_test = official["train"].shape[1], 0
    if (left := n - config.n_validation - n_test) < 1:
        raise ConfigError(f"the data has {n} structures: {_asked(config)} leaves none for training")
    return config.model_copy(update={"n_train": left, "n_test": config.n_test or 0})


def _consecutive(config: SplitConfig, order: IndexArray, gap: int) -> Split:
    """Take train, validation and test consecutively from ``order``."""
    assert config.n_train is not None
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


def _in_time(config: SplitConfig, drawn: Split, series: Sequence[Series]) -> Split:
    """Rearrange a random split: the frames of a series with an order in time, as many as drawn, come from blocks."""
    ordered = [one for one in series if one.memory > 0]
    if not ordered:
        return replace(drawn, reason=f"at random: {describe(series)}")
    parts = np.full(sum(len(one.indices) for one in series), UNUSED)
    for number, name in enumerate(PARTS):
        parts[getattr(drawn, name)] = number
    random, gaps = np.random.default_rng([config.seed, 1]), []
    for one in ordered:
        layout = Layout.fit(parts[one.indices], max(one.memory, config.gap), all_others=config.n_test is None)
        parts[one.indices] = layout.lay(random)
        gaps.append(layout.gap)
    largest = int(np.argmax([len(one.indices) for one in ordered]))
    reason = f"in blocks of time: {describe(series)}; {gaps[largest]} frames between blocks are left out"
    if gaps[largest] < (wanted := max(ordered[largest].memory, config.gap)):
        reason += f" (not {wanted}: the sizes of the parts leave no room; ask for fewer structures)"
    return replace(_split(*(np.flatnonzero(parts == number) for number in range(3))), reason=reason)


@dataclass(frozen=True)
class Layout:
    """Blocks of one series: rounds of one block of each part, in random order, with a gap after each block."""

    n: int  # frames
    wanted: IndexArray  # (3,) frames of each part to draw
    lengths: IndexArray  # (3,) frames of each part to draw from
    gap: int
    n_rounds: int

    @classmethod
    def fit(cls, drawn: IndexArray, gap: int, *, all_others: bool) -> Self:
        """As many rounds as leave half of the frames, and all that are wanted, outside of gaps; at least one.

        The gap is shortened where two of them do not fit.

        Arguments:
            drawn: (n,) part of each frame in a random split.
            gap: unused frames between blocks.
            all_others: the test has all frames that are left: gaps may take half of them.
        """
        n, wanted = len(drawn), np.bincount(drawn[drawn != UNUSED], minlength=3)
        needed = wanted.copy()
        if all_others:
            needed[TEST] = min(-(-wanted[TEST] // 2), max(1, wanted[:TEST].sum()))
        present, total = needed > 0, int(needed.sum())
        n_parts, n_rounds = int(present.sum()), 1
        if n_parts > 1:
            gap = min(gap, (n - total) // (n_parts - 1))
        if n_parts > 1 and gap > 0:
            most = (n - max(total, n // 2) + gap) // (n_parts * gap)
            n_rounds = max(1, min(most, int(needed[present].min())))
        spare = n - total - (n_parts * n_rounds - 1) * gap
        return cls(n, wanted, needed + present * (spare // max(1, n_parts)), gap, n_rounds)

    def lay(self, random: np.random.Generator) -> IndexArray:
        """Part of each frame, (n,); the frames in gaps, and those in blocks that are not drawn, are unused."""
        available, parts = np.full(self.n, UNUSED), np.full(self.n, UNUSED)
        start = 0
        for number in range(self.n_rounds):
            for part in random.permutation(np.flatnonzero(self.lengths)):
                length = (self.lengths[part] + number) // self.n_rounds
                available[start : start + length] = part
                start += length + self.gap
        for part in range(3):
            own = np.flatnonzero(available == part)
            parts[random.permutation(own)[: self.wanted[part]]] = part
        return parts


def _official(config: SplitConfig, official: Mapping[str, IndexArray] | None) -> Split:
    if official is None:
        raise ConfigError("the data has no official split; an rMD17 file with split_train and split_test has one")
    if config.fold >= len(official["train"]):
        raise ConfigError(f"fold is {config.fold}, but the data has {len(official['train'])} official splits (from 0)")
    generator = np.random.default_rng(config.seed)
    train = generator.permutation(official["train"][config.fold])
    test = generator.permutation(official["test"][config.fold])
    assert config.n_train is not None
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
