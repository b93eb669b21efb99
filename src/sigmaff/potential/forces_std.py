"""Variance of forces from a head's variance of energies: F = −∂E/∂x is linear in the random function.

Exact: with the tangents T_c = ∂h/∂x_c of all embeddings, Var(F_c) is the head's variance of the slope along T_c; one
forward-mode pass for each coordinate of the largest structure serves all structures of a batch at once.
Sampled: k posterior functions, drawn once with the model, are k smooth conservative energies; Var(F_c) is the mean
square of the derivatives of their deviations from the mean: one forward pass and k batched backward passes.
"""

from typing import Literal

import torch
from torch import Tensor

from sigmaff.backbones import Backbone
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.heads import Head
from sigmaff.prediction import ForcesStd

TANGENT_ELEMENTS = 2**25
"""Numbers held at once in the batched derivative passes; bounds memory, not accuracy."""


def forces_variance(
    backbone: Backbone, head: Head, graph: AtomicGraph, features: Tensor, how: ForcesStd
) -> tuple[Tensor | None, Literal["exact", "sampled"] | None]:
    """Variance of the normalised forces, (n_atoms, 3), and the way it was computed.

    A sampled function is one function for all atoms, so samples know the full covariance alone.
    """
    if how == "none" or head.n_samples == 0 or graph.n_atoms == 0:
        return None, None
    if how == "sampled" and head.covariance == "diagonal":
        raise ConfigError(
            "force σ of a head with covariance 'diagonal' cannot be sampled: ask for forces_std 'exact' (or 'auto')"
        )
    if how == "auto":
        n_atoms = graph.atoms_per_structure()
        cheaper_exactly = (3 * n_atoms <= head.n_samples) | (head.covariance == "diagonal")
        if not cheaper_exactly.all() and cheaper_exactly.any():
            exact = exact_forces_variance(backbone, head, graph, features, int(n_atoms[cheaper_exactly].max()))
            sampled = sampled_forces_variance(backbone, head, graph, features)
            return torch.where(cheaper_exactly[graph.structure_index, None], exact, sampled), "sampled"
        how = "exact" if cheaper_exactly.all() else "sampled"
    if how == "exact":
        n_largest = int(graph.atoms_per_structure().max())
        return exact_forces_variance(backbone, head, graph, features, n_largest), "exact"
    return sampled_forces_variance(backbone, head, graph, features), "sampled"


def embedding_tangents(backbone: Backbone, graph: AtomicGraph, directions: Tensor) -> Tensor:
    """Derivatives of the embeddings along displacements: (n, n_atoms, 3) -> (n, n_atoms, n_features)."""

    def embed(positions: Tensor) -> Tensor:
        return backbone(graph.with_positions(positions))

    def tangent(direction: Tensor) -> Tensor:
        return torch.func.jvp(embed, (graph.positions,), (direction,))[1]

    return torch.func.vmap(tangent)(directions)


def unit_displacements(graph: AtomicGraph, n_moved: int) -> Tensor:
    """One direction per coordinate of the first ``n_moved`` atoms: atom a of every structure moved along x, y or z.

    (3 · n_moved, n_atoms, 3)
    """
    rank = graph.atom_rank()
    same_atom = rank == torch.arange(n_moved, device=rank.device)[:, None]
    axes = torch.eye(3, dtype=graph.positions.dtype, device=rank.device)
    return (same_atom[:, None, :, None] * axes[None, :, None, :]).flatten(0, 1)


def exact_forces_variance(
    backbone: Backbone, head: Head, graph: AtomicGraph, features: Tensor, n_largest: int
) -> Tensor:
    """Exact for structures of up to ``n_largest`` atoms; for larger ones the values mean nothing."""
    directions = unit_displacements(graph, n_largest)
    per_direction = 16 * max(graph.pair_index.shape[1], graph.n_atoms) * features.shape[1]
    chunk = max(1, TANGENT_ELEMENTS // per_direction)
    variances = [
        head.slope_variance(features, embedding_tangents(backbone, graph, part), graph)
        for part in directions.split(chunk)
    ]
    by_coordinate = torch.cat(variances).unflatten(0, (-1, 3))  # (n_largest, 3, n_structures)
    return by_coordinate[graph.atom_rank().clamp(max=n_largest - 1), :, graph.structure_index]


def sampled_forces_variance(backbone: Backbone, head: Head, graph: AtomicGraph, features: Tensor) -> Tensor:
    def embed(positions: Tensor) -> Tensor:
        return backbone(graph.with_positions(positions))

    def deviations(node_features: Tensor) -> Tensor:
        return head.energy_deviations(node_features, graph).sum(-1)

    pull_back = torch.func.vjp(embed, graph.positions)[1]
    cotangents = torch.func.jacrev(deviations)(features)  # (n_samples, n_atoms, n_features)
    per_sample = 16 * max(graph.pair_index.shape[1], graph.n_atoms) * features.shape[1]
    chunk = max(1, TANGENT_ELEMENTS // per_sample)
    samples = torch.func.vmap(lambda c: pull_back(c)[0], chunk_size=chunk)(cotangents)
    return samples.square().mean(0)
