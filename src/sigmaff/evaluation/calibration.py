"""Recalibration: from raw σ and held-out errors to error bars that hold.

Structures are counted, not errors: components of one structure are correlated, and what is promised is promised of a
new structure.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation.distribution import StudentT
from sigmaff.evaluation.metrics import CALIBRATION_LEVELS, ONE_SIGMA, FloatArray
from sigmaff.models.prediction import UNCALIBRATED, Calibration, EnergyForceStd

IntArray = npt.NDArray[np.int64]
CalibrationMethod = Literal["auto", "scalar", "quantile", "isotonic", "conformal"]

MIN_STRUCTURES = 20
MIN_CONFORMAL = 3
"""Structures without which the conformal interval of 68 % is infinite, and with it σ."""
SHAPE_STRUCTURES, SHAPE_ERRORS = 50, 1000
"""From these numbers on ``auto`` learns the shape of the errors. From that number of structures on, one factor has
Gaussian multipliers."""
DOFS = (3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
MAX_DOF = 1000.0
MAX_KNOTS = 200
MAX_EXPONENT = 2.0
"""Of energy σ in force σ, at most."""


def fit_calibration(
    errors: npt.ArrayLike, std_raw: npt.ArrayLike, structure: npt.ArrayLike, method: CalibrationMethod = "auto"
) -> Calibration:
    """Fit the map from raw σ to calibrated intervals on held-out errors (components pooled).

    With |z| = |error| / raw σ:

    - ``scalar``: σ × rms z, the maximum-likelihood factor of a Gaussian; a few large |z| dominate it;
    - ``quantile``: σ × the factor of least calibration score; heavy tails move it little;
    - ``isotonic``: each coverage gets the |z| below which that share of held-out errors lies;
    - ``conformal``: each structure counts once, with weight 1/(K + 1) of K structures, and the rest lies at infinity.
      The interval of coverage p holds an error drawn at random from a new structure with probability p at least, on
      average over draws of held-out and new structures, if these are exchangeable, however wrong σ is. Beyond
      coverage K/(K + 1) it is infinite.
    - ``auto``: ``isotonic`` from 50 structures and 1000 errors on, ``quantile`` below: one energy of each of 100
      structures tells a factor better than a shape (benchmarks/calibrations.py).

    Isotonic and conformal report the half-width of the 68.27 % interval as σ. Isotonic intervals are infinite beyond
    coverage n/(n + 1) of n errors. All methods but conformal count every error once. With fewer than 50 structures
    the multipliers of one factor are of Student's t (``_student``). Samples of σ = 0 are left out: no factor changes
    them, and forces that vanish by symmetry (of an isolated atom, or out of a molecule's plane) have them.

    Arguments:
        errors: predicted minus true, of any shape.
        std_raw: raw σ of each error.
        structure: index of the structure of each error.
        method: of the above; all but conformal need 20 structures.
    """
    if method != "auto" and method not in CALIBRATION_METHODS:
        raise ConfigError(f"unknown calibration method {method!r}; known: auto, {', '.join(CALIBRATION_METHODS)}")
    held_out = _held_out(errors, std_raw, structure, MIN_CONFORMAL if method == "conformal" else MIN_STRUCTURES)
    if method == "auto":
        has_shape = held_out.n_structures >= SHAPE_STRUCTURES and held_out.sizes.size >= SHAPE_ERRORS
        method = "isotonic" if has_shape else "quantile"
    return CALIBRATION_METHODS[method](held_out)


@dataclass(frozen=True)
class HeldOut:
    """Standardised errors of held-out structures."""

    sizes: FloatArray  # (n,) |error| / σ in increasing order
    structure: IntArray  # (n,) 0 … n_structures − 1

    @property
    def n_structures(self) -> int:
        return int(self.structure.max()) + 1

    @property
    def shares(self) -> FloatArray:
        """(n,) Each structure counts once: an error by 1 over the number of errors of its structure."""
        return 1 / np.bincount(self.structure)[self.structure]

    def error_of_mean(self, values: FloatArray, weights: FloatArray) -> float:
        """Standard error of a weighted mean over errors, if structures are independent, and errors in one are not."""
        deviations = weights * (values - np.average(values, weights=weights)) / weights.sum()
        n = self.n_structures
        return float(np.sqrt(n / (n - 1) * np.square(np.bincount(self.structure, deviations)).sum()))

    def calibration(self, method: str, scale: float, scale_error: float) -> Calibration:
        return Calibration(
            method=method,
            scale=scale,
            n_samples=self.sizes.size,
            n_structures=self.n_structures,
            scale_error=scale_error,
        )


def fit_energy_force_std(
    errors: FloatArray, atomic_numbers: IntArray, structure: IntArray, energy_std_raw: FloatArray
) -> EnergyForceStd:
    """Fit σ of forces as a power of the energy σ of their structure, one factor for each element.

    The exponent maximises the likelihood of Gaussian errors. The factor of an element then is the rms of its errors
    over the power. Structures of σ = 0 are left out.

    Arguments:
        errors: of forces, predicted minus true, (n_atoms, 3).
        atomic_numbers: (n_atoms,).
        structure: index of the structure of each atom, (n_atoms,).
        energy_std_raw: (n_structures,).
    """
    per_atom = energy_std_raw / np.bincount(structure, minlength=energy_std_raw.size).clip(min=1)
    known = np.unique(structure)
    known = known[per_atom[known] > 0]
    if known.size < MIN_STRUCTURES:
        raise DataError(f"force σ from energy σ needs {MIN_STRUCTURES} held-out structures, got {known.size}")
    used = np.isin(structure, known)
    reference = float(np.exp(np.log(per_atom[known]).mean()))
    growth = np.log(per_atom[structure[used]] / reference)
    squares, elements = np.square(errors[used]).mean(axis=1), atomic_numbers[used]
    numbers = [number for number in np.unique(elements) if squares[elements == number].any()]
    if not numbers:
        raise DataError(_ZERO_ERRORS)

    def factors(exponent: float) -> FloatArray:
        scaled = squares * np.exp(-2 * exponent * growth)
        return np.sqrt([scaled[elements == number].mean() for number in numbers])

    def loss(exponent: float) -> float:
        counts = np.array([np.count_nonzero(elements == number) for number in numbers])
        return float(counts @ np.log(factors(exponent)) + exponent * growth[np.isin(elements, numbers)].sum())

    exponent = float(scipy.optimize.minimize_scalar(loss, bounds=(0.0, MAX_EXPONENT), method="bounded").x)
    scales = {int(number): float(factor) for number, factor in zip(numbers, factors(exponent), strict=True)}
    return EnergyForceStd(scales=scales, exponent=exponent, reference=reference, n_structures=int(known.size))


# --- one factor


@cache
def _gaussian_widths() -> FloatArray:
    return UNCALIBRATED.multiplier(CALIBRATION_LEVELS)


def _scalar(held_out: HeldOut) -> Calibration:
    squares = np.square(held_out.sizes)
    scale = float(np.sqrt(squares.mean()))
    error = held_out.error_of_mean(squares, np.ones_like(squares)) / (2 * scale)
    return _student(held_out, held_out.calibration("scalar", scale, error), lambda _: scale)


def _quantile(held_out: HeldOut) -> Calibration:
    scale = _least_score(held_out.sizes, _gaussian_widths())
    found = held_out.calibration("quantile", scale, _error_of_least_score(held_out, scale))
    return _student(
        held_out,
        found,
        lambda dof: _least_score(held_out.sizes, replace(found, dof=dof).multiplier(CALIBRATION_LEVELS)),
    )


def _least_score(sizes: FloatArray, multipliers: FloatArray) -> float:
    """Least Σ(p − p̂)² over a fine grid of factors.

    The best factor lies between the smallest and the largest of the nine ratios of empirical to nominal
    quantiles: below all of them every coverage is too low, above all of them too high.
    """
    ratios = np.quantile(sizes, CALIBRATION_LEVELS) / multipliers
    ratios = ratios[ratios > 0]
    if ratios.size == 0:
        raise DataError(_ZERO_ERRORS)
    factors = np.geomspace(ratios.min(), ratios.max(), 1001)
    distance = np.square(_observed(sizes, factors, multipliers) - CALIBRATION_LEVELS).sum(axis=1)
    best = factors[distance <= distance.min() * (1 + 1e-12)]  # p̂ moves in steps: the middle of the lowest one
    return float(best[best.size // 2])


def _observed(sizes: FloatArray, factors: FloatArray, multipliers: FloatArray) -> FloatArray:
    """Coverages p̂ by factor and multiplier."""
    return np.searchsorted(sizes, factors[:, None] * multipliers, side="right") / sizes.size


def _error_of_least_score(held_out: HeldOut, scale: float) -> float:
    """Standard error of the factor of least score, which solves Σ h_p (p̂ − p) = 0.

    h_p is the slope of p̂ by the logarithm of the factor, of a Gaussian. The sum never falls with the factor: the
    factor moves as far as it takes to change the sum by its standard error.
    """
    widths = _gaussian_widths()
    slopes = widths * np.exp(-0.5 * np.square(widths))
    inside = np.append(np.cumsum(slopes[::-1])[::-1], 0.0)[np.searchsorted(scale * widths, held_out.sizes)]
    error = held_out.error_of_mean(inside, np.ones_like(inside))
    factors = scale * np.geomspace(1 / 3, 3, 601)
    sums = _observed(held_out.sizes, factors, widths) @ slopes
    low, high = np.interp(inside.mean() + error * np.array([-1, 1]), sums, factors)
    return float(high - low) / 2


def _student(held_out: HeldOut, found: Calibration, scale_of: Callable[[float], float]) -> Calibration:
    """With few structures: multipliers of Student's t, for a factor that is uncertain, and errors with tails.

    A factor s from n Gaussian errors has relative standard error 1/√(2n), and new errors over s are t-distributed with
    n degrees of freedom. So ν is at most ½(s/error of s)², the number of independent errors that would leave s as
    uncertain; and as far below as the likelihood of the held-out errors asks for, down to 3.
    """
    if found.n_structures is None or found.n_structures >= SHAPE_STRUCTURES or found.scale_error is None:
        return found
    most = MAX_DOF
    if found.scale_error > 0:
        most = float(np.clip(0.5 * (found.scale / found.scale_error) ** 2, DOFS[0], MAX_DOF))
    candidates = [replace(found, dof=dof, scale=scale_of(dof)) for dof in (*(d for d in DOFS if d < most), most)]

    def log_likelihood(candidate: Calibration) -> float:
        assert candidate.dof is not None
        sizes = held_out.sizes / candidate.scale
        return float(StudentT(candidate.dof).log_density(sizes).mean() - np.log(candidate.scale))

    return max(candidates, key=log_likelihood)


# --- a shape


def _isotonic(held_out: HeldOut) -> Calibration:
    """Knots (k/(n + 1), k-th smallest |z|), the expected coverage of that |z| on new data, from (0, 0) on."""
    sizes, n = held_out.sizes, held_out.sizes.size
    ranks = _knot_ranks(n)
    knots = np.concatenate([[0.0], sizes])[ranks]
    return _with_knots("isotonic", held_out, np.ones_like(sizes), ranks / (n + 1), knots)


def _conformal(held_out: HeldOut) -> Calibration:
    """Knots on or above the steps of the hierarchical quantile.

    With C_i the weight of the i smallest |z|, K/(K + 1) in all, the quantile of p in (C_i, C_{i+1}] is the (i + 1)-th
    smallest. Lines between all the corners (C_i, |z|_{i+1}) never fall below the steps; between some of them they
    may, and their ends are raised by as much.

    Hierarchical conformal prediction: Dunn, Wasserman and Ramdas, J. Am. Stat. Assoc. 118, 2491 (2023); Lee, Barber
    and Willett, arXiv:2306.06342.
    """
    sizes, shares, k = held_out.sizes, held_out.shares, held_out.n_structures
    coverages = _cumulative(shares) * k / (k + 1)
    corners = np.concatenate([sizes, sizes[-1:]])
    ranks = _knot_ranks(sizes.size)
    lines = np.interp(coverages, coverages[ranks], corners[ranks])
    shortfall = np.maximum.reduceat(corners - lines, ranks)[:-1].clip(min=0)
    raised = corners[ranks] + np.maximum(np.append(shortfall, 0), np.insert(shortfall, 0, 0))
    return _with_knots("conformal", held_out, shares, coverages[ranks], np.maximum.accumulate(raised))


CALIBRATION_METHODS: dict[str, Callable[[HeldOut], Calibration]] = {
    "scalar": _scalar,
    "quantile": _quantile,
    "isotonic": _isotonic,
    "conformal": _conformal,
}


def _knot_ranks(n: int) -> IntArray:
    """At most ``MAX_KNOTS`` of the ranks 0 … n: evenly spaced, and ever denser towards the tail."""
    if n < MAX_KNOTS:
        return np.arange(n + 1)
    even = np.linspace(0, n, MAX_KNOTS // 2)
    tail = n - np.geomspace(1, n / 2, MAX_KNOTS - even.size)
    return np.unique(np.concatenate([even, tail]).round().astype(np.int64))


def _cumulative(weights: FloatArray) -> FloatArray:
    """(n + 1,) from 0 to 1."""
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    return np.asarray(sums / sums[-1])


def _with_knots(
    method: str, held_out: HeldOut, weights: FloatArray, coverages: FloatArray, sizes: FloatArray
) -> Calibration:
    """Its standard error: half the distance of the quantiles at 68.27 % ± the standard error of that share."""
    scale = float(np.interp(ONE_SIGMA, coverages, sizes))
    if scale == 0:
        raise DataError(_ZERO_ERRORS)
    error = held_out.error_of_mean((held_out.sizes <= scale).astype(np.float64), weights)
    low, high = np.interp(ONE_SIGMA + error * np.array([-1, 1]), _cumulative(weights)[1:], held_out.sizes)
    return replace(
        held_out.calibration(method, scale, float(high - low) / 2),
        coverages=tuple(coverages.tolist()),
        multipliers=tuple((sizes / scale).tolist()),
    )


# --- input

_ZERO_ERRORS = (
    "most held-out errors are exactly zero, so σ cannot be calibrated on them; "
    "calibrate on labels that the model has not made or seen"
)


def _held_out(errors: npt.ArrayLike, std_raw: npt.ArrayLike, structure: npt.ArrayLike, n_needed: int) -> HeldOut:
    """|error| / σ in increasing order, where σ > 0."""
    e, sigma = (np.asarray(values, dtype=np.float64).ravel() for values in (errors, std_raw))
    index = np.asarray(structure).ravel()
    if not e.size == sigma.size == index.size:
        raise DataError(
            f"calibration needs one σ and one structure per error; got {e.size} errors, {sigma.size} σ and "
            f"{index.size} structures"
        )
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
    if e.size >= n_needed and not usable.any():
        raise DataError("every held-out σ is zero; there is nothing to scale: use a method that estimates σ")
    n_structures = np.unique(index[usable]).size
    if n_structures < n_needed:
        other = ", or use the method conformal, which needs 3" if n_structures >= MIN_CONFORMAL else ""
        raise DataError(
            f"calibration needs at least {n_needed} held-out structures with σ > 0, got {n_structures}; "
            f"give more held-out structures{other}"
        )
    sizes = np.abs(e[usable]) / sigma[usable]
    if sizes.max() == 0:
        raise DataError(_ZERO_ERRORS)
    order = np.argsort(sizes, kind="stable")
    return HeldOut(sizes[order], np.unique(index[usable], return_inverse=True)[1][order])
