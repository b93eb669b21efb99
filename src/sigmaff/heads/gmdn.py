"""Graph mixture density network: a mixture of Gaussians over the energy of a structure, from its pooled embedding.

    p(E) = Σ_c π_c N(E; μ_c, σ_c²),      x = (Σ_i a_i − q)/r

with the activated embeddings a_i of atoms. Networks see a structure as a whole: its sum over atoms less the mean q over
training structures, in units of their spread r, for a molecule that vibrates changes its sum by a small part.

**separate**, as in the LNK paper: each component has networks of its own for its weight, mean and width.

    log π_c = f_c(x) − log Σ_c' exp f_c'(x),      μ_c = g_c(x),      σ_c = softplus(k_c(x)) + min_std

**shared**: μ_c = Σ_i (w · a_i + b) + s m_c, σ_c = s t_c + min_std with (π, m, t, s) from one network of x. Two things
are there to help it learn total energies:
- All components share the backbone's own readout, for total energies are nearly sums over atoms. The network gives what
  each adds to it.
- What they add is in units of a width s. The likelihood hardly sees a component of small weight: by itself it would
  stray, and take the mean and the variance of the mixture with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings

FIRST_WIDTH = 0.1
"""The width s, or each σ_c, before training, about. Of energies that miss by less than s, a likelihood says little."""
FIRST_WIDTH_ALONE = 1.0
"""The same where components share nothing. Of a Gaussian that misses the energies by many σ_c the likelihood says
nothing: it would stay there, and could have a large weight, for the loss of forces sees slopes alone."""
NO_SPREAD = 1e-6
"""Sums over atoms that differ by no more than this part of themselves are the same."""


class GMDNConfig(HeadSettings):
    """Hyper-parameters of the graph mixture density network."""

    name: Literal["gmdn"] = "gmdn"
    n_components: int = Field(default=5, ge=1, le=1000, description="Gaussians of the mixture")
    components: Literal["shared", "separate"] = Field(
        default="shared",
        description="what the Gaussians are made of: the backbone's readout and one network for what each adds to it "
        "(shared), or networks of its own for the weight, mean and width of each (separate, as in the LNK paper)",
    )
    n_hidden: int = Field(default=64, ge=1, le=100_000, description="width of networks on the pooled embedding")
    n_layers: int = Field(default=1, ge=0, le=100, description="hidden layers of these networks; 0: linear maps")
    min_std: float = Field(
        default=1e-3,
        gt=0,
        description="least σ of a Gaussian, in units of the rms force component times 1 Å: without it, one that meets "
        "an energy exactly has an infinite likelihood",
    )
    unwritten: ClassVar[Mapping[str, Any]] = {"components": "shared", "n_layers": 1}

    def sizes(self, n_inputs: int, n_outputs: int) -> tuple[int, ...]:
        """Widths of the layers of a network, from its inputs to its outputs."""
        return (n_inputs, *[self.n_hidden] * self.n_layers, n_outputs)


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


def _inverse(width: float) -> float:
    """The number whose softplus is the width."""
    return math.log(math.expm1(width))


def _network(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_inputs, n_outputs in pairwise(sizes):
        layers += [nn.Linear(n_inputs, n_outputs), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class Networks(nn.Module):
    """Networks of one size that share nothing, computed together: (n, n_inputs) -> (n, n_networks, n_outputs)."""

    def __init__(self, n_networks: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_inputs, n_outputs in pairwise(sizes):  # as nn.Linear begins
            bound = n_inputs**-0.5
            self.weights.append(nn.init.uniform_(torch.empty(n_networks, n_inputs, n_outputs), -bound, bound))
            self.biases.append(nn.init.uniform_(torch.empty(n_networks, 1, n_outputs), -bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.expand(self.weights[0].shape[0], *inputs.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, functional.silu(values) if layer else values, weight)
        return values.transpose(0, 1)


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
        readout = embedding.readout()
        n_pooled = readout.in_features
        self.linear: nn.Linear | None = None
        self.network: nn.Module
        if config.components == "shared":
            self.linear = readout
            self.network = _network(config.sizes(n_pooled, 3 * config.n_components + 1))
        else:
            self.network = Networks(3 * config.n_components, config.sizes(n_pooled, 1))
            with torch.no_grad():
                widths = self.network.biases[-1][2 * config.n_components :]
                widths += _inverse(FIRST_WIDTH_ALONE) - _inverse(FIRST_WIDTH)
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
        """The part that all components share, if they do."""
        if self.linear is not None:
            self.linear.load_state_dict(readout.state_dict())

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> GaussianMixture:
        activated = self.activation(node_features)
        readout = torch.zeros_like(activated[:, :1]) if self.linear is None else self.linear(activated)
        columns = torch.cat([readout, activated], dim=-1)
        summed = scatter_sum(columns, graph.structure_index, graph.n_structures)
        shared, pooled = summed[:, 0], summed[:, 1:]
        log_weights, added, stds = self._components((pooled - self.pooled_mean) / self.pooled_spread)
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
        """log π_c, what μ_c adds to the readout, and σ_c, (n_structures, n_components) each."""
        outputs = self.network(pooled).flatten(1)
        first = _inverse(FIRST_WIDTH)
        if self.linear is None:
            logits, added, stds = outputs.unflatten(-1, (3, -1)).unbind(-2)
            stds = functional.softplus(stds + first)
        else:
            width = functional.softplus(outputs[:, :1] + first)
            logits, offsets, stds = outputs[:, 1:].unflatten(-1, (3, -1)).unbind(-2)
            added, stds = width * offsets, width * functional.softplus(stds)
        return functional.log_softmax(logits, dim=-1), added, stds + self.config.min_std

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative log-likelihood, never below log(√(2π) min_std)."""
        assert isinstance(distribution, GaussianMixture)
        return -distribution.log_density(target)
