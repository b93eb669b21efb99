"""The interface of backbones and heads: the embedding of an atom, and the linear readout of its energy."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Shape and readout of the embeddings of a backbone. A head knows nothing else about its backbone."""

    n_features: int  # length of the embedding that enters a kernel
    n_blocks: int = 1  # concatenated embeddings of one atom: a readout uses each of them, a kernel their sum
    activation: nn.Module  # applied to the embedding before the last linear map of the readout
    readout_bias: bool = True  # whether this linear map has a bias
    n_surroundings: int = 0  # numbers after the embeddings that describe an atom's surroundings and are not learned

    def readout(self, n_outputs: int = 1) -> nn.Linear:
        """Make the last linear map, (..., n_blocks · n_features) -> (..., n_outputs). Its bias starts at zero.

        Apply it to activated embeddings.
        """
        linear = nn.Linear(self.n_blocks * self.n_features, n_outputs, bias=self.readout_bias)
        if self.readout_bias:
            nn.init.zeros_(linear.bias)
        return linear

    def learned(self, node_features: Tensor) -> Tensor:
        """The embeddings alone, (..., n_blocks · n_features)."""
        return node_features[..., : self.n_blocks * self.n_features] if self.n_surroundings else node_features

    def surroundings(self, node_features: Tensor) -> Tensor:
        """What is not learned, (..., n_surroundings)."""
        return node_features[..., self.n_blocks * self.n_features :]

    def kernel_features(self, node_features: Tensor) -> Tensor:
        """Features that enter a kernel: the sum of an atom's n_blocks embeddings.

        Arguments:
            node_features: (..., n_blocks · n_features).

        Returns (..., n_features).
        """
        if self.n_blocks == 1:
            return node_features
        return node_features.unflatten(-1, (self.n_blocks, self.n_features)).sum(-2)
