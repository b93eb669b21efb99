"""Is one model better than another? Differences of measures on the same structures, with 95 % intervals.

The intervals are of the choice of test structures, which are taken to be independent: they say nothing of other
trainings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sigmaff.evaluation import metrics
from sigmaff.evaluation.detection import SCORES
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray, Sample
from sigmaff.evaluation.summary import (
    STD_MEASURES,
    by_structure,
    mean_of_sums,
    rank_columns,
    spearman_of_sums,
)

MEANS = ("nll", "crps")
"""Measures of ``summarize`` that are means over errors."""
N_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A measure of one model minus that of another on the same structures, and its 95 % interval."""

    value: float
    low: float | None  # None: these structures cannot tell
    high: float | None


Columns = dict[str, FloatArray]
"""By measure, what a test leaves of each structure: sums over its errors, or a score of its σ."""


def structure_columns(evaluation: Evaluation) -> Columns:
    """Sums of each structure, for ``differences``; the keys are those of ``summarize``, each (n_structures, …)."""
    n, components = np.arange(evaluation.n_structures), np.repeat(evaluation.structure_index, 3)
    columns: Columns = {}
    for quantity, errors, structure in (
        ("energy", evaluation.energy_error, n),
        ("forces", evaluation.forces_error, components),
    ):
        if errors is not None:
            columns[f"{quantity}_mae"] = by_structure(structure, np.abs(errors).ravel())
    for quantity, sample in evaluation.samples.items():
        sums = {name: _sums(sample, STD_MEASURES[name]) for name in MEANS}
        sums["spearman"] = by_structure(sample.structure, *rank_columns(sample))
        columns |= {f"{quantity}_{name}": _with_all(n, sample, rows) for name, rows in sums.items()}
    return columns


def detection_scores(evaluation: Evaluation) -> Columns:
    """Scores of σ of each structure, for ``auroc_differences``."""
    scores = {key: score(evaluation) for key, score in SCORES.items()}
    return {key: values for key, values in scores.items() if values is not None}


def differences(first: Mapping[str, FloatArray], second: Mapping[str, FloatArray]) -> dict[str, Difference]:
    """The second model's measures minus the first's, by paired bootstrap over structures; those that are defined.

    Arguments:
        first: ``structure_columns`` of one model.
        second: of another, tested on the same structures in the same order.
    """
    found = {
        key: _difference(spearman_of_sums if key.endswith("spearman") else mean_of_sums, first[key], second[key])
        for key in second
        if key in first
    }
    return {key: difference for key, difference in found.items() if np.isfinite(difference.value)}


def auroc_differences(
    first: tuple[Mapping[str, FloatArray], Mapping[str, FloatArray]],
    second: tuple[Mapping[str, FloatArray], Mapping[str, FloatArray]],
) -> dict[str, Difference]:
    """The second model's AUROCs minus the first's.

    Arguments:
        first: scores of the test structures and of another set by one model.
        second: the same by the other model.
    """
    return {
        key: _known(
            *metrics.auroc_difference((first[0][key], first[1][key]), (second[0][key], second[1][key])),
        )
        for key in second[0]
        if all(key in scores for scores in (*first, *second))
    }


def _with_all(structures: IntArray, sample: Sample, rows: FloatArray) -> FloatArray:
    """Rows of zeros where no error of a structure has a σ above 0, so that rows of two models are of one structure."""
    every = np.zeros((structures.size, rows.shape[1]))
    every[np.unique(sample.structure)] = rows
    return every


def _sums(sample: Sample, measure: Callable[[Sample], float]) -> FloatArray:
    """Number of errors of each structure, and the sum of a measure that is a mean over errors."""
    counts = by_structure(sample.structure)[:, 0]
    parts = np.split(np.argsort(sample.structure, kind="stable"), np.cumsum(counts.astype(int))[:-1])
    means = np.array([measure(sample.part(part)) for part in parts])
    return np.stack([counts, counts * means], axis=1)


def _difference(statistic: Callable[[FloatArray], float], first: FloatArray, second: FloatArray) -> Difference:
    def of(one: FloatArray, other: FloatArray) -> float:
        return statistic(other) - statistic(one)

    return _known(of(first, second), *metrics.bootstrap(of, first, second, n_resamples=N_RESAMPLES))


def _known(value: float, low: float, high: float) -> Difference:
    known = bool(np.isfinite([low, high]).all())
    return Difference(value=value, low=low if known else None, high=high if known else None)
