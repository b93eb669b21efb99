"""Ways to calibrate σ: each fitted on a run's validation structures, scored on test structures. Nothing is trained.

python benchmarks/calibrations.py runs/md17_schnet_uracil

A second table has the mean score with fewer validation structures, drawn again and again.
"""

import argparse
from pathlib import Path

import numpy as np
from machine import describe_machine, prepare, progress

from sigmaff.evaluation import CalibrationMethod, evaluate, fit_calibration
from sigmaff.evaluation.calibration import CALIBRATION_METHODS
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.evaluation.metrics import FloatArray, calibration_score
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.models.prediction import UNCALIBRATED
from sigmaff.progress import Listener

DRAWS = 50


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
        calibration = UNCALIBRATED if method is None else fit_calibration(*known, method)
        found.append(calibration_score(error, calibration.scale * std, calibration))
    return found


def with_fewer(validation: Samples, test: Samples, n: int) -> list[str]:
    """Mean score of each method over draws of n validation structures."""
    rng, n_all = np.random.default_rng(0), len(validation[0][0])
    rows = [rng.permutation(n_all)[:n] for _ in range(DRAWS)]
    draws = [[(error[row], std[row]) for error, std in validation] for row in rows]
    return [shown(*np.mean([score(draw, test, way) for draw in draws], axis=0)) for way in CALIBRATION_METHODS]


def shown(energies: float, forces: float) -> str:
    return f"{energies:.3f} / {forces:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--structures", type=int, default=1000, help="of each part, at most")
    parser.add_argument("--fewer", type=int, nargs="*", default=[20, 50, 100, 200, 500])
    options = parser.parse_args()
    prepare()
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
