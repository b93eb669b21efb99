"""A training step (energies and forces in the loss, backward, AdamW) against PyTorch Geometric's SchNet, same batch.

python benchmarks/training_step.py [--threads 1]
"""

import argparse
from collections.abc import Callable

import torch
from machine import describe_machine, prepare
from molecules import STATISTICS, ethanol_batch
from torch import Tensor, nn
from torch_geometric.nn import SchNet as PygSchNet

from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.timing import median_seconds
from sigmaff.training import TrainingConfig
from sigmaff.training.objective import Batch, Objective

RHO = 0.99


class AllPairs(nn.Module):
    """The neighbour list for PyTorch Geometric, from our pairs: both directions, distances differentiable."""

    def __init__(self, graph: AtomicGraph) -> None:
        super().__init__()
        self.edges = torch.cat([graph.pair_index, graph.pair_index.flip(0)], dim=1)

    def forward(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.edges
        return self.edges, (positions[first] - positions[second]).norm(dim=-1)


def pyg_step(graph: AtomicGraph, energy: Tensor, forces: Tensor) -> Callable[[], None]:
    model = PygSchNet(cutoff=10.0, interaction_graph=AllPairs(graph))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        positions = graph.positions.detach().requires_grad_()
        predicted = model(graph.atomic_numbers, positions, graph.structure_index).squeeze(-1)
        (gradient,) = torch.autograd.grad(predicted.sum(), positions, create_graph=True)
        forces_loss = (gradient + forces).norm(dim=-1).mean()
        loss = (1 - RHO) * (predicted - energy).abs().mean() + RHO * forces_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def our_step(graph: AtomicGraph, energy: Tensor, forces: Tensor, *, compiled: bool) -> Callable[[], None]:
    potential = Potential(PotentialConfig(head=DeterministicConfig()), STATISTICS)
    objective = Objective(potential, TrainingConfig(forces_weight=RHO, compile=compiled), n_train=1000)
    optimizer = torch.optim.AdamW(potential.parameters(), fused=True)
    batch = Batch(graph=graph, energy=energy, forces=forces)

    def step() -> None:
        terms = objective(batch)
        loss = objective.total(terms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    prepare(parser.parse_args().threads)
    print(f"SchNet at the paper's size, ethanol; {describe_machine()}\n")
    print("| batch | PyTorch Geometric (ms) | sigmaff | sigmaff, compiled |")
    print("|---|---|---|---|")
    for n_structures in (1, 8, 32):
        graph, labels = ethanol_batch(n_structures, 10.0)
        energy, forces = labels.energy.float(), labels.forces.float()
        seconds = median_seconds(
            {
                "pyg": pyg_step(graph, energy, forces),
                "eager": our_step(graph, energy, forces, compiled=False),
                "compiled": our_step(graph, energy, forces, compiled=True),
            },
            n_rounds=30,
        )
        base = seconds["pyg"]
        ratios = " | ".join(f"{seconds[name] / base:.2f} ×" for name in ("eager", "compiled"))
        print(f"| {n_structures} | {1e3 * base:.1f} | {ratios} |")


if __name__ == "__main__":
    main()
