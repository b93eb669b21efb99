"""The surroundings of an atom as fixed numbers: nothing in them is learned, so nothing can be forgotten.

    x_ek = Σ_{j ∈ e} g_k(d_ij) f(d_ij)

with Gaussians g_k of distance, an even distance apart, and f whose value and slope vanish at the cutoff: a smoothed
histogram of the distances to neighbours of each element e. Elements that the model does not know share the last place;
if it knows more than seven, these share the others.
"""

import math
from dataclasses import replace

import torch
from ase.data import chemical_symbols
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.linear_response import MAX_ELEMENTS, CompiledResponse, LinearResponse
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import cosine_cutoff, gaussian_basis, kept, scatter_sum

CUTOFF = 5.0
"""Å, or the cutoff of the backbone if that is less."""
N_RADIAL = 17
MAX_KINDS = 8


class Surroundings(nn.Module):
    """Map a graph to (n_atoms, n_features) in float64, which rotations, translations and permutations leave as is."""

    def __init__(self, elements: tuple[int, ...], cutoff: float) -> None:
        super().__init__()
        self.cutoff = min(cutoff, CUTOFF)
        self.n_kinds = min(len(elements) + 1, MAX_KINDS)
        self.n_features = self.n_kinds * N_RADIAL
        kinds = torch.full((len(chemical_symbols),), self.n_kinds - 1, dtype=torch.int64)
        kinds[list(elements)] = torch.arange(len(elements)) % max(1, self.n_kinds - 1)
        self.kinds = nn.Buffer(kinds, persistent=False)
        centers = torch.linspace(0.0, self.cutoff, N_RADIAL, dtype=torch.float64)
        self.centers = nn.Buffer(centers, persistent=False)

    def forward(self, graph: AtomicGraph) -> Tensor:
        distance = replace(graph, dtype=torch.float64).pair_vectors().norm(dim=-1)
        basis = self.basis(distance)
        summed = scatter_sum(torch.cat([basis, basis]), self.places(graph).flatten(), graph.n_atoms * self.n_kinds)
        return summed.view(graph.n_atoms, self.n_features)

    def basis(self, distance: Tensor) -> Tensor:
        """g_k f, (n_pairs, N_RADIAL); zero beyond the cutoff."""
        distance = distance.clamp(max=self.cutoff)
        return gaussian_basis(distance, self.centers) * cosine_cutoff(distance, self.cutoff).unsqueeze(-1)

    def basis_with_slopes(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """The same within the cutoff, and its derivative."""
        spacing, turn = self.centers[1] - self.centers[0], math.pi / self.cutoff
        gaussians = gaussian_basis(distance, self.centers)
        cutoff = cosine_cutoff(distance, self.cutoff).unsqueeze(-1)
        falling = -0.5 * turn * torch.sin(turn * distance).unsqueeze(-1)
        rising = (self.centers - distance.unsqueeze(-1)) / spacing.square()
        return gaussians * cutoff, gaussians * (rising * cutoff + falling)

    def places(self, graph: AtomicGraph) -> Tensor:
        """Where the first atom of each pair counts the second, and the second the first, (2, n_pairs)."""
        kind = self.kinds[graph.atomic_numbers]
        return graph.pair_index * self.n_kinds + kind[graph.pair_index.flip(0)]

    def compiled_response(self, graph: AtomicGraph) -> CompiledResponse:
        return _CompiledResponse(self, graph)

    def linear_response(self, graph: AtomicGraph) -> LinearResponse:
        return _Response(self, graph)


class _CompiledResponse(CompiledResponse):
    """Of all pairs, for compiled code: those beyond the cutoff count as nothing. All elements are known."""

    def __init__(self, surroundings: Surroundings, graph: AtomicGraph) -> None:
        super().__init__(graph)
        layout = self.layout
        vectors = replace(graph, dtype=torch.float64).pair_vectors()
        distance = vectors.norm(dim=-1)
        self._units = vectors / distance.unsqueeze(-1)
        near = (distance < surroundings.cutoff).to(distance.dtype).unsqueeze(-1)
        basis, slopes = surroundings.basis_with_slopes(distance)
        self._slopes = kept(slopes * near)
        kinds = surroundings.kinds[graph.atomic_numbers]
        of_kind = kinds[layout.neighbor].unsqueeze(-1) == torch.arange(surroundings.n_kinds - 1, device=kinds.device)
        counted = kept((of_kind & (layout.side != 0).unsqueeze(-1)).to(basis.dtype))  # (n_slots, n_atoms, n_kinds - 1)
        around = kept(basis * near)[layout.pair].unsqueeze(2)
        known = (around * counted.unsqueeze(-1)).sum(0).flatten(1)
        self._embeddings = functional.pad(known, (0, N_RADIAL))
        self._places = surroundings.places(graph)

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings

    def by_vectors(self, cotangents: Tensor) -> Tensor:
        by_place = kept(cotangents.permute(1, 2, 0).contiguous()).unflatten(1, (-1, N_RADIAL)).flatten(0, 1)
        both = by_place[self._places[0]] + by_place[self._places[1]]  # (n_pairs, N_RADIAL, k)
        by_distance = (both * self._slopes.to(both.dtype).unsqueeze(-1)).sum(1)
        return by_distance.unsqueeze(-1) * self._units.unsqueeze(1).to(both.dtype)


class _Response(LinearResponse):
    """Of pairs within the cutoff; the others have none."""

    def __init__(self, surroundings: Surroundings, graph: AtomicGraph) -> None:
        vectors = replace(graph, dtype=torch.float64).pair_vectors()
        distance = vectors.norm(dim=-1)
        self._near = (distance < surroundings.cutoff).nonzero().squeeze(-1)
        self._places = surroundings.places(graph)[:, self._near]
        self._pairs, self._n_pairs = graph.pair_index[:, self._near], graph.pair_index.shape[1]
        self._n_atoms, self._n_kinds = graph.n_atoms, surroundings.n_kinds
        distance = distance[self._near]
        self._units = vectors[self._near] / distance.unsqueeze(-1)
        basis, self._slopes = surroundings.basis_with_slopes(distance)
        self._embeddings = self._counted(basis.unsqueeze(0)).squeeze(0)

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings

    @property
    def n_at_once(self) -> int:
        return max(1, MAX_ELEMENTS // (4 * N_RADIAL * max(len(self._near), self._n_atoms)))

    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        by_pair = torch.cat([self._by_pair(part) for part in cotangents.split(self.n_at_once)])
        first, second = self._pairs
        zeros = by_pair.new_zeros(len(by_pair), self._n_atoms, 3)
        by_position = zeros.index_add(1, second, by_pair).index_add(1, first, by_pair, alpha=-1)
        by_shift = by_pair.new_zeros(len(by_pair), self._n_pairs, 3).index_copy(1, self._near, by_pair)
        return by_position, by_shift

    def _by_pair(self, cotangents: Tensor) -> Tensor:
        """Derivatives by the vectors of near pairs, (k, n_near, 3)."""
        by_place = cotangents.reshape(len(cotangents), -1, N_RADIAL)
        both = by_place[:, self._places[0]] + by_place[:, self._places[1]]
        return torch.einsum("kpr,pr->kp", both, self._slopes).unsqueeze(-1) * self._units

    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        first, second = self._pairs
        moved = directions[:, second] - directions[:, first] + shift_directions[:, self._near]
        stretched = torch.einsum("cpa,pa->cp", moved, self._units)
        return self._counted(stretched.unsqueeze(-1) * self._slopes)

    def _counted(self, values: Tensor) -> Tensor:
        """Sum (c, n_near, N_RADIAL) over the neighbours of each atom, by element: (c, n_atoms, n_features)."""
        zeros = values.new_zeros(len(values), self._n_atoms * self._n_kinds, N_RADIAL)
        summed = zeros.index_add(1, self._places[0], values).index_add(1, self._places[1], values)
        return summed.view(len(values), self._n_atoms, -1)
