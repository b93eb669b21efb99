"""False alarms of the drift monitor by simulation: correlated scores without a drift.

python benchmarks/drift_simulation.py

Scores are stationary and Gaussian: autoregressions of first order, and sums of a fast and a slow one of equal variance.
Calibration scores are independent draws of the same distribution, new for each run.
"""

import argparse

import numpy as np
import numpy.typing as npt
from machine import describe_machine
from scipy.signal import lfilter
from scipy.stats import binomtest

from sigmaff.simulation.md.drift import EXACT, drift_rule

FloatArray = npt.NDArray[np.float64]
RATES = (0.01, 0.05, 0.1)
N_CALIBRATION = (20, 50, 100, 400)
RHOS = (0.0, 0.5, 0.8, 0.95)
SLOW = (10.0, 100.0, 1000.0)
"""Correlation times in looks."""


def autoregression(generator: np.random.Generator, n_runs: int, n_looks: int, rho: float) -> FloatArray:
    noise = generator.standard_normal((n_runs, n_looks))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=1))


def scores(generator: np.random.Generator, n_runs: int, n_looks: int, name: tuple[str, float]) -> FloatArray:
    kind, value = name
    if kind == "ρ":
        return autoregression(generator, n_runs, n_looks, value)
    parts = [autoregression(generator, n_runs, n_looks, rho) for rho in (0.3, float(np.exp(-1 / value)))]
    return np.sqrt(0.5) * (parts[0] + parts[1])


def n_alarms(generator: np.random.Generator, found: FloatArray, n_calibration: int, rate: float) -> int | None:
    """Runs with an alarm; ``None``: the monitor is off."""
    counts = np.arange(1, found.shape[1] + 1)
    total = 0
    for run in found:
        rule = drift_rule(generator.standard_normal(n_calibration), rate)
        if rule.share > 1 + EXACT:
            return None
        total += bool((np.cumsum(run > rule.forces_std) >= rule.share * (1 - EXACT) * counts).any())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--looks", type=int, default=300)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    names = [("ρ", rho) for rho in RHOS] + [("slow", time) for time in SLOW]
    alarms: dict[tuple[tuple[str, float], int, float], int | None] = {}
    for name in names:
        found = scores(generator, options.runs, options.looks, name)
        for n in N_CALIBRATION:
            for rate in RATES:
                alarms[name, n, rate] = n_alarms(generator, found, n, rate)
    print(f"{describe_machine()}\n{options.runs} runs of {options.looks} looks\n")
    print("| promised | calibration structures | " + " | ".join(f"{kind} {value:g}" for kind, value in names) + " |")
    print("|---|---|" + "---|" * len(names))
    for rate in RATES:
        for n in N_CALIBRATION:
            row = [alarms[name, n, rate] for name in names]
            cells = ["off" if count is None else f"{count / options.runs:.2%}" for count in row]
            above = sum(
                count is not None and binomtest(count, options.runs).proportion_ci().low > rate for count in row
            )
            print(f"| {rate:.0%} | {n} | {' | '.join(cells)} | {above} intervals above")


if __name__ == "__main__":
    main()
