"""The distribution of errors that a calibration reports, in units of the reported σ: its density and its CRPS.

All are symmetric about 0. Without knots it is the Gaussian, or Student's t. Knots say how wide the interval of each
coverage is, and leave open what lies between and beyond them. The distribution that is scored is

    F(z) = Φ(x(z)),  x odd, continuous and piecewise linear,

with x(m(p)) = Φ⁻¹((1 + p)/2) at a few coverages p: there it has the intervals m(p) that are reported. The Gaussian is
x(z) = z. Levels p lie evenly in x; their number grows as ∛n with the number n of errors, for a density between all
order statistics would be noise. The last lies where five errors are left outside. Beyond it x goes on at the
smaller of its last slope and its mean slope, a Gaussian tail: errors outside the last interval, which is infinite,
have a density too. No slope exceeds 100: coinciding errors leave the density finite.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from sigmaff.models.prediction import Calibration, FloatArray

ERRORS_IN_TAIL = 5
MAX_SLOPE = 100.0


class Distribution(Protocol):
    """Of an error over its σ."""

    def log_density(self, sizes: FloatArray) -> FloatArray:
        """At |z|."""
        ...

    def crps(self, sizes: FloatArray) -> FloatArray:
        """∫(F(x) − 1[x ≥ z])² dx for |z|; by symmetry it is that of z."""
        ...


def reported_distribution(calibration: Calibration) -> Distribution:
    """The distribution whose central intervals are those of a calibration."""
    if calibration.coverages is None or calibration.multipliers is None:
        return GAUSSIAN if calibration.dof is None else StudentT(calibration.dof)
    n = max(calibration.n_samples, 2 * ERRORS_IN_TAIL)
    last = min(calibration.coverages[-1], 1 - ERRORS_IN_TAIL / n)
    scores = np.linspace(0.0, scipy.special.ndtri(0.5 + 0.5 * last), 1 + int(np.ceil(np.cbrt(n))))
    sizes = calibration.multiplier(2 * scipy.special.ndtr(scores) - 1)
    sizes[0] = 0.0
    lengths = np.maximum(np.diff(sizes), np.diff(scores) / MAX_SLOPE)
    return NormalScores(scores, np.concatenate([[0.0], np.cumsum(lengths)]))


@dataclass(frozen=True)
class NormalScores:
    """F(z) = Φ(x(z)) with x piecewise linear through knots, and beyond the last at its last or its mean slope.

    With y = |z|, CRPS = y + 2S(y) − C, where S(y) = ∫_y^∞ (1 − F) and C = 2∫₀^∞ F(1 − F): both in closed form on
    each piece.
    """

    scores: FloatArray  # (n_knots,) x, from 0 on
    sizes: FloatArray  # (n_knots,) |z|, from 0 on

    def log_density(self, sizes: FloatArray) -> FloatArray:
        scores, lengths = self._at(sizes)
        with np.errstate(over="ignore"):
            return -0.5 * np.square(scores) - 0.5 * np.log(2 * np.pi) - np.log(lengths)

    def crps(self, sizes: FloatArray) -> FloatArray:
        scores, lengths = self._at(sizes)
        own, ends = self._lengths, np.append(self.scores[1:], np.inf)
        tails = own * (_upper_mass(self.scores) - _upper_mass(ends))
        beyond = np.append(np.cumsum(tails[::-1])[::-1], 0.0)
        piece = self._piece(sizes)
        upper = lengths * (_upper_mass(scores) - _upper_mass(ends[piece])) + beyond[piece + 1]
        spread = 2 * (own * (_upper_spread(self.scores) - _upper_spread(ends))).sum()
        return sizes + 2 * upper - spread

    @property
    def _lengths(self) -> FloatArray:
        """Of |z| for each unit of x, (n_knots,): between knots, and beyond the last."""
        between = np.diff(self.sizes) / np.diff(self.scores)
        return np.append(between, max(between[-1], self.sizes[-1] / self.scores[-1]))

    def _piece(self, sizes: FloatArray) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        return np.searchsorted(self.sizes, sizes, side="right") - 1

    def _at(self, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """x(|z|), and the length of its piece in |z| for each unit of x."""
        piece = self._piece(sizes)
        lengths = self._lengths[piece]
        return self.scores[piece] + (sizes - self.sizes[piece]) / lengths, lengths


GAUSSIAN = NormalScores(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


@dataclass(frozen=True)
class StudentT:
    dof: float  # above 1

    def log_density(self, sizes: FloatArray) -> FloatArray:
        return np.asarray(scipy.stats.t.logpdf(sizes, self.dof))

    def crps(self, sizes: FloatArray) -> FloatArray:
        """y(2F(y) − 1) + 2f(y)(ν + y²)/(ν − 1) − 2√ν B(½, ν − ½) / ((ν − 1) B(½, ν/2)²)."""
        nu = self.dof
        spread = 2 * np.sqrt(nu) / (nu - 1) * scipy.special.beta(0.5, nu - 0.5) / scipy.special.beta(0.5, 0.5 * nu) ** 2
        density, distribution = scipy.stats.t.pdf(sizes, nu), scipy.stats.t.cdf(sizes, nu)
        return np.asarray(sizes * (2 * distribution - 1) + 2 * density * (nu + sizes**2) / (nu - 1) - spread)


def _density(scores: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.exp(-0.5 * np.square(scores)) / np.sqrt(2 * np.pi)


def _upper_mass(scores: FloatArray) -> FloatArray:
    """∫_x^∞ Φ(−u) du = φ(x) − x Φ(−x)."""
    finite = np.isfinite(scores)
    x = np.where(finite, scores, 0.0)
    return np.where(finite, _density(x) - x * scipy.special.ndtr(-x), 0.0)


def _upper_spread(scores: FloatArray) -> FloatArray:
    """∫_x^∞ Φ(u)Φ(−u) du = ∫_x^∞ (Φ(−u) − Φ(−u)²) du."""
    finite = np.isfinite(scores)
    x = np.where(finite, scores, 0.0)
    squares = (
        2 * _density(x) * scipy.special.ndtr(-x)
        - x * scipy.special.ndtr(-x) ** 2
        - scipy.special.ndtr(-np.sqrt(2) * x) / np.sqrt(np.pi)
    )
    return np.where(finite, _upper_mass(x) - squares, 0.0)
