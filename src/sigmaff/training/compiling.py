"""When compiling the loss pays.

A compiler takes about as long for every training, and then saves a part of each step. Nobody knows how long a training
will go on: it may be patient, limited in time, or extended. So a training is eager until its eager steps took about as
long as compiling does. Then it compiles. As far as that estimate is right, it takes no more than twice the time of the
better choice.

The step follows from the data alone, not from a clock: a training that is resumed compiles where one that was not
interrupted does, and gets the same bits.
"""

import math

from torch import nn

from sigmaff.data import GraphDataset
from sigmaff.models import Potential

MOST_STEPS = 2000
"""Eager steps that pay for compiling where batches are small (``benchmarks/training_step.py``)."""
MOST_PAIRS = 3_000_000
"""Pairs in these steps where batches are large."""


def compile_step(potential: Potential, train_set: GraphDataset, n_batches: int) -> int | None:
    """The step from which a training is compiled; ``None``: never, as random masks of dropout do not compile."""
    if any(isinstance(part, nn.Dropout) and part.p > 0 for part in potential.modules()):
        return None
    pairs_per_step = max(1.0, float(train_set.n_pairs.sum()) / n_batches)
    return min(MOST_STEPS, math.ceil(MOST_PAIRS / pairs_per_step))
