"""SchNet's embeddings and derivatives for compiled code: the mathematics of ``schnet_response``, laid out in slots.

Sums over neighbours run over the first axis of gathered arrays (``Layout``): the compiler makes one loop of gathering,
multiplying and summing, and stores no array of edges and features.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sigmaff.backbones.linear_response import CompiledResponse
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import kept

if TYPE_CHECKING:
    from sigmaff.backbones.schnet import SchNet


class CompiledSchNetResponse(CompiledResponse):
    """Of a network without dropout, of its last embedding, on a graph with a layout."""

    def __init__(self, network: "SchNet", graph: AtomicGraph) -> None:
        super().__init__(graph)
        self.network = network
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1)
        self.unit_vectors = vectors / distance.unsqueeze(-1)
        self.filters, self.filter_slopes = network.filters.with_slopes(distance)
        self.filled = self.layout.side.abs().to(vectors.dtype).unsqueeze(-1)
        self.messages: list[Tensor] = []
        self.activation_slopes: list[Tensor] = []
        features = network.elements(graph.atomic_numbers)
        for number, interaction in enumerate(network.steps):
            message = interaction.message(features)
            updated = _affine(self._neighbor_sum(message.unsqueeze(1), number).squeeze(1), interaction.update)
            features = features + _affine(interaction.activation(updated), interaction.output)
            self.messages.append(message)
            self.activation_slopes.append(torch.sigmoid(updated).unsqueeze(1))
        self._embeddings = _affine(features, network.output)

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings

    def by_vectors(self, cotangents: Tensor) -> Tensor:
        by_distance = self._by_distance(cotangents.to(self._embeddings.dtype))
        return by_distance.unsqueeze(-1) * self.unit_vectors.unsqueeze(1)

    def _by_distance(self, cotangents: Tensor) -> Tensor:
        """∂E/∂d of each pair, (n_pairs, k)."""
        gradient = _mapped(cotangents.transpose(0, 1), self.network.output.weight)
        by_slot: Tensor | float = 0.0
        for number in reversed(range(len(self.messages))):
            interaction = self.network.steps[number]
            by_update = _mapped(gradient, interaction.output.weight) * self.activation_slopes[number]
            by_sum = _mapped(by_update, interaction.update.weight)
            by_slot = self._by_slot(by_sum, number) + by_slot
            if number > 0:
                gradient = gradient + _mapped(self._neighbor_sum(by_sum, number), interaction.message.weight)
        assert isinstance(by_slot, Tensor)
        return kept(by_slot.contiguous()).flatten(0, 1)[self.layout.slot].sum(1)

    def _by_slot(self, by_sum: Tensor, number: int) -> Tensor:
        """∂E/∂d of each edge by one interaction, (n_slots, n_atoms, k), for by_sum (n_atoms, k, n_filters)."""
        sent = self.messages[number][self.layout.neighbor] * self.filter_slopes[number][self.layout.pair]
        if by_sum.shape[1] == 1:
            return (by_sum.squeeze(1) * sent).sum(-1, keepdim=True)
        return (by_sum @ sent.permute(1, 2, 0)).permute(2, 0, 1)

    def _neighbor_sum(self, values: Tensor, number: int) -> Tensor:
        """Σ_j v_j ∘ W_ij of values (n_atoms, k, n_filters)."""
        weights = self.filters[number][self.layout.pair] * self.filled
        return (values[self.layout.neighbor] * weights.unsqueeze(2)).sum(0)


def _affine(values: Tensor, layer: nn.Linear) -> Tensor:
    """The layer: a product, and a bias that the next loop adds. As one operation the bias would be copied first."""
    return kept(values @ layer.weight.T) + layer.bias


def _mapped(values: Tensor, matrix: Tensor) -> Tensor:
    """(n, k, d) times (d, d'), as one product."""
    return (values.flatten(0, 1) @ matrix).unflatten(0, values.shape[:2])
