"""What every backbone is."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from sigmaff.graph import AtomicGraph


class Backbone(nn.Module, ABC):
    """Maps a graph to one embedding per atom, invariant under rotation, reflection, translation and relabelling.

    The embedding is the pre-activation of the last hidden layer; ``activation`` is what the backbone's own readout
    applies to it before its last linear map.
    """

    cutoff: float  # Å
    max_atomic_number: int
    n_features: int
    activation: nn.Module

    @abstractmethod
    def forward(self, graph: AtomicGraph) -> Tensor:
        """Embeddings (n_atoms, n_features)."""
