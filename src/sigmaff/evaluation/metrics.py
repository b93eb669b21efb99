"""Measures of errors and of their σ, as pure functions of float64 arrays.

Arguments have one meaning throughout:

- ``errors``: predicted minus true, in any unit; force components are pooled, so any shape will do;
- ``std``: the reported (calibrated) σ of each error, same shape and unit, positive;
- ``intervals``: the calibration that says how wide the central interval of each coverage is, in units of the
  reported σ; Gaussian unless given.

Empty, mismatched or non-finite arrays and σ ≤ 0 raise ``ValueError``. A measure that is undefined for sound
input (a rank correlation with a constant, bins without samples) is NaN, as its docstring says.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy

from sigmaff.evaluation.distribution import reported_distribution
from sigmaff.models.prediction import UNCALIBRATED, Calibration, FloatArray

CALIBRATION_LEVELS: FloatArray = np.arange(1, 10) / 10
"""The nominal coverages .1, .2 … .9 of the calibration score."""

ONE_SIGMA = 0.682689492137086
"""Coverage of a Gaussian's central ±σ interval, erf(1/√2)."""


def mae(errors: npt.ArrayLike) -> float:
    """Mean absolute error."""
    return float(np.abs(pooled(errors)).mean())


def rmse(errors: npt.ArrayLike) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.square(pooled(errors)).mean()))


# --- coverage


def observed_coverage(
    errors: npt.ArrayLike, std: npt.ArrayLike, coverages: npt.ArrayLike, intervals: Calibration = UNCALIBRATED
) -> FloatArray:
    """p̂(p): the share of errors inside the central interval of each nominal coverage p in [0, 1]."""
    sizes = np.sort(standardised_sizes(errors, std))
    nominal = np.asarray(coverages, dtype=np.float64)
    if not ((nominal >= 0) & (nominal <= 1)).all():
        raise ValueError(f"coverages must lie in [0, 1], got {nominal}")
    multipliers = intervals.multiplier(nominal)
    return np.searchsorted(sizes, multipliers, side="right") / sizes.size


def coverage_distance(observed: FloatArray) -> float:
    """√Σ(p − p̂)² over the ``CALIBRATION_LEVELS`` p, from the observed coverages p̂ there."""
    return float(np.sqrt(np.square(CALIBRATION_LEVELS - observed).sum()))


def calibration_score(errors: npt.ArrayLike, std: npt.ArrayLike, intervals: Calibration = UNCALIBRATED) -> float:
    """s = √Σ(p − p̂)² over p = .1 … .9, with p̂ taken over all samples.

    Perfect is 0, the worst is √2.85 = 1.688, for σ → 0 and for σ → ∞ alike. Perfect σ on N samples scores
    about 1.2/√N by chance: 0.119 at N = 100, 0.039 at N = 1000.
    """
    return coverage_distance(observed_coverage(errors, std, CALIBRATION_LEVELS, intervals))


def per_sample_calibration_score(
    errors: npt.ArrayLike, std: npt.ArrayLike, intervals: Calibration = UNCALIBRATED
) -> float:
    """The calibration score of every sample by itself, averaged: each p̂ is 0 or 1.

    Perfect σ gives 1.254; values lie between √.85 = 0.922 and √2.85 = 1.688. A value below 1.254 is *not*
    better calibrated, so use it only to compare with figures published in this convention.
    """
    multipliers = intervals.multiplier(CALIBRATION_LEVELS)
    n_missed = np.searchsorted(multipliers, standardised_sizes(errors, std), side="left")
    n_levels = CALIBRATION_LEVELS.size
    observed = np.arange(n_levels) >= np.arange(n_levels + 1)[:, None]  # row k: the k narrowest intervals missed
    scores = np.sqrt(np.square(CALIBRATION_LEVELS - observed).sum(axis=1))
    return float(scores[n_missed].mean())


def miscalibration_area(errors: npt.ArrayLike, std: npt.ArrayLike, intervals: Calibration = UNCALIBRATED) -> float:
    """∫₀¹ |p − p̂(p)| dp by the midpoint rule on 200 cells: perfect 0, worst 0.5."""
    nominal = (np.arange(200) + 0.5) / 200
    return float(np.abs(nominal - observed_coverage(errors, std, nominal, intervals)).mean())


# --- scores of the reported distribution, and σ in bins


def nll(errors: npt.ArrayLike, std: npt.ArrayLike, intervals: Calibration = UNCALIBRATED) -> float:
    """Mean negative log-density of the distribution with these intervals; for a Gaussian ½ ln(2πσ²) + e²/2σ².

    It can be negative, and infinite where σ is vanishingly small. ``sigmaff.evaluation.distribution`` says what the
    density is where a calibration has knots.
    """
    sizes, sigma = standardised_sizes(errors, std), positive_std(std)
    return float((np.log(sigma) - reported_distribution(intervals).log_density(sizes)).mean())


def crps(errors: npt.ArrayLike, std: npt.ArrayLike, intervals: Calibration = UNCALIBRATED) -> float:
    """Mean continuous ranked probability score ∫(F(x) − 1[x ≥ y])² dx of the same distribution, in the errors' unit.

    For a Gaussian with z = |e|/σ it is σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π]; it tends to the MAE as σ → 0.
    """
    sizes, sigma, absolute = standardised_sizes(errors, std), positive_std(std), np.abs(pooled(errors))
    inside = np.isfinite(sizes)
    scores = sigma * reported_distribution(intervals).crps(np.where(inside, sizes, 0.0))
    return float(np.where(inside, scores, absolute).mean())


def ence(errors: npt.ArrayLike, std: npt.ArrayLike, n_bins: int = 10) -> float:
    """Expected normalised calibration error: mean over bins of |RMS σ − RMSE| / RMS σ.

    Samples are sorted by σ into ``n_bins`` bins of equal count (to within one). NaN with fewer samples.
    """
    e, sigma = _pair(errors, std)
    if e.size < n_bins:
        return float("nan")
    bins = np.array_split(np.argsort(sigma, kind="stable"), n_bins)
    rms_std = np.array([np.sqrt(np.square(sigma[members]).mean()) for members in bins])
    rms_error = np.array([np.sqrt(np.square(e[members]).mean()) for members in bins])
    return float((np.abs(rms_std - rms_error) / rms_std).mean())


def rms_z(errors: npt.ArrayLike, std: npt.ArrayLike) -> float:
    """Root of the mean of (e/σ)²: 1 for Gaussian errors with this σ, larger where σ is too small."""
    return float(np.sqrt(np.square(standardised_sizes(errors, std)).mean()))


def sharpness(std: npt.ArrayLike) -> float:
    """Root of the mean σ²: how wide the error bars are, right or wrong."""
    return float(np.sqrt(np.square(positive_std(std)).mean()))


# --- ranking: does σ point at the larger errors?


def spearman(std: npt.ArrayLike, sizes: npt.ArrayLike) -> float:
    """Spearman's rank correlation, ties by mid-ranks. NaN if either side is constant (or one sample)."""
    first, second = pooled(std), pooled(sizes)
    if first.size != second.size:
        raise ValueError(f"{first.size} and {second.size} values do not belong together")
    first, second = centred_ranks(first), centred_ranks(second)
    norm = np.sqrt(np.square(first).sum() * np.square(second).sum())
    return float((first * second).sum() / norm) if norm > 0 else float("nan")


def centred_ranks(values: FloatArray) -> FloatArray:
    """Mid-ranks minus their mean."""
    return scipy.stats.rankdata(values) - 0.5 * (values.size + 1)


def retention_curve(errors: npt.ArrayLike, std: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Error left when only the fraction f of lowest σ is kept and the rest is replaced by exact values.

    Returns f = 0, 1/N … 1 and Σ_{kept} |e| / N there: from 0 to the MAE, straight if σ says nothing. Samples
    of equal σ share their mean error, so the curve does not depend on the order of the input.
    """
    e, sigma = _pair(errors, std)
    _, group, counts = np.unique(sigma, return_inverse=True, return_counts=True)
    group_mean = np.bincount(group, weights=np.abs(e)) / counts
    kept = np.cumsum(np.repeat(group_mean, counts)) / e.size
    return np.arange(e.size + 1) / e.size, np.concatenate([[0.0], kept])


def retention_area(errors: npt.ArrayLike, std: npt.ArrayLike) -> float:
    """Area under the error-retention curve: half the MAE if σ says nothing, less if σ ranks the errors."""
    fraction, error = retention_curve(errors, std)
    return float(np.trapezoid(error, fraction))


def retention_gain(errors: npt.ArrayLike, std: npt.ArrayLike) -> float:
    """(A_random − A_σ) / (A_random − A_oracle) of retention areas A: 1 if σ ranks as |e| does, 0 at random.

    Negative where σ ranks the wrong way round; NaN if all |e| are equal, as no order is then the best.
    """
    e, sigma = _pair(errors, std)
    absolute = np.sort(np.abs(e))
    random = 0.5 * absolute.mean()
    best = np.trapezoid(np.concatenate([[0.0], np.cumsum(absolute)]), dx=1 / e.size) / e.size
    if absolute[0] == absolute[-1]:
        return float("nan")
    return float((random - retention_area(e, sigma)) / (random - best))


# --- detection: is σ larger out of distribution (OOD) than in distribution (ID)?


def auroc(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> float:
    """P(OOD score > ID score) + ½ P(equal): OOD is the positive class, the score is σ."""
    inside, outside = pooled(id_scores), pooled(ood_scores)
    n = outside.size
    rank_sum = scipy.stats.rankdata(np.concatenate([inside, outside]))[inside.size :].sum()
    return float((rank_sum - 0.5 * n * (n + 1)) / (n * inside.size))


def auroc_interval(value: float, n_id: int, n_ood: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of an AUROC of ``n_id`` and ``n_ood`` independent structures; not a point where it is 0 or 1.

    All θ with |θ − value| ≤ z √V(θ), V(θ) = θ(1 − θ) [1 + N ((1 − θ)/(2 − θ) + θ/(1 + θ))] / (n_id n_ood) and
    N = (n_id + n_ood)/2 − 1: the variance of Hanley and McNeil as Newcombe takes it (Statistics in Medicine 25, 2006).
    """
    if not 0 <= value <= 1:
        raise ValueError(f"an AUROC lies in [0, 1], got {value}")
    z, n = _two_sided(level), 0.5 * (n_id + n_ood) - 1

    def excess(theta: float) -> float:
        variance = theta * (1 - theta) * (1 + n * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        return abs(theta - value) - z * float(np.sqrt(variance / (n_id * n_ood)))

    inner = min(max(value, 1e-12), 1 - 1e-12)  # at 0 and 1 the value itself is a second root
    low = 0.0 if value == 0 else scipy.optimize.brentq(excess, 0.0, inner)
    return low, 1.0 if value == 1 else scipy.optimize.brentq(excess, inner, 1.0)


def auroc_difference(
    first: tuple[npt.ArrayLike, npt.ArrayLike], second: tuple[npt.ArrayLike, npt.ArrayLike], level: float = 0.95
) -> tuple[float, float, float]:
    """AUROC of the second score minus that of the first, and its interval, by DeLong's variance of paired scores.

    Arguments:
        first: a score of the ID and of the OOD structures.
        second: another score of the same structures, in the same order.

    The interval is NaN if no structure changes its place: two perfect scores cannot be told apart.
    """
    placed = [_placements(*scores) for scores in (first, second)]
    inside, outside = (after - before for before, after in zip(*placed, strict=True))
    difference = float(outside.mean())
    variance = sum(float(part.var(ddof=1)) / part.size for part in (inside, outside) if part.size > 1)
    reach = _two_sided(level) * float(np.sqrt(variance)) if variance > 0 else float("nan")
    return difference, difference - reach, difference + reach


def _placements(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """For each ID score the share of OOD scores above it, for each OOD score the share of ID scores below it."""
    inside, outside = pooled(id_scores), pooled(ood_scores)
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside]))
    above = 1 - (ranks[: inside.size] - scipy.stats.rankdata(inside)) / outside.size
    return above, (ranks[inside.size :] - scipy.stats.rankdata(outside)) / inside.size


def _two_sided(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    return float(scipy.special.ndtri(0.5 + 0.5 * level))


def fpr_at_tpr(id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike, tpr: float = 0.95) -> float:
    """Share of ID samples at or above the highest threshold that a share ``tpr`` of OOD samples reaches."""
    inside, outside = pooled(id_scores), np.sort(pooled(ood_scores))
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
    n_flagged = int(np.ceil(tpr * outside.size - 1e-9))
    return float((inside >= outside[-n_flagged]).mean())


# --- uncertainty of the measures themselves


def bootstrap(
    statistic: Callable[..., float], *arrays: FloatArray, n_resamples: int = 200, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Central percentile interval of ``statistic(*arrays)`` as the rows of all arrays are resampled together.

    A row is what was drawn independently: a structure, not one of its atoms or force components.
    NaN for a single row, or where a resample leaves the statistic undefined.
    """
    n_rows = {len(array) for array in arrays}
    if len(n_rows) != 1 or 0 in n_rows:
        raise ValueError(f"bootstrap needs arrays of one common length above 0, got lengths {sorted(n_rows)}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    n = n_rows.pop()
    if n == 1:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    rows = (rng.integers(n, size=n) for _ in range(n_resamples))
    values = [statistic(*(array[row] for array in arrays)) for row in rows]
    low, high = np.quantile(values, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)


# --- input


def pooled(values: npt.ArrayLike) -> FloatArray:
    """All values as one float64 row; ``ValueError`` if there is none or one is not finite."""
    row = np.asarray(values, dtype=np.float64).ravel()
    if row.size == 0:
        raise ValueError("no samples: the array is empty")
    if not np.isfinite(row).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(row))} of {row.size} values are not finite")
    return row


def positive_std(std: npt.ArrayLike) -> FloatArray:
    """σ as one float64 row; ``ValueError`` unless every one is positive and finite."""
    sigma = pooled(std)
    if (sigma <= 0).any():
        raise ValueError(f"{np.count_nonzero(sigma <= 0)} of {sigma.size} σ are not positive")
    return sigma


def standardised_sizes(errors: npt.ArrayLike, std: npt.ArrayLike) -> FloatArray:
    """|e| / σ, infinite where it leaves float64."""
    e, sigma = _pair(errors, std)
    with np.errstate(over="ignore"):
        return np.abs(e) / sigma


def _pair(errors: npt.ArrayLike, std: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    if np.shape(errors) != np.shape(std):
        raise ValueError(f"errors of shape {np.shape(errors)} and σ of shape {np.shape(std)} do not belong together")
    return pooled(errors), positive_std(std)
