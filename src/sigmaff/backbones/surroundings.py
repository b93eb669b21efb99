"""The surroundings of an atom as fixed numbers: nothing in them is learned, so nothing can be forgotten.

    x_ek = Σ_{j ∈ e} g_k(d_ij) f(d_ij)

with Gaussians g_k of distance, an even distance apart, and f whose value and slope vanish at the cutoff: a smoothed
histogram of the distances to neighbours of each element e. Elements that the model does not know share the last one.
"""

from dataclasses import replace

import torch
from ase.data import chemical_symbols
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import cosine_cutoff, gaussian_basis, scatter_sum

CUTOFF = 5.0
"""Å, or the cutoff of the backbone if that is less."""
N_RADIAL = 17


class Surroundings(nn.Module):
    """Map a graph to (n_atoms, n_features) in float64, which rotations, translations and permutations leave as is."""

    def __init__(self, elements: tuple[int, ...], cutoff: float) -> None:
        super().__init__()
        self.cutoff = min(cutoff, CUTOFF)
        self.n_kinds = len(elements) + 1
        self.n_features = self.n_kinds * N_RADIAL
        kinds = torch.full((len(chemical_symbols),), len(elements), dtype=torch.int64)
        kinds[list(elements)] = torch.arange(len(elements))
        self.kinds = nn.Buffer(kinds, persistent=False)
        centers = torch.linspace(0.0, self.cutoff, N_RADIAL, dtype=torch.float64)
        self.centers = nn.Buffer(centers, persistent=False)

    def forward(self, graph: AtomicGraph) -> Tensor:
        distance = replace(graph, dtype=torch.float64).pair_vectors().norm(dim=-1).clamp(max=self.cutoff)
        basis = gaussian_basis(distance, self.centers) * cosine_cutoff(distance, self.cutoff).unsqueeze(-1)
        first, second = graph.pair_index
        kind = self.kinds[graph.atomic_numbers]
        place = torch.cat([first * self.n_kinds + kind[second], second * self.n_kinds + kind[first]])
        summed = scatter_sum(torch.cat([basis, basis]), place, graph.n_atoms * self.n_kinds)
        return summed.view(graph.n_atoms, self.n_features)
