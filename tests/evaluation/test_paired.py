"""Differences of two models on the same structures: against the paired t interval, and with a known truth."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from sigmaff.evaluation import Evaluation, summarize
from sigmaff.evaluation.paired import auroc_differences, detection_scores, differences, structure_columns
from sigmaff.evaluation.summary import by_structure
from sigmaff.models.prediction import Provenance

N_ATOMS = 4


def evaluation(
    rng: np.random.Generator, n: int, difficulty: np.ndarray | None = None, scale: float = 1.0
) -> Evaluation:
    """Errors in proportion to the difficulty of a structure, which σ knows."""
    difficulty = np.ones(n) if difficulty is None else difficulty
    index = np.repeat(np.arange(n), N_ATOMS)
    std = scale * np.repeat(difficulty, N_ATOMS)[:, None] * rng.uniform(0.5, 2.0, (n * N_ATOMS, 3))
    return Evaluation(
        name="test",
        structure_index=index,
        atomic_numbers=np.ones(n * N_ATOMS, dtype=np.int64),
        positions=np.zeros((n * N_ATOMS, 3)),
        energy=np.zeros(n),
        energy_predicted=scale * difficulty * rng.standard_normal(n),
        energy_std_raw=scale * difficulty,
        forces=np.zeros((n * N_ATOMS, 3)),
        forces_predicted=std * rng.standard_normal(std.shape),
        forces_std_raw=std,
        provenance=Provenance(method="toy", kind="epistemic", covariance="full"),
    )


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_a_difference_of_means_has_the_paired_t_interval(rng: np.random.Generator) -> None:
    """Errors of both models are large in the same structures: the unpaired interval is several times as wide."""
    difficulty = rng.lognormal(sigma=1.0, size=400)
    first = evaluation(rng, 400, difficulty)
    second = replace(first, energy_predicted=first.energy_predicted * rng.uniform(0.8, 1.0, 400))
    found = differences(structure_columns(first), structure_columns(second))["energy_mae"]
    sizes = np.abs(second.energy_error), np.abs(first.energy_error)
    expected = ttest_rel(*sizes).confidence_interval(0.95)
    width = expected.high - expected.low
    assert found.value == pytest.approx(sizes[0].mean() - sizes[1].mean(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.1 * width)
    assert 2 * 1.96 * np.hypot(*(size.std() / 20 for size in sizes)) > 3 * width


def test_the_values_are_differences_of_the_summaries(rng: np.random.Generator) -> None:
    first, second = evaluation(rng, 60), evaluation(rng, 60, scale=1.5)
    found = differences(structure_columns(first), structure_columns(second))
    one, other = summarize(first), summarize(second)
    measures = {f"{q}_{m}" for q in ("energy", "forces") for m in ("mae", "nll", "crps", "spearman")}
    assert found.keys() == measures - {"energy_spearman"}  # σ of energies is constant here
    for key in found:
        assert found[key].value == pytest.approx(other[key] - one[key], abs=1e-9), key
        assert found[key].low < found[key].value < found[key].high, key


def test_forces_are_resampled_by_structure(rng: np.random.Generator) -> None:
    """If all components of a structure are equal, 12 times the components are no more evidence."""
    first = evaluation(rng, 200)
    sizes = np.abs(rng.standard_normal((2, 200)))
    both = [
        replace(first, energy_predicted=size, forces_predicted=np.repeat(size, N_ATOMS)[:, None] * np.ones(3))
        for size in sizes
    ]
    found = differences(*map(structure_columns, both))
    assert astuple(found["forces_mae"]) == pytest.approx(astuple(found["energy_mae"]))


def test_an_interval_covers_the_true_difference(rng: np.random.Generator) -> None:
    """Mean |error| of N(0, 1) is √(2/π), of N(0, 1.1²) 1.1 times that."""
    true, covered = 0.1 * np.sqrt(2 / np.pi), []
    for _ in range(60):
        errors = (np.abs(scale * rng.standard_normal(80)) for scale in (1.0, 1.1))
        found = differences(*({"energy_mae": by_structure(np.arange(80), size)} for size in errors))["energy_mae"]
        covered.append(found.low <= true <= found.high)
    assert np.mean(covered) > 0.85


def test_structures_without_std_stay_in_their_place(rng: np.random.Generator) -> None:
    """Two models leave out different structures: the others are still compared with themselves."""
    first = evaluation(rng, 50)
    left_out = [replace(first, energy_std_raw=np.where(np.arange(50) == k, 0.0, 1.0)) for k in (3, 7)]
    columns = [structure_columns(item)["energy_nll"] for item in left_out]
    same = np.setdiff1d(np.arange(50), [3, 7])
    assert np.array_equal(columns[0][same], columns[1][same])


def test_aurocs_are_compared_on_the_same_structures(rng: np.random.Generator) -> None:
    test, other = evaluation(rng, 60), evaluation(rng, 40, scale=1.2)
    blind = [replace(item, forces_std_raw=np.ones_like(item.forces_std_raw)) for item in (test, other)]
    found = auroc_differences(*([detection_scores(item) for item in pair] for pair in ((test, other), blind)))
    expected = 0.5 - summarize(test, other)["forces_auroc"]
    assert found["forces_auroc"].value == pytest.approx(expected, abs=1e-12)
    assert found["forces_auroc"].high < 0
