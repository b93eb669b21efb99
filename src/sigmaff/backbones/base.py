"""Base class of backbones."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding


class Backbone(nn.Module, ABC):
    """Map a graph to one embedding per atom, invariant under rotation, reflection, translation and permutation.

    The embedding is the pre-activation of the last hidden layer.
    """

    cutoff: float  # Å
    max_atomic_number: int
    embedding: Embedding  # its activation is also a submodule of the backbone, so that train() and eval() reach it

    def prepare(self, graph: AtomicGraph) -> AtomicGraph:
        """Add to a graph what the backbone derives from its pairs. Called once per graph, outside of compiled code."""
        return graph

    @abstractmethod
    def forward(self, graph: AtomicGraph) -> Tensor:
        """Compute embeddings, (n_atoms, n_blocks · n_features)."""
