"""Whether a prediction fits into memory, before it begins: the system ends a process without a word where it does not.

Most of what a prediction holds is what the derivatives of the embeddings need of each pair. So a few pairs of the graph
tell how much all of them need at least. What certainly does not fit is refused. Many small structures are predicted in
batches anyway (``GraphDataset.batch_size``).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from sigmaff.errors import SigmaffError
from sigmaff.graph import AtomicGraph

MANY_PAIRS = 20_000
"""Pairs from which on a graph is large: what differentiation keeps of it leaves every cache."""
SAMPLED_PAIRS = 500


class MemoryShortError(SigmaffError):
    """A prediction would need more memory than there is."""


def is_large(graph: AtomicGraph) -> bool:
    return graph.pair_index.shape[1] > MANY_PAIRS


def require_memory(bytes_held: Callable[[AtomicGraph], int], graph: AtomicGraph) -> None:
    """Raise an error if the derivatives of embeddings do not fit into the memory that is free.

    Arguments:
        bytes_held: what they hold of a graph, as ``Backbone.bytes_held`` tells it.
        graph: large, prepared, on a CPU; on another device nothing happens.
    """
    n_pairs = graph.pair_index.shape[1]
    if graph.positions.device.type != "cpu":
        return
    free, needed = available_memory(), n_pairs * bytes_per_pair(bytes_held, graph)
    if free is not None and needed > free:
        raise MemoryShortError(
            f"a prediction of {graph.n_atoms:,} atoms with {n_pairs:,} pairs needs about {needed / 1e9:.0f} GB of "
            f"memory, and {free / 1e9:.0f} GB are free: predict fewer structures at once (batch_size), a smaller cell, "
            "or with a model of a smaller cutoff; or end other programs"
        )


def bytes_per_pair(bytes_held: Callable[[AtomicGraph], int], graph: AtomicGraph) -> float:
    """By a part of the graph: whole neighbourhoods of its first atoms."""
    part = _first_pairs(graph, SAMPLED_PAIRS)
    return bytes_held(part) / part.pair_index.shape[1]


def available_memory() -> int | None:
    """Bytes that new work may take without swapping; ``None`` where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _first_pairs(graph: AtomicGraph, n_pairs: int) -> AtomicGraph:
    """The first pairs and their atoms, as one structure. Pairs are in the order of their first atoms."""
    chosen = graph.pair_index[:, :n_pairs]
    atoms, places = torch.unique(chosen, return_inverse=True)
    return replace(
        graph,
        positions=graph.positions[atoms],
        atomic_numbers=graph.atomic_numbers[atoms],
        structure_index=torch.zeros_like(atoms),
        pair_index=places,
        pair_shift=graph.pair_shift[:n_pairs],
        cell=None,
        n_structures=1,
        incoming=None,
    )
