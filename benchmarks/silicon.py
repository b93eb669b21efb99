"""Silicon: a model trained on the training set of mlearn, on its test set, with σ calibrated in two ways.

sigmaff train examples/silicon.yaml
python benchmarks/silicon.py runs/silicon/model.sigmaff
"""

import argparse
import os
from pathlib import Path

import numpy as np
from machine import describe_machine, progress

from sigmaff.data import DataSource, LabelledStructures, read_structures
from sigmaff.evaluation import Summary, evaluate, summarize
from sigmaff.evaluation.datasets import calibrate, dataset_for
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener

MEASURES = {
    "MAE": "mae",
    "calibration score, raw": "calibration_raw",
    "calibration score": "calibration",
    "coverage of 68 %": "coverage_68",
    "coverage of 95 %": "coverage_95",
    "Spearman of σ and absolute error": "spearman",
}


def summary(model: Model, structures: LabelledStructures, terminal: Listener) -> Summary:
    return summarize(evaluate(model, dataset_for(model, structures), name="test", listener=terminal))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    data = Path(os.environ["SIGMAFF_DATA"]) / "mlearn"
    model = load(arguments.model)
    training, test = (read_structures(DataSource(path=data / f"Si_{part}.extxyz")) for part in ("training", "test"))
    order = np.random.default_rng(0).permutation(len(test))
    halves = [test.subset(np.sort(half)) for half in np.array_split(order, 2)]
    columns: dict[str, list[Summary]] = {}
    with progress() as terminal:
        validation = training.subset(model.record.split.validation)
        calibrate(model, dataset_for(model, validation), "quantile", terminal)
        columns["σ calibrated on validation structures"] = [summary(model, test, terminal)]
        columns["on one half of the test set, tested on the other (mean of both ways)"] = found = []
        for own, other in (halves, halves[::-1]):
            calibrate(model, dataset_for(model, own), "quantile", terminal)
            found.append(summary(model, other, terminal))
    print(f"{len(test)} structures; energy / forces in eV and eV/Å; {describe_machine()}\n")
    per_atom = columns["σ calibrated on validation structures"][0]["energy_mae_per_atom"]
    print(f"energy MAE per atom {1e3 * float(per_atom):.2f} meV\n\n| | {' | '.join(columns)} |\n|---|---|---|")
    for label, key in MEASURES.items():
        cells = [
            " / ".join(
                f"{np.mean([float(s[f'{quantity}_{key}']) for s in found]):.3f}" for quantity in ("energy", "forces")
            )
            for found in columns.values()
        ]
        print(f"| {label} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
