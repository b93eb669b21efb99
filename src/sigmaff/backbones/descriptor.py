"""Atom-centred symmetry functions: a hand-crafted invariant embedding, without weights.

For atom i, every element e and every pair of elements e ≤ e′ among its neighbours, with functions g_k(d) of distance
whose value and slope vanish at the cutoff:

    radial      Σ_{j ∈ e} g_k(d_ij)
    angular     Σ_{j ∈ e} Σ_{j′ ∈ e′} g_k(d_ij) g_k(d_ij′) cosˡ ∠(j, i, j′),      l = 1 … n_powers

The double sum is a product of two moments Σ_j g_k(d_ij) u_ij ⊗ … ⊗ u_ij (l times) of directions u. The cost
therefore grows with the number of pairs, not of angles.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import cosine_cutoff, gaussian_basis, scatter_sum

NEAREST = 0.5
"""Å. Centre of the first radial function."""


class DescriptorConfig(BackboneSettings):
    """Hyper-parameters of the symmetry functions."""

    name: Literal["descriptor"] = "descriptor"
    cutoff: float = Field(default=5.0, gt=NEAREST, le=100, description="radius within which atoms are neighbours, Å")
    n_radial: int = Field(default=16, ge=2, le=1024, description="functions of distance in the radial part")
    n_shells: int = Field(default=8, ge=2, le=256, description="functions of distance in the angular part")
    n_powers: int = Field(default=3, ge=0, le=6, description="powers of the cosine of an angle; 0: no angular part")


class Descriptor(Backbone):
    """Symmetry functions of an atom, in the block of its element. The first entry of a block is 1 and counts the atom.

    Their sum over atoms describes a structure and is invariant too. Atoms of unknown elements contribute zero.
    """

    Config = DescriptorConfig

    def __init__(self, config: DescriptorConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        n, n_pairs = len(elements), len(elements) * (len(elements) + 1) // 2
        n_of_atom = 1 + n * config.n_radial + config.n_powers * n_pairs * config.n_shells
        super().__init__(config.cutoff, Embedding(n_features=n * n_of_atom, activation=nn.Identity()))
        self.config = config
        self.elements = nn.Buffer(torch.tensor(elements, dtype=torch.int64), persistent=False)
        self.radial_centers = nn.Buffer(torch.linspace(NEAREST, config.cutoff, config.n_radial))
        self.shell_centers = nn.Buffer(torch.linspace(NEAREST, config.cutoff, config.n_shells))

    def forward(self, graph: AtomicGraph) -> Tensor:
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1)
        vanishing = cosine_cutoff(distance, self.cutoff).unsqueeze(-1)
        species = (graph.atomic_numbers.unsqueeze(-1) == self.elements).to(vectors.dtype)
        radial = vanishing * gaussian_basis(distance, self.radial_centers)
        shells = vanishing * gaussian_basis(distance, self.shell_centers)
        of_atom = [torch.ones_like(species[:, :1]), _gathered(radial, radial, species, graph).flatten(1)]
        moment, directions = shells.unsqueeze(-1), (vectors / distance.unsqueeze(-1))[:, None, None, :]
        for power in range(1, self.config.n_powers + 1):
            moment = (moment.unsqueeze(-1) * directions).flatten(2)  # (n_pairs, n_shells, 3 ** power)
            at_atoms = _gathered(moment, (-1) ** power * moment, species, graph)
            of_atom.append(_products(at_atoms).flatten(1))
        return (species.unsqueeze(-1) * torch.cat(of_atom, dim=-1).unsqueeze(1)).flatten(1)


def _gathered(to_first: Tensor, to_second: Tensor, species: Tensor, graph: AtomicGraph) -> Tensor:
    """Sum over the neighbours of each atom, by element: (n_pairs, ...) each -> (n_atoms, n_elements, ...).

    ``species`` (n_atoms, n_elements) is one-hot.
    """
    first, second = graph.pair_index
    shape = (-1, species.shape[1], *[1] * (to_first.dim() - 1))
    values = torch.cat(
        [species[second].view(shape) * to_first[:, None], species[first].view(shape) * to_second[:, None]]
    )
    return scatter_sum(values, torch.cat([first, second]), graph.n_atoms)


def _products(moments: Tensor) -> Tensor:
    """(n_atoms, n_elements, n_shells, n) -> scalar products of pairs of elements, (n_atoms, n_pairs, n_shells)."""
    first, second = torch.triu_indices(moments.shape[1], moments.shape[1], device=moments.device)
    return (moments[:, first] * moments[:, second]).sum(-1)
