"""SchNet: continuous-filter convolutions (Schütt et al., J. Chem. Phys. 148, 241722, 2018)."""

import math
from copy import deepcopy
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.backbones.linear_response import LinearResponse
from sigmaff.backbones.radial_table import RadialTable
from sigmaff.backbones.schnet_compiled import CompiledSchNetResponse
from sigmaff.backbones.schnet_response import SchNetResponse
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.neighbors import MIN_DISTANCE
from sigmaff.graph.ops import ShiftedSoftplus, cosine_cutoff, gaussian_basis, scatter_sum

PAIRS_AT_ONCE = 2**13
"""Whose filters are computed together with their slopes: more of them leave the cache."""


class SchNetConfig(BackboneSettings):
    """Hyper-parameters of SchNet; the defaults are the paper's."""

    name: Literal["schnet"] = "schnet"
    cutoff: float = Field(
        default=10.0, gt=MIN_DISTANCE, le=100, description="radius within which atoms are neighbours, Å"
    )
    n_hidden: int = Field(default=128, ge=2, le=8192, description="features of an atom inside the network")
    n_filters: int = Field(default=128, ge=1, le=8192, description="channels of the continuous filters")
    n_interactions: int = Field(default=6, ge=1, le=64, description="message-passing steps")
    n_gaussians: int = Field(default=50, ge=2, le=8192, description="radial basis functions between 0 and the cutoff")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout rate after every activation")


class SchNet(Backbone):
    """Atoms exchange messages x_j ∘ W(d_ij) with filters W generated from distances.

    Filters depend only on distances, and W(d_ij) = W(d_ji). Those of all interactions are computed together, once per
    pair instead of once per direction.
    """

    Config = SchNetConfig
    max_atomic_number = 99
    compiles_samples = "together"

    def __init__(self, config: SchNetConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        activation = nn.Sequential(ShiftedSoftplus(), nn.Dropout(config.dropout))
        super().__init__(config.cutoff, Embedding(n_features=config.n_hidden // 2, activation=activation))
        self.config = config
        self.hidden_layers = (config.n_hidden,) * config.n_interactions
        self.elements = nn.Embedding(self.max_atomic_number + 1, config.n_hidden)
        self.filters: FilterNetwork | TabulatedFilters = FilterNetwork(config)
        self.interactions = nn.ModuleList([Interaction(config) for _ in range(config.n_interactions)])
        self.output = _linear(config.n_hidden, self.embedding.n_features)

    @property
    def steps(self) -> list["Interaction"]:
        return [step for step in self.interactions if isinstance(step, Interaction)]

    def forward(self, graph: AtomicGraph) -> Tensor:
        return self.output(self._hidden(graph)[-1])

    def all_layers(self, graph: AtomicGraph) -> Tensor:
        hidden = self._hidden(graph)
        return torch.cat([self.output(hidden[-1]), *hidden], dim=-1)

    def _hidden(self, graph: AtomicGraph) -> list[Tensor]:
        """Features after each interaction."""
        features = self.elements(graph.atomic_numbers)
        distance = graph.pair_vectors().norm(dim=-1)
        hidden = []
        for interaction, weights in zip(self.interactions, self.filters(distance), strict=True):
            features = features + interaction(features, weights, graph.pair_index)
            hidden.append(features)
        return hidden

    def linear_response(self, graph: AtomicGraph, *, all_layers: bool = False) -> LinearResponse:
        if graph.layout is not None and not all_layers:
            return CompiledSchNetResponse(self, graph)
        dropout = self.steps[0].activation[1]
        has_masks = isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0
        if has_masks or graph.pair_index.shape[1] == 0:
            return super().linear_response(graph, all_layers=all_layers)
        with torch.no_grad():
            return SchNetResponse(self, graph, all_layers=all_layers)

    def bytes_held(self, graph: AtomicGraph, *, all_layers: bool = False) -> int:
        few = self.filters(graph.pair_vectors()[:1].norm(dim=-1))
        return 2 * few.nbytes * graph.pair_index.shape[1]  # filters and slopes; all else is of atoms

    def tabulate(self) -> float:
        assert isinstance(self.filters, FilterNetwork)
        self.filters = TabulatedFilters(self.filters)
        return self.filters.table.error


class FilterNetwork(nn.Module):
    """The filter generators of all interactions in parallel: W_t(d) = C(d) · L₂ₜ(ssp(L₁ₜ(gaussians(d))))."""

    def __init__(self, config: SchNetConfig) -> None:
        super().__init__()
        n, f = config.n_interactions, config.n_filters
        self.cutoff = config.cutoff
        self.centers = nn.Buffer(torch.linspace(0.0, config.cutoff, config.n_gaussians), persistent=False)
        self.input = _linear(config.n_gaussians, n * f, fan_out=f)
        self.activation = nn.Sequential(ShiftedSoftplus(), nn.Dropout(config.dropout))
        self.output_weight = nn.Parameter(torch.stack([_linear(f, f).weight.detach() for _ in range(n)]))
        self.output_bias = nn.Parameter(torch.zeros(n, 1, f))

    def forward(self, distance: Tensor) -> Tensor:
        """(n_pairs,) -> (n_interactions, n_pairs, n_filters)."""
        hidden = self.activation(self.input(gaussian_basis(distance, self.centers)))
        filters = torch.baddbmm(self.output_bias, self._by_interaction(hidden), self.output_weight.mT)
        return filters * cosine_cutoff(distance, self.cutoff).unsqueeze(-1)

    def with_slopes(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """The filters, as ``forward`` gives them, and their derivatives by distance, of the same shape.

        In blocks of pairs: what is needed on the way takes several times the memory of what it leads to.
        """
        if len(distance) <= PAIRS_AT_ONCE:
            return self._with_slopes(distance)
        shape = (len(self.output_bias), len(distance), self.output_bias.shape[-1])
        filters, slopes = distance.new_empty(shape), distance.new_empty(shape)
        for start in range(0, len(distance), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            filters[:, part], slopes[:, part] = self._with_slopes(distance[part])
        return filters, slopes

    def _with_slopes(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        basis, spacing = gaussian_basis(distance, self.centers), self.centers[1] - self.centers[0]
        basis_slopes = basis * (self.centers - distance.unsqueeze(-1)) / spacing.square()
        hidden = self.input(basis)
        hidden_slopes = torch.sigmoid(hidden) * functional.linear(basis_slopes, self.input.weight)
        activated = self._by_interaction(self.activation(hidden))
        filters = torch.baddbmm(self.output_bias, activated, self.output_weight.mT)
        slopes = self._by_interaction(hidden_slopes) @ self.output_weight.mT
        cutoff, frequency = cosine_cutoff(distance, self.cutoff).unsqueeze(-1), math.pi / self.cutoff
        cutoff_slope = (-0.5 * frequency) * torch.sin(frequency * distance).unsqueeze(-1)
        return filters * cutoff, torch.addcmul(slopes * cutoff, filters, cutoff_slope)

    def _by_interaction(self, hidden: Tensor) -> Tensor:
        """(n_pairs, n_interactions · n_filters) -> (n_interactions, n_pairs, n_filters)."""
        return hidden.unflatten(-1, (len(self.output_bias), -1)).transpose(0, 1)


class TabulatedFilters(nn.Module):
    """The same filters from a table, for prediction."""

    def __init__(self, network: FilterNetwork) -> None:
        super().__init__()
        exact = deepcopy(network).double()
        self.n_interactions = len(network.output_bias)
        self.table = RadialTable(
            lambda distance: exact(distance).transpose(0, 1).flatten(1), network.cutoff, network.output_bias.dtype
        )

    def forward(self, distance: Tensor) -> Tensor:
        return self._by_interaction(self.table(distance))

    def with_slopes(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = self.table.with_slopes(distance)
        return self._by_interaction(values), self._by_interaction(slopes)

    def _by_interaction(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.n_interactions, -1)).transpose(0, 1)


class Interaction(nn.Module):
    """x_i -> L₄ ssp(L₃ Σ_j (L₂ x_j) ∘ W_ij)."""

    def __init__(self, config: SchNetConfig) -> None:
        super().__init__()
        self.message = _linear(config.n_hidden, config.n_filters, bias=False)
        self.update = _linear(config.n_filters, config.n_hidden)
        self.activation = nn.Sequential(ShiftedSoftplus(), nn.Dropout(config.dropout))
        self.output = _linear(config.n_hidden, config.n_hidden)

    def forward(self, features: Tensor, filters: Tensor, pair_index: Tensor) -> Tensor:
        return self.sent(self.received(features, filters, pair_index)[1])

    def received(self, features: Tensor, filters: Tensor, pair_index: Tensor) -> tuple[Tensor, Tensor]:
        """L₂ x, and L₃ of the sum of messages."""
        first, second = pair_index
        message = self.message(features)
        received = torch.cat([message[second] * filters, message[first] * filters])
        summed = scatter_sum(received, torch.cat([first, second]), features.shape[0])
        return message, self.update(summed)

    def sent(self, updated: Tensor) -> Tensor:
        return self.output(self.activation(updated))


def _linear(n_in: int, n_out: int, *, bias: bool = True, fan_out: int | None = None) -> nn.Linear:
    """A linear map with Xavier-uniform weights (for ``fan_out`` outputs) and zero bias."""
    layer = nn.Linear(n_in, n_out, bias=bias)
    bound = math.sqrt(6.0 / (n_in + (fan_out or n_out)))
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
