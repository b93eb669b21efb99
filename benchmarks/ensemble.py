"""Ensembles and dropout against one potential: E + F + σ, eager and compiled, alternately in one run.

python benchmarks/ensemble.py [--threads 1] [--no-compile]
"""

import argparse

import torch
from machine import describe_machine, prepare
from molecules import STATISTICS, ethanol_batch
from torch import Tensor

from sigmaff.backbones import SchNetConfig
from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, MonteCarloDropout, MonteCarloDropoutConfig, Potential, PotentialConfig, dropout
from sigmaff.timing import median_seconds

SIZE = 5


def potential(seed: int, rate: float = 0.0) -> Potential:
    torch.manual_seed(seed)
    config = PotentialConfig(backbone=SchNetConfig(dropout=rate), head=DeterministicConfig())
    return Potential(config, STATISTICS).eval().requires_grad_(False)


def mapped(members: list[Potential]) -> dict[str, Tensor]:
    """The weights of all members, stacked."""
    named = [dict(member.named_parameters()) | dict(member.named_buffers()) for member in members]
    return {name: torch.stack([weights[name] for weights in named]) for name in named[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="leave out what takes minutes to compile")
    arguments = parser.parse_args()
    prepare(arguments.threads)
    members = [potential(seed) for seed in range(SIZE)]
    ensemble, compiled = Ensemble(members), Ensemble(members)
    if not arguments.no_compile:
        compiled.compile()
    sampler = MonteCarloDropout(potential(0, 0.2), MonteCarloDropoutConfig(n_samples=SIZE))
    stacked = mapped(members)
    batched = dropout.MAX_PAIRS
    print(f"SchNet, ethanol, {SIZE} members or samples; {describe_machine()}\n")
    names = ["ensemble", "with an axis of members", "compiled", "dropout, batched", "dropout, one by one"]
    print(f"| batch | one potential (ms) | {' | '.join(names)} |")
    print("|---" * (2 + len(names)) + "|")
    for n in arguments.batch_sizes:
        graph, _ = ethanol_batch(n, 10.0)

        def one(graph: AtomicGraph = graph) -> None:
            members[0].predict_raw(graph)

        def together(graph: AtomicGraph = graph) -> None:
            def values(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
                distribution, forces = torch.func.functional_call(members[0], weights, (graph,))
                return distribution.mean, forces

            with torch.no_grad():
                torch.func.vmap(values)(stacked)

        def sampled(limit: int, graph: AtomicGraph = graph) -> None:
            dropout.MAX_PAIRS = limit
            sampler.predict_raw(graph)

        runs = {
            "one": one,
            "ensemble": lambda graph=graph: ensemble.predict_raw(graph),
            "with an axis of members": together,
            "compiled": lambda graph=graph: compiled.predict_raw(graph),
            "dropout, batched": lambda: sampled(batched),
            "dropout, one by one": lambda: sampled(1),
        }
        if arguments.no_compile:
            del runs["compiled"]
        seconds = median_seconds(runs, arguments.rounds)
        ratios = [f"{seconds[name] / seconds['one']:.2f} ×" if name in seconds else "–" for name in names]
        print(f"| {n} | {1e3 * seconds['one']:.2f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
