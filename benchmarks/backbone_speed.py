"""The backbones against other implementations: energies and forces, and a training step, eager and compiled.

pip install -e ".[benchmarks]" -c constraints.txt
python benchmarks/backbone_speed.py [--backbones schnet dimenet++ nequip] [--threads 1]

SIGMAFF_DATA is the folder that holds rmd17/rmd17_aspirin.npz and water/deepmd_water_192.extxyz.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ase.data import chemical_symbols
from machine import describe_machine, prepare
from peers import NequIPPackage, PygDimeNetPP, PygSchNet, energies_and_forces
from torch import Tensor, nn

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DatasetStatistics, DataSource, GraphDataset, compute_statistics, read_structures
from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.timing import median_seconds
from sigmaff.training import TrainingConfig
from sigmaff.training.objective import Batch, Objective

RHO = 0.99
CONFIGS: dict[str, BackboneConfig] = {
    "schnet": SchNetConfig(),
    "dimenet++": DimeNetPPConfig(),
    "nequip": NequIPConfig(),
}
PEERS = {"schnet": "PyTorch Geometric", "dimenet++": "PyTorch Geometric", "nequip": "nequip package"}
NEVER_COMPILED = {"dimenet++"}
"""Peers that are run eagerly in all columns: 25 minutes were not enough to compile their symbolic basis functions."""
Run = Callable[[], object]


def load_systems(cutoff: float, batch_sizes: list[int], water: bool) -> dict[str, GraphDataset]:
    """Data sets, each to be taken whole as one batch."""
    data = Path(os.environ["SIGMAFF_DATA"])
    aspirin = read_structures(DataSource(path=data / "rmd17" / "rmd17_aspirin.npz", format="rmd17_original"))
    systems = {f"aspirin, {n}": GraphDataset(aspirin.subset(np.arange(n) * 100), cutoff) for n in batch_sizes}
    if water:
        cells = read_structures(DataSource(path=data / "water" / "deepmd_water_192.extxyz"))
        systems["water, 192 atoms"] = GraphDataset(cells.subset([0]), cutoff)
    return systems


def our_runs(config: BackboneConfig, batch: Batch, statistics: DatasetStatistics, *, compiled: bool) -> tuple[Run, Run]:
    """Energies and forces without a graph for the weights, and a training step."""
    torch.manual_seed(0)
    potential = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), statistics)
    batch = batch._replace(graph=potential.backbone.prepare(batch.graph))
    objective = Objective(potential, TrainingConfig(forces_weight=RHO, compile=compiled), n_train=1000)
    frozen = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), statistics).eval()
    frozen.requires_grad_(False)
    infer = torch.compile(frozen, dynamic=True) if compiled else frozen.derivatives
    return partial(_without_grad, infer, batch.graph), step_of(potential, lambda: objective.total(objective(batch)))


def _without_grad(infer: Callable[[AtomicGraph], object], graph: AtomicGraph) -> None:
    with torch.no_grad():
        infer(graph)


def peer_runs(name: str, batch: Batch, statistics: DatasetStatistics, *, compiled: bool) -> tuple[Run, Run]:
    torch.manual_seed(0)
    if name == "nequip":
        return package_runs(batch, statistics, compiled=compiled)
    compiled = compiled and name not in NEVER_COMPILED
    model = {"schnet": PygSchNet, "dimenet++": PygDimeNetPP}[name](batch.graph)
    both = energies_and_forces(model)
    if compiled:
        both = torch.compile(both, dynamic=True)
    positions = batch.graph.positions

    def infer_eager() -> None:
        at = positions.detach().requires_grad_()
        torch.autograd.grad(model(at).sum(), at)

    def infer_compiled() -> None:
        with torch.no_grad():
            both(positions)

    return infer_compiled if compiled else infer_eager, step_of(model, lambda: loss(*both(positions), batch))


def package_runs(batch: Batch, statistics: DatasetStatistics, *, compiled: bool) -> tuple[Run, Run]:
    elements = tuple(chemical_symbols[z] for z in statistics.elements)
    trained, frozen = (
        NequIPPackage(batch.graph, elements, statistics.mean_neighbors, compiled=compiled) for _ in range(2)
    )
    frozen.eval().requires_grad_(False)
    trained.train()
    return frozen, step_of(trained, lambda: loss(*trained(), batch))


def loss(energy: Tensor, forces: Tensor, batch: Batch) -> Tensor:
    assert batch.forces is not None
    forces_loss = (forces - batch.forces).norm(dim=-1).mean()
    return (1.0 - RHO) * (energy - batch.energy).abs().mean() + RHO * forces_loss


def step_of(model: nn.Module, loss_of_step: Callable[[], Tensor]) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        value = loss_of_step()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def measure(name: str, dataset: GraphDataset, rounds: int) -> list[str]:
    """Milliseconds of the peer and our ratio to it: inference eager and compiled, training eager and compiled."""
    statistics = compute_statistics(dataset)
    graph, _ = dataset.batch(range(len(dataset)))
    batch = Batch(graph=graph, energy=torch.randn(graph.n_structures), forces=torch.randn(graph.n_atoms, 3))
    cells = []
    runs = {}
    for compiled in (False, True):
        for kind, ours, peers in zip(
            ("inference", "training"),
            our_runs(CONFIGS[name], batch, statistics, compiled=compiled),
            peer_runs(name, batch, statistics, compiled=compiled),
            strict=True,
        ):
            runs[kind, compiled] = (ours, peers)
    for kind in ("inference", "training"):
        for compiled in (False, True):
            ours, peers = runs[kind, compiled]
            seconds = median_seconds({"ours": ours, "peer": peers}, rounds)
            cells.append(f"{1e3 * seconds['peer']:.1f} | **{seconds['ours'] / seconds['peer']:.2f}**")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--no-water", action="store_true", help="leave out the periodic cell")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    prepare(arguments.threads)
    warnings.simplefilter("ignore")  # of the peers
    print(f"milliseconds of the peer, and sigmaff's time over the peer's; {describe_machine()}\n")
    kinds = ("E + F", "E + F, compiled", "training step", "training step, compiled")
    print(f"| backbone, peer | batch | {' | '.join(f'{kind}: peer (ms) | ratio' for kind in kinds)} |")
    print("|---" * (2 + 2 * len(kinds)) + "|")
    for name in arguments.backbones:
        systems = load_systems(CONFIGS[name].cutoff, arguments.batch_sizes, not arguments.no_water)
        for system, dataset in systems.items():
            cells = measure(name, dataset, arguments.rounds)
            print(f"| {name}, {PEERS[name]} | {system} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
