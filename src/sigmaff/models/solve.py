"""Heads that are computed, not trained, on the frozen backbone of a potential with a deterministic head."""

import time
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from sigmaff.backbones import Host
from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError, DataError
from sigmaff.graph import AtomicGraph, Labels
from sigmaff.heads import HEADS, Deterministic, FitSummary, HeadConfig
from sigmaff.heads.observations import Observations, ObservedBatch
from sigmaff.models.force_std import embedding_tangents
from sigmaff.models.potential import Potential
from sigmaff.progress import Listener

BATCH_ATOMS = 300
N_TIMED = 4
"""Derivatives whose time is measured."""


def solve_head(
    potential: Potential,
    config: HeadConfig,
    train: GraphDataset,
    held_out: GraphDataset,
    *,
    seed: int = 0,
    listener: Listener | None = None,
) -> tuple[Potential, FitSummary]:
    """Put a solved head on the backbone of a potential.

    Arguments:
        potential: a trained potential with a deterministic head. It is not changed.
        config: settings of a head with the stage ``solve``.
        train: structures to learn from.
        held_out: structures to choose hyper-parameters on.
        seed: of random draws.
        listener: callbacks for progress.

    Returns a potential with the new head, and what the fit chose.
    """
    if not isinstance(potential.head, Deterministic):
        raise ConfigError(
            f"the {config.name} head is solved on a potential with a deterministic head; "
            f"this one has a {potential.head.method} head"
        )
    base = potential.eval()
    if (dtype := HEADS[config.name].solved_in) not in (None, base.dtype):
        base = deepcopy(base)
        base.set_precision(dtype)
    listener = listener or Listener()
    solved = base.with_head(config.sized_for(LabelledObservations(base, train), seed, listener))
    known, unknown = (LabelledObservations(base, dataset, solved) for dataset in (train, held_out))
    summary = solved.head.solve(known, unknown, seed=seed, listener=listener)
    return solved, summary


class LabelledObservations(Observations):
    """A data set on the backbone of a potential."""

    def __init__(self, potential: Potential, dataset: GraphDataset, features: Potential | None = None) -> None:
        """features: the potential whose head takes the features of atoms, if it is another one."""
        self.potential, self.dataset, self.features = potential, dataset, features or potential
        self.scale, self.elements = potential.statistics.scale, potential.elements
        self.has_forces = dataset.structures.forces is not None
        self.unseen_by_backbone = isinstance(potential.backbone, Host)
        self.n_atoms, self.n_pairs = dataset.n_atoms, dataset.n_pairs

    def seconds_per_work(self) -> float | None:
        """Measured for an adopted network: one can be a hundred times slower than another."""
        if not self.unseen_by_backbone or not self.has_forces:
            return None
        batch = next(self.batches(np.arange(1)))
        displaced = torch.zeros_like(batch.graph.positions).repeat(N_TIMED, 1, 1)
        displaced[:, 0, 0] = 1.0
        for _ in range(2):  # the first time is longer
            started = time.process_time()  # other programs on the machine do not count
            list(batch.tangents(displaced))
        seconds = (time.process_time() - started) / torch.get_num_threads()
        return seconds / (N_TIMED * max(1, int(self.n_pairs[0])))

    def batches(self, order: np.ndarray | None = None) -> Iterator["_Batch"]:
        """Batches of about BATCH_ATOMS atoms."""
        order = np.arange(len(self)) if order is None else order
        ends = np.cumsum(self.n_atoms.numpy()[order]) // BATCH_ATOMS
        for part in np.split(order, np.flatnonzero(np.diff(ends)) + 1):
            graph, labels = self.dataset.batch(part)
            yield _Batch(self.potential, self.features, graph, labels, source=self.dataset.structures.source)


class _Batch(ObservedBatch):
    def __init__(
        self, potential: Potential, features: Potential, graph: AtomicGraph, labels: Labels, *, source: str
    ) -> None:
        self.potential, self.features, self.labels, self.source = potential, features, labels, source
        self.graph = potential.backbone.prepare(graph.to(device=potential.device, dtype=potential.dtype))
        self._embeddings: Tensor | None = None

    def embeddings(self) -> Tensor:
        if self._embeddings is None:
            self._embeddings = self.features.embed(self.graph)
        return self._embeddings

    def tangents(self, directions: Tensor) -> Iterator[Tensor]:
        return embedding_tangents(self.features.linear_response(self.graph), self.graph, directions)

    def targets(self) -> tuple[Tensor, Tensor | None]:
        energy, forces = self.potential.normalised_targets(self.graph, self.labels)
        if energy is None:
            raise DataError(f"{self.source}: solving for a head needs energies; the data set has none")
        return energy, forces

    def misses(self) -> tuple[Tensor, Tensor | None]:
        energy, forces = self.targets()
        distribution, _, predicted, _ = self.potential.derivatives(self.graph)
        energy_miss = (energy - distribution.mean).double()
        return energy_miss, None if forces is None else (forces - predicted).double()
