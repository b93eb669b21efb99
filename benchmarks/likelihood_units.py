"""Heads that are trained on a likelihood, with forces weighed in kcal/mol or in the normalised unit.

python benchmarks/likelihood_units.py runs/likelihood_units [--molecule ethanol] [--seeds 0 1]

SchNet with 64 features and 3 interactions on the original labels of MD17, 400 structures. Rerun the command to resume.
Ratios are errors over those of the deterministic network of the same seed and schedule, on 200 validation and on 500
test structures; over all seeds, with 95 % intervals by paired bootstrap over the structures.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine, prepare, progress

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DataSource, SplitConfig
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.heads import DeterministicConfig, EvidentialConfig, GMDNConfig, HeadConfig
from sigmaff.models import PotentialConfig
from sigmaff.models.file import load
from sigmaff.runs.config import DataConfig, RunConfig
from sigmaff.runs.run import run
from sigmaff.training import CosineSchedule, TrainingConfig
from sigmaff.units import KCAL_PER_MOL

PLAIN = "deterministic"
HEADS: dict[str, HeadConfig] = {
    PLAIN: DeterministicConfig(),
    "evidential": EvidentialConfig(),
    "gmdn-shared": GMDNConfig(),
    "gmdn-separate": GMDNConfig(components="separate"),
}
UNITS = ("normalised", "kcal/mol")
N_RESAMPLED = 2000


def cell(folder: Path, molecule: str, head: HeadConfig, unit: str, epochs: int, seed: int) -> RunConfig:
    path = Path(os.environ["SIGMAFF_DATA"]) / "rmd17" / f"rmd17_{molecule}.npz"
    backbone = SchNetConfig(n_hidden=64, n_filters=64, n_interactions=3, n_gaussians=25, cutoff=5.0)
    settings: dict[str, Any] = {} if isinstance(head, DeterministicConfig) else {"likelihood_unit": unit}
    return RunConfig(
        data=DataConfig(
            source=DataSource(path=path, format="rmd17_original"),
            split=SplitConfig(kind="random", n_train=400, n_validation=200, n_test=500, seed=0),
        ),
        model=PotentialConfig(backbone=backbone, head=head),
        training=TrainingConfig(
            batch_size=10,
            max_epochs=epochs,
            validate_every=5,
            learning_rate=2e-3,
            schedule=CosineSchedule(warmup_steps=100, final_fraction=0.0),
            ema_decay=0.99,
            threads=1,
            tensorboard=False,
            **settings,
        ),
        calibration="quantile",
        output=folder,
        seed=seed,
    )


def errors(folder: Path) -> dict[str, FloatArray]:
    """Mean absolute errors of each structure in kcal/mol and Å, (n_structures,) by part and quantity."""
    model = load(folder / "model.sigmaff")
    found: dict[str, FloatArray] = {}
    for part in ("validation", "test"):
        tested = evaluate(model, dataset_for(model, recorded_structures(model, part)), name=part)
        assert tested.energy_error is not None
        assert tested.forces_error is not None
        by_atom = np.abs(tested.forces_error).mean(1)
        counts = np.bincount(tested.structure_index)
        found[f"{part} E"] = np.abs(tested.energy_error) / KCAL_PER_MOL
        found[f"{part} F"] = np.bincount(tested.structure_index, by_atom) / counts / KCAL_PER_MOL
    return found


def ratio(of: list[FloatArray], over: list[FloatArray]) -> str:
    """Of summed errors, with its interval; structures are drawn for all seeds alike."""
    above, below = np.sum(of, axis=0), np.sum(over, axis=0)
    drawn = np.random.default_rng(0).integers(len(above), size=(N_RESAMPLED, len(above)))
    low, high = np.quantile(above[drawn].sum(1) / below[drawn].sum(1), [0.025, 0.975])
    return f"{above.sum() / below.sum():.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--molecule", default="ethanol")
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epochs", type=int, default=120)
    asked = parser.parse_args()
    prepare()
    units = {name: ("",) if name == PLAIN else UNITS for name in (PLAIN, *asked.heads)}
    names = {f"{name} {unit}".strip(): (HEADS[name], unit) for name, of in units.items() for unit in of}
    found: dict[str, list[dict[str, FloatArray]]] = {name: [] for name in names}
    for seed in asked.seeds:
        for name, (head, unit) in names.items():
            folder = asked.output / asked.molecule / f"{name.replace(' ', '-').replace('/', '_per_')}-{seed}"
            with progress() as listener:
                run(cell(folder, asked.molecule, head, unit, asked.epochs, seed), listener)
            found[name].append(errors(folder))
    print(f"{asked.molecule}, seeds {asked.seeds}, {asked.epochs} epochs; {describe_machine()}\n")
    columns = list(found[PLAIN][0])
    print(f"| | {' | '.join(columns)} | {' | '.join(f'{column}, ratio' for column in columns)} |")
    print("|---|" + "---|" * (2 * len(columns)))
    for name, seeds in found.items():
        means = [" / ".join(f"{one[column].mean():.3f}" for one in seeds) for column in columns]
        ratios = [ratio([one[c] for one in seeds], [one[c] for one in found[PLAIN]]) for c in columns]
        print(f"| {name} | {' | '.join(means)} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
