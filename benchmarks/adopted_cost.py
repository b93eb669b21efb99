"""What σ costs on an adopted network: over energies and forces of the network alone, alternately in one run.

python benchmarks/adopted_cost.py mine.sigmaff structures.extxyz [--rounds 15]

"again" is the network alone once more and shows the noise. Periodic structures have no stress σ here.
"""

import argparse
from pathlib import Path

import ase.io
from machine import describe_machine, prepare

from sigmaff.graph import build_graph
from sigmaff.models.adopt import network_alone
from sigmaff.models.file import load
from sigmaff.timing import median_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    prepare()
    model = load(options.model)
    alone = network_alone(model)
    if alone is None:
        raise SystemExit(f"{options.model} is not an adopted potential")
    graph = build_graph(ase.io.read(options.structures, 0), model.cutoff, model.dtype)
    calls = {
        "alone": lambda: alone.predict(graph, forces_std="none"),
        "again": lambda: alone.predict(graph, forces_std="none"),
        "energy σ": lambda: model.predict(graph, forces_std="none"),
        "all σ": lambda: model.predict(graph, forces_std="auto", stress_std=False),
    }
    seconds = median_seconds(calls, options.rounds)
    ratios = ", ".join(f"{name} {seconds[name] / seconds['alone']:.2f} ×" for name in ("again", "energy σ", "all σ"))
    source = model.potentials[0].config.backbone.origin.source
    print(f"{source}, {graph.n_atoms} atoms: alone {1000 * seconds['alone']:.1f} ms; {ratios}; {describe_machine()}")


if __name__ == "__main__":
    main()
