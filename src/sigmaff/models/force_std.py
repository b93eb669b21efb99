"""Variance of forces and stress from a head's variance of energies: derivatives are linear in the random function.

Exact: with the tangents T_c = ∂h/∂x_c of all embeddings, Var(F_c) is the head's variance of the slope along T_c; one
forward-mode pass for each coordinate of the largest structure serves all structures of a batch at once. Strain has
six components for any size, so the variance of stress is always exact.
Sampled: k posterior functions, drawn once with the model, are k smooth conservative energies; Var(F_c) is the mean
square of the derivatives of their deviations from the mean: one forward pass and k batched backward passes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads import Head, HeadForceStdMethod
from sigmaff.models.prediction import ForceStdMethod

Embed = Callable[[AtomicGraph], Tensor]
"""From a graph to the features of its atoms: ``Potential.embed``."""
TANGENT_ELEMENTS = 2**25
"""Numbers held at once in the batched derivative passes; bounds memory, not accuracy."""
ELEMENTS_PER_PAIR = 2048
"""Numbers that a derivative pass holds for each pair, roughly."""


def forces_variance(
    embed: Embed, head: Head, graph: AtomicGraph, features: Tensor, how: ForceStdMethod
) -> tuple[Tensor | None, HeadForceStdMethod | None]:
    """Variance of the normalised forces, (n_atoms, 3), and the way it was computed.

    ``(None, None)`` if the head has no force σ; ``ConfigError`` if it does not support ``how``.
    """
    if how == "none" or not head.force_std_methods or graph.n_atoms == 0:
        return None, None
    if how != "auto" and how not in head.force_std_methods:
        raise ConfigError(
            f"this {head.method} head cannot compute force σ as {how!r}: use forces_std "
            f"{' or '.join(map(repr, head.force_std_methods))} (or 'auto')"
        )
    if head.force_std_methods == ("by_atom",):
        variance = head.node_variance(features, graph)
        assert variance is not None
        return variance.unsqueeze(-1).expand(-1, 3), "by_atom"
    n_atoms = graph.atoms_per_structure()
    exactly = torch.full_like(n_atoms, how == "exact", dtype=torch.bool)
    if how == "auto":
        exactly = (3 * n_atoms <= head.n_samples) | ("sampled" not in head.force_std_methods)
    if not exactly.any():
        return sampled_forces_variance(embed, head, graph, features), "sampled"
    exact = exact_forces_variance(embed, head, graph, features, int(n_atoms[exactly].max()))
    if exactly.all():
        return exact, "exact"
    sampled = sampled_forces_variance(embed, head, graph, features)
    return torch.where(exactly[graph.structure_index, None], exact, sampled), "sampled"


def embedding_tangents(
    embed: Embed, graph: AtomicGraph, directions: Tensor, shift_directions: Tensor | None = None
) -> Iterator[Tensor]:
    """Derivatives of the embeddings along displacements of atoms, and of the images that pairs reach, if given.

    (n, n_atoms, 3) and (n, n_pairs, 3) -> (n, n_atoms, n_blocks · n_features), in parts that bound memory.
    """

    def moved(positions: Tensor, pair_shift: Tensor) -> Tensor:
        return embed(replace(graph, positions=positions, pair_shift=pair_shift))

    def tangent(direction: Tensor, shift_direction: Tensor) -> Tensor:
        return torch.func.jvp(moved, (graph.positions, graph.pair_shift), (direction, shift_direction))[1]

    if shift_directions is None:
        shift_directions = graph.pair_shift.new_zeros(1, 1, 1).expand(len(directions), *graph.pair_shift.shape)
    chunk = _chunk(graph)
    for part, shift_part in zip(directions.split(chunk), shift_directions.split(chunk), strict=True):
        yield torch.func.vmap(tangent)(part, shift_part)


def _chunk(graph: AtomicGraph) -> int:
    """Derivative passes that are made at once."""
    return max(1, TANGENT_ELEMENTS // (ELEMENTS_PER_PAIR * max(graph.pair_index.shape[1], graph.n_atoms)))


def exact_forces_variance(embed: Embed, head: Head, graph: AtomicGraph, features: Tensor, n_largest: int) -> Tensor:
    """Exact for structures of up to ``n_largest`` atoms; for larger ones the values mean nothing."""
    rank = graph.atom_rank()
    directions = unit_displacements(rank, n_largest, graph.positions.dtype)
    variances = [
        head.slope_variance(features, tangents, graph) for tangents in embedding_tangents(embed, graph, directions)
    ]
    by_coordinate = torch.cat(variances).unflatten(0, (-1, 3))  # (n_largest, 3, n_structures)
    return by_coordinate[rank.clamp(max=n_largest - 1), :, graph.structure_index]


def virial_variance(embed: Embed, head: Head, graph: AtomicGraph, features: Tensor) -> Tensor:
    """Variance of the derivatives of energies by symmetric strains, (n_structures, 3, 3).

    ∂E/∂ε_ab is the slope along x -> x (1 + ½(e_ab + e_ba)), for atoms and for images.
    """
    axes = torch.eye(3, dtype=graph.positions.dtype, device=graph.positions.device)
    outer = torch.einsum("ac,bd->abcd", axes, axes).flatten(0, 1)
    strains = 0.5 * (outer + outer.transpose(1, 2))
    upper = torch.triu_indices(3, 3, device=strains.device)
    chosen = strains[3 * upper[0] + upper[1]]
    tangents = embedding_tangents(embed, graph, graph.positions @ chosen, graph.pair_shift @ chosen)
    by_strain = torch.cat([head.slope_variance(features, part, graph) for part in tangents])  # (6, n_structures)
    variance = by_strain.new_zeros(graph.n_structures, 3, 3)
    variance[:, upper[0], upper[1]] = by_strain.T
    variance[:, upper[1], upper[0]] = by_strain.T
    return variance


def sampled_forces_variance(embed: Embed, head: Head, graph: AtomicGraph, features: Tensor) -> Tensor:
    def moved(positions: Tensor) -> Tensor:
        return embed(graph.with_positions(positions))

    def deviations(node_features: Tensor) -> Tensor:
        return head.energy_deviations(node_features, graph).sum(-1)

    head.draw()
    pull_back = torch.func.vjp(moved, graph.positions)[1]
    cotangents = torch.func.jacrev(deviations)(features)  # (n_samples, n_atoms, n_features)
    samples = torch.func.vmap(lambda c: pull_back(c)[0], chunk_size=_chunk(graph))(cotangents)
    return samples.square().mean(0).to(graph.dtype)
