"""Accuracy and σ of the MD17 ethanol runs: backbone alone, and with the closed-form LNK, against malonaldehyde.

sigmaff train examples/md17_ethanol.yaml
python benchmarks/md17_ethanol.py runs/md17_ethanol
"""

import argparse
import json
import os
from dataclasses import asdict, astuple
from pathlib import Path

import numpy as np
from machine import describe_machine, prepare, progress

from sigmaff.data import DataSource, GraphDataset, read_structures
from sigmaff.evaluation import Summary, evaluate, summarize
from sigmaff.evaluation.paired import Difference, differences, structure_columns
from sigmaff.models.file import load
from sigmaff.models.record import RunRecord
from sigmaff.units import KCAL_PER_MOL

N_OOD = 1000


def figures_of(directory: Path) -> tuple[Summary, Summary, dict[str, Difference], RunRecord]:
    """Figures of the backbone and of the LNK on the test structures, their differences, and the run's record."""
    data = Path(os.environ["SIGMAFF_DATA"]) / "rmd17"
    model, backbone = load(directory / "model.sigmaff"), load(directory / "backbone.sigmaff")
    ethanol = read_structures(DataSource(path=data / "rmd17_ethanol.npz", format="rmd17_original"))
    test = GraphDataset(ethanol.subset(model.record.split.test), model.cutoff)
    other = read_structures(DataSource(path=data / "rmd17_malonaldehyde.npz", format="rmd17_original"))
    chosen = np.random.default_rng(0).choice(len(other), N_OOD, replace=False)
    malonaldehyde = GraphDataset(other.subset(np.sort(chosen)), model.cutoff)
    with progress() as terminal:
        terminal.stage("backbone")
        plain = evaluate(backbone, test, name="ethanol", listener=terminal)
        terminal.stage("LNK")
        ours = evaluate(model, test, name="ethanol", listener=terminal)
        terminal.stage("LNK on malonaldehyde")
        ood = evaluate(model, malonaldehyde, name="malonaldehyde", listener=terminal)
    found = differences(structure_columns(plain), structure_columns(ours))
    return summarize(plain), summarize(ours, ood), found, model.record


def table(plain: Summary, lnk: Summary, found: dict[str, Difference], record: RunRecord) -> str:
    """Figures with 95 % intervals over test structures, and differences of the LNK to its backbone."""

    def kcal(summary: Summary, key: str) -> str:
        low, high = summary[f"{key}_ci"]
        return f"{summary[key] / KCAL_PER_MOL:.4f} [{low / KCAL_PER_MOL:.4f}, {high / KCAL_PER_MOL:.4f}]"

    def change(key: str) -> str:
        value, low, high = (number / KCAL_PER_MOL for number in astuple(found[key]))
        return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"

    def measured(key: str) -> str:
        interval = lnk.get(f"{key}_ci") if "calibration" not in key else None
        return f"{lnk[key]:.4f}" + ("" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]")

    rows = [
        ("test structures", f"{plain['n_structures']}", f"{lnk['n_structures']}"),
        ("energy MAE (kcal/mol)", kcal(plain, "energy_mae"), kcal(lnk, "energy_mae")),
        ("force MAE (kcal/mol/Å)", kcal(plain, "forces_mae"), kcal(lnk, "forces_mae")),
        ("energy MAE, difference to the backbone", "", change("energy_mae")),
        ("force MAE, difference to the backbone", "", change("forces_mae")),
    ]
    for label, key in (
        ("calibration score, energy", "energy_calibration"),
        ("calibration score, forces", "forces_calibration"),
        ("the same, σ as the fit scales it on validation errors, energy", "energy_calibration_raw"),
        ("the same, σ as the fit scales it on validation errors, forces", "forces_calibration_raw"),
        ("Spearman of σ and absolute error, energy", "energy_spearman"),
        ("Spearman of σ and absolute error, forces", "forces_spearman"),
        ("AUROC against malonaldehyde, energy σ per atom", "energy_auroc"),
        ("AUROC against malonaldehyde, force σ", "forces_auroc"),
    ):
        rows.append((label, "–", measured(key)))
    rows.append(("training (min)", f"{record.training.seconds / 60:.1f}", ""))
    rows.append(("fitting the LNK (s)", "", f"{record.fit.seconds:.0f}"))
    lines = ["| | backbone | closed-form LNK |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {label} | {a} | {b} |" for label, a, b in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="output directory of the training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    prepare(arguments.threads)
    plain, lnk, found, record = figures_of(arguments.directory)
    print(f"{record.training.n_epochs} epochs, {describe_machine()}; trained {record.date}\n")
    print(table(plain, lnk, found, record))
    if arguments.json is not None:
        differing = {key: asdict(difference) for key, difference in found.items()}
        content = {
            "backbone": plain,
            "lnk": lnk,
            "differences": differing,
            **record.model_dump(include={"training", "fit"}),
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
