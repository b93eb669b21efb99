"""Ways to calibrate σ: each fitted on a run's validation structures, scored on test structures. Nothing is trained.

python benchmarks/calibrations.py runs/md17_schnet_uracil

A second table has the mean score with fewer validation structures, drawn again and again. Without a run: coverage of
simulated errors with few structures, where the truth is known.
"""

import argparse
from pathlib import Path

import numpy as np
from machine import describe_machine, prepare, progress

from sigmaff.evaluation import CalibrationMethod, evaluate, fit_calibration
from sigmaff.evaluation.calibration import CALIBRATION_METHODS
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.evaluation.metrics import ONE_SIGMA, FloatArray, calibration_score
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.models.prediction import UNCALIBRATED, Calibration
from sigmaff.progress import Listener

DRAWS = 50
SIMULATED_DRAWS = 300


Samples = list[tuple[FloatArray, FloatArray]]
"""Errors and raw σ of energies and of forces, one row for each structure."""


def evaluated(model: Model, part: str, n: int, terminal: Listener) -> Samples:
    structures = recorded_structures(model, part)
    taken = np.sort(np.random.default_rng(0).permutation(len(structures))[:n])
    terminal.stage(part)
    found = evaluate(model, dataset_for(model, structures.subset(taken)), name=part, listener=terminal)
    arrays = (found.energy_error, found.energy_std_raw, found.forces_error, found.forces_std_raw)
    energy_error, energy_std, forces_error, forces_std = (
        array.reshape(len(taken), -1) for array in arrays if array is not None
    )
    return [(energy_error, energy_std), (forces_error, forces_std)]


def score(validation: Samples, test: Samples, method: CalibrationMethod | None) -> list[float]:
    """Calibration score of energies and of forces on test structures; without a method, of raw σ."""
    found = []
    for known, (error, std) in zip(validation, test, strict=True):
        calibration = UNCALIBRATED if method is None else fitted(*known, method)
        found.append(calibration_score(error, calibration.scale * std, calibration))
    return found


def fitted(error: FloatArray, std: FloatArray, method: CalibrationMethod) -> Calibration:
    """On errors and σ with one row for each structure."""
    return fit_calibration(error, std, np.repeat(np.arange(len(error)), error.shape[1]), method)


def with_fewer(validation: Samples, test: Samples, n: int) -> list[str]:
    """Mean score of each method over draws of n validation structures."""
    rng, n_all = np.random.default_rng(0), len(validation[0][0])
    rows = [rng.permutation(n_all)[:n] for _ in range(DRAWS)]
    draws = [[(error[row], std[row]) for error, std in validation] for row in rows]
    return [shown(*np.mean([score(draw, test, way) for draw in draws], axis=0)) for way in CALIBRATION_METHODS]


def shown(energies: float, forces: float) -> str:
    return f"{energies:.3f} / {forces:.3f}"


# --- simulation


def simulated(rng: np.random.Generator, n_structures: int, n_components: int, log_sd: float) -> FloatArray:
    """Gaussian errors over raw σ, one row for each structure, which has a scale of its own."""
    return np.exp(log_sd * rng.standard_normal((n_structures, 1))) * rng.standard_normal((n_structures, n_components))


def gaussian_factor(errors: FloatArray) -> Calibration:
    """One factor of least score with Gaussian multipliers."""
    factors = np.geomspace(0.2, 5, 200)
    best = min(factors, key=lambda factor: calibration_score(errors, np.full_like(errors, factor)))
    return Calibration(method="gaussian", scale=float(best), n_samples=errors.size)


def simulation() -> None:
    """Mean coverage of 68 % and 95 % intervals over draws of held-out structures, by ways to calibrate."""
    rng, levels = np.random.default_rng(0), np.array([ONE_SIGMA, 0.95])
    ways = ("quantile", "scalar", "isotonic", "conformal")
    print(f"coverage of 68 % / 95 %, mean of {SIMULATED_DRAWS} draws; log sd: of the scales of structures\n")
    print("| components | log sd | structures | Gaussian multipliers | " + " | ".join(ways) + f" |\n{'|---' * 8}|")
    for n_components, log_sd in ((1, 0.0), (1, 0.5), (27, 0.0), (27, 0.2), (27, 0.5), (27, 1.0)):
        truth = np.sort(np.abs(simulated(rng, 20_000, n_components, log_sd)).ravel())
        for n_structures in (20, 30, 49):
            found: list[list[FloatArray]] = []
            for _ in range(SIMULATED_DRAWS):
                errors = simulated(rng, n_structures, n_components, log_sd)
                fits = [gaussian_factor(errors), *(fitted(errors, np.ones_like(errors), way) for way in ways)]
                widths = [fit.scale * fit.multiplier(levels) for fit in fits]
                found.append([np.searchsorted(truth, width) / truth.size for width in widths])
            cells = " | ".join(f"{one:.3f} / {two:.3f}" for one, two in np.mean(found, axis=0))
            print(f"| {n_components} | {log_sd} | {n_structures} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*", help="folders of runs; none: a simulation")
    parser.add_argument("--structures", type=int, default=1000, help="of each part, at most")
    parser.add_argument("--fewer", type=int, nargs="*", default=[20, 50, 100, 200, 500])
    options = parser.parse_args()
    prepare()
    if not options.runs:
        return simulation()
    ways = " | ".join(CALIBRATION_METHODS)
    fewer = [
        f"mean of {DRAWS} draws of fewer validation structures:\n",
        f"| run | structures | {ways} |\n{'|---' * (2 + len(CALIBRATION_METHODS))}|",
    ]
    print(f"calibration score, energies / forces; {describe_machine()}\n")
    print(f"| run | raw | {ways} |\n{'|---' * (2 + len(CALIBRATION_METHODS))}|")
    with progress() as terminal:
        for run in options.runs:
            model = load(run / "model.sigmaff")
            validation = evaluated(model, "validation", options.structures, terminal)
            test = evaluated(model, "test", options.structures, terminal)
            columns = [shown(*score(validation, test, method)) for method in (None, *CALIBRATION_METHODS)]
            print(f"| {run.name} | {' | '.join(columns)} |", flush=True)
            fewer += [f"| {run.name} | {n} | {' | '.join(with_fewer(validation, test, n))} |" for n in options.fewer]
    print("\n" + "\n".join(fewer))


if __name__ == "__main__":
    main()
