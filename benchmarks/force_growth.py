"""Force σ in and off the distribution, calibrated without and with growth.

python benchmarks/force_growth.py networks [--sets acac 3bpa ...] [--head lnk] [--method scalar]

``networks`` is the directory that benchmarks/networks.py made; hot sets are read from the folder SIGMAFF_DATA. Growth
is fitted on the validation structures of a network, and tested on its test structures and on hot sets.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

import sigmaff as sf
from sigmaff.data import DataSource, GraphDataset, LabelledStructures, read_structures
from sigmaff.evaluation import Evaluation, calibrate_evaluation, evaluate, summarize
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.heads import HeadConfig, LatentDistanceConfig, LLPRConfig, LNKConfig, ShallowEnsembleConfig
from sigmaff.models import Model, Potential
from sigmaff.models.prediction import Calibration
from sigmaff.models.solve import solve_head

HOT = {
    "acac": {"600 K": "acac/test_MD_600K.extxyz"},
    "3bpa": {"600 K": "3bpa/hot_600K.extxyz", "1200 K": "3bpa/hot_1200K.extxyz"},
    "silicon": {"test set": "mlearn/Si_test.extxyz"},
}
HEADS: dict[str, HeadConfig] = {
    "lnk": LNKConfig(),
    "llpr": LLPRConfig(),
    "shallow_ensemble": ShallowEnsembleConfig(),
    "latent_knn": LatentDistanceConfig(),
}


def some(model: Model, structures: LabelledStructures, n: int) -> GraphDataset:
    """n of them at equal distances, or all."""
    chosen = np.linspace(0, len(structures) - 1, min(n, len(structures))).round().astype(int)
    return dataset_for(model, structures.subset(chosen))


def row(name: str, evaluation: Evaluation, plain: Calibration, grown: Calibration) -> str:
    found = []
    for calibration in (plain, grown):
        tested = replace(evaluation, forces_calibration=calibration)
        summary, sample = summarize(tested), tested.samples["forces"]
        z = np.sqrt(np.mean(np.square(sample.errors / sample.std)))
        ranks = (summary[key] for key in ("forces_coverage_68", "forces_spearman", "forces_atom_spearman"))
        found.append((summary["forces_nll"], z, *ranks))
    return f"| {name} | " + " | ".join(f"{a:.2f} → {b:.2f}" for a, b in zip(*found, strict=True)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(HOT))
    parser.add_argument("--head", choices=HEADS, default="lnk")
    parser.add_argument("--method", choices=["scalar", "quantile", "isotonic", "auto"], default="scalar")
    parser.add_argument("--structures", type=int, default=100, help="of each set that is tested")
    arguments = parser.parse_args()
    for name in arguments.sets:
        network = sf.load(arguments.directory / name / "0" / "model.sigmaff")
        assert isinstance(network, Potential)
        own, validation_set = (recorded_structures(network, part) for part in ("train", "validation"))
        train, validation = dataset_for(network, own), dataset_for(network, validation_set)
        model, _ = solve_head(network, HEADS[arguments.head], train, validation)
        model.set_precision(network.dtype)
        held_out = evaluate(model, validation, name="validation")
        plain, grown = (
            calibrate_evaluation(held_out, arguments.method, force_growth=g)[0].forces for g in (False, True)
        )
        assert plain is not None
        assert grown is not None
        print(f"\n{name}, {arguments.head}: {grown}\n")
        print("| | NLL | rms z | within σ | Spearman | of atoms |\n|---|---|---|---|---|---|")
        data = Path(os.environ.get("SIGMAFF_DATA", "."))
        tested = {key: read_structures(DataSource(path=data / path)) for key, path in HOT.get(name, {}).items()}
        if name != "silicon":  # all of its structures train or validate
            tested = {"test": recorded_structures(network, "test"), **tested}
        for key, structures in tested.items():
            evaluation = evaluate(model, some(model, structures, arguments.structures), name=key)
            print(row(key, evaluation, plain, grown), flush=True)


if __name__ == "__main__":
    main()
