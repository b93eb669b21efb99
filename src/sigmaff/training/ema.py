"""The running average of the weights, which predicts better than the weights themselves."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """θ̄ <- d θ̄ + (1 − d) θ with d = min(decay, (1 + t)/(10 + t)) after t steps."""

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.weights = dict(weights)
        self.decay = decay
        self.values = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(tuple(self.values.values()), tuple(self.weights.values()), step)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as weights inside the block."""
        kept = {name: weight.detach().clone() for name, weight in self.weights.items()}
        assign(self.weights, self.values)
        try:
            yield
        finally:
            assign(self.weights, kept)


@torch.no_grad()
def assign(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into weights of the same names, in place."""
    for name, weight in weights.items():
        weight.copy_(values[name])
