"""Recalibration: closed forms, robustness, and coverage by Monte Carlo."""

import numpy as np
import pytest
from scipy.stats import norm

from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import CALIBRATION_METHODS
from sigmaff.evaluation import fit_calibration as fit_by_structure
from sigmaff.evaluation.calibration import SHAPE_ERRORS
from sigmaff.evaluation.metrics import ONE_SIGMA, calibration_score
from sigmaff.evaluation.metrics import observed_coverage as coverage

METHODS = list(CALIBRATION_METHODS)
KNOTTED = ["isotonic", "conformal"]


def fit_calibration(errors, std, method="auto"):
    """Of one error for each structure, as for energies."""
    return fit_by_structure(errors, std, np.arange(np.size(errors)), method)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(21)


def mixture(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors three times the raw σ, with a tenth of them thirty times as large as that."""
    std = rng.lognormal(sigma=0.5, size=n)
    return 3 * std * rng.standard_normal(n) * np.where(rng.random(n) < 0.1, 30.0, 1.0), std


@pytest.mark.parametrize("method", METHODS)
def test_gaussian_errors_give_back_their_factor(rng: np.random.Generator, method: str) -> None:
    std = rng.lognormal(sigma=0.5, size=40_000)
    calibration = fit_calibration(2.5 * std * rng.standard_normal(std.size), std, method)
    assert calibration.scale == pytest.approx(2.5, rel=0.02)
    assert calibration.method == method
    assert calibration.n_samples == 40_000
    assert calibration.multiplier(0.95) == pytest.approx(norm.ppf(0.975), rel=0.03)
    assert calibration.multiplier(0.3) == pytest.approx(norm.ppf(0.65), rel=0.03)


def test_scalar_is_the_maximum_of_the_likelihood(rng: np.random.Generator) -> None:
    errors, std = mixture(rng, 200)
    scale = fit_calibration(errors, std, "scalar").scale
    scales = np.geomspace(scale / 2, scale * 2, 2001)
    likelihood = norm.logpdf(errors, scale=std * scales[:, None]).sum(axis=1)
    assert scales[likelihood.argmax()] == pytest.approx(scale, rel=1e-3)


def test_quantile_withstands_heavy_tails(rng: np.random.Generator) -> None:
    held_out, test = mixture(rng, 20_000), mixture(rng, 20_000)
    robust, likely = (fit_calibration(*held_out, method) for method in ("quantile", "scalar"))
    assert 3 < robust.scale < 3.6  # a tenth of the errors is beyond reach: a little above the bulk's factor of 3
    assert likely.scale == pytest.approx(3 * np.sqrt(0.9 + 0.1 * 30**2), rel=0.05)
    assert calibration_score(test[0], test[1] * robust.scale) < 0.12
    assert calibration_score(test[0], test[1] * likely.scale) > 1.0


def test_auto_learns_the_shape_of_the_errors_where_they_are_many(rng: np.random.Generator) -> None:
    test = mixture(rng, 20_000)
    few, many = (mixture(rng, n) for n in (SHAPE_ERRORS - 1, SHAPE_ERRORS))
    assert fit_calibration(*few) == fit_calibration(*few, "quantile")
    assert fit_calibration(*many) == fit_calibration(*many, "isotonic")
    more = mixture(rng, 2000)
    factor, shape = (fit_calibration(*more, method) for method in ("quantile", "auto"))
    scores = [calibration_score(test[0], test[1] * found.scale, found) for found in (factor, shape)]
    assert scores[1] < 0.6 * scores[0]


@pytest.mark.parametrize("n", [57, 3000])
def test_no_factor_scores_better_than_quantile(rng: np.random.Generator, n: int) -> None:
    errors, std = mixture(rng, n)
    best = calibration_score(errors, std * fit_calibration(errors, std, "quantile").scale)
    others = [calibration_score(errors, std * scale) for scale in np.geomspace(0.01, 1000, 1500)]
    assert best <= min(others) + 2e-3


@pytest.mark.parametrize("method", KNOTTED)
def test_knots_hold_for_errors_of_another_shape(rng: np.random.Generator, method: str) -> None:
    """Gaussian multipliers are wrong for the mixture at nearly every level; the knots are right."""
    held_out, test = mixture(rng, 50_000), mixture(rng, 50_000)
    calibration = fit_calibration(*held_out, method)
    levels = np.array([0.05, 0.3, ONE_SIGMA, 0.9, 0.95, 0.99, 0.999])
    assert coverage(test[0], test[1] * calibration.scale, levels, calibration) == pytest.approx(levels, abs=0.01)


@pytest.mark.parametrize("method", KNOTTED)
@pytest.mark.parametrize("n", [20, 198, 200, 5000, 300_000])
def test_knots_are_few_monotone_and_one_at_one_sigma(rng: np.random.Generator, method: str, n: int) -> None:
    calibration = fit_calibration(rng.standard_normal(n), np.ones(n), method)
    assert len(calibration.coverages) == len(calibration.multipliers) <= 200
    assert (np.diff(calibration.coverages) > 0).all()
    assert (np.diff(calibration.multipliers) >= 0).all()
    assert calibration.multiplier(ONE_SIGMA) == pytest.approx(1.0, rel=1e-12)
    assert calibration.multiplier(n / (n + 1)) >= np.abs(calibration.multipliers).max()
    assert calibration.multiplier(1.0) == np.inf


@pytest.mark.parametrize("n", [10, 37, 150, 900])
def test_conformal_never_falls_below_the_corrected_quantile(rng: np.random.Generator, n: int) -> None:
    sizes = np.abs(rng.standard_t(2, n))
    calibration = fit_calibration(sizes, np.ones(n), "conformal")
    levels = np.linspace(0.001, n / (n + 1), 3001)
    ranks = np.ceil((n + 1) * levels - 1e-9).astype(int)
    corrected = np.sort(sizes)[ranks - 1]
    assert (calibration.scale * calibration.multiplier(levels) >= corrected * (1 - 1e-12)).all()


@pytest.mark.parametrize("n", [15, 60, 400])
def test_conformal_coverage_is_at_least_nominal(rng: np.random.Generator, n: int) -> None:
    """Average over calibration sets; σ is wrong in scale and says nothing of the size of the error."""
    levels = np.array([0.1, 0.5, ONE_SIGMA, 0.9])
    observed = []
    for _ in range(1500):
        calibration = fit_calibration(rng.standard_t(3, n), rng.lognormal(size=n), "conformal")
        std = calibration.scale * rng.lognormal(size=200)
        observed.append(coverage(rng.standard_t(3, 200), std, levels, calibration))
    mean, error = np.mean(observed, axis=0), np.std(observed, axis=0) / np.sqrt(1500)
    assert (mean >= levels - 2 * error).all()
    assert (mean <= levels + 2.5 / (n + 1) + 0.01).all()


@pytest.mark.parametrize("method", METHODS)
def test_calibration_improves_new_data(rng: np.random.Generator, method: str) -> None:
    draw = rng.standard_normal
    calibration = fit_calibration(0.2 * draw(2000), np.ones(2000), method)
    errors, raw = 0.2 * draw(2000), np.ones(2000)
    assert calibration_score(errors, raw) > 1
    assert calibration_score(errors, raw * calibration.scale, calibration) < 0.12


@pytest.mark.parametrize("method", ["scalar", "quantile", "isotonic"])
def test_every_error_counts_once(rng: np.random.Generator, method: str) -> None:
    """Structures of any size: the factor or the knots are those of the pooled errors."""
    structure = np.sort(rng.integers(60, size=900))
    errors, std = rng.standard_normal((300, 3)), rng.uniform(1, 2, (300, 3))
    by_structure = fit_by_structure(errors, std, structure, method)
    pooled = fit_calibration(errors.ravel(), std.ravel(), method)
    assert (by_structure.n_samples, by_structure.n_structures) == (900, np.unique(structure).size)
    for name in ("scale", "coverages", "multipliers"):
        assert getattr(by_structure, name) == getattr(pooled, name)


@pytest.mark.parametrize("method", METHODS)
def test_zero_std_is_left_out(rng: np.random.Generator, method: str) -> None:
    errors, std = rng.standard_normal(50), rng.uniform(1, 2, 50)
    with_zeros = fit_calibration(np.append(errors, [0.0, 1e-16]), np.append(std, [0.0, 0.0]), method)
    assert with_zeros == fit_calibration(errors, std, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("errors", "std", "message"),
    [
        (np.ones(2), np.ones(2), "at least [0-9]+ held-out structures with σ > 0, got 2; give more"),
        (np.ones(25), np.append(np.ones(2), np.zeros(23)), "at least [0-9]+ held-out structures.*got 2"),
        ([], [], "at least [0-9]+ held-out structures.*got 0"),
        (np.ones(20), np.zeros(20), "every held-out σ is zero"),
        (np.zeros(20), np.ones(20), "exactly zero"),
        (np.append(np.ones(19), np.nan), np.ones(20), "1 of 20 held-out errors are not finite.*sample 19"),
        (np.ones(20), np.append(np.inf, np.ones(19)), "1 of 20 held-out σ are not finite.*sample 0"),
        (np.ones(20), np.append(-1.0, np.ones(19)), "1 of 20 held-out σ are negative"),
        (np.ones(20), np.ones(19), "20 errors, 19 σ and 20 structures"),
    ],
)
def test_what_cannot_be_calibrated_is_said(method: str, errors, std, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit_calibration(errors, std, method)


@pytest.mark.parametrize("method", ["quantile", "isotonic", "conformal"])
def test_mostly_exact_predictions_have_no_quantiles(method: str) -> None:
    errors = np.append(np.zeros(95), np.ones(5))
    with pytest.raises(DataError, match="exactly zero"):
        fit_calibration(errors, np.ones(100), method)


def test_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'platt'.*auto, scalar, quantile, isotonic, conformal"):
        fit_calibration(np.ones(20), np.ones(20), "platt")  # type: ignore[arg-type]


# --- structures, not errors


def correlated(rng: np.random.Generator, n_structures: int, n_components: int, log_sd: float) -> np.ndarray:
    """Errors over raw σ, (n_structures, n_components): each structure has a scale of its own."""
    scale = np.exp(log_sd * rng.standard_normal((n_structures, 1)))
    return scale * rng.standard_normal((n_structures, n_components))


def fit_components(errors: np.ndarray, method: str):
    structure = np.repeat(np.arange(len(errors)), errors.shape[1])
    return fit_by_structure(errors, np.ones_like(errors), structure, method)


def test_auto_counts_structures_and_not_their_components(rng: np.random.Generator) -> None:
    cells = correlated(rng, 21, 576, 0.0)
    assert fit_components(cells, "auto").method == "quantile"
    assert fit_components(correlated(rng, 49, 576, 0.0), "auto").method == "quantile"
    assert fit_components(correlated(rng, 50, 20, 0.0), "auto").method == "isotonic"
    with pytest.raises(DataError, match="at least 20 held-out structures with σ > 0, got 4"):
        fit_components(cells[:4], "auto")


@pytest.mark.parametrize("n_structures", [4, 20, 60])
def test_conformal_holds_for_new_structures(rng: np.random.Generator, n_structures: int) -> None:
    """Cells of 192 atoms whose errors are large or small together: the mean coverage is at least nominal.

    Counting components gives 0.90 for 95 % with 4 such cells.
    """
    new = np.sort(np.abs(correlated(rng, 2000, 20, 1.0)).ravel())
    levels = np.array([0.3, ONE_SIGMA, 0.8, 0.95])
    found = []
    for _ in range(150):
        calibration = fit_components(correlated(rng, n_structures, 576, 1.0), "conformal")
        found.append(np.searchsorted(new, calibration.scale * calibration.multiplier(levels)) / new.size)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(150)
    assert (mean >= levels - 2 * error).all()
    assert (mean <= levels + 1.5 / (n_structures + 1) + 0.03)[levels < n_structures / (n_structures + 1)].all()
    assert np.isinf(calibration.multiplier(1 - 0.99 / (n_structures + 1)))


def test_conformal_counts_each_structure_once(rng: np.random.Generator) -> None:
    """One structure of many components with tenfold errors moves the interval as one of 30 structures does."""
    small, large = correlated(rng, 29, 10, 0.0).ravel(), 10 * rng.standard_normal(3000)
    structure = np.concatenate([np.repeat(np.arange(29), 10), np.full(3000, 29)])
    errors = np.concatenate([small, large])
    calibration = fit_by_structure(errors, np.ones_like(errors), structure, "conformal")
    t = calibration.scale * calibration.multiplier(0.8)
    inside = [(np.abs(errors[structure == k]) <= t).mean() for k in range(30)]
    assert 0.8 <= np.sum(inside) / 31 < 0.82
    assert fit_by_structure(errors, np.ones_like(errors), structure, "isotonic").scale > 2 * calibration.scale


@pytest.mark.parametrize(("n_components", "log_sd"), [(1, 0.0), (27, 0.0), (27, 0.5)])
@pytest.mark.parametrize("method", METHODS)
def test_standard_error_is_the_scatter_of_factors(
    rng: np.random.Generator, method: str, n_components: int, log_sd: float
) -> None:
    fitted = [fit_components(correlated(rng, 60, n_components, log_sd), method) for _ in range(200)]
    scatter = np.std([found.scale for found in fitted])
    assert np.median([found.scale_error for found in fitted]) == pytest.approx(scatter, rel=0.25)
    if (method, n_components) == ("scalar", 1):
        assert np.mean([found.scale_error for found in fitted]) == pytest.approx(1 / np.sqrt(120), rel=0.1)


@pytest.mark.parametrize(
    ("n_structures", "n_components", "log_sd", "least"),
    [(20, 1, 0.0, 0.94), (20, 27, 0.0, 0.94), (20, 27, 0.2, 0.94), (20, 1, 0.5, 0.915), (30, 27, 0.5, 0.925)],
)
def test_intervals_of_one_factor_hold_with_few_structures(
    rng: np.random.Generator, n_structures: int, n_components: int, log_sd: float, least: float
) -> None:
    """Gaussian multipliers cover 93 % where 95 % are nominal with 20 energies, and 89 % of errors with tails."""
    new = np.sort(np.abs(correlated(rng, 20_000, 10, log_sd)).ravel())
    fitted = [fit_components(correlated(rng, n_structures, n_components, log_sd), "auto") for _ in range(150)]
    reached = {
        p: np.mean([np.searchsorted(new, f.scale * f.multiplier(p)) / new.size for f in fitted])
        for p in (ONE_SIGMA, 0.95)
    }
    assert all(found.method == "quantile" and found.dof >= 3 for found in fitted)
    assert least <= reached[0.95] <= 0.97
    assert reached[ONE_SIGMA] == pytest.approx(ONE_SIGMA, abs=0.03)


def test_from_fifty_structures_on_one_factor_is_gaussian(rng: np.random.Generator) -> None:
    few, many = (fit_calibration(rng.standard_normal(n), np.ones(n), "quantile") for n in (49, 50))
    assert many.dof is None
    assert few.multiplier(0.95) > many.multiplier(0.95) == pytest.approx(norm.ppf(0.975))
    assert few.multiplier(1.0) == np.inf


def test_a_factor_is_printed_with_its_error_and_structures(rng: np.random.Generator) -> None:
    found = fit_components(correlated(rng, 25, 6, 0.0), "quantile")
    assert str(found) == f"raw σ × {found.scale:.4g} ± {found.scale_error:.2g} (quantile, 25 structures)"
