"""NLL and CRPS of the distribution that a calibration reports: against quadrature, closed forms and entropies."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from scipy.stats import t as student

from sigmaff.evaluation import fit_calibration
from sigmaff.evaluation.distribution import GAUSSIAN, Distribution, NormalScores, StudentT, reported_distribution
from sigmaff.evaluation.metrics import ONE_SIGMA, crps, nll
from sigmaff.models.prediction import Calibration

SIZES = np.array([0.0, 0.25, 1.0, 2.0, 7.5])
BENT = NormalScores(np.array([0.0, 0.4, 1.0, 2.0]), np.array([0.0, 0.3, 1.2, 5.0]))


def bent(z: float) -> float:
    """Φ of the polygon through the knots of ``BENT``, beyond them along its last edge."""
    x = np.interp(abs(z), BENT.sizes, BENT.scores) if abs(z) <= 5 else 2 + (abs(z) - 5) / 3.8
    return norm.cdf(np.sign(z) * x)


CASES: dict[str, tuple[Distribution, Callable[[float], float]]] = {
    "gaussian": (GAUSSIAN, norm.cdf),
    "student": (StudentT(3.7), lambda z: student.cdf(z, 3.7)),
    "knots": (BENT, bent),
}


@pytest.mark.parametrize("name", CASES)
def test_crps_is_the_integral_of_squared_differences(name: str) -> None:
    distribution, cumulative = CASES[name]
    ends = [0.3, 1.2, 5.0, *SIZES[1:]]
    for size, found in zip(SIZES, distribution.crps(SIZES), strict=True):
        points = sorted({-end for end in ends} | set(ends) | {0.0})
        below, _ = quad(lambda z: cumulative(z) ** 2, -200, size, points=[p for p in points if p < size], limit=500)
        above, _ = quad(lambda z: cumulative(-z) ** 2, size, 200, points=[p for p in points if p > size], limit=500)
        assert found == pytest.approx(below + above, abs=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_density_is_the_slope_of_the_distribution(name: str) -> None:
    distribution, cumulative = CASES[name]
    for size in (0.1, 0.7, 3.0, 9.0):  # off the knots
        slope = (cumulative(size + 1e-5) - cumulative(size - 1e-5)) / 2e-5
        assert np.exp(distribution.log_density(np.array([size]))[0]) == pytest.approx(slope, rel=1e-4)


def with_gaussian_knots(n: int) -> Calibration:
    coverages = np.arange(n + 1) / (n + 1)
    return Calibration(
        method="isotonic",
        scale=1.0,
        n_samples=n,
        coverages=tuple(coverages),
        multipliers=tuple(norm.ppf(0.5 + 0.5 * coverages)),
    )


@pytest.mark.parametrize("n", [60, 1000])
def test_knots_of_a_gaussian_score_as_a_gaussian(n: int) -> None:
    rng = np.random.default_rng(0)
    errors, std = 2 * rng.standard_normal(3000), rng.uniform(1, 3, 3000)
    knots = with_gaussian_knots(n)
    assert nll(errors, std, knots) == pytest.approx(nll(errors, std), abs=2e-3)
    assert crps(errors, std, knots) == pytest.approx(crps(errors, std), rel=1e-3)


def test_the_scored_distribution_has_the_reported_intervals() -> None:
    rng = np.random.default_rng(1)
    calibration = fit_calibration(rng.standard_t(3, 3000), np.ones(3000), np.arange(3000), "isotonic")
    distribution = reported_distribution(calibration)
    assert isinstance(distribution, NormalScores)
    coverages = 2 * norm.cdf(distribution.scores) - 1
    np.testing.assert_allclose(distribution.sizes, calibration.multiplier(coverages), atol=1e-9)
    assert 1 - 10 / 3000 < coverages[-1] < 1


@pytest.mark.parametrize("method", ["isotonic", "conformal"])
@pytest.mark.parametrize(("n", "excess"), [(100, 0.12), (1000, 0.02), (30_000, 0.005)])
def test_nll_of_heavy_tails_nears_their_entropy(method: str, n: int, excess: float) -> None:
    """Errors of Student's t with 3 degrees of freedom, of which a Gaussian of the 68 % width knows nothing."""
    rng = np.random.default_rng(2)
    test = rng.standard_t(3, 200_000)
    ones = np.ones_like(test)
    entropy = float(student.entropy(3))
    found, gaussian = [], []
    for _ in range(20 if n < 1000 else 3):
        calibration = fit_calibration(rng.standard_t(3, n), np.ones(n), np.arange(n), method)
        found.append(nll(test, calibration.scale * ones, calibration))
        gaussian.append(nll(test, calibration.scale * ones))
    assert entropy - 0.01 < np.mean(found) < entropy + excess
    assert np.mean(gaussian) > entropy + 0.2


@pytest.mark.parametrize("method", ["isotonic", "conformal", "quantile"])
def test_scores_of_the_truth_are_the_lowest(method: str) -> None:
    """Proper scores: no factor on σ scores better than the calibrated one, but for chance."""
    rng = np.random.default_rng(3)
    n = 40 if method == "quantile" else 4000
    calibration = fit_calibration(3 * rng.standard_t(4, n), np.ones(n), np.arange(n), method)
    errors, std = 3 * rng.standard_t(4, 40_000), np.full(40_000, calibration.scale)
    for score in (nll, crps):
        own = score(errors, std, calibration)
        assert all(own < score(errors, factor * std, calibration) for factor in (0.5, 2.0))


def test_errors_beyond_the_last_interval_and_ties_have_a_finite_density() -> None:
    rng = np.random.default_rng(4)
    errors = np.concatenate([np.zeros(30), rng.choice([0.5, 1.0, 2.0], 70)])  # most of them coincide
    calibration = fit_calibration(errors, np.ones(100), np.arange(100), "isotonic")
    assert calibration.multiplier(0.999) == np.inf
    sizes = np.array([0.0, 0.5, 1.0, 2.0, 100.0])
    density = np.exp(reported_distribution(calibration).log_density(sizes / calibration.scale))
    assert (density <= 100 * norm.pdf(0)).all()
    assert np.isfinite(nll(100 * errors, np.full(100, calibration.scale), calibration))
    total, _ = quad(
        lambda z: 2 * np.exp(reported_distribution(calibration).log_density(np.array([z]))[0]), 0, 60, limit=2000
    )
    assert total == pytest.approx(1.0, abs=1e-3)


def test_few_structures_score_students_distribution() -> None:
    calibration = Calibration(method="quantile", scale=2.0, n_samples=20, dof=7.0)
    errors, std = np.array([0.3, -4.0, 1.0]), np.array([1.0, 2.0, 0.5])
    assert nll(errors, std, calibration) == pytest.approx(-student.logpdf(errors, 7, scale=std).mean())
    assert calibration.multiplier(ONE_SIGMA) == pytest.approx(student.ppf(0.5 + 0.5 * ONE_SIGMA, 7))
    assert crps(errors, 1e-12 * std, calibration) == pytest.approx(np.abs(errors).mean())
