"""Ensembles and dropout against one potential: E + F + σ, eager and compiled, alternately in one run.

python benchmarks/ensemble.py [--threads 1] [--no-compile]
"""

import argparse
from collections.abc import Callable

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


def runs_of(graph: AtomicGraph, members: list[Potential], compiled: Ensemble | None) -> dict[str, Callable[[], object]]:
    """Return the predictions to time, by name; without ``compiled``, all others."""
    ensemble, stacked, batched = Ensemble(members), mapped(members), dropout.MAX_PAIRS
    sampler = MonteCarloDropout(potential(0, 0.2), MonteCarloDropoutConfig(n_samples=SIZE))

    def together() -> None:
        def values(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            distribution, forces = torch.func.functional_call(members[0], weights, (graph,))
            return distribution.mean, forces

        with torch.no_grad():
            torch.func.vmap(values)(stacked)

    def sampled(limit: int) -> None:
        dropout.MAX_PAIRS = limit
        sampler.predict_raw(graph)
        dropout.MAX_PAIRS = batched

    runs = {
        "one": lambda: members[0].predict_raw(graph),
        "ensemble": lambda: ensemble.predict_raw(graph),
        "with an axis of members": together,
        "dropout, batched": lambda: sampled(batched),
        "dropout, one by one": lambda: sampled(1),
    }
    return runs if compiled is None else runs | {"compiled": lambda: compiled.predict_raw(graph)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="leave out what takes minutes to compile")
    arguments = parser.parse_args()
    prepare(arguments.threads)
    members = [potential(seed) for seed in range(SIZE)]
    compiled = None if arguments.no_compile else Ensemble(members)
    if compiled is not None:
        compiled.compile()
    print(f"SchNet, ethanol, {SIZE} members or samples; {describe_machine()}\n")
    names = ["ensemble", "with an axis of members", "compiled", "dropout, batched", "dropout, one by one"]
    print(f"| batch | one potential (ms) | {' | '.join(names)} |")
    print("|---" * (2 + len(names)) + "|")
    for n in arguments.batch_sizes:
        seconds = median_seconds(runs_of(ethanol_batch(n, 10.0)[0], members, compiled), arguments.rounds)
        ratios = [f"{seconds[name] / seconds['one']:.2f} ×" if name in seconds else "–" for name in names]
        print(f"| {n} | {1e3 * seconds['one']:.2f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
