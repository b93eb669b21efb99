"""Monte Carlo dropout: predictions with dropout on, as if each were another network (Gal and Ghahramani, 2016)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from sigmaff.config import Settings
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, batch_graphs
from sigmaff.models.combine import combine
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential
from sigmaff.models.prediction import ForceStdMethod, Prediction, concatenate, split_prediction

MAX_PAIRS = 20_000
"""Pairs of atoms in one batched pass, roughly: more would not be faster."""


class MonteCarloDropoutConfig(Settings):
    """How a potential with dropout is sampled."""

    n_samples: int = Field(default=5, ge=2, le=1000, description="predictions, each with other units dropped")
    seed: int = Field(default=0, ge=0, description="of each call: the same structures give the same answer")


class MonteCarloDropout(Model):
    """Mean and spread of a potential's predictions with dropout on.

    Every call starts from the same seed, so in a simulation the energy is one function of the positions: the masks of
    a structure follow from its place in the batch, and from nothing else.
    """

    def __init__(self, potential: Potential, config: MonteCarloDropoutConfig) -> None:
        super().__init__()
        if not any(module.p > 0 for module in dropouts(potential)):
            raise ConfigError(
                "Monte Carlo dropout needs a network that was trained with dropout: this one has a rate of 0; "
                "train one with backbone.dropout above 0"
            )
        self.potential = potential
        self.config = config
        self.train(potential.training)

    @property
    def potentials(self) -> list[Potential]:
        return [self.potential]

    @property
    def n_passes(self) -> int:
        return self.config.n_samples

    def compute(
        self, graph: AtomicGraph, forces_std: ForceStdMethod, *, stress_std: bool, unseen_elements: bool
    ) -> Prediction:
        """Force σ is the spread of the forces; "none" leaves it out.

        To it adds the σ of forces and stress that the head itself has, of the network without dropout.
        """
        n_pairs, n_samples = max(graph.pair_index.shape[1], 1), self.config.n_samples
        n_at_once = min(n_samples, max(1, MAX_PAIRS // n_pairs))
        samples: list[Prediction] = []
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []), _dropping(self.potential):
            torch.manual_seed(self.config.seed)
            while len(samples) < n_samples:
                n = min(n_at_once, n_samples - len(samples))
                together = batch_graphs([graph] * n)
                prediction = self.potential.compute(together, "none", stress_std=False, unseen_elements=unseen_elements)
                parts = split_prediction(prediction, together)
                size = graph.n_structures
                samples += [concatenate(parts[k * size : (k + 1) * size]) for k in range(n)]
        combined = combine(samples, "mc dropout", forces_std, stress_std=stress_std)
        if forces_std == "none" or self.potential.kind is None:
            return combined
        own = self.potential.compute(graph, forces_std, stress_std=stress_std, unseen_elements=unseen_elements)
        return replace(
            combined,
            forces_std=_added(combined.forces_std, own.forces_std),
            stress_std=_added(combined.stress_std, own.stress_std),
        )


def _added(spread: Tensor | None, own: Tensor | None) -> Tensor | None:
    """Independent σ together."""
    return spread if spread is None or own is None else torch.hypot(spread, own.to(spread))


def dropouts(module: nn.Module) -> Iterator[_DropoutNd]:
    """All parts that drop out something in training."""
    return (part for part in module.modules() if isinstance(part, _DropoutNd))


@contextmanager
def _dropping(module: nn.Module) -> Iterator[None]:
    """Dropout as in training, and nothing else as in training."""
    before = [(part, part.training) for part in dropouts(module)]
    for part, _ in before:
        part.training = True
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode
