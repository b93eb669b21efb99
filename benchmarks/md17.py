"""Accuracy of MD17 runs beside the published figures: the backbone alone, and with the closed-form LNK on it.

MOLECULE=uracil sigmaff train examples/md17_nequip.yaml
python benchmarks/md17.py runs/md17_*_*
"""

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from machine import describe_machine, prepare, progress

from sigmaff.data import DataSource, GraphDataset, read_structures
from sigmaff.evaluation import Summary, evaluate, summarize
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.units import KCAL_PER_MOL


class Published(NamedTuple):
    """MAE in kcal/mol and kcal/mol/Å: of a backbone, and of the LNK on it where there is a figure."""

    energy: float
    forces: float
    lnk_energy: float | None
    lnk_forces: float | None


PAPER = {
    ("schnet", "ethanol"): Published(0.064, 0.112, 0.065, 0.271),
    ("schnet", "malonaldehyde"): Published(0.111, 0.461, 0.111, 0.481),
    ("schnet", "uracil"): Published(0.119, 0.326, 0.121, 0.338),
    ("dimenet++", "ethanol"): Published(0.055, 0.173, 0.055, 0.186),
    ("nequip", "ethanol"): Published(0.053, 0.137, 0.056, 0.150),
    ("nequip", "uracil"): Published(0.107, 0.101, 0.109, 0.955),
    ("nequip", "naphthalene"): Published(0.114, 0.054, None, None),
}
HEADER = (
    "| backbone | molecule | | backbone, paper | backbone | × paper | fixed-LNK, paper | closed-form LNK | × backbone "
    "| calibration score | minutes, epochs |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def backbone_alone(directory: Path, test: list[int], source: Path, terminal: Listener) -> Summary:
    potential = load(directory / "backbone.sigmaff")
    structures = read_structures(DataSource(path=source, format="rmd17_original"))
    terminal.stage(f"{directory}: backbone alone")
    dataset = GraphDataset(structures.subset(test), potential.cutoff)
    return summarize(evaluate(potential, dataset, name=directory.name, listener=terminal))


def rows(directory: Path, terminal: Listener) -> list[str]:
    """One row for energies, one for forces."""
    model = load(directory / "model.sigmaff")
    record, name = model.record, model.config.backbone.name
    source = Path(record.config["data"]["source"]["path"])
    molecule = source.stem.removeprefix("rmd17_")
    source = Path(os.environ["SIGMAFF_DATA"]) / "rmd17" / source.name
    ours, lnk = backbone_alone(directory, record.split.test, source, terminal), record.metrics
    paper = PAPER[name, molecule]
    lines = []
    for quantity, published, published_lnk in (
        ("energy", paper.energy, paper.lnk_energy),
        ("forces", paper.forces, paper.lnk_forces),
    ):
        mae, lnk_mae = (summary[f"{quantity}_mae"] / KCAL_PER_MOL for summary in (ours, lnk))
        cells = [
            *((name, molecule) if quantity == "energy" else ("", "")),
            {"energy": "E", "forces": "F"}[quantity],
            f"{published:.3f}",
            f"{mae:.4f}",
            f"{mae / published:.2f}",
            "–" if published_lnk is None else f"{published_lnk:.3f}",
            f"{lnk_mae:.4f}",
            f"{lnk_mae / mae:.3f}",
            f"{lnk[f'{quantity}_calibration']:.3f}",
            f"{record.training.seconds / 60:.0f}, {record.training.n_epochs}" if quantity == "energy" else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", type=Path, nargs="+", help="output directories of the trainings")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    prepare(arguments.threads)
    with progress() as terminal:
        lines = [line for directory in arguments.directories for line in rows(directory, terminal)]
    print(f"MAE in kcal/mol and kcal/mol/Å; {describe_machine()}\n")
    print("\n".join([HEADER, *lines]))


if __name__ == "__main__":
    main()
