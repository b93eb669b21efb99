"""The interface of backbones and heads: the embedding of an atom, and the linear readout of its energy."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Shape and readout of the embeddings of a backbone. A head knows nothing else about its backbone."""

    n_features: int  # length of the embedding that enters a kernel
    n_blocks: int = 1  # concatenated embeddings of one atom: a readout uses each of them, a kernel their sum
    activation: nn.Module  # applied to the embedding before the last linear map of the readout
    readout_bias: bool = True  # whether this linear map has a bias
    hidden_layers: tuple[int, ...] = ()  # lengths of the features of hidden layers, which follow the embeddings
    has_own_energy: bool = False  # whether the network's own energy of the atom, eV, follows these; no kernel sees it
    n_surroundings: int = 0  # numbers after those that describe an atom's surroundings and are not learned

    @property
    def n_last(self) -> int:
        """Length of all embeddings of an atom."""
        return self.n_blocks * self.n_features

    @property
    def n_learned(self) -> int:
        """Length of the embeddings and the features of hidden layers."""
        return self.n_last + sum(self.hidden_layers)

    @property
    def n_layers(self) -> int:
        """Layers that ``layer`` counts."""
        return len(self.hidden_layers) or self.n_blocks

    def readout(self, n_outputs: int = 1) -> nn.Linear:
        """Make the last linear map, (..., n_blocks · n_features) -> (..., n_outputs). Its bias starts at zero.

        Apply it to activated embeddings. Of a network with energies of its own it adds nothing to them at first.
        """
        linear = nn.Linear(self.n_last, n_outputs, bias=self.readout_bias)
        if self.has_own_energy:
            nn.init.zeros_(linear.weight)
        if self.readout_bias:
            nn.init.zeros_(linear.bias)
        return linear

    def last(self, node_features: Tensor) -> Tensor:
        """The embeddings alone, (..., n_blocks · n_features)."""
        return node_features[..., : self.n_last] if node_features.shape[-1] > self.n_last else node_features

    def learned(self, node_features: Tensor) -> Tensor:
        """The embeddings and the features of hidden layers, (..., n_learned)."""
        return node_features[..., : self.n_learned] if node_features.shape[-1] > self.n_learned else node_features

    def layer(self, node_features: Tensor, number: int) -> Tensor:
        """Features after one step of the backbone, counted from 1; without hidden layers, one of the embeddings."""
        if not self.hidden_layers:
            return self.last(node_features).unflatten(-1, (self.n_blocks, self.n_features))[..., number - 1, :]
        return node_features[..., self.n_last : self.n_learned].split(self.hidden_layers, dim=-1)[number - 1]

    def own_energy(self, node_features: Tensor) -> Tensor:
        """The network's own energy of each atom, eV, (...)."""
        return node_features[..., self.n_learned]

    def surroundings(self, node_features: Tensor) -> Tensor:
        """What is not learned, (..., n_surroundings)."""
        return node_features[..., self.n_learned + self.has_own_energy :]

    def joined(self, learned: Tensor, surroundings: Tensor | None) -> Tensor:
        """Slopes by all features of an atom, from those of a function that does not depend on the own energy."""
        parts = [learned, learned.new_zeros(*learned.shape[:-1], int(self.has_own_energy))]
        return torch.cat(parts if surroundings is None else [*parts, surroundings], dim=-1)

    def kernel_features(self, node_features: Tensor) -> Tensor:
        """Features that enter a kernel: the sum of an atom's n_blocks embeddings.

        Arguments:
            node_features: (..., n_blocks · n_features), or with what follows the embeddings.

        Returns (..., n_features).
        """
        last = self.last(node_features)
        return last if self.n_blocks == 1 else last.unflatten(-1, (self.n_blocks, self.n_features)).sum(-2)
