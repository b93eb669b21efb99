"""How near atoms come to each other."""

import numpy as np
import torch
from ase.data import chemical_symbols

from sigmaff.data.dataset import GraphDataset

AT_ONCE = 10_000
"""Structures to look at together."""
Shortest = tuple[tuple[int, int, float], ...]


def shortest_distances(dataset: GraphDataset) -> Shortest:
    """The shortest distance of each pair of elements that are neighbours, (z, z', Å) with z ≤ z', in order."""
    shortest = np.full((len(chemical_symbols), len(chemical_symbols)), np.inf)
    for indices in torch.arange(len(dataset)).split(AT_ONCE):  # of a data set that may be larger than memory
        graph, _ = dataset.batch(indices)
        numbers = np.sort(graph.atomic_numbers[graph.pair_index].numpy(), axis=0)
        lengths = torch.linalg.vector_norm(graph.to(dtype=torch.float64).pair_vectors(), dim=-1).numpy()
        np.minimum.at(shortest, (numbers[0], numbers[1]), lengths)
    found = np.argwhere(np.isfinite(shortest))
    return tuple((int(z), int(other), float(shortest[z, other])) for z, other in found)
