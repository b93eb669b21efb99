"""All measures of an evaluation as one flat, JSON-ready dictionary."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sigmaff.evaluation import metrics
from sigmaff.evaluation.detection import SCORES, Score, energy_std_per_atom, forces_std_rms
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray, Sample
from sigmaff.models.prediction import QUANTITIES, Quantity

Comparison = Callable[[FloatArray, FloatArray], float]
Summary = dict[str, float | int | list[float] | None]


def summarize(evaluation: Evaluation, ood: Evaluation | None = None) -> Summary:
    """Every measure of ``sigmaff.evaluation.metrics``, for energies, force and stress components, in eV and Å.

    The keys are always the same; ``None`` means undefined: no label, no σ, or no OOD set.

    - ``_nll`` and ``_crps`` score the distribution that is reported: that of the calibration's intervals.
    - ``_raw``: before calibration, with Gaussian intervals; ``_paper``: the per-sample average; ``_paper_raw``: both.
    - ``_ci``: 95 % bootstrap interval over structures. Resampling adds chance to a calibration score, so
      near its finite-sample floor the interval may lie above the score itself. ``_auroc_ci``: score interval,
      which is not a point at an AUROC of 1 (``metrics.auroc_interval``).
    - ``n_undetermined``: structures whose composition leaves the energy without a known constant.
    - ``_rms_z``: root mean square of error over σ. ``ood_``: of the OOD set.
    - ``_std_zero``: how many σ are 0, as of forces that vanish by symmetry; σ measures leave them out.
    - ``energy_auroc`` and ``energy_fpr95`` rank structures by energy σ per atom (``_total``: of the whole),
      ``forces_auroc`` and ``forces_fpr95`` by the rms of their force σ, ``forces_auroc_trace`` by the sum of their raw
      force σ², which grows with size; OOD is the positive class.
    - ``_auroc_geometric_mean`` ranks by the geometric mean over atoms, which finds shifts of all atoms, and
      ``_auroc_largest_atom`` by the largest of an atom, which finds local events (``sigmaff.evaluation.detection``).
    """
    samples = evaluation.samples
    return {
        "n_structures": evaluation.n_structures,
        "n_atoms": evaluation.n_atoms,
        "n_undetermined": len(evaluation.undetermined),
        "seconds_per_structure": evaluation.seconds_per_structure,
        **_errors(evaluation, "energy", "forces", "stress"),
        "energy_mae_per_atom": _error(evaluation.per_atom(evaluation.energy_error), metrics.mae),
        "energy_std_zero": _n_zero(evaluation.energy_std_raw),
        "forces_std_zero": _n_zero(evaluation.forces_std_raw),
        "stress_std_zero": _n_zero(evaluation.stress_std_raw),
        **std_measures(samples, *STD_MEASURES),
        "forces_atom_spearman": _atom_spearman(evaluation),
        **_intervals(evaluation, samples),
        **_ood_measures(evaluation, ood),
    }


STD_MEASURES: dict[str, Callable[[Sample], float]] = {
    "calibration": lambda s: s.calibration_score(),
    "calibration_raw": lambda s: s.uncalibrated.calibration_score(),
    "calibration_paper": lambda s: metrics.per_sample_calibration_score(s.errors, s.std, s.calibration),
    "calibration_paper_raw": lambda s: metrics.per_sample_calibration_score(s.errors, s.uncalibrated.std),
    "miscalibration_area": lambda s: metrics.miscalibration_area(s.errors, s.std, s.calibration),
    "coverage_68": lambda s: float(s.coverage([metrics.ONE_SIGMA])[0]),
    "coverage_95": lambda s: float(s.coverage([0.95])[0]),
    "rms_z": lambda s: metrics.rms_z(s.errors, s.std),
    "nll": lambda s: metrics.nll(s.errors, s.std, s.calibration),
    "nll_raw": lambda s: metrics.nll(s.errors, s.std_raw),
    "crps": lambda s: metrics.crps(s.errors, s.std, s.calibration),
    "ence": lambda s: metrics.ence(s.errors, s.std),
    "sharpness": lambda s: metrics.sharpness(s.std),
    "spearman": lambda s: metrics.spearman(s.std, s.sizes),
    "retention_area": lambda s: metrics.retention_area(s.errors, s.std),
    "retention_gain": lambda s: metrics.retention_gain(s.errors, s.std),
}


OOD_MEASURES = ("coverage_68", "coverage_95", "rms_z")
"""Of σ of an OOD set, beside its errors."""


def std_measures(samples: Mapping[Quantity, Sample], *names: str) -> Summary:
    """Measures of σ by name, for each quantity; ``None`` if it has no σ or no label."""
    return {
        f"{quantity}_{name}": _finite(STD_MEASURES[name](samples[quantity])) if quantity in samples else None
        for quantity in QUANTITIES
        for name in names
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _error(errors: FloatArray | None, measure: Callable[[FloatArray], float]) -> float | None:
    return None if errors is None else measure(errors)


def _errors(evaluation: Evaluation | None, *quantities: str) -> Summary:
    """MAE and RMSE of each quantity."""
    errors = {name: None if evaluation is None else _known(getattr(evaluation, f"{name}_error")) for name in quantities}
    return {f"{name}_{m.__name__}": _error(errors[name], m) for name in quantities for m in (metrics.mae, metrics.rmse)}


def _known(errors: FloatArray | None) -> FloatArray | None:
    """Without the stress of structures that have no cell, which is NaN."""
    return None if errors is None else errors[~np.isnan(errors)]


def _n_zero(std_raw: FloatArray | None) -> int | None:
    return None if std_raw is None else int(np.count_nonzero(std_raw == 0))


def _atom_spearman(evaluation: Evaluation) -> float | None:
    """Spearman of √trace σ² and |error| of each atom's force."""
    std = evaluation.forces_std
    if evaluation.forces_error is None or std is None:
        return None
    norms = (np.linalg.norm(values, axis=1) for values in (std, evaluation.forces_error))
    return _finite(metrics.spearman(*norms))


# --- bootstrap intervals: each statistic is a function of sums over structures, so a resample costs little


def _intervals(evaluation: Evaluation, samples: Mapping[Quantity, Sample]) -> Summary:
    n, components = np.arange(evaluation.n_structures), np.repeat(evaluation.structure_index, 3)
    return {
        "energy_mae_ci": _mae_interval(evaluation.energy_error, n),
        "forces_mae_ci": _mae_interval(evaluation.forces_error, components),
        "stress_mae_ci": _mae_interval(evaluation.stress_error, np.repeat(n, 6)),
        **{f"{name}_calibration_ci": _calibration_interval(samples.get(name)) for name in QUANTITIES},
        **{f"{name}_spearman_ci": _spearman_interval(samples.get(name)) for name in QUANTITIES},
    }


def _mae_interval(errors: FloatArray | None, structure: IntArray) -> list[float] | None:
    if errors is None:
        return None
    known = ~np.isnan(errors.ravel())
    return _interval(mean_of_sums, by_structure(structure[known], np.abs(errors).ravel()[known]))


def _calibration_interval(sample: Sample | None) -> list[float] | None:
    if sample is None:
        return None
    sizes = metrics.standardised_sizes(sample.errors, sample.std)
    widths = sample.calibration.multiplier(metrics.CALIBRATION_LEVELS)
    sums = by_structure(sample.structure, *(sizes <= width for width in widths))
    return _interval(lambda rows: metrics.coverage_distance(_means(rows)), sums)


def _spearman_interval(sample: Sample | None) -> list[float] | None:
    if sample is None:
        return None
    return _interval(spearman_of_sums, by_structure(sample.structure, *rank_columns(sample)))


def by_structure(structure: IntArray, *columns: npt.NDArray[Any]) -> FloatArray:
    """Number of samples and sums of columns over the samples of each structure, (n_structures, 1 + n_columns)."""
    _, group = np.unique(structure, return_inverse=True)
    return np.stack([np.bincount(group), *(np.bincount(group, weights=column) for column in columns)], axis=1)


def mean_of_sums(rows: FloatArray) -> float:
    """Mean over samples of one column, from the rows of ``by_structure``."""
    return float(_means(rows)[0])


def rank_columns(sample: Sample) -> tuple[FloatArray, ...]:
    """Columns for ``spearman_of_sums``: ranks r of σ and s of |error|, r², s² and rs."""
    r, s = metrics.centred_ranks(sample.std), metrics.centred_ranks(sample.sizes)
    return r, s, r * r, s * s, r * s


def spearman_of_sums(rows: FloatArray) -> float:
    """Resamples keep the ranks they have in the whole set: far cheaper than ranking anew, and close to it."""
    r, s, rr, ss, rs = _means(rows)
    variance = (rr - r * r) * (ss - s * s)
    return float((rs - r * s) / np.sqrt(variance)) if variance > 0 else float("nan")


def _means(rows: FloatArray) -> FloatArray:
    count, *totals = rows.sum(axis=0)
    return np.array(totals) / count


def _interval(statistic: Callable[[FloatArray], float], sums: FloatArray) -> list[float] | None:
    """Bootstrap interval of a statistic of the rows of ``by_structure``, as structures are resampled."""
    low, high = metrics.bootstrap(statistic, sums)
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None


# --- out of distribution


def _ood_measures(evaluation: Evaluation, ood: Evaluation | None) -> Summary:
    def compare(measure: Comparison, score: Score) -> float | None:
        inside, outside = score(evaluation), None if ood is None else score(ood)
        return None if inside is None or outside is None else measure(inside, outside)

    def interval(value: float | None) -> list[float] | None:
        if value is None or ood is None:
            return None
        return list(metrics.auroc_interval(value, evaluation.n_structures, ood.n_structures))

    aurocs = {key: compare(metrics.auroc, score) for key, score in SCORES.items()}
    return {
        **aurocs,
        **{f"{key}_ci": interval(value) for key, value in aurocs.items()},
        "energy_fpr95": compare(metrics.fpr_at_tpr, energy_std_per_atom),
        "forces_fpr95": compare(metrics.fpr_at_tpr, forces_std_rms),
        **{f"{name}_spearman_with_ood": _joint_spearman(name, evaluation, ood) for name in ("energy", "forces")},
        "ood_n_structures": None if ood is None else ood.n_structures,
        **{f"ood_{key}": value for key, value in _errors(ood, "energy", "forces").items()},
        **{
            f"ood_{key}": value
            for key, value in std_measures({} if ood is None else ood.samples, *OOD_MEASURES).items()
        },
    }


def _joint_spearman(quantity: Quantity, evaluation: Evaluation, ood: Evaluation | None) -> float | None:
    samples = [item.samples[quantity] for item in (evaluation, ood) if item is not None and quantity in item.samples]
    if len(samples) < 2:
        return None
    std = np.concatenate([sample.std_raw if sample.std_grown is None else sample.std_grown for sample in samples])
    return _finite(metrics.spearman(std, np.concatenate([sample.sizes for sample in samples])))
