"""The smallest head that is solved: an example for new heads. ``heads/test_toy_head`` adds it to the package."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, FitSummary, Head, HeadSettings, Stage
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener


class ToyConfig(HeadSettings):
    """Hyper-parameters of the toy head."""

    name: Literal["toy"] = "toy"
    factor: float = Field(default=1.0, gt=0, description="factor on σ")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "solve")


@dataclass(frozen=True, kw_only=True)
class ToyFit(FitSummary):
    std: float  # of the energy per atom, normalised unit


class Toy(Head):
    """The energy of the backbone; all atoms have the same error, of standard deviation s: σ = n_atoms · s."""

    Config = ToyConfig
    method = "toy"
    kind = "total"
    covariance = "full"

    def __init__(self, config: ToyConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.activation = embedding.activation
        self.linear = embedding.readout()
        self.std = nn.Buffer(torch.ones(()))

    def take_readout(self, readout: nn.Linear) -> None:
        self.linear.load_state_dict(readout.state_dict())

    @torch.no_grad()
    def solve(self, train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> ToyFit:
        """s is the rms of the held-out error per atom."""
        errors = [batch.misses()[0] / batch.graph.atoms_per_structure() for batch in held_out.batches()]
        self.std.copy_(self.config.factor * torch.cat(errors).square().mean().sqrt())
        return ToyFit(std=float(self.std))

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        node_mean = self.linear(self.activation(node_features)).squeeze(-1)
        mean = scatter_sum(node_mean, graph.structure_index, graph.n_structures)
        std = self.std * graph.atoms_per_structure().to(node_mean.dtype)
        return EnergyDistribution(mean=mean, node_mean=node_mean, variance=std.square())
