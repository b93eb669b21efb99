"""Batches of structures, in one process or in many."""

import numpy as np
import torch
from torch import Tensor


def derived_seed(*keys: int) -> int:
    """A seed for one purpose, independent of those of other keys."""
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint32)[0])


def epoch_batches(n_structures: int, n_batches: int, seed: int, epoch: int) -> tuple[Tensor, ...]:
    """A random order of the structures, cut into batches whose sizes differ by one at most."""
    generator = torch.Generator().manual_seed(derived_seed(seed, epoch))
    return torch.randperm(n_structures, generator=generator).tensor_split(n_batches)


def batch_share(indices: Tensor, n_atoms: Tensor, rank: int, n_processes: int) -> tuple[Tensor, float, float]:
    """The part of a batch that one of the processes takes, and its fractions of structures and of atoms.

    A process without a share computes one structure with weight 0, since all must take part in a step.
    """
    share = indices[rank::n_processes]
    if len(share) == 0:
        return indices[:1], 0.0, 0.0
    return share, len(share) / len(indices), float(n_atoms[share].sum() / n_atoms[indices].sum())
