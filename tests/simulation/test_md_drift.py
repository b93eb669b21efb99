"""What the drift monitor promises, for correlated frames too, and which drifts it finds."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binomtest

from md_case import Wells, at_sites
from sigmaff.simulation.md import MDConfig, Scores, run_md
from sigmaff.simulation.md.drift import DriftMonitor, drift_rule

N_RUNS = 600
Marginal = Callable[[np.ndarray], np.ndarray]


def correlated(generator: np.random.Generator, n_looks: int, *, rho: float, runs: int = N_RUNS) -> np.ndarray:
    """Stationary first-order autoregressions with unit variance, (runs, n_looks)."""
    noise = generator.standard_normal((runs, n_looks))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


def fast_and_slow(generator: np.random.Generator, n_looks: int, *, slow: float) -> np.ndarray:
    """Fast motion with half of the variance, and motion with a correlation time of so many looks."""
    parts = [correlated(generator, n_looks, rho=rho) for rho in (0.3, float(np.exp(-1 / slow)))]
    return np.sqrt(0.5) * (parts[0] + parts[1])


def alarm(scores: np.ndarray, reference: np.ndarray, false_alarm: float) -> int | None:
    """The look at which the monitor gives alarm."""
    monitor = DriftMonitor(drift_rule(reference, false_alarm))
    return next((index for index, score in enumerate(scores.tolist()) if monitor.update(score)), None)


def n_alarms(frames: np.ndarray, references: np.ndarray, false_alarm: float) -> int:
    return sum(alarm(a, b, false_alarm) is not None for a, b in zip(frames, references, strict=True))


def is_at_most(false_alarm: float, n: int, runs: int = N_RUNS) -> bool:
    """Whether so many alarms are compatible with a chance of at most this."""
    return bool(binomtest(n, runs, false_alarm, alternative="greater").pvalue > 1e-3)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize(("n", "false_alarm"), [(20, 0.1), (100, 0.01), (400, 0.01), (400, 0.1)])
def test_false_alarms_are_as_rare_as_promised(rho: float, n: int, false_alarm: float):
    """ρ = 1: runs that stay where they start; there the promise is used up, so it could not be larger."""
    generator = np.random.default_rng(0)
    frames = correlated(generator, 300, rho=rho)
    found = n_alarms(frames, generator.standard_normal((N_RUNS, n)), false_alarm)
    assert is_at_most(false_alarm, found)


@pytest.mark.parametrize(("n_looks", "slow"), [(300, 10), (300, 100), (3000, 1000)])
@pytest.mark.parametrize("marginal", [np.exp, lambda z: z**3], ids=["lognormal", "heavy tails"])
def test_slow_motion_gives_no_false_alarms(n_looks: int, slow: float, marginal: Marginal):
    generator = np.random.default_rng(1)
    frames = marginal(fast_and_slow(generator, n_looks, slow=slow))
    references = marginal(generator.standard_normal((N_RUNS, 100)))
    assert is_at_most(0.05, n_alarms(frames, references, 0.05))


def test_the_promise_is_used_up_by_runs_that_do_not_move():
    """It cannot be larger: a run that stays at one structure gives alarm with a chance of k / (n + 1)."""
    generator = np.random.default_rng(2)
    frames = np.repeat(generator.standard_normal((4000, 1)), 3, axis=1)
    found = n_alarms(frames, generator.standard_normal((4000, 19)), 0.05)
    assert binomtest(found, 4000, 1 / 20).pvalue > 1e-3


@pytest.mark.parametrize(("shift", "n_calm", "within"), [(3.0, 0, 10), (4.0, 100, 60), (4.0, 300, 240)])
def test_a_drift_is_found(shift: float, n_calm: int, within: int):
    """A shift by so many standard deviations, with 400 calibration structures and 1 %: in nine of ten runs."""
    generator = np.random.default_rng(3)
    frames = correlated(generator, n_calm + within, rho=0.5, runs=100)
    frames[:, n_calm:] += shift
    references = generator.standard_normal((100, 400))
    alarms = [alarm(a, b, 0.01) for a, b in zip(frames, references, strict=True)]
    assert sum(at is not None and at >= n_calm for at in alarms) >= 90


def test_a_slow_drift_is_found():
    """One standard deviation per 50 looks, up to five."""
    generator = np.random.default_rng(4)
    frames = correlated(generator, 400, rho=0.8, runs=100) + np.minimum(np.arange(400) / 50, 5)
    alarms = [alarm(a, b, 0.01) for a, b in zip(frames, generator.standard_normal((100, 400)), strict=True)]
    assert sum(at is not None for at in alarms) >= 90


def test_small_std_is_no_drift():
    reference = np.random.default_rng(3).lognormal(size=400)
    assert alarm(np.full(500, reference.min() / 2), reference, 0.01) is None


def test_the_rule_by_hand():
    """799 structures, 1 %: q = 2 / 800, which a quarter of the looks must reach."""
    rule = drift_rule(np.arange(799.0), 0.01)
    assert rule.forces_std == 797.0
    assert rule.share == pytest.approx(0.25)
    assert alarm(np.array([0.0, 0.0, 0.0, 0.0, 798.0, 798.0]), np.arange(799.0), 0.01) == 5
    for part in ("25% of the looks", "above 797 eV/Å", "which 1 of the 799", "stationary", "at most 0.01"):
        assert part in rule.statement


@pytest.mark.parametrize(("n", "false_alarm", "needed"), [(20, 0.01, 99), (98, 0.01, 99), (5, 0.05, 19)])
def test_too_few_structures_switch_it_off_and_the_remedies_work(n: int, false_alarm: float, needed: int):
    reference, far = np.arange(float(n)), np.full(1000, 1e6)
    assert alarm(far, reference, false_alarm) is None
    statement = drift_rule(reference, false_alarm).statement
    found = re.search(r"off\. .* at least (\d+), or set false_alarm to ([\d.]+) or more", statement)
    assert found is not None
    assert int(found[1]) == needed
    assert alarm(far, np.arange(float(needed)), false_alarm) == 0
    assert alarm(far, reference, float(found[2])) == 0


def test_a_share_that_hardly_any_drift_reaches_is_pointed_out():
    statement = drift_rule(np.arange(100.0), 0.01).statement
    assert "399 calibration structures lower it to 25%" in statement
    assert drift_rule(np.arange(399.0), 0.01).share == pytest.approx(0.25)
    assert "lower" not in drift_rule(np.arange(399.0), 0.01).statement


def test_a_run_records_the_rule_and_the_alarm(tmp_path: Path):
    reference = Scores(forces_std=1e-6 * np.arange(1.0, 200.0), forces_error=np.ones(199))
    config = MDConfig(temperature=500.0, timestep=4.0, steps=4, drift_every=2)
    result = run_md(Wells(), [at_sites()], config, tmp_path, calibration=reference)
    said = json.loads((tmp_path / "md.json").read_text())
    assert result.drift == drift_rule(reference.forces_std, 0.01)
    assert said["drift"]["statement"] == result.drift.statement
    assert said["replicas"][0]["drift_step"] == result.records[0].drift_step is not None
    assert run_md(Wells(), [at_sites()], config, tmp_path, calibration=reference).records == result.records
