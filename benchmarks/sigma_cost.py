"""What σ costs: E + F + energy σ of an LNK potential over E + F of its backbone alone, alternately in one run.

python benchmarks/sigma_cost.py [--threads 1]
python benchmarks/sigma_cost.py --runs runs/compare_ethanol/backbone runs/compare_ethanol/fixed_lnk

The first compares heads that were never fitted, on one network; the second the models of two runs.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from machine import describe_machine, prepare
from molecules import STATISTICS, ethanol_batch

from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Model, Potential, PotentialConfig
from sigmaff.models.file import load
from sigmaff.timing import median_seconds

BATCHES = (1, 8, 32)
HEADS = {
    "backbone": DeterministicConfig(),
    "LNK, mean backbone": LNKConfig(kernel="rbf+linear", mean="backbone"),
    "LNK, mean residual": LNKConfig(kernel="rbf+linear", mean="residual"),
    "LNK, linear kernel": LNKConfig(kernel="linear"),
}


def potential(name: str, graph: AtomicGraph) -> Potential:
    torch.manual_seed(0)
    model = Potential(PotentialConfig(head=HEADS[name]), STATISTICS).eval().requires_grad_(False)  # as loaded
    with torch.no_grad():
        model.head.initialize(model.backbone(graph), graph.atomic_numbers, graph.structure_index)
    return model


def of_heads() -> None:
    """Heads that were never fitted: the same operations on other numbers."""
    models = {name: potential(name, ethanol_batch(32, 10.0)[0]) for name in HEADS}
    print(f"SchNet at the paper's size, ethanol, m = 100; {describe_machine()}\n")
    print(
        "| batch | E + F of the backbone (ms) | + energy σ, `rbf+linear` | the same, mean backbone | `linear` "
        "| + force σ, exact |"
    )
    print("|---|---|---|---|---|---|")
    for n_structures in BATCHES:
        graph, _ = ethanol_batch(n_structures, 10.0)
        things = {name: partial(model.predict, graph, forces_std="none") for name, model in models.items()}
        things["with force σ"] = partial(models["LNK, mean residual"].predict, graph, forces_std="exact")
        seconds = median_seconds(things, 30)
        base = seconds["backbone"]
        order = ("LNK, mean residual", "LNK, mean backbone", "LNK, linear kernel", "with force σ")
        ratios = [seconds[name] / base for name in order]
        print(f"| {n_structures} | {1e3 * base:.2f} | " + " | ".join(f"{ratio:.3f} ×" for ratio in ratios) + " |")


def of_runs(backbone: Model, fitted: Model) -> None:
    """The noise of the ratio is that of the backbone over itself."""
    print(f"ethanol; {describe_machine()}\n")
    print("| batch | E + F of the backbone (ms) | the same again | + energy σ |\n|---|---|---|---|")
    for n_structures in BATCHES:
        graph, _ = ethanol_batch(n_structures, backbone.cutoff)
        models = {"backbone": backbone, "again": backbone, "fitted": fitted}
        things = {name: partial(model.predict, graph, forces_std="none") for name, model in models.items()}
        seconds = median_seconds(things, 100)
        base = seconds["backbone"]
        again, with_std = seconds["again"] / base, seconds["fitted"] / base
        print(f"| {n_structures} | {1e3 * base:.2f} | {again:.3f} × | {with_std:.3f} × |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, nargs=2, metavar=("BACKBONE", "FITTED"), help="with models to compare")
    options = parser.parse_args()
    prepare(options.threads)
    if options.runs is None:
        of_heads()
    else:
        of_runs(*(load(run / "model.sigmaff") for run in options.runs))


if __name__ == "__main__":
    main()
