"""What a stationary kernel compares: one vector of an atom, in which the energy is as simple as it can be.

    activated:       x = Σ_b w_b ∘ a(h_b) / r      w_b: weights of the backbone's readout, r: their rms
    pre_activation:  x = Σ_b h_b                   as in the code of the paper's authors

The readout is the sum of the components of the first, a linear function, and no simple function of the second. So a few
dozen points hold the energy of a trained network in the first, and hundreds do not in the second.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from sigmaff.graph import Embedding
from sigmaff.graph.ops import forward_slope

Compared = Literal["activated", "pre_activation"]


class Comparison(nn.Module):
    """Maps embeddings (..., n_atoms, n_blocks · n_features), float64, to what is compared (..., n_atoms, n_features).

    Activations act on each feature alone.
    """

    def __init__(self, way: Compared, embedding: Embedding) -> None:
        super().__init__()
        self.is_activated = way == "activated"
        self.embedding = embedding
        weights = torch.ones(embedding.n_last, dtype=torch.float64)
        self.weights = nn.Buffer(weights, persistent=self.is_activated)

    @torch.no_grad()
    def take_readout(self, readout: nn.Linear) -> None:
        """Weigh features as the trained readout does; a readout without weights changes nothing."""
        weights = readout.weight[0].double()
        if (size := weights.square().mean().sqrt()) > 0:
            self.weights.copy_(weights / size)

    def forward(self, features: Tensor) -> Tensor:
        return self.embedding.kernel_features(self._each(self.embedding.last(features)))

    def slopes(self, features: Tensor, tangents: Tensor) -> Tensor:
        """Derivatives of what is compared along tangents (..., n_atoms, n_blocks · n_features)."""
        moved = self.embedding.last(tangents)
        if self.is_activated:
            moved = self._sensitivity(features) * moved
        return self.embedding.kernel_features(moved)

    def readout_directions(self, features: Tensor) -> Tensor:
        """Unit vectors along which the readout of each atom grows, in the space of what is compared, (n_atoms, d)."""
        if self.is_activated:
            return torch.full_like(self.forward(features), self.embedding.n_features**-0.5)
        activation = self.embedding.activation
        values = self.embedding.last(features)
        slopes = forward_slope(lambda h: self.weights * activation(h), (values,), (torch.ones_like(values),))
        return nn.functional.normalize(self.embedding.kernel_features(slopes), dim=-1)

    def _each(self, values: Tensor) -> Tensor:
        """Of each feature of each block."""
        return self.weights * self.embedding.activation(values) if self.is_activated else values

    def _sensitivity(self, features: Tensor) -> Tensor:
        values = self.embedding.last(features)
        return forward_slope(self._each, (values,), (torch.ones_like(values),))
