"""How near atoms come to each other."""

import numpy as np
import torch

from sigmaff.data.dataset import GraphDataset

Shortest = tuple[tuple[int, int, float], ...]


def shortest_distances(dataset: GraphDataset) -> Shortest:
    """The shortest distance of each pair of elements that are neighbours, (z, z', Å) with z ≤ z', in order."""
    graph = dataset.graph
    first, second = graph.atomic_numbers[graph.pair_index]
    lengths = torch.linalg.vector_norm(graph.to(dtype=torch.float64).pair_vectors(), dim=-1).numpy()
    pairs = np.sort(torch.stack([first, second], dim=1).numpy(), axis=1)
    order = np.argsort(lengths, kind="stable")
    kinds, shortest = np.unique(pairs[order], axis=0, return_index=True)
    return tuple(
        (int(z), int(other), float(length)) for (z, other), length in zip(kinds, lengths[order][shortest], strict=True)
    )
