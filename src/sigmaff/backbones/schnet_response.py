"""Derivatives of SchNet's embeddings along many directions at once, with arrays of atoms in place of arrays of pairs.

Filters depend on one number per pair: one forward pass gives them and their slopes, W(d) and W′(d). In

    x_i ← x_i + L₄ a_i,   a_i = ssp(L₃ s_i + b),   s_i = Σ_j m_j ∘ W_ij,   m_j = L₂ x_j

a derivative passes back from g = ∂E/∂x, step by step from the last one, as

    ∂E/∂s_i = L₃ᵀ (ssp′ ∘ L₄ᵀ g_i)
    ∂E/∂d_ij += Σ_f (∂E/∂s_i ∘ m_j ∘ W′_ij)_f         for both directions of a pair
    g_j ← g_j + L₂ᵀ Σ_i ∂E/∂s_i ∘ W_ij

with ∂E/∂x of each hidden layer added to g where that layer is the result of a step, if functions depend on it, and
forward, from displacements, as ∂s_i = Σ_j (∂m_j ∘ W_ij + m_j ∘ W′_ij ∂d_ij). The second line is one matrix product
per atom, all derivatives at once. So is, per feature, the sum over neighbours of derivatives, which has the same form
in both directions: filters as a matrix of the atoms of a structure. Where an atom has few neighbours, or few of the
atoms of its structure are neighbours, it is the sum over neighbours that it says.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigmaff.backbones.linear_response import LinearResponse
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import scatter_sum

if TYPE_CHECKING:
    from sigmaff.backbones.schnet import SchNet

MAX_FILL = 6.0
"""Elements of filter matrices for each edge, up to which a matrix product is faster than a sum over neighbours."""
MIN_NEIGHBORS = 16
"""Of one atom, from which on a matrix product is faster."""
MAX_MATRICES = 2**27
"""Numbers in the filter matrices of one interaction, at most."""
MAX_GATHERED = 2**20
"""Numbers gathered from neighbours at once: what stays in a processor's cache."""
MAX_ELEMENTS = 2**25
"""Numbers of derivatives held at once."""


class SchNetResponse(LinearResponse):
    """Of a network without dropout, on a graph with pairs; of its last embedding or of all layers."""

    def __init__(self, network: "SchNet", graph: AtomicGraph, *, all_layers: bool = False) -> None:
        self.network, self.graph = network, graph
        self.edges = Edges(graph)
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1)
        self.unit_vectors = vectors / distance.unsqueeze(-1)
        self.filters, self.filter_slopes = network.filters.with_slopes(distance)
        self.messages: list[Tensor] = []  # m of each interaction (n_atoms, n_filters)
        self.activation_slopes: list[Tensor] = []  # ssp′ (n_atoms, 1, n_hidden)
        features, hidden = network.elements(graph.atomic_numbers), []
        for interaction, filters in zip(network.steps, self.filters, strict=True):
            message, updated = interaction.received(features, filters, graph.pair_index)
            features = features + interaction.sent(updated)
            self.messages.append(message)
            self.activation_slopes.append(torch.sigmoid(updated).unsqueeze(1))
            hidden.append(features)
        self.all_layers = all_layers
        last = network.output(features)
        self._embeddings = torch.cat([last, *hidden], dim=-1) if all_layers else last

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings

    @torch.no_grad()
    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        by_distance = [self._by_distance(part) for part in cotangents.to(self._embeddings.dtype).split(self.n_at_once)]
        by_vector = (torch.cat(by_distance).unsqueeze(-1) * self.unit_vectors).to(self.graph.positions.dtype)
        first, second = self.graph.pair_index
        by_position = by_vector.new_zeros(len(by_vector), self.graph.n_atoms, 3)
        by_position.index_add_(1, second, by_vector).index_add_(1, first, by_vector, alpha=-1.0)
        return by_position, by_vector

    @torch.no_grad()
    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        first, second = self.graph.pair_index
        moved = directions[:, second] + shift_directions - directions[:, first]
        stretched = (moved.to(self.unit_vectors.dtype) * self.unit_vectors).sum(-1)  # ∂d (c, n_pairs)
        return self._pushed_forward(stretched)

    @property
    def n_at_once(self) -> int:
        config, n_given = self.network.config, self._embeddings.shape[-1]
        n_most = max(config.n_hidden, config.n_filters, self.edges.n_slots, n_given)
        return max(1, MAX_ELEMENTS // (max(self.graph.n_atoms, 1) * n_most))

    @property
    def _widths(self) -> list[int]:
        """Of the last embedding and of hidden layers, if those are asked for."""
        n_last = self.network.embedding.n_features
        return [n_last, *self.network.hidden_layers] if self.all_layers else [n_last]

    def _by_distance(self, cotangents: Tensor) -> Tensor:
        """∂E/∂d of each pair, (k, n_pairs)."""
        by_last, *by_hidden = cotangents.transpose(0, 1).split(self._widths, dim=-1)
        gradient = _mapped(by_last, self.network.output.weight)
        by_edge = gradient.new_zeros(*gradient.shape[:2], self.edges.n_slots)
        for number in reversed(range(len(self.messages))):
            interaction = self.network.steps[number]
            gradient = gradient + by_hidden[number] if by_hidden else gradient
            by_update = _mapped(gradient, interaction.output.weight) * self.activation_slopes[number]
            by_sum = _mapped(by_update, interaction.update.weight)
            by_edge.baddbmm_(by_sum, self._sensitivity(number).mT)
            if number > 0:
                gradient = gradient + _mapped(self._neighbor_sum(by_sum, number), interaction.message.weight)
        return self.edges.sum_of_pairs(by_edge.transpose(0, 1))

    def _pushed_forward(self, stretched: Tensor) -> Tensor:
        """∂h for changes of distances (c, n_pairs)."""
        of_edge = self.edges.of_pairs(stretched).transpose(0, 1)
        tangents: Tensor | None = None
        hidden: list[Tensor] = []
        for number in range(len(self.messages)):
            interaction = self.network.steps[number]
            summed = of_edge @ self._sensitivity(number)
            if tangents is not None:
                summed = summed + self._neighbor_sum(_mapped(tangents, interaction.message.weight.T), number)
            updated = _mapped(summed, interaction.update.weight.T) * self.activation_slopes[number]
            step = _mapped(updated, interaction.output.weight.T)
            tangents = step if tangents is None else tangents + step
            hidden += [tangents] if self.all_layers else []
        assert tangents is not None
        last = _mapped(tangents, self.network.output.weight.T)
        return torch.cat([last, *hidden], dim=-1).transpose(0, 1).contiguous()

    def _sensitivity(self, number: int) -> Tensor:
        """m_j ∘ W′_ij, the change of s_i with the length of each of its edges, (n_atoms, n_slots, n_filters)."""
        sent = self.messages[number].index_select(0, self.edges.start)
        slopes = self.filter_slopes[number].index_select(0, self.edges.pair)
        return (sent * slopes).view(self.graph.n_atoms, self.edges.n_slots, sent.shape[1])

    def _neighbor_sum(self, values: Tensor, number: int) -> Tensor:
        """Σ_j v_j ∘ W_ij of values (n_atoms, k, n_filters)."""
        filters = self.filters[number]
        n_elements = self.graph.n_structures * self.edges.n_largest**2
        is_full = self.edges.n_slots >= MIN_NEIGHBORS and n_elements <= 2 * MAX_FILL * len(filters)
        if is_full and n_elements * filters.shape[1] <= MAX_MATRICES:
            return self._sum_by_matrices(values, filters, n_elements)
        return self._sum_by_neighbors(values, filters)

    def _sum_by_matrices(self, values: Tensor, filters: Tensor, n_elements: int) -> Tensor:
        """The filters of several pairs of the same two atoms, which are images of each other, add up."""
        n_atoms, k, _ = values.shape
        n_structures, n_largest = self.graph.n_structures, self.edges.n_largest
        matrices = scatter_sum(torch.cat([filters, filters]), self.edges.element, n_elements).T.contiguous()
        padded = self.graph.pad(values.flatten(1)).unflatten(-1, (k, -1)).permute(3, 0, 2, 1)
        summed = padded @ matrices.view(-1, n_structures, n_largest, n_largest)
        summed = summed.permute(1, 3, 2, 0).flatten(0, 1)  # (n_structures · n_largest, k, n_filters)
        return summed if len(summed) == n_atoms else summed.index_select(0, self.edges.place)

    def _sum_by_neighbors(self, values: Tensor, filters: Tensor) -> Tensor:
        """In blocks of atoms."""
        n_slots, filled = self.edges.n_slots, self.edges.filled
        block = max(1, MAX_GATHERED // (n_slots * values[0].numel()))
        summed = torch.empty_like(values)
        for start in range(0, len(values), block):
            atoms = slice(start, start + block)
            slots = slice(start * n_slots, (start + block) * n_slots)
            gathered = values.index_select(0, self.edges.start[slots]).unflatten(0, (-1, n_slots))
            weights = filters.index_select(0, self.edges.pair[slots]).unflatten(0, (-1, n_slots))
            weights = weights * filled[atoms].unsqueeze(-1)
            torch.sum(gathered.mul_(weights.unsqueeze(2)), dim=1, out=summed[atoms])
        return summed


class Edges:
    """The directed edges of a graph with pairs: slots of the atoms where they end, and places in matrices of atoms."""

    def __init__(self, graph: AtomicGraph) -> None:
        incoming = graph.with_incoming().incoming
        assert incoming is not None
        n_edges = 2 * graph.pair_index.shape[1]
        self.n_slots = incoming.shape[1]
        self.filled = incoming < n_edges  # (n_atoms, n_slots)
        edge = (incoming * self.filled).flatten()
        self.pair = edge >> 1  # (n_atoms · n_slots,) of the edge in a slot; arbitrary if it is empty
        self.start = graph.pair_index.flip(0).T.flatten().index_select(0, edge)
        self.slot = edge.new_zeros(n_edges)  # of each edge, among all
        self.slot[incoming[self.filled]] = self.filled.flatten().nonzero().squeeze(-1)
        self.n_largest = int(graph.atoms_per_structure().max())
        rank, structure = graph.atom_rank(), graph.structure_index
        self.place = structure * self.n_largest + rank  # (n_atoms,) among the padded atoms
        first, second = graph.pair_index
        there, back = self.place[first] * self.n_largest, self.place[second] * self.n_largest
        self.element = torch.cat([there + rank[second], back + rank[first]])  # of the matrices, (2 · n_pairs,)

    def sum_of_pairs(self, values: Tensor) -> Tensor:
        """Sum over both edges of each pair: (k, n_atoms, n_slots) -> (k, n_pairs)."""
        return values.flatten(1).index_select(1, self.slot).unflatten(-1, (-1, 2)).sum(-1)

    def of_pairs(self, values: Tensor) -> Tensor:
        """The value of its pair in each slot, 0 in empty ones: (c, n_pairs) -> (c, n_atoms, n_slots)."""
        return values.index_select(1, self.pair).unflatten(1, self.filled.shape) * self.filled


def _mapped(values: Tensor, matrix: Tensor) -> Tensor:
    """(n, k, d) times (d, d'), as one product: torch may make one of each row if that is three-dimensional."""
    return (values.flatten(0, 1) @ matrix).unflatten(0, values.shape[:2])
