"""DimeNet++: messages between edges depend on their angle (Gasteiger et al., arXiv:2011.14115, 2020)."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.backbones.radial_table import RadialTable
from sigmaff.backbones.spherical_basis import RadialBasis, SphericalBasis, envelope, legendre
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.neighbors import MIN_DISTANCE
from sigmaff.graph.ops import permuted, scatter_sum, slot_sum

MAX_ATOMIC_NUMBER = 94


class DimeNetPPConfig(BackboneSettings):
    """Hyper-parameters of DimeNet++; the defaults are the paper's."""

    name: Literal["dimenet++"] = "dimenet++"
    cutoff: float = Field(
        default=5.0, gt=MIN_DISTANCE, le=100, description="radius within which atoms are neighbours, Å"
    )
    n_hidden: int = Field(default=128, ge=1, le=4096, description="features of an edge inside the network")
    n_blocks: int = Field(default=4, ge=1, le=64, description="message-passing steps")
    n_directional: int = Field(default=64, ge=1, le=4096, description="features of an edge in sums over angles")
    n_basis: int = Field(default=8, ge=1, le=256, description="width of the bottleneck after each basis expansion")
    n_output: int = Field(default=256, ge=1, le=4096, description="features of an atom in an output block")
    n_spherical: int = Field(default=7, ge=1, le=16, description="Legendre polynomials in the expansion of angles")
    n_radial: int = Field(default=6, ge=1, le=64, description="radial functions in the expansion of distances")
    envelope_exponent: int = Field(default=5, ge=1, le=32, description="exponent of the envelope; larger decays later")
    n_before_skip: int = Field(
        default=1, ge=0, le=16, description="residual layers of a block before its input is added"
    )
    n_after_skip: int = Field(default=2, ge=0, le=16, description="residual layers of a block after its input is added")
    n_output_layers: int = Field(default=3, ge=1, le=16, description="hidden layers of an output block")
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="dropout rate after every activated linear layer; in sums over angles, after the products with "
        "radial and angular functions (all features of an angle at once) and after the last layer",
    )


class DimeNetPP(Backbone):
    """Edge j→i gathers from the edges k→j: x_kj ∘ Σ_l P_l(cos ∠ijk) W_l(d_kj); atoms gather from edges, block by block.

    The angular basis is a product of a function of an edge's length and one of the angle. The first is mapped to
    features W_l(d) edge by edge. The sum over the edges k→j of an atom is then one matrix product with the P_l of all
    angles at this atom. Only P_l grows with the number of angles, and it is computed once for all blocks.

    The embedding concatenates those of the output blocks: one before the first step, one after each.
    """

    Config = DimeNetPPConfig
    max_atomic_number = MAX_ATOMIC_NUMBER

    def __init__(self, config: DimeNetPPConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        n, n_blocks = config.n_output, config.n_blocks + 1
        embedding = Embedding(n_features=n, n_blocks=n_blocks, activation=_activation(config), readout_bias=False)
        super().__init__(config.cutoff, embedding)
        self.config = config
        self.filters = PairFilters(config)
        self.edges = EdgeEmbedding(config)
        self.interactions = nn.ModuleList([Interaction(config) for _ in range(config.n_blocks)])
        self.outputs = Outputs(config)

    def prepare(self, graph: AtomicGraph) -> AtomicGraph:
        return graph.with_incoming()

    def tabulate(self) -> float:
        return self.filters.tabulate()

    def forward(self, graph: AtomicGraph) -> Tensor:
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1)
        basis, radial, angular, output = self.filters(distance)
        angles = Angles.of(self.prepare(graph), vectors / distance.unsqueeze(-1), self.config.n_spherical)
        messages = [self.edges(graph, basis)]
        for interaction, *filters in zip(self.interactions, radial.unbind(), angular.unbind(), strict=True):
            messages.append(interaction(messages[-1], *filters, angles))
        sent = [_times(message, weights) for message, weights in zip(messages, output.unbind(), strict=True)]
        return self.outputs(torch.stack([_received(values, graph) for values in sent]))


@dataclass(frozen=True, kw_only=True)
class Angles:
    """The angles between the edges that end at one atom, as (atom, slot, slot); the edges of an atom fill its slots."""

    legendre: Tensor  # (n_atoms, n_slots, n_slots, n_spherical) P_l; 0 if the second slot is empty or the first itself
    edge: Tensor  # (n_atoms · n_slots,) index of the edge in each slot; arbitrary if it is empty
    slot: Tensor  # (n_edges,) of each edge
    filled: Tensor  # (n_atoms, n_slots)
    is_compiled: bool  # for compiled code, which gathers derivatives where torch would scatter them

    @property
    def reverse_slot(self) -> Tensor:
        """Slot of the reverse of each edge, (n_edges,)."""
        return self.slot.unflatten(0, (-1, 2)).flip(1).flatten()

    @classmethod
    def of(cls, graph: AtomicGraph, directions: Tensor, n_spherical: int) -> Self:
        """Compute the angles from the directions of the pairs, (n_pairs, 3), unit length."""
        incoming = graph.incoming
        assert incoming is not None
        n_slots, n_edges = incoming.shape[1], 2 * directions.shape[0]
        slot = torch.arange(incoming.numel(), device=incoming.device)
        slot = slot.new_zeros(n_edges + 1).scatter(0, incoming.flatten(), slot)[:-1]
        filled = incoming < n_edges
        edge = (incoming * filled).flatten()
        to_start = torch.stack([directions, -directions], dim=1).flatten(0, 1)
        to_start = to_start.index_select(0, edge).unflatten(0, incoming.shape)
        another = ~torch.eye(n_slots, dtype=torch.bool, device=incoming.device)
        counted = (another & filled.unsqueeze(1)).to(directions.dtype)
        return cls(
            legendre=legendre(to_start @ to_start.mT, counted, n_spherical),
            edge=edge,
            slot=slot,
            filled=filled,
            is_compiled=graph.layout is not None,
        )

    def gather(self, features: Tensor, filters: Tensor, dropout: nn.Dropout1d) -> Tensor:
        """Σ_{k≠i} x_kj ∘ Σ_l P_l(cos ∠ijk) W_l(d_kj) of every edge j→i.

        Features x (n_edges, n), filters W (n_pairs, n_spherical, n). All features of a
        term k are dropped together: with independent masks every sum would have the same mean and variance.
        """
        n_atoms, n_slots, _, n_spherical = self.legendre.shape
        sent = (features.unflatten(0, (-1, 2)).unsqueeze(2) * filters.unsqueeze(1)).flatten(2).flatten(0, 1)
        sent = permuted(sent, self.edge, self.slot) if self.is_compiled else sent.index_select(0, self.edge)
        sent = sent.view(n_atoms, n_slots * n_spherical, features.shape[1])
        kept = dropout(self.legendre.flatten(0, 1)).view(n_atoms, n_slots, n_slots * n_spherical)
        gathered = kept @ sent
        if self.is_compiled:
            return permuted((gathered * self.filled.unsqueeze(-1)).flatten(0, 1), self.reverse_slot, self.edge ^ 1)
        return gathered.flatten(0, 1).index_select(0, self.reverse_slot)


class PairFilters(nn.Module):
    """Functions of distance for all blocks: linear maps of the basis, computed once per pair."""

    def __init__(self, config: DimeNetPPConfig) -> None:
        super().__init__()
        n, hidden, basis, radial = config.n_blocks, config.n_hidden, config.n_basis, config.n_radial
        self.cutoff = config.cutoff
        self.exponent = config.envelope_exponent
        self.table: RadialTable | None = None
        self.radial_basis = RadialBasis(radial)
        self.spherical_basis = SphericalBasis(config.n_spherical, radial)
        self.radial_first = _stacked(n, radial, basis)
        self.radial_second = _stacked(n, basis, hidden)
        self.angular = _stacked(n, config.n_spherical * radial, basis)
        self.output = _stacked(n + 1, radial, hidden)

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Expand distances, (n_pairs,) Å.

        Returns the radial basis (n_pairs, n_radial), radial filters (n_blocks, n_pairs, n_hidden), angular filters
        (n_blocks, n_pairs, n_spherical, n_basis) and output filters (n_blocks + 1, n_pairs, n_hidden).
        """
        basis, spherical = self._bases(distance)
        radial = basis @ (self.radial_first @ self.radial_second)
        angular = torch.einsum("pln,tlnb->tplb", spherical, self.angular.unflatten(1, spherical.shape[1:]))
        return basis, radial, angular.contiguous(), basis @ self.output

    def _bases(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """(n_pairs, n_radial) and (n_pairs, n_spherical, n_radial)."""
        if self.table is not None:
            n_spherical, n_radial = self.spherical_basis.shape
            basis, spherical = self.table(distance).split([n_radial, n_spherical * n_radial], dim=-1)
            return basis, spherical.unflatten(-1, (n_spherical, n_radial))
        x = (distance / self.cutoff).clamp(max=1.0)
        decay = envelope(x, self.exponent)
        return self.radial_basis(x, decay), self.spherical_basis(x, decay)

    def tabulate(self) -> float:
        """Replace both bases by a table, for prediction; return its error."""
        exact = deepcopy(self).double()

        def bases(distance: Tensor) -> Tensor:
            basis, spherical = exact._bases(distance)
            return torch.cat([basis, spherical.flatten(1)], dim=-1)

        self.table = RadialTable(bases, self.cutoff, self.output.dtype)
        return self.table.error


class EdgeEmbedding(nn.Module):
    """m_ji = σ(W [z_i, z_j, σ(W₀ e(d_ij))]). Map the parts of atoms and of pairs first, then copy them to edges."""

    def __init__(self, config: DimeNetPPConfig) -> None:
        super().__init__()
        self.elements = nn.Embedding(MAX_ATOMIC_NUMBER + 1, config.n_hidden)
        nn.init.uniform_(self.elements.weight, -math.sqrt(3.0), math.sqrt(3.0))
        self.radial = nn.Linear(config.n_radial, config.n_hidden)
        self.linear = nn.Linear(3 * config.n_hidden, config.n_hidden)
        self.activation = _activation(config)

    def forward(self, graph: AtomicGraph, basis: Tensor) -> Tensor:
        """(2 · n_pairs, n_hidden)."""
        atoms = self.elements(graph.atomic_numbers)
        end, start, length = self.linear.weight.chunk(3, dim=1)
        of_pair = functional.linear(self.activation(self.radial(basis)), length, self.linear.bias)
        at_end, at_start = atoms @ end.T, atoms @ start.T
        edge_end, edge_start = graph.pair_index.T.flatten(), graph.pair_index.flip(0).T.flatten()
        of_ends = at_end.index_select(0, edge_end) + at_start.index_select(0, edge_start)
        return self.activation((of_ends.unflatten(0, (-1, 2)) + of_pair.unsqueeze(1)).flatten(0, 1))


class Interaction(nn.Module):
    """One step: each edge adds a sum over the edges that end at its start."""

    def __init__(self, config: DimeNetPPConfig) -> None:
        super().__init__()
        hidden, directional = config.n_hidden, config.n_directional
        self.own_and_sent = nn.Linear(hidden, 2 * hidden)
        for weight in self.own_and_sent.weight.detach().chunk(2):
            _glorot_orthogonal(weight)
        nn.init.zeros_(self.own_and_sent.bias)
        self.down = _linear(hidden, directional, bias=False)
        self.angular = _linear(config.n_basis, directional, bias=False)
        self.up = _linear(directional, hidden, bias=False)
        self.before_skip = nn.Sequential(*[Residual(config) for _ in range(config.n_before_skip)])
        self.skip = _linear(hidden, hidden)
        self.after_skip = nn.Sequential(*[Residual(config) for _ in range(config.n_after_skip)])
        self.activation = _activation(config)
        self.dropout = nn.Dropout(config.dropout)
        self.angle_dropout = nn.Dropout1d(config.dropout)

    def forward(self, messages: Tensor, radial: Tensor, angular: Tensor, angles: Angles) -> Tensor:
        own, sent = functional.silu(self.own_and_sent(messages)).chunk(2, dim=1)
        sent = functional.silu(self.down(self.dropout(_times(sent, radial))))
        gathered = self.up(angles.gather(sent, self.angular(angular), self.angle_dropout))
        updated = self.before_skip(self.dropout(own) + self.activation(gathered))
        return self.after_skip(messages + self.activation(self.skip(updated)))


class Residual(nn.Module):
    """x + σ(L₂ σ(L₁ x))."""

    def __init__(self, config: DimeNetPPConfig) -> None:
        super().__init__()
        activation = _activation(config)
        layers = [_linear(config.n_hidden, config.n_hidden) for _ in range(2)]
        self.layers = nn.Sequential(layers[0], activation, layers[1], activation)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Outputs(nn.Module):
    """All output blocks in parallel, up to the last hidden layer before its activation."""

    def __init__(self, config: DimeNetPPConfig) -> None:
        super().__init__()
        n, layers, features = config.n_blocks + 1, config.n_output_layers, config.n_output
        self.up = _stacked(n, config.n_hidden, features)
        self.weight = nn.Parameter(torch.stack([_stacked(n, features, features).detach() for _ in range(layers)]))
        self.bias = nn.Parameter(torch.zeros(layers, n, 1, features))
        self.activation = _activation(config)

    def forward(self, received: Tensor) -> Tensor:
        """(n_outputs, n_atoms, n_hidden) -> (n_atoms, n_outputs · n_output)."""
        (weight, *weights), (bias, *biases) = self.weight.unbind(), self.bias.unbind()
        features = torch.baddbmm(bias, received @ self.up, weight)
        for weight, bias in zip(weights, biases, strict=True):
            features = torch.baddbmm(bias, self.activation(features), weight)
        return features.transpose(0, 1).flatten(1)


def _received(values: Tensor, graph: AtomicGraph) -> Tensor:
    """Sum over the edges that end at each atom, (n_edges, n) -> (n_atoms, n)."""
    end, layout = graph.pair_index.T.flatten(), graph.layout
    if layout is None:
        return scatter_sum(values, end, graph.n_atoms)
    return slot_sum(values, 2 * layout.pair + (layout.side > 0), layout.side.abs(), end)


def _times(of_edge: Tensor, of_pair: Tensor) -> Tensor:
    """Multiply both edges of a pair by the value of the pair: (2 · n_pairs, n) ∘ (n_pairs, n)."""
    return (of_edge.unflatten(0, (-1, 2)) * of_pair.unsqueeze(1)).flatten(0, 1)


def _activation(config: DimeNetPPConfig) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Dropout(config.dropout))


def _linear(n_in: int, n_out: int, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(n_in, n_out, bias=bias)
    _glorot_orthogonal(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _stacked(n: int, n_in: int, n_out: int) -> nn.Parameter:
    """Weights of n linear maps, (n, n_in, n_out)."""
    weights = nn.Parameter(torch.empty(n, n_in, n_out))
    for weight in weights.detach():
        _glorot_orthogonal(weight)
    return weights


def _glorot_orthogonal(weight: Tensor) -> None:
    """Orthogonal rows or columns with a mean square of 2 / (n_in + n_out)."""
    nn.init.orthogonal_(weight, gain=math.sqrt(2.0 * max(weight.shape) / sum(weight.shape)))
