"""What backbones and heads agree on: the embedding of an atom, and the linear map that reads an energy off it."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """What a backbone says of the embeddings it makes: all that a head knows of a backbone."""

    n_features: int  # length of the embedding that a kernel compares
    n_blocks: int = 1  # embeddings of one atom, side by side: a readout weighs each, a kernel compares their sum
    activation: nn.Module  # what the backbone's own readout applies before its last linear map
    readout_bias: bool = True  # whether that map has a bias

    def readout(self, n_outputs: int = 1) -> nn.Linear:
        """A new last linear map, on activated embeddings; a bias starts at zero."""
        linear = nn.Linear(self.n_blocks * self.n_features, n_outputs, bias=self.readout_bias)
        if self.readout_bias:
            nn.init.zeros_(linear.bias)
        return linear

    def kernel_features(self, node_features: Tensor) -> Tensor:
        """The sum of an atom's embeddings: (..., n_blocks · n_features) -> (..., n_features)."""
        if self.n_blocks == 1:
            return node_features
        return node_features.unflatten(-1, (self.n_blocks, self.n_features)).sum(-2)
