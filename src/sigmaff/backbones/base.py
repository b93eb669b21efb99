"""Base class of backbones."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from ase.data import chemical_symbols
from torch import Tensor, nn

from sigmaff.backbones.linear_response import AutomaticResponse, CompiledAutomaticResponse, LinearResponse
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
    compiles_samples: Literal["together", "one by one"] | None = None
    """How compiled code differentiates many functions of its embeddings; ``None``: not faster than without."""
    hidden_layers: tuple[int, ...] = ()
    """Lengths of the invariant features of an atom after each step, which ``all_layers`` gives."""

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

    def all_layers(self, graph: AtomicGraph) -> Tensor:
        """Embeddings, and after them the features of ``hidden_layers``, (n_atoms, n_blocks · n_features + their sum).

        A backbone whose embeddings are those of all its layers has no hidden ones.
        """
        embeddings: Tensor = self(graph)
        return embeddings

    def linear_response(self, graph: AtomicGraph, *, all_layers: bool = False) -> LinearResponse:
        """Embeddings of a graph and their first derivatives, for prediction. A backbone may know a faster way.

        all_layers: with those of hidden layers, as ``all_layers`` gives them.
        """
        embed = self.all_layers if all_layers else self
        return AutomaticResponse(embed, graph) if graph.layout is None else CompiledAutomaticResponse(embed, graph)

    def bytes_held(self, graph: AtomicGraph, *, all_layers: bool = False) -> int:
        """What a linear response holds of a graph, at least: what automatic differentiation keeps of the embeddings."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, nn.Parameter):
                storage = tensor.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            moved = graph.with_positions(graph.positions.detach().requires_grad_())
            _ = self.all_layers(moved) if all_layers else self(moved)  # what it keeps lives until here
        return sum(kept.values())

    def tabulate(self) -> float:
        """Replace functions of distance by tables, for prediction: from then on it cannot be trained.

        Returns the largest error of their values and slopes, relative to the largest value and slope.
        """
        return 0.0
