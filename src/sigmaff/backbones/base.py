"""Base class of backbones."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ase.data import chemical_symbols
from torch import Tensor, nn

from sigmaff.backbones.linear_response import AutomaticResponse, LinearResponse
from sigmaff.config import Settings
from sigmaff.graph import AtomicGraph, Embedding


class BackboneSettings(Settings):
    """What the settings of all backbones have in common."""

    name: str

    if TYPE_CHECKING:  # a field of most, a constant of others

        @property
        def cutoff(self) -> float:
            """Radius within which atoms are neighbours, Å."""


class Backbone(nn.Module, ABC):
    """Map a graph to one embedding per atom, invariant under rotation, reflection, translation and permutation.

    The embedding is the pre-activation of the last hidden layer.
    """

    Config: ClassVar[type[BackboneSettings]]
    max_atomic_number: int = len(chemical_symbols) - 1

    def __init__(self, cutoff: float, embedding: Embedding) -> None:
        super().__init__()
        self.cutoff, self.embedding = cutoff, embedding  # Å
        self.activation = embedding.activation  # a submodule, so that train() and eval() reach it

    def prepare(self, graph: AtomicGraph) -> AtomicGraph:
        """Add to a graph what the backbone derives from its pairs. Called once per graph, outside of compiled code."""
        return graph

    @abstractmethod
    def forward(self, graph: AtomicGraph) -> Tensor:
        """Compute embeddings, (n_atoms, n_blocks · n_features)."""

    def linear_response(self, graph: AtomicGraph) -> LinearResponse:
        """Embeddings of a graph and their first derivatives, for prediction. A backbone may know a faster way."""
        return AutomaticResponse(self, graph)
