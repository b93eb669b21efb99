"""Graph mixture density network: a mixture of Gaussians over the energy of a structure, from its pooled embedding.

    p(E) = Σ_c π_c N(E; μ_c, σ_c²)
    μ_c = Σ_i (w · a_i + b) + s m_c,      σ_c = s t_c + min_std,      (π, m, t, s) = network((Σ_i a_i − q)/r)

with the activated embeddings a_i of atoms. A network with one hidden layer sees a structure as a whole. Three things
make it learn total energies:
- It sees sums over atoms less their mean q over training structures, in units of their spread r: a molecule that
  vibrates changes its sums by a small part of them.
- All components share the backbone's own readout, for total energies are nearly sums over atoms. The network gives what
  each adds to it.
- What they add is in units of a width s. The likelihood hardly sees a component of small weight: by itself it would
  stray, and take the mean and the variance of the mixture with it.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings

FIRST_WIDTH = 0.1
"""The width s before training, about. Of energies that miss by less than s, a likelihood says little."""
NO_SPREAD = 1e-6
"""Sums over atoms that differ by no more than this part of themselves are the same."""


class GMDNConfig(HeadSettings):
    """Hyper-parameters of the graph mixture density network."""

    name: Literal["gmdn"] = "gmdn"
    n_components: int = Field(default=5, ge=1, le=1000, description="Gaussians of the mixture")
    n_hidden: int = Field(default=64, ge=1, le=100_000, description="width of the network on the pooled embedding")
    min_std: float = Field(
        default=1e-3,
        gt=0,
        description="least σ of a Gaussian, in units of the rms force component times 1 Å: without it, one that meets "
        "an energy exactly has an infinite likelihood",
    )


@dataclass(frozen=True, kw_only=True)
class GaussianMixture(EnergyDistribution):
    """A mixture of Gaussians; (n_structures, n_components) each."""

    log_weights: Tensor
    means: Tensor
    stds: Tensor

    def log_density(self, energy: Tensor) -> Tensor:
        """log Σ_c π_c N(E; μ_c, σ_c²), (n_structures,)."""
        deviation = (energy.unsqueeze(-1) - self.means) / self.stds
        log_gaussians = -0.5 * deviation.square() - self.stds.log() - 0.5 * math.log(2.0 * math.pi)
        return torch.logsumexp(self.log_weights + log_gaussians, dim=-1)


class GMDN(Head):
    """Mean Σ_c π_c μ_c, variance Σ_c π_c (σ_c² + (μ_c − mean)²).

    σ is aleatoric: the likelihood makes it the spread of labels about the mean among training structures that look
    alike, and nothing in it knows how far a structure is from them.
    """

    Config = GMDNConfig
    method = "gmdn"
    kind = "aleatoric"
    distribution = GaussianMixture
    has_likelihood_loss = True

    def __init__(self, config: GMDNConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.activation = embedding.activation
        self.linear = embedding.readout()
        n_pooled = self.linear.in_features
        self.network = nn.Sequential(
            nn.Linear(n_pooled, config.n_hidden), nn.SiLU(), nn.Linear(config.n_hidden, 3 * config.n_components + 1)
        )
        self.pooled_mean = nn.Buffer(torch.zeros(n_pooled))
        self.pooled_spread = nn.Buffer(torch.ones(()))

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Mean of the sums over atoms, and one spread for all of their components; 1 where they are all the same."""
        with torch.no_grad():
            pooled = scatter_sum(self.activation(node_features), structure_index, int(structure_index.max()) + 1)
            mean = pooled.mean(0)
            spread = (pooled - mean).square().mean().sqrt()
            has_spread = spread > NO_SPREAD * pooled.square().mean().sqrt()
            self.pooled_mean.copy_(mean)
            self.pooled_spread.copy_(torch.where(has_spread, spread, 1.0))

    def take_readout(self, readout: nn.Linear) -> None:
        """The part that all components share."""
        self.linear.load_state_dict(readout.state_dict())

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> GaussianMixture:
        activated = self.activation(node_features)
        columns = torch.cat([self.linear(activated), activated], dim=-1)
        summed = scatter_sum(columns, graph.structure_index, graph.n_structures)
        shared, pooled = summed[:, 0], summed[:, 1:]
        log_weights, added, stds = self._components(pooled)
        weights = log_weights.exp()
        mean_added = (weights * added).sum(-1)
        variances = stds.square() + (added - mean_added.unsqueeze(-1)).square()
        return GaussianMixture(
            mean=shared + mean_added,
            variance=(weights * variances).sum(-1),
            log_weights=log_weights,
            means=shared.unsqueeze(-1) + added,
            stds=stds,
        )

    def _components(self, pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log π_c, s m_c and σ_c, (n_structures, n_components) each."""
        outputs = self.network((pooled - self.pooled_mean) / self.pooled_spread)
        width = functional.softplus(outputs[:, :1] + math.log(math.expm1(FIRST_WIDTH)))
        logits, offsets, stds = outputs[:, 1:].unflatten(-1, (3, -1)).unbind(-2)
        log_weights = functional.log_softmax(logits, dim=-1)
        return log_weights, width * offsets, width * functional.softplus(stds) + self.config.min_std

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Mean negative log-likelihood, never below log(√(2π) min_std)."""
        assert isinstance(distribution, GaussianMixture)
        return -distribution.log_density(target).mean()
