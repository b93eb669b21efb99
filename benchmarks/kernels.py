"""Kernels of the closed-form LNK on trained backbones: errors, likelihood, ranking, and structures of another kind.

sigmaff compare examples/compare_ethanol.yaml --methods backbone
python benchmarks/kernels.py runs/compare_ethanol
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from timing import describe_machine

from sigmaff.allocator import keep_large_blocks
from sigmaff.cli.progress import Terminal
from sigmaff.experiments.run import run
from sigmaff.experiments.settings import RunConfig
from sigmaff.heads import LNKConfig
from sigmaff.model_file import read_header
from sigmaff.units import KCAL_PER_MOL

KERNELS = ("rbf", "matern52", "linear", "rbf+linear")
LABELS = ("energy", "energy+forces")


def record_of(directory: Path, kernel: str, labels: str, terminal: Terminal) -> dict[str, Any]:
    """The record of a run with this kernel on the backbone of a comparison; a run that is done is not done again."""
    backbone = directory / "backbone" / "model.sigmaff"
    config = RunConfig.model_validate(read_header(backbone).record["config"])
    head = LNKConfig(kernel=kernel, variance_labels=labels)
    changes = {
        "model": config.model.model_copy(update={"head": head}),
        "backbone_from": backbone,
        "output": directory / f"kernel-{kernel}-{labels}",
    }
    result = run(config.model_copy(update=changes), terminal)
    assert result is not None
    return read_header(result.model_path).record


def row(kernel: str, labels: str, record: dict[str, Any]) -> str:
    metrics = record["metrics"]
    cells = [
        f"{metrics['energy_mae'] / KCAL_PER_MOL:.4f} / {metrics['forces_mae'] / KCAL_PER_MOL:.4f}",
        f"{metrics['energy_nll']:.3f} / {metrics['forces_nll']:.3f}",
        f"{metrics['energy_calibration']:.3f} / {metrics['forces_calibration']:.3f}",
        f"{metrics['energy_spearman']:.3f} / {metrics['forces_spearman']:.3f}",
        *(f"{other['energy_auroc']:.4f} / {other['forces_auroc']:.4f}" for other in record["ood"].values()),
        f"{record['fit']['force_weight']:g}",
        f"{record['fit']['seconds']:.0f}",
    ]
    return f"| {kernel} | {labels} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, help="of comparisons whose backbone is trained")
    arguments = parser.parse_args()
    keep_large_blocks()
    print(f"energies / forces; MAE in kcal/mol and kcal/mol/Å; {describe_machine()}")
    with Terminal(Console(stderr=True)) as terminal:
        for directory in arguments.directories:
            records = {
                (kernel, labels): record_of(directory, kernel, labels, terminal)
                for kernel in KERNELS
                for labels in LABELS
            }
            sets = next(iter(records.values()))["ood"]
            measures = ["MAE", "NLL", "calibration", "Spearman", *(f"AUROC {name}" for name in sets), "ω", "fit (s)"]
            print(f"\n{directory}\n\n| kernel | labels of σ | {' | '.join(measures)} |")
            print("|---" * (2 + len(measures)) + "|")
            for (kernel, labels), record in records.items():
                print(row(kernel, labels, record))


if __name__ == "__main__":
    main()
