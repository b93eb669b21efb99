"""Measures against closed forms, brute force, scikit-learn and SciPy."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score, roc_curve

from sigmaff.evaluation.metrics import (
    CALIBRATION_LEVELS,
    ONE_SIGMA,
    auroc,
    auroc_difference,
    auroc_interval,
    bootstrap,
    calibration_score,
    crps,
    ence,
    fpr_at_tpr,
    mae,
    miscalibration_area,
    nll,
    observed_coverage,
    per_sample_calibration_score,
    retention_area,
    retention_curve,
    retention_gain,
    rmse,
    sharpness,
    spearman,
)
from sigmaff.models.prediction import Calibration

WORST = np.sqrt(2.85)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


def calibrated_errors(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors drawn from the σ that is claimed for them."""
    std = rng.lognormal(sigma=0.7, size=n)
    return std * rng.standard_normal(n), std


def test_errors_of_known_size() -> None:
    assert mae([[3.0, -4.0], [0.0, 1.0]]) == 2.0
    assert rmse([3.0, -4.0]) == pytest.approx(np.sqrt(12.5), rel=1e-15)


def test_nominal_levels() -> None:
    assert CALIBRATION_LEVELS.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert pytest.approx(erf(1 / np.sqrt(2)), abs=1e-15) == ONE_SIGMA


def test_observed_coverage_counts_errors_inside_the_interval(rng: np.random.Generator) -> None:
    errors, std = 1.3 * rng.standard_normal(500), rng.uniform(0.5, 2, 500)
    levels = [0.0, 0.25, ONE_SIGMA, 0.95, 1.0]
    counted = [np.mean(np.abs(errors) <= norm.interval(p)[1] * std) for p in levels[:-1]] + [1.0]
    assert observed_coverage(errors, std, levels) == pytest.approx(counted, abs=1e-15)


def test_observed_coverage_is_nominal_for_true_std(rng: np.random.Generator) -> None:
    errors, std = calibrated_errors(rng, 400_000)
    levels = np.linspace(0.05, 0.95, 19)
    assert observed_coverage(errors, std, levels) == pytest.approx(levels, abs=0.004)


def test_intervals_of_a_calibration_are_used(rng: np.random.Generator) -> None:
    """Uniform errors in ±1: the half-width of coverage p is p, with σ = 1."""
    errors, std = rng.uniform(-1, 1, 200_000), np.ones(200_000)
    uniform = Calibration(method="isotonic", scale=1.0, n_samples=10, coverages=(0.0, 1.0), multipliers=(0.0, 1.0))
    assert calibration_score(errors, std, uniform) < 0.01
    assert calibration_score(errors, std) > 0.1
    assert miscalibration_area(errors, std, uniform) < 0.005
    assert per_sample_calibration_score(errors, std, uniform) == pytest.approx(1.254, abs=2e-3)


def test_calibration_score_vanishes_for_true_std(rng: np.random.Generator) -> None:
    assert calibration_score(*calibrated_errors(rng, 1_000_000)) < 0.005


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_worst_calibration(rng: np.random.Generator, factor: float) -> None:
    errors, std = calibrated_errors(rng, 200)
    assert calibration_score(errors, factor * std) == pytest.approx(WORST, rel=1e-12)
    assert per_sample_calibration_score(errors, factor * std) == pytest.approx(WORST, rel=1e-12)
    assert miscalibration_area(errors, factor * std) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(("n", "floor"), [(100, 0.119), (1000, 0.039)])
def test_finite_sample_floor(rng: np.random.Generator, n: int, floor: float) -> None:
    """The mean score of a perfect σ on n samples."""
    scores = [calibration_score(rng.standard_normal(n), np.ones(n)) for _ in range(3000)]
    assert np.mean(scores) == pytest.approx(floor, abs=0.0035)


def test_per_sample_score_of_true_std(rng: np.random.Generator) -> None:
    assert per_sample_calibration_score(*calibrated_errors(rng, 400_000)) == pytest.approx(1.254, abs=2e-3)


def test_per_sample_score_by_brute_force(rng: np.random.Generator) -> None:
    errors, std = 2 * rng.standard_normal(300), np.ones(300)
    inside = np.abs(errors)[:, None] <= norm.ppf(0.5 + CALIBRATION_LEVELS / 2)
    scores = np.sqrt(((CALIBRATION_LEVELS - inside) ** 2).sum(axis=1))
    assert per_sample_calibration_score(errors, std) == pytest.approx(scores.mean(), rel=1e-13)
    assert scores.min() == pytest.approx(np.sqrt(0.85))
    assert scores.max() == pytest.approx(WORST)


@pytest.mark.parametrize("error", [0.0, 0.3, 0.5, 0.9, 0.95])
def test_an_error_on_the_edge_is_inside_by_both_conventions(error: float) -> None:
    """Of one sample both scores are the same; here the half-width of coverage p is p."""
    linear = Calibration(method="isotonic", scale=1.0, n_samples=10, coverages=(0.0, 1.0), multipliers=(0.0, 1.0))
    edge = float(linear.multiplier(error))
    inside = [edge <= float(linear.multiplier(p)) for p in CALIBRATION_LEVELS]
    expected = np.sqrt(((CALIBRATION_LEVELS - inside) ** 2).sum())
    assert calibration_score([edge], [1.0], linear) == pytest.approx(expected, rel=1e-14)
    assert per_sample_calibration_score([-edge], [1.0], linear) == pytest.approx(expected, rel=1e-14)


def test_miscalibration_area_of_doubled_std(rng: np.random.Generator) -> None:
    errors = rng.standard_normal(400_000)
    expected, _ = quad(lambda p: abs(p - (2 * norm.cdf(2 * norm.ppf(0.5 + p / 2)) - 1)), 0, 1)
    assert miscalibration_area(errors, np.full(errors.size, 2.0)) == pytest.approx(expected, abs=2e-3)


def test_nll_is_minus_log_density(rng: np.random.Generator) -> None:
    errors, std = rng.standard_normal(50), rng.uniform(0.1, 3, 50)
    assert nll(errors, std) == pytest.approx(-norm.logpdf(errors, scale=std).mean(), rel=1e-13)


def test_crps_is_the_integral_of_squared_differences(rng: np.random.Generator) -> None:
    errors, std = rng.standard_normal(8), rng.uniform(0.1, 3, 8)

    def integral(error: float, sigma: float) -> float:
        """The prediction at 0 and the truth at −error, left and right of it."""
        below, _ = quad(lambda x: norm.cdf(x, scale=sigma) ** 2, -40, -error)
        above, _ = quad(lambda x: norm.sf(x, scale=sigma) ** 2, -error, 40)
        return below + above

    expected = np.mean([integral(*pair) for pair in zip(errors, std, strict=True)])
    assert crps(errors, std) == pytest.approx(expected, abs=1e-7)
    assert crps(errors, np.full(8, 1e-12)) == pytest.approx(mae(errors), rel=1e-9)


def test_ence_by_brute_force(rng: np.random.Generator) -> None:
    std = rng.permutation(np.arange(1.0, 31.0))
    errors = rng.standard_normal(30) * std
    order = sorted(range(30), key=lambda i: std[i])
    bins = [order[3 * k : 3 * k + 3] for k in range(10)]
    terms = [1 - np.sqrt(np.mean(errors[b] ** 2) / np.mean(std[b] ** 2)) for b in bins]
    assert ence(errors, std) == pytest.approx(np.mean(np.abs(terms)), rel=1e-12)


def test_ence_of_halved_std_is_one(rng: np.random.Generator) -> None:
    errors, std = calibrated_errors(rng, 200_000)
    assert ence(errors, std) < 0.01
    assert ence(errors, std / 2) == pytest.approx(1.0, abs=0.02)
    assert np.isnan(ence(errors[:9], std[:9]))


def test_sharpness_is_rms_of_std() -> None:
    assert sharpness([3.0, 4.0]) == pytest.approx(np.sqrt(12.5))


def test_spearman_against_scipy_with_ties(rng: np.random.Generator) -> None:
    std, sizes = rng.integers(1, 20, 200).astype(float), rng.integers(1, 20, 200).astype(float)
    assert spearman(std, sizes) == pytest.approx(spearmanr(std, sizes).statistic, abs=1e-14)
    assert spearman(std, np.exp(std)) == pytest.approx(1.0)


@pytest.mark.parametrize("std", [np.ones(5), np.ones(1)])
def test_spearman_of_a_constant_is_undefined(std: np.ndarray) -> None:
    assert np.isnan(spearman(std, np.arange(std.size)))


def test_retention_curve_by_brute_force(rng: np.random.Generator) -> None:
    errors, std = rng.standard_normal(40), rng.uniform(1, 2, 40)
    kept = np.argsort(std)
    expected = [np.abs(errors[kept[:k]]).sum() / 40 for k in range(41)]
    fraction, error = retention_curve(errors, std)
    assert fraction == pytest.approx(np.arange(41) / 40)
    assert error == pytest.approx(expected)
    assert retention_area(errors, std) == pytest.approx(np.trapezoid(expected, np.arange(41) / 40))


def test_retention_gain_runs_from_random_to_oracle(rng: np.random.Generator) -> None:
    errors = rng.standard_normal(500)
    sizes = np.abs(errors)
    assert retention_gain(errors, sizes + 1) == pytest.approx(1.0)
    assert retention_gain(errors, 10 - sizes) == pytest.approx(-1.0)
    assert retention_gain(errors, np.ones(500)) == pytest.approx(0.0, abs=1e-12)
    assert retention_area(errors, np.ones(500)) == pytest.approx(mae(errors) / 2)
    assert np.isnan(retention_gain(np.ones(5), np.arange(1, 6)))


def test_ties_in_retention_do_not_depend_on_order(rng: np.random.Generator) -> None:
    errors, std = rng.standard_normal(60), rng.integers(1, 4, 60).astype(float)
    shuffle = rng.permutation(60)
    assert retention_curve(errors[shuffle], std[shuffle])[1] == pytest.approx(retention_curve(errors, std)[1])


@pytest.mark.parametrize("digits", [15, 1])
def test_auroc_and_fpr_against_scikit_learn(rng: np.random.Generator, digits: int) -> None:
    """Rounded to one digit there are many ties."""
    inside, outside = rng.normal(size=300).round(digits), rng.normal(0.8, 1.5, size=170).round(digits)
    labels = np.repeat([0, 1], [300, 170])
    scores = np.concatenate([inside, outside])
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(labels, scores), abs=1e-14)
    for tpr in (0.5, 0.95, 1.0):
        false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
        assert fpr_at_tpr(inside, outside, tpr) == pytest.approx(false[true >= tpr - 1e-12].min(), abs=1e-14)


def test_out_of_distribution_is_the_positive_class() -> None:
    assert auroc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auroc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert fpr_at_tpr([1.0, 2.0], [3.0, 4.0]) == 0.0
    assert fpr_at_tpr([3.0, 4.0], [1.0, 2.0]) == 1.0


def test_bootstrap_of_a_mean_covers_it_as_often_as_it_says(rng: np.random.Generator) -> None:
    intervals = [bootstrap(np.mean, rng.normal(1.0, 2.0, 80), seed=k) for k in range(400)]
    share = np.mean([low <= 1.0 <= high for low, high in intervals])
    assert share == pytest.approx(0.94, abs=0.035)  # percentile intervals of 80 samples are slightly short


def test_bootstrap_has_the_width_of_the_standard_error(rng: np.random.Generator) -> None:
    values = rng.normal(size=400)
    low, high = bootstrap(np.mean, values, n_resamples=4000, level=ONE_SIGMA)
    assert high - low == pytest.approx(2 * values.std() / np.sqrt(400), rel=0.05)


def test_bootstrap_resamples_rows_together_and_repeats_by_seed(rng: np.random.Generator) -> None:
    first = rng.normal(size=(30, 2))
    assert bootstrap(lambda a, b: np.abs(a - b).max(), first, first.copy()) == (0.0, 0.0)
    assert bootstrap(np.mean, first, seed=3) == bootstrap(np.mean, first, seed=3)
    assert bootstrap(np.mean, first, seed=3) != bootstrap(np.mean, first, seed=4)
    assert np.isnan(bootstrap(np.mean, np.ones(1))).all()


STD_MEASURES = [
    calibration_score,
    per_sample_calibration_score,
    miscalibration_area,
    nll,
    crps,
    ence,
    retention_curve,
    retention_area,
    retention_gain,
]


@pytest.mark.parametrize("measure", STD_MEASURES)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_std_that_is_none_is_refused(measure, bad: float) -> None:
    with pytest.raises(ValueError, match=r"not positive|not finite"):
        measure(np.ones(20), np.append(np.ones(19), bad))


@pytest.mark.parametrize("measure", STD_MEASURES)
def test_errors_that_are_not_numbers_are_refused(measure) -> None:
    with pytest.raises(ValueError, match="not finite"):
        measure(np.append(np.ones(19), np.nan), np.ones(20))
    with pytest.raises(ValueError, match="empty"):
        measure([], [])
    with pytest.raises(ValueError, match="do not belong together"):
        measure(np.ones((2, 3)), np.ones((3, 2)))


@pytest.mark.parametrize("measure", [auroc, fpr_at_tpr])
def test_one_class_alone_has_no_roc(measure) -> None:
    with pytest.raises(ValueError, match="empty"):
        measure([], [1.0])
    with pytest.raises(ValueError, match="empty"):
        measure([1.0], [])
    with pytest.raises(ValueError, match="not finite"):
        measure([1.0], [np.nan])


@pytest.mark.parametrize("measure", [mae, rmse, sharpness])
def test_no_samples_are_refused(measure) -> None:
    with pytest.raises(ValueError, match="empty"):
        measure([])


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="coverages"):
        observed_coverage([1.0], [1.0], [1.5])
    with pytest.raises(ValueError, match="tpr"):
        fpr_at_tpr([1.0], [2.0], tpr=0.0)
    with pytest.raises(ValueError, match="common length"):
        bootstrap(np.mean, np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="level"):
        bootstrap(np.mean, np.ones(3), level=1.0)
    with pytest.raises(ValueError, match="do not belong together"):
        spearman([1.0, 2.0], [1.0])


def test_a_vanishing_std_overflows_to_infinity_not_to_a_number() -> None:
    assert nll([1.0], [1e-320]) == np.inf
    assert calibration_score([1.0], [1e-320]) == pytest.approx(WORST)


# --- intervals of AUROCs


def binormal(rng: np.random.Generator, true: float, n_id: int, n_ood: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores whose AUROC is Φ(shift/√2)."""
    return rng.standard_normal(n_id), rng.standard_normal(n_ood) + np.sqrt(2) * norm.ppf(true)


@pytest.mark.parametrize(("true", "n_id", "n_ood"), [(0.6, 40, 60), (0.9, 50, 150), (0.97, 100, 100), (0.995, 50, 50)])
def test_an_auroc_interval_covers_the_true_one(rng: np.random.Generator, true: float, n_id: int, n_ood: int) -> None:
    drawn = [auroc(*binormal(rng, true, n_id, n_ood)) for _ in range(1500)]
    intervals = np.array([auroc_interval(value, n_id, n_ood) for value in drawn])
    covered = ((intervals[:, 0] <= true) & (true <= intervals[:, 1])).mean()
    assert 0.93 < covered < 0.99


def test_an_auroc_interval_has_hanley_and_mcneils_width() -> None:
    """Far from 0 and 1 and for many structures it is value ± 1.96 standard errors of exponential scores."""
    value, n = 0.8, 100_000
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    error = np.sqrt((value * (1 - value) + (n - 1) * (q1 + q2 - 2 * value**2)) / n**2)
    low, high = auroc_interval(value, n, n)
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.975) * error, rel=1e-3)


def test_a_perfect_auroc_of_few_structures_proves_little() -> None:
    """Near 1 the variance is (1 − θ)(1 + N/2)/(n m) to first order, so 1 − θ = z² (1 + N/2)/(n m)."""
    assert auroc_interval(1.0, 5, 5)[0] < 0.75
    low, high = auroc_interval(1.0, 300, 300)
    assert high == 1.0
    assert 1 - low == pytest.approx(norm.ppf(0.975) ** 2 * (1 + 299 / 2) / 300**2, rel=0.02)
    assert auroc_interval(0.0, 300, 300) == pytest.approx((0.0, 1 - low))
    with pytest.raises(ValueError, match="lies in"):
        auroc_interval(1.2, 5, 5)


def test_an_auroc_difference_is_that_of_the_aurocs_and_covers_the_true_one(rng: np.random.Generator) -> None:
    """Two scores that share half of their noise, with true AUROCs of 0.8 and 0.85."""
    covered = []
    for _ in range(600):
        pairs = []
        shared = binormal(rng, 0.5, 60, 80)
        for true in (0.8, 0.85):
            own = binormal(rng, 0.5, 60, 80)
            shift = (0.0, np.sqrt(2) * norm.ppf(true))
            pairs.append(tuple((s + o) / np.sqrt(2) + d for s, o, d in zip(shared, own, shift, strict=True)))
        difference, low, high = auroc_difference(*pairs)
        assert difference == pytest.approx(auroc(*pairs[1]) - auroc(*pairs[0]), abs=1e-12)
        covered.append(low <= 0.05 <= high)
    assert 0.93 < np.mean(covered) < 0.97


def test_an_auroc_difference_has_the_width_of_a_bootstrap_of_both_sets(rng: np.random.Generator) -> None:
    inside, outside = rng.standard_normal((200, 2)), rng.normal([0.8, 1.2], size=(300, 2))
    inside[:, 1] += inside[:, 0]
    outside[:, 1] += outside[:, 0]

    def drawn() -> float:
        a, b = inside[rng.integers(200, size=200)], outside[rng.integers(300, size=300)]
        return auroc(a[:, 1], b[:, 1]) - auroc(a[:, 0], b[:, 0])

    _, low, high = auroc_difference(*zip(inside.T, outside.T, strict=True))
    assert (high - low) / (2 * norm.ppf(0.975)) == pytest.approx(np.std([drawn() for _ in range(2000)]), rel=0.1)


def test_two_perfect_scores_cannot_be_told_apart() -> None:
    difference, low, high = auroc_difference(([1, 2], [3, 4]), ([1, 2], [5, 9]))
    assert difference == 0
    assert np.isnan([low, high]).all()
