"""What every backbone is."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding


class Backbone(nn.Module, ABC):
    """Maps a graph to one embedding per atom, invariant under rotation, reflection, translation and relabelling.

    The embedding is the pre-activation of the last hidden layer.
    """

    cutoff: float  # Å
    max_atomic_number: int
    embedding: Embedding  # its activation is a module of the backbone too, so that it follows the backbone's mode

    def prepare(self, graph: AtomicGraph) -> AtomicGraph:
        """Add to a graph what the backbone needs and its pairs alone decide. Done once, outside of compiled code."""
        return graph

    @abstractmethod
    def forward(self, graph: AtomicGraph) -> Tensor:
        """Embeddings (n_atoms, n_blocks · n_features)."""
