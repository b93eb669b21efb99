"""The backbone's own readout: an energy, no σ."""

from typing import Literal

from torch import Tensor

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings


class DeterministicConfig(HeadSettings):
    """The deterministic head has no hyper-parameters."""

    name: Literal["deterministic"] = "deterministic"


class Deterministic(Head):
    """E = Σ_i (w · a(h_i) + b), with the backbone's activation a."""

    Config = DeterministicConfig
    method = "deterministic"

    def __init__(self, config: DeterministicConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.activation = embedding.activation
        self.linear = embedding.readout()

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        node_mean = self.node_mean(node_features)
        return EnergyDistribution(node_mean=node_mean, mean=graph.sum_of_structures(node_mean))

    def node_mean(self, node_features: Tensor) -> Tensor:
        return self.linear(self.activation(self.embedding.last(node_features))).squeeze(-1)

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Absolute errors."""
        return (distribution.mean - target).abs()
