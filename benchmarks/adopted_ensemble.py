"""One adopted ANI-1x network against the ensemble of its eight, on 3BPA: force errors, and AUROC from 300 K to 600 K.

TORCHANI_DATA_DIR=weights python benchmarks/adopted_ensemble.py

The protocol is that of ``adopted.py``: 50 labels, three seeds. The ensemble gets the reference energies of the same
training structures; its σ is the spread of its members, which no label calibrates. AUROC compares ranks, so that
calibration does not matter. It measures the distance from ANI-1x's own training set, ours that from the user's labels.
"""

import argparse

import numpy as np
from adopted import SEEDS, structures_of
from machine import describe_machine, prepare

from sigmaff.backbones import AdoptConfig
from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.evaluation import Evaluation, evaluate, summarize
from sigmaff.models import Ensemble, Model
from sigmaff.models.adopt import read_potential, with_references
from sigmaff.runs.adopt import adopt

N_LABELS, N_NETWORKS, N_BOOTSTRAPS = 50, 8, 2000


def evaluated(model: Model, frames: LabelledStructures) -> Evaluation:
    return evaluate(model, GraphDataset(frames, model.cutoff, model.dtype), name="test", batch_size=16)


def by_structure(evaluation: Evaluation) -> np.ndarray:
    errors = np.abs(evaluation.forces_predicted - evaluation.forces).mean(-1)
    return np.bincount(evaluation.structure_index, errors) / evaluation.atoms_per_structure


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    prepare()
    networks = [read_potential(AdoptConfig(adopt=f"ani:1x/{number}")) for number in range(N_NETWORKS)]
    errors: dict[str, list[np.ndarray]] = {"adopted": [], "ensemble": []}
    scores: list[dict[str, tuple[float, float]]] = []
    for seed in SEEDS:
        labelled, tests = structures_of("3bpa", N_LABELS, seed)
        values = {"seed": seed, "data.split.seed": seed, "data.split.kind": "random"}
        model = adopt(networks[0], labelled, values=values)
        split = model.record.split
        assert split is not None
        train = GraphDataset(labelled.subset(split.train), model.cutoff)
        ensemble = Ensemble([with_references(network, train, "least_squares") for network in networks]).eval()
        found = {}
        for name, one in (("adopted", model), ("ensemble", ensemble)):
            near, far = evaluated(one, tests["test"]), evaluated(one, tests["600K"])
            errors[name].append(by_structure(near))
            summary = summarize(near, far)
            found[name] = (summary["energy_auroc"], summary["forces_auroc"])
        scores.append(found)
    own, others = (np.concatenate(errors[name]) for name in errors)
    drawn = np.random.default_rng(0).integers(len(own), size=(N_BOOTSTRAPS, len(own)))
    low, high = np.quantile(own[drawn].mean(1) / others[drawn].mean(1), [0.025, 0.975])
    print(f"{describe_machine()}\n")
    print("| | force MAE, meV/Å | AUROC of energy σ, each seed | of force σ |\n|---|---|---|---|")
    for name, values in errors.items():
        columns = [" ".join(f"{found[name][kind]:.3f}" for found in scores) for kind in (0, 1)]
        print(f"| {name} | {1000 * np.concatenate(values).mean():.1f} | {columns[0]} | {columns[1]} |")
    print(f"\nforce MAE, adopted over ensemble: {own.mean() / others.mean():.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
