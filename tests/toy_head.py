"""The smallest head with an uncertainty: an example for new heads. ``heads/test_toy_head`` adds it to the package."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings


class ToyConfig(HeadSettings):
    """Hyper-parameters of the toy head."""

    name: Literal["toy"] = "toy"
    std: float = Field(default=0.1, gt=0, description="σ of the energy per atom before training, normalised unit")


class Toy(Head):
    """E = Σ_i (w · a(h_i) + b); all atoms have the same error, of standard deviation s: σ = n_atoms · s."""

    Config = ToyConfig
    method = "toy"
    kind = "total"
    covariance = "full"

    def __init__(self, config: ToyConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.activation = embedding.activation
        self.linear = embedding.readout()
        self.log_std = nn.Parameter(torch.tensor(math.log(config.std)))

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        node_mean = self.linear(self.activation(node_features)).squeeze(-1)
        std = self.log_std.exp() * graph.atoms_per_structure().to(node_mean.dtype)
        mean = scatter_sum(node_mean, graph.structure_index, graph.n_structures)
        return EnergyDistribution(mean=mean, node_mean=node_mean, variance=std.square())

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Mean negative log-likelihood of a Gaussian."""
        assert distribution.variance is not None
        misfit = (target - distribution.mean).square() / distribution.variance
        return 0.5 * (misfit + distribution.variance.log() + math.log(2.0 * math.pi)).mean()
