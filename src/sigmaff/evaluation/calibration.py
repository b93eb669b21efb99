"""Recalibration: from raw σ and held-out errors to error bars that hold."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation.metrics import CALIBRATION_LEVELS, ONE_SIGMA, FloatArray
from sigmaff.models.prediction import UNCALIBRATED, Calibration

CalibrationMethod = Literal["auto", "scalar", "quantile", "isotonic", "conformal"]

MIN_SAMPLES = 10
SHAPE_SAMPLES = 2000
"""Samples needed to learn the shape of their distribution: benchmarks/calibrations.py."""
MAX_KNOTS = 200


def fit_calibration(errors: npt.ArrayLike, std_raw: npt.ArrayLike, method: CalibrationMethod = "auto") -> Calibration:
    """Fit the map from raw σ to calibrated intervals on held-out errors (force components pooled).

    With |z| = |error| / raw σ:

    - ``scalar``: σ × rms z, the maximum-likelihood factor of a Gaussian; a few large |z| dominate it;
    - ``quantile``: σ × the factor of least calibration score; heavy tails move it little;
    - ``isotonic``: each coverage gets the |z| below which that share of held-out errors lies;
    - ``conformal``: the same with the finite-sample correction: coverage is at least nominal on average over
      draws of exchangeable held-out and test data, however wrong σ is. (Force components of one structure are
      correlated: for forces this needs many structures, not many components.)
    - ``auto``: ``isotonic`` from 2000 samples on, ``quantile`` below.

    Isotonic and conformal report the half-width of the 68.27 % interval as σ. Beyond coverage n/(n + 1) the n held-out
    errors give no information, and the interval is infinite. Samples of σ = 0 are left out: no factor changes them,
    and forces that vanish by symmetry (of an isolated atom, or out of a molecule's plane) have them.
    """
    if method != "auto" and method not in CALIBRATION_METHODS:
        raise ConfigError(f"unknown calibration method {method!r}; known: auto, {', '.join(CALIBRATION_METHODS)}")
    sizes = _sorted_sizes(errors, std_raw)
    if method == "auto":
        method = "isotonic" if sizes.size >= SHAPE_SAMPLES else "quantile"
    return CALIBRATION_METHODS[method](sizes)


def _scalar(sizes: FloatArray) -> Calibration:
    return Calibration(method="scalar", scale=float(np.sqrt(np.square(sizes).mean())), n_samples=sizes.size)


def _quantile(sizes: FloatArray) -> Calibration:
    """Least Σ(p − p̂)² over a fine grid of factors.

    The best factor lies between the smallest and the largest of the nine ratios of empirical to Gaussian
    quantiles: below all of them every coverage is too low, above all of them too high.
    """
    gaussian = UNCALIBRATED.multiplier(CALIBRATION_LEVELS)
    ratios = np.quantile(sizes, CALIBRATION_LEVELS) / gaussian
    ratios = ratios[ratios > 0]
    if ratios.size == 0:
        raise DataError(_ZERO_ERRORS)
    factors = np.geomspace(ratios.min(), ratios.max(), 1001)
    observed = np.searchsorted(sizes, factors[:, None] * gaussian, side="right") / sizes.size
    distance = np.square(observed - CALIBRATION_LEVELS).sum(axis=1)
    best = factors[distance <= distance.min() * (1 + 1e-12)]  # p̂ moves in steps: the middle of the lowest one
    return Calibration(method="quantile", scale=float(best[best.size // 2]), n_samples=sizes.size)


def _isotonic(sizes: FloatArray) -> Calibration:
    """Knots (k/(n + 1), k-th smallest |z|), the expected coverage of that |z| on new data, from (0, 0) on."""
    ranks = _knot_ranks(sizes.size)
    return _with_knots("isotonic", ranks, np.concatenate([[0.0], sizes])[ranks], sizes.size)


def _conformal(sizes: FloatArray) -> Calibration:
    """Knots on or above the steps ⌈(n + 1)p⌉-th smallest |z|.

    The step of rank k + 1 begins at p = k/(n + 1). Lines between all those corners never fall below the
    steps; between some of them they may, and their ends are raised by as much. It costs about one rank.
    """
    corners = np.concatenate([sizes, sizes[-1:]])
    ranks = _knot_ranks(sizes.size)
    lines = np.interp(np.arange(corners.size), ranks, corners[ranks])
    shortfall = np.maximum.reduceat(corners - lines, ranks)[:-1].clip(min=0)
    raised = corners[ranks] + np.maximum(np.append(shortfall, 0), np.insert(shortfall, 0, 0))
    return _with_knots("conformal", ranks, np.maximum.accumulate(raised), sizes.size)


CALIBRATION_METHODS: dict[str, Callable[[FloatArray], Calibration]] = {
    "scalar": _scalar,
    "quantile": _quantile,
    "isotonic": _isotonic,
    "conformal": _conformal,
}


def _knot_ranks(n: int) -> npt.NDArray[np.int64]:
    """At most ``MAX_KNOTS`` of the ranks 0 … n: evenly spaced, and ever denser towards the tail."""
    if n < MAX_KNOTS:
        return np.arange(n + 1)
    even = np.linspace(0, n, MAX_KNOTS // 2)
    tail = n - np.geomspace(1, n / 2, MAX_KNOTS - even.size)
    return np.unique(np.concatenate([even, tail]).round().astype(np.int64))


def _with_knots(method: str, ranks: npt.NDArray[np.int64], sizes: FloatArray, n_samples: int) -> Calibration:
    coverages = ranks / (n_samples + 1)
    scale = float(np.interp(ONE_SIGMA, coverages, sizes))
    if scale == 0:
        raise DataError(_ZERO_ERRORS)
    return Calibration(
        method=method,
        scale=scale,
        n_samples=n_samples,
        coverages=tuple(coverages.tolist()),
        multipliers=tuple((sizes / scale).tolist()),
    )


_ZERO_ERRORS = (
    "most held-out errors are exactly zero, so σ cannot be calibrated on them; "
    "calibrate on labels that the model has not made or seen"
)


def _sorted_sizes(errors: npt.ArrayLike, std_raw: npt.ArrayLike) -> FloatArray:
    """|error| / σ in increasing order, where σ > 0."""
    e, sigma = (np.asarray(values, dtype=np.float64).ravel() for values in (errors, std_raw))
    if e.size != sigma.size:
        raise DataError(f"calibration needs one σ per error; got {e.size} errors and {sigma.size} σ")
    for name, values in (("errors", e), ("σ", sigma)):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise DataError(
                f"{bad.size} of {values.size} held-out {name} are not finite (first at sample {bad[0]}); "
                "check the labels and the model's predictions there"
            )
    if (sigma < 0).any():
        raise DataError(f"{np.count_nonzero(sigma < 0)} of {sigma.size} held-out σ are negative; σ cannot be")
    usable = sigma > 0
    if e.size >= MIN_SAMPLES and not usable.any():
        raise DataError("every held-out σ is zero; there is nothing to scale: use a method that estimates σ")
    if np.count_nonzero(usable) < MIN_SAMPLES:
        raise DataError(
            f"calibration needs at least {MIN_SAMPLES} held-out samples of σ > 0, "
            f"got {np.count_nonzero(usable)}; give more held-out structures"
        )
    sizes = np.sort(np.abs(e[usable]) / sigma[usable])
    if sizes[-1] == 0:
        raise DataError(_ZERO_ERRORS)
    return sizes
