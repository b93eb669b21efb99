"""Plan a run: sizes from the data, and a network and epochs for the time that there is, by a timing of real steps."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sigmaff.config import read_config
from sigmaff.data import DataSource, LabelledStructures, Split, SplitConfig, read_structures, split_structures, symbols
from sigmaff.data.check.gate import require_sound
from sigmaff.data.structures import IndexArray
from sigmaff.errors import DataError
from sigmaff.evaluation.calibration import MIN_STRUCTURES
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import split_data
from sigmaff.runs.run import produce
from sigmaff.runs.stages import make_model

NETWORKS = ((128, 6), (64, 3), (32, 2))
"""Features and interactions of a SchNet, largest first."""
CUTOFF = 5.0
BATCH_SIZE = 10
ENOUGH_STEPS = 10_000
"""Steps that a network should get: with fewer, a smaller one is planned."""
MAX_EPOCHS = 5000
FEWEST_EPOCHS = 5
"""With fewer, fewer training and test structures are planned."""
FEWEST_TESTED = 100
FEWEST = 30
"""Structures, at least."""
TIMED = {"train": 6 * BATCH_SIZE, "validation": MIN_STRUCTURES, "test": 10}
"""Structures of the timing."""
TIMED_EPOCHS, WARMING_STEPS = 3, 2
SPARE = 0.95
"""Of the time that is asked for, this share is planned."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    text: str  # of the YAML file
    estimate: str  # for people
    seconds: float  # of the whole run


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of the parts of a run."""

    start: float  # until the first step
    step: float  # of training
    validation: float  # per structure and epoch
    fit: float  # of the head, per structure
    prediction: float  # with σ, per structure

    def rest(self, sizes: dict[str, int]) -> float:
        """All but the epochs."""
        n_fitted, n_predicted = sizes["train"] + sizes["validation"], sizes["validation"] + sizes["test"]
        return self.start + n_fitted * self.fit + n_predicted * self.prediction

    def epoch(self, sizes: dict[str, int]) -> float:
        return -(-sizes["train"] // BATCH_SIZE) * self.step + sizes["validation"] * self.validation

    def fitting(self, sizes: dict[str, int], seconds: float) -> tuple[dict[str, int], int]:
        """Sizes and epochs of a run that takes so long.

        Where it is too short, test structures are left out first, and then training structures but for one batch.
        """
        for n_test in (sizes["test"], min(sizes["test"], FEWEST_TESTED)):
            sizes = sizes | {"test": n_test}
            epochs = int((seconds - self.rest(sizes)) / self.epoch(sizes))
            if epochs >= FEWEST_EPOCHS:
                return sizes, min(epochs, MAX_EPOCHS)
        fixed = self.rest(sizes | {"train": 0}) + FEWEST_EPOCHS * sizes["validation"] * self.validation
        n_train = int((seconds - fixed) / (self.fit + FEWEST_EPOCHS * self.step / BATCH_SIZE))
        fewest = min(BATCH_SIZE, sizes["train"])
        return sizes | {"train": max(fewest, min(n_train, sizes["train"]))}, FEWEST_EPOCHS


def plan(
    source: DataSource,
    output: Path,
    minutes: float,
    *,
    seed: int = 0,
    listener: Listener | None = None,
    skip_checks: bool = False,
    networks: Sequence[tuple[int, int]] = NETWORKS,
) -> Plan:
    """Write a configuration that 'sigmaff train' finishes in about the time asked for on this machine.

    Arguments:
        source: labelled structures.
        output: directory of the run.
        minutes: of the whole run.
        seed: of the run, and of the structures of the timing.
        listener: progress callbacks; ``None`` is silent.
        skip_checks: do not check the structures first.
        networks: features and interactions of the networks to choose from, largest first.
    """
    listener = listener or Listener()
    listener.stage(f"reading {source.path}")
    structures = read_structures(source)
    if len(structures) < FEWEST:
        raise DataError(f"{source.path} has {len(structures)} structures; a training takes {FEWEST} or more")
    if not skip_checks:
        require_sound(structures, listener)
    sizes, reason = _sizes(structures)
    seconds, start = 60 * minutes * SPARE, 0.0
    for network in networks:
        listener.stage(f"timing a network of {network[0]} features and {network[1]} interactions")
        cost = _timed(_content(source, output, sizes, network, seed), structures, seed)
        start = max(start, cost.start)  # packages are imported once
        cost = replace(cost, start=start)
        planned_sizes, epochs = cost.fitting(sizes, seconds)
        if epochs * sizes["train"] >= ENOUGH_STEPS * BATCH_SIZE:
            break
    sizes = planned_sizes
    content = _content(source, output, sizes, network, seed)
    training = epochs * cost.epoch(sizes)
    planned = cost.rest(sizes) + training
    content["training"] |= _schedule(sizes, epochs, max(training, 60 * minutes - cost.rest(sizes)))
    read_config(RunConfig, content)
    estimate = (
        f"about {planned / 60:.2g} minutes on this machine: {epochs} epochs of {cost.epoch(sizes):.2g} s "
        f"({1e3 * cost.step:.0f} ms a step), and {cost.rest(sizes):.0f} s for start, σ and test"
    )
    return Plan(text=_text(content, structures, reason, estimate), estimate=estimate, seconds=planned)


def _sizes(structures: LabelledStructures) -> tuple[dict[str, int], str]:
    """Structures of each part, and how they will be split."""
    n = len(structures)
    n_validation = min(100, max(n // 10, min(MIN_STRUCTURES, n // 3)))
    n_test = min(1000, n // 5 if n >= 100 else n // 10)
    n_train = n - n_validation - n_test
    config = SplitConfig(n_train=n // 2, n_validation=n_validation, n_test=n_test)
    reason = split_structures(config, structures).reason
    if "in blocks" in reason:  # gaps between blocks need room
        n_train = min(n_train, n // 2)
    return {"train": n_train, "validation": n_validation, "test": n_test}, reason


def _content(
    source: DataSource, output: Path, sizes: dict[str, int], network: tuple[int, int], seed: int
) -> dict[str, Any]:
    """The configuration, but for the length of the training."""
    n_features, n_interactions = network
    read = source.model_dump(mode="json", exclude_defaults=True)
    return {
        "data": {
            "source": read["path"] if len(read) == 1 else read,
            "split": {f"n_{part}": n for part, n in sizes.items()},
        },
        "model": {
            "backbone": {
                "name": "schnet",
                "cutoff": CUTOFF,
                "n_hidden": n_features,
                "n_filters": n_features,
                "n_interactions": n_interactions,
            },
            "head": {"name": "lnk"},
        },
        "training": {"batch_size": BATCH_SIZE} | ({} if "forces" in source.labels else {"forces_weight": 0.0}),
        "output": str(output),
        "seed": seed,
    }


def _schedule(sizes: dict[str, int], epochs: int, seconds: float) -> dict[str, Any]:
    steps = epochs * -(-sizes["train"] // BATCH_SIZE)
    schedule = {"name": "cosine", "warmup_steps": min(1000, steps // 10)}
    return {"max_epochs": epochs, "time_limit_minutes": float(f"{seconds / 60:.3g}"), "schedule": schedule}


class Stopwatch(Listener):
    """Keeps the time of each report."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.steps: list[tuple[int, float]] = []  # of training

    def stage(self, text: str) -> None:
        self.stages.append((text, time.monotonic()))

    def advance(self, done: int, total: int, note: str = "") -> None:
        if self.stages[-1][0].startswith("training"):
            self.steps.append((done, time.monotonic()))


def _timed(content: dict[str, Any], structures: LabelledStructures, seed: int) -> Cost:
    """Make a model of a few structures in a few steps, as 'sigmaff train' does."""
    sizes = {part: min(TIMED[part], content["data"]["split"][f"n_{part}"]) for part in TIMED}
    parts = timed_parts(structures, sizes, seed)
    with tempfile.TemporaryDirectory() as folder:
        short = {"max_epochs": TIMED_EPOCHS, "schedule": {"name": "cosine", "warmup_steps": 1}}
        config = read_config(RunConfig, content | {"training": content["training"] | short, "output": folder})
        split = Split(train=parts["train"], validation=parts["validation"], test=parts["test"])
        data = split_data(structures, split, config)
        watch = Stopwatch()
        produce(config, data, watch, partial(make_model, force=True))
        return _cost(watch, time.monotonic(), sizes)


def timed_parts(structures: LabelledStructures, sizes: dict[str, int], seed: int) -> dict[str, IndexArray]:
    """Structures of the timing by part, each from the smallest to the largest: σ of forces takes longest for these.

    Arguments:
        sizes: structures of each part.
        seed: draws among structures of the same size.
    """
    drawn = np.random.default_rng(seed).permutation(len(structures))
    n_atoms = np.array([len(structures.structures[index]) for index in drawn])
    left, parts = drawn[np.argsort(n_atoms, kind="stable")], {}
    for part, n in sorted(sizes.items()):
        places = np.linspace(0, len(left) - 1, n).round().astype(np.int64)
        parts[part], left = np.sort(left[places]), np.delete(left, places)
    return parts


def _cost(watch: Stopwatch, end: float, sizes: dict[str, int]) -> Cost:
    began = {name.split()[0]: at for name, at in watch.stages}
    gaps = [(two[0] > one[0], two[1] - one[1]) for one, two in pairwise(watch.steps)]
    steps = [seconds for is_step, seconds in gaps if is_step][WARMING_STEPS:]
    validations = [seconds for is_step, seconds in gaps if not is_step][1:]
    ends = dict(zip(began, [*list(began.values())[1:], end], strict=True))
    fit = ends["fitting"] - began["fitting"]
    prediction = end - began["calibrating"]
    return Cost(
        start=watch.steps[0][1] - began["training"],
        step=_mean(steps),
        validation=_mean(validations) / sizes["validation"],
        fit=fit / (sizes["train"] + sizes["validation"]),
        prediction=prediction / (sizes["validation"] + sizes["test"]),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _text(content: dict[str, Any], structures: LabelledStructures, reason: str, estimate: str) -> str:
    """The configuration as YAML, with comments."""
    n_atoms = [len(atoms) for atoms in structures.structures]
    about = {
        "data": f"{len(structures)} structures of {min(n_atoms)} to {max(n_atoms)} atoms; elements "
        f"{symbols(structures.elements)}. {structures.units[:1].upper()}{structures.units[1:]}.\n"
        f"The split will be {reason}.",
        "model": "cutoff in Å; more features or interactions are slower and can be more accurate.\n"
        "head: the energies and their σ; 'sigmaff methods' lists others.",
        "training": f"{estimate[:1].upper()}{estimate[1:]}.\nMore epochs lower the errors; time_limit_minutes ends it.",
        "output": "Directory of checkpoints, logs, model and metrics. Rerun the same command to resume.",
    }
    lines = [
        f"# sigmaff train {content['output']}.yaml",
        "# 'sigmaff train --print-defaults' explains every key; 'sigmaff schema train' is for your editor.",
    ]
    for name, section in content.items():
        lines += ["", *(f"# {line}" for line in about[name].split("\n"))] if name in about else []
        lines.append(yaml.safe_dump({name: section}, sort_keys=False, allow_unicode=True).rstrip())
    return "\n".join(lines) + "\n"
