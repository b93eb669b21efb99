"""Raw coordinates as an embedding: a backbone without weights and without symmetry."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum


class CoordinatesConfig(BackboneSettings):
    """Hyper-parameters of the raw-coordinate embedding."""

    name: Literal["coordinates"] = "coordinates"
    n_atoms: int = Field(ge=1, le=10_000, description="atoms of the largest structure to train on or predict")
    cutoff: ClassVar[float] = 0.5  # Å; pairs are not used


class Coordinates(Backbone):
    """h_i is zero except for the coordinates of atom i in slots 3k … 3k + 2, where k is its index in its structure.

    Σ_i h_i is then the vector of all coordinates, relative to their mean. The embedding is not invariant: a rotated
    structure, or one with its atoms in another order, is a different structure.
    """

    Config = CoordinatesConfig

    def __init__(self, config: CoordinatesConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        super().__init__(config.cutoff, Embedding(n_features=3 * config.n_atoms, activation=nn.Identity()))
        self.config = config
        self.slots: Tensor  # saved: the model file infers the precision of a potential from the tensors of its backbone
        self.slots = nn.Buffer(torch.eye(config.n_atoms))

    def prepare(self, graph: AtomicGraph) -> AtomicGraph:
        """Reject structures that are periodic or have more than n_atoms atoms."""
        if graph.cell is not None:
            raise DataError(
                "a structure is periodic: raw coordinates cannot describe a crystal, whose atoms have periodic images; "
                "use another backbone"
            )
        n_atoms = graph.atoms_per_structure()
        largest = int(n_atoms.argmax())
        if n_atoms[largest] > self.config.n_atoms:
            raise DataError(
                f"structure {largest} has {int(n_atoms[largest])} atoms, but this model accepts at most "
                f"{self.config.n_atoms} atoms; train with backbone n_atoms: {int(n_atoms[largest])}, or "
                "remove the structure"
            )
        return graph

    def forward(self, graph: AtomicGraph) -> Tensor:
        owner = graph.structure_index
        ones = torch.ones_like(graph.positions[:, :1])
        totals = scatter_sum(torch.cat([graph.positions, ones], dim=-1), owner, graph.n_structures)
        centred = (graph.positions - (totals[:, :3] / totals[:, 3:])[owner]).to(graph.dtype)
        return (self.slots[graph.atom_rank()].unsqueeze(-1) * centred.unsqueeze(1)).flatten(1)
