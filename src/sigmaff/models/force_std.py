"""Variance of forces and stress from a head's variance of energies: derivatives are linear in the random function.

Exact: with the tangents T_c = ∂h/∂x_c of all embeddings, Var(F_c) is the head's variance of the slope along T_c; one
forward-mode pass for each coordinate of the largest structure serves all structures of a batch at once. Strain has
six components for any size, so the variance of stress is always exact.
Sampled: k posterior functions, drawn once with the model, are k smooth conservative energies; Var(F_c) is the mean
square of the derivatives of their deviations from the mean. These are pulled back through the backbone together with
the derivatives of the mean, which are the forces (``Potential.responses``).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from sigmaff.backbones.linear_response import LinearResponse
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads import Head, HeadForceStdMethod
from sigmaff.models.prediction import ForceStdMethod


def choose_way(head: Head, graph: AtomicGraph, how: ForceStdMethod) -> tuple[HeadForceStdMethod | None, Tensor]:
    """How force σ is computed, and for which structures exactly, (n_structures,).

    ``None`` if the head has no force σ; ``ConfigError`` if it does not support ``how``.
    """
    n_atoms = graph.atoms_per_structure()
    nowhere = torch.zeros_like(n_atoms, dtype=torch.bool)
    if how == "none" or not head.force_std_methods or graph.n_atoms == 0:
        return None, nowhere
    if how != "auto" and how not in head.force_std_methods:
        raise ConfigError(
            f"this {head.method} head cannot compute force σ as {how!r}: use forces_std "
            f"{' or '.join(map(repr, head.force_std_methods))} (or 'auto')"
        )
    if head.force_std_methods == ("by_atom",):
        return "by_atom", nowhere
    exactly = ~nowhere if how == "exact" else nowhere
    if how == "auto":
        exactly = (3 * n_atoms <= head.n_samples) | ("sampled" not in head.force_std_methods)
    return "exact" if exactly.all() else "sampled", exactly


def forces_variance(
    response: LinearResponse, head: Head, graph: AtomicGraph, exactly: Tensor, samples: Tensor | None
) -> Tensor:
    """Variance of the normalised forces, (n_atoms, 3).

    Arguments:
        exactly: structures to compute exactly, (n_structures,).
        samples: of deviations of forces from their mean, (n_samples, n_atoms, 3), for the others.
    """
    sampled = None if samples is None else sampled_forces_variance(response, head, graph, samples)
    if sampled is not None and not exactly.any():
        return sampled
    n_largest = int(graph.atoms_per_structure()[exactly].max())
    exact = with_hidden(exact_forces_variance(response, head, graph, n_largest), response, head, graph)
    return exact if sampled is None else torch.where(exactly[graph.structure_index, None], exact, sampled)


def sampled_forces_variance(response: LinearResponse, head: Head, graph: AtomicGraph, samples: Tensor) -> Tensor:
    """Of the normalised forces, (n_atoms, 3), from deviations of forces (n_samples, n_atoms, 3)."""
    return with_hidden(samples.square().mean(0).to(graph.dtype), response, head, graph)


def with_hidden(variance: Tensor, response: LinearResponse, head: Head, graph: AtomicGraph) -> Tensor:
    """Add the variance of forces that no slope of the head's energy holds."""
    hidden = head.hidden_slope_variance(response.embeddings, graph)
    return variance if hidden is None else variance + hidden.unsqueeze(-1).to(variance.dtype)


def embedding_tangents(
    response: LinearResponse, graph: AtomicGraph, directions: Tensor, shift_directions: Tensor | None = None
) -> Iterator[Tensor]:
    """Derivatives of the embeddings along displacements of atoms, and of the images that pairs reach, if given.

    (n, n_atoms, 3) and (n, n_pairs, 3) -> (n, n_atoms, n_blocks · n_features), in parts that bound memory.
    """
    if shift_directions is None:
        shift_directions = graph.pair_shift.new_zeros(1, 1, 1).expand(len(directions), *graph.pair_shift.shape)
    n_at_once = response.n_at_once
    for part, shift_part in zip(directions.split(n_at_once), shift_directions.split(n_at_once), strict=True):
        yield response.push_forward(part, shift_part)


def exact_forces_variance(response: LinearResponse, head: Head, graph: AtomicGraph, n_largest: int) -> Tensor:
    """Exact for structures of up to ``n_largest`` atoms; for larger ones the values mean nothing."""
    rank = graph.atom_rank()
    directions = unit_displacements(rank, n_largest, graph.positions.dtype)
    variances = [
        head.slope_variance(response.embeddings, tangents, graph)
        for tangents in embedding_tangents(response, graph, directions)
    ]
    by_coordinate = torch.cat(variances).unflatten(0, (-1, 3))  # (n_largest, 3, n_structures)
    return by_coordinate[rank.clamp(max=n_largest - 1), :, graph.structure_index]


def virial_variance(response: LinearResponse, head: Head, graph: AtomicGraph) -> Tensor:
    """Variance of the derivatives of energies by symmetric strains, (n_structures, 3, 3).

    ∂E/∂ε_ab is the slope along x -> x (1 + ½(e_ab + e_ba)), for atoms and for images.
    """
    axes = torch.eye(3, dtype=graph.positions.dtype, device=graph.positions.device)
    outer = torch.einsum("ac,bd->abcd", axes, axes).flatten(0, 1)
    strains = 0.5 * (outer + outer.transpose(1, 2))
    upper = torch.triu_indices(3, 3, device=strains.device)
    chosen = strains[3 * upper[0] + upper[1]]
    tangents = embedding_tangents(response, graph, graph.positions @ chosen, graph.pair_shift @ chosen)
    by_strain = torch.cat(
        [head.slope_variance(response.embeddings, part, graph) for part in tangents]
    )  # (6, n_structures)
    variance = by_strain.new_zeros(graph.n_structures, 3, 3)
    variance[:, upper[0], upper[1]] = by_strain.T
    variance[:, upper[1], upper[0]] = by_strain.T
    return variance
