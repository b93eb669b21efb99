"""Ways to calibrate σ: each fitted on a run's validation structures, scored on test structures. Nothing is trained.

python benchmarks/calibrations.py runs/md17_schnet_uracil
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from timing import describe_machine

from sigmaff.allocator import keep_large_blocks
from sigmaff.cli.progress import Terminal
from sigmaff.evaluation import Evaluation, fit_calibration
from sigmaff.evaluation.calibration import CALIBRATION_METHODS
from sigmaff.evaluation.metrics import calibration_score
from sigmaff.experiments.evaluate import dataset_for, evaluate_on, recorded_structures
from sigmaff.model_file import load
from sigmaff.potential import Model


def evaluated(model: Model, part: str, n: int, terminal: Terminal) -> Evaluation:
    structures = recorded_structures(model, part)
    drawn = np.random.default_rng(0).permutation(len(structures))[:n]
    terminal.stage(part)
    return evaluate_on(model, dataset_for(model, structures.subset(np.sort(drawn))), name=part, listener=terminal)


def scores(validation: Evaluation, test: Evaluation) -> list[str]:
    """Energy and force score of each method; raw first."""
    pairs = [
        (validation.energy_error, validation.energy_std_raw, test.energy_error, test.energy_std_raw),
        (validation.forces_error, validation.forces_std_raw, test.forces_error, test.forces_std_raw),
    ]
    columns = [" / ".join(f"{calibration_score(error, std):.3f}" for _, _, error, std in pairs)]
    for method in CALIBRATION_METHODS:
        found = []
        for known_error, known_std, error, std in pairs:
            calibration = fit_calibration(known_error, known_std, method)
            found.append(calibration_score(error, calibration.scale * std, calibration))
        columns.append(" / ".join(f"{score:.3f}" for score in found))
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--structures", type=int, default=1000, help="of each part, at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_large_blocks()
    print(f"calibration score, energies / forces; {describe_machine()}\n")
    print(f"| run | raw | {' | '.join(CALIBRATION_METHODS)} |\n{'|---' * (2 + len(CALIBRATION_METHODS))}|")
    with Terminal(Console(stderr=True)) as terminal:
        for run in options.runs:
            model = load(run / "model.sigmaff")
            parts = [evaluated(model, part, options.structures, terminal) for part in ("validation", "test")]
            print(f"| {run.name} | {' | '.join(scores(*parts))} |", flush=True)


if __name__ == "__main__":
    main()
