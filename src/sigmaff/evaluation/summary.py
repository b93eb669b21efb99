"""All measures of an evaluation as one flat, JSON-ready dictionary."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sigmaff.evaluation import metrics
from sigmaff.evaluation.evaluate import Evaluation, IntArray
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.models.prediction import Calibration

Summary = dict[str, float | int | list[float] | None]


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Errors of one quantity with σ > 0, pooled; each knows its structure."""

    errors: FloatArray  # (n,)
    std_raw: FloatArray  # (n,)
    structure: IntArray  # (n,)
    calibration: Calibration

    @property
    def std(self) -> FloatArray:
        return self.std_raw * self.calibration.scale

    @property
    def sizes(self) -> FloatArray:
        return np.abs(self.errors)


def summarize(evaluation: Evaluation, ood: Evaluation | None = None) -> Summary:
    """Every measure of ``sigmaff.evaluation.metrics``, for energies and for force components, in eV and Å.

    The keys are always the same; ``None`` is what cannot be said: no label, no σ, no OOD set, or undefined.

    - ``_raw``: before calibration; ``_paper``: the per-sample average.
    - ``_ci``: 95 % bootstrap interval over structures. Resampling adds chance to a calibration score, so
      near its finite-sample floor the interval may lie above the score itself.
    - ``_std_zero``: how many σ are 0, as of forces that vanish by symmetry; σ measures leave them out.
    - ``energy_auroc`` and ``energy_fpr95`` rank structures by energy σ per atom (``_total``: of the whole),
      ``forces_auroc`` and ``forces_fpr95`` by the rms of their force σ; OOD is the positive class.
    """
    energy = _energy_sample(evaluation)
    forces = _forces_sample(evaluation)
    return {
        "n_structures": evaluation.n_structures,
        "n_atoms": evaluation.n_atoms,
        "seconds_per_structure": evaluation.seconds_per_structure,
        **_error_measures(evaluation),
        "energy_std_zero": _n_zero(evaluation.energy_std_raw),
        "forces_std_zero": _n_zero(evaluation.forces_std_raw),
        **_measures("energy_", _STD_MEASURES, energy),
        **_measures("forces_", _STD_MEASURES, forces),
        "forces_atom_spearman": _atom_spearman(evaluation),
        **_intervals(evaluation, energy, forces),
        **_ood_measures(evaluation, ood),
    }


_STD_MEASURES: dict[str, Callable[[_Sample], float]] = {
    "calibration": lambda s: metrics.calibration_score(s.errors, s.std, s.calibration),
    "calibration_raw": lambda s: metrics.calibration_score(s.errors, s.std_raw),
    "calibration_paper": lambda s: metrics.per_sample_calibration_score(s.errors, s.std, s.calibration),
    "miscalibration_area": lambda s: metrics.miscalibration_area(s.errors, s.std, s.calibration),
    "coverage_68": lambda s: _coverage(s, metrics.ONE_SIGMA),
    "coverage_95": lambda s: _coverage(s, 0.95),
    "nll": lambda s: metrics.gaussian_nll(s.errors, s.std),
    "nll_raw": lambda s: metrics.gaussian_nll(s.errors, s.std_raw),
    "crps": lambda s: metrics.gaussian_crps(s.errors, s.std),
    "ence": lambda s: metrics.ence(s.errors, s.std),
    "sharpness": lambda s: metrics.sharpness(s.std),
    "spearman": lambda s: metrics.spearman(s.std, s.sizes),
    "retention_area": lambda s: metrics.retention_area(s.errors, s.std),
    "retention_gain": lambda s: metrics.retention_gain(s.errors, s.std),
}


def _coverage(sample: _Sample, level: float) -> float:
    return float(metrics.observed_coverage(sample.errors, sample.std, [level], sample.calibration)[0])


def _measures(prefix: str, measures: Mapping[str, Callable[[_Sample], float]], sample: _Sample | None) -> Summary:
    return {prefix + key: None if sample is None else _finite(measure(sample)) for key, measure in measures.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _error_measures(evaluation: Evaluation) -> Summary:
    energy, forces, stress = evaluation.energy_error, evaluation.forces_error, evaluation.stress_error
    return {
        "energy_mae": None if energy is None else metrics.mae(energy),
        "energy_rmse": None if energy is None else metrics.rmse(energy),
        "energy_mae_per_atom": None if energy is None else metrics.mae(energy / evaluation.atoms_per_structure),
        "forces_mae": None if forces is None else metrics.mae(forces),
        "forces_rmse": None if forces is None else metrics.rmse(forces),
        "stress_mae": None if stress is None else metrics.mae(stress),
        "stress_rmse": None if stress is None else metrics.rmse(stress),
    }


# --- samples


def _energy_sample(evaluation: Evaluation) -> _Sample | None:
    structure = np.arange(evaluation.n_structures)
    return _sample(evaluation.energy_error, evaluation.energy_std_raw, structure, evaluation.energy_calibration)


def _forces_sample(evaluation: Evaluation) -> _Sample | None:
    structure = np.repeat(evaluation.structure_index, 3)
    return _sample(evaluation.forces_error, evaluation.forces_std_raw, structure, evaluation.forces_calibration)


def _sample(
    errors: FloatArray | None, std_raw: FloatArray | None, structure: IntArray, calibration: Calibration
) -> _Sample | None:
    if errors is None or std_raw is None or not (std_raw > 0).any():
        return None
    kept = std_raw.ravel() > 0
    return _Sample(
        errors=errors.ravel()[kept],
        std_raw=std_raw.ravel()[kept],
        structure=structure[kept],
        calibration=calibration,
    )


def _n_zero(std_raw: FloatArray | None) -> int | None:
    return None if std_raw is None else int(np.count_nonzero(std_raw == 0))


def _atom_spearman(evaluation: Evaluation) -> float | None:
    """Spearman of √trace σ² and |error| of each atom's force."""
    if evaluation.forces_error is None or evaluation.forces_std_raw is None:
        return None
    norms = (np.linalg.norm(values, axis=1) for values in (evaluation.forces_std_raw, evaluation.forces_error))
    return _finite(metrics.spearman(*norms))


# --- bootstrap intervals: each statistic is a function of sums over structures, so a resample costs little


def _intervals(evaluation: Evaluation, energy: _Sample | None, forces: _Sample | None) -> Summary:
    return {
        "energy_mae_ci": _mae_interval(evaluation.energy_error, np.arange(evaluation.n_structures)),
        "energy_calibration_ci": _calibration_interval(energy),
        "energy_spearman_ci": _spearman_interval(energy),
        "forces_mae_ci": _mae_interval(evaluation.forces_error, np.repeat(evaluation.structure_index, 3)),
        "forces_calibration_ci": _calibration_interval(forces),
        "forces_spearman_ci": _spearman_interval(forces),
    }


def _mae_interval(errors: FloatArray | None, structure: IntArray) -> list[float] | None:
    if errors is None:
        return None
    sums = _structure_sums(structure, np.ones(errors.size), np.abs(errors).ravel())

    def statistic(rows: FloatArray) -> float:
        count, total = rows.sum(axis=0)
        return float(total / count)

    return _interval(statistic, sums)


def _calibration_interval(sample: _Sample | None) -> list[float] | None:
    if sample is None:
        return None
    sizes = metrics.standardised_sizes(sample.errors, sample.std)
    multipliers = sample.calibration.multiplier(metrics.CALIBRATION_LEVELS)
    inside = [(sizes <= width).astype(np.float64) for width in multipliers]
    sums = _structure_sums(sample.structure, np.ones_like(sizes), *inside)

    def statistic(rows: FloatArray) -> float:
        count, *inside = rows.sum(axis=0)
        return metrics.coverage_distance(np.array(inside) / count)

    return _interval(statistic, sums)


def _spearman_interval(sample: _Sample | None) -> list[float] | None:
    """Resamples keep the ranks they have in the whole set: far cheaper than ranking anew, and close to it."""
    if sample is None:
        return None
    r, s = metrics.centred_ranks(sample.std), metrics.centred_ranks(sample.sizes)
    sums = _structure_sums(sample.structure, np.ones_like(r), r, s, r * r, s * s, r * s)

    def statistic(rows: FloatArray) -> float:
        _, r, s, rr, ss, rs = (total := rows.sum(axis=0)) / total[0]
        variance = (rr - r * r) * (ss - s * s)
        return float((rs - r * s) / np.sqrt(variance)) if variance > 0 else float("nan")

    return _interval(statistic, sums)


def _structure_sums(structure: IntArray, *columns: FloatArray) -> FloatArray:
    """Sums over the samples of each structure that has any, (n_structures, n_columns)."""
    _, group = np.unique(structure, return_inverse=True)
    return np.stack([np.bincount(group, weights=column) for column in columns], axis=1)


def _interval(statistic: Callable[[FloatArray], float], rows: FloatArray) -> list[float] | None:
    low, high = metrics.bootstrap(statistic, rows)
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None


# --- out of distribution


def _ood_measures(evaluation: Evaluation, ood: Evaluation | None) -> Summary:
    per_atom = _scores(_energy_std_per_atom, evaluation, ood)
    total = _scores(lambda e: e.energy_std_raw, evaluation, ood)
    forces = _scores(_forces_std_rms, evaluation, ood)
    return {
        "energy_auroc": None if per_atom is None else metrics.auroc(*per_atom),
        "energy_auroc_total": None if total is None else metrics.auroc(*total),
        "energy_fpr95": None if per_atom is None else metrics.fpr_at_tpr(*per_atom),
        "forces_auroc": None if forces is None else metrics.auroc(*forces),
        "forces_fpr95": None if forces is None else metrics.fpr_at_tpr(*forces),
        "energy_spearman_with_ood": _joint_spearman(_energy_sample, evaluation, ood),
        "forces_spearman_with_ood": _joint_spearman(_forces_sample, evaluation, ood),
        **_ood_errors(ood),
    }


def _scores(
    score: Callable[[Evaluation], FloatArray | None], evaluation: Evaluation, ood: Evaluation | None
) -> tuple[FloatArray, FloatArray] | None:
    inside, outside = score(evaluation), None if ood is None else score(ood)
    return None if inside is None or outside is None else (inside, outside)


def _energy_std_per_atom(evaluation: Evaluation) -> FloatArray | None:
    std = evaluation.energy_std_raw
    return None if std is None else std / evaluation.atoms_per_structure


def _forces_std_rms(evaluation: Evaluation) -> FloatArray | None:
    """√(trace of the force σ² / 3n) of each structure."""
    if evaluation.forces_std_raw is None:
        return None
    trace = np.bincount(
        evaluation.structure_index,
        weights=np.square(evaluation.forces_std_raw).sum(axis=1),
        minlength=evaluation.n_structures,
    )
    return np.sqrt(trace / (3 * evaluation.atoms_per_structure))


def _joint_spearman(
    sample: Callable[[Evaluation], _Sample | None], evaluation: Evaluation, ood: Evaluation | None
) -> float | None:
    inside, outside = sample(evaluation), None if ood is None else sample(ood)
    if inside is None or outside is None:
        return None
    std = np.concatenate([inside.std_raw, outside.std_raw])
    return _finite(metrics.spearman(std, np.concatenate([inside.sizes, outside.sizes])))


def _ood_errors(ood: Evaluation | None) -> Summary:
    energy = None if ood is None else ood.energy_error
    forces = None if ood is None else ood.forces_error
    return {
        "ood_n_structures": None if ood is None else ood.n_structures,
        "ood_energy_mae": None if energy is None else metrics.mae(energy),
        "ood_energy_rmse": None if energy is None else metrics.rmse(energy),
        "ood_forces_mae": None if forces is None else metrics.mae(forces),
        "ood_forces_rmse": None if forces is None else metrics.rmse(forces),
    }
