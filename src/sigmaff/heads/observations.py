"""What a fit sees of data and potential: labels as linear observations of a function's weights, on a frozen backbone.

Energies, forces and misses are in the normalised unit of the potential. A *miss* is a label less the prediction of the
backbone's own readout.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import unit_displacements
from sigmaff.progress import Counter

DETERMINED = 1e-10
"""Rows whose prior variance is below this fraction of the mean are determined by symmetry."""


class Embeddings(NamedTuple):
    """Embeddings of all atoms of a data set."""

    node_features: Tensor  # (n_atoms, n_blocks · n_features)
    atomic_numbers: Tensor  # (n_atoms,)
    structure_index: Tensor  # (n_atoms,)


class LinearFunction(Protocol):
    """A function of the embeddings of atoms, summed over the atoms of a structure, that is linear in its weights."""

    @property
    def n_weights(self) -> int: ...

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The factors of the weights, and the prior variance that the weights leave out.

        node_features (n_atoms, n_blocks · n_features) -> (n_structures, n_weights), (n_structures,), float64.
        """

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The same for slopes along tangents (c, n_atoms, n_blocks · n_features): one more axis c in front."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Observations of one kind: factors of the weights, misses, and prior variance that the weights leave out."""

    features: Tensor  # (n_rows, n_weights)
    targets: Tensor  # (n_rows,)
    residual: Tensor  # (n_rows,)
    structures: Tensor  # (n_rows,) number of the structure that a row is of

    @classmethod
    def joined(cls, parts: Sequence["Rows"], n_structures: Sequence[int]) -> Self:
        """Of several batches with these numbers of structures."""
        first = accumulate(n_structures, initial=0)
        return cls(
            structures=torch.cat([part.structures + start for part, start in zip(parts, first, strict=False)]),
            features=torch.cat([part.features for part in parts]),
            targets=torch.cat([part.targets for part in parts]),
            residual=torch.cat([part.residual for part in parts]),
        )

    def __getitem__(self, index: Tensor) -> Self:
        return replace(
            self,
            features=self.features[index],
            targets=self.targets[index],
            residual=self.residual[index],
            structures=self.structures[index],
        )

    def scaled(self, scales: Tensor) -> Self:
        return replace(self, features=self.features * scales)

    def of(self, weights: Tensor) -> Self:
        """With the factors of some of the weights."""
        return replace(self, features=self.features[:, weights])

    def undetermined(self) -> Self:
        """Without rows that symmetry determines, such as the force on an isolated atom: they say nothing about σ."""
        prior = self.residual.clamp(min=0.0) + self.features.square().sum(-1)
        return self[prior > DETERMINED * prior.mean()]


@dataclass(frozen=True, kw_only=True)
class RowLimit:
    """The largest number of force components that a fit uses. A row takes one derivative of the whole structure."""

    n_rows: int
    work: int  # rows times pairs of their structures
    seconds: float = math.inf  # for all rows, where the time of one is measured

    def share(self, n_atoms: Tensor, n_pairs: Tensor, seconds_per_work: float | None = None) -> float:
        """The fraction of the atoms of every structure whose forces are used.

        Arguments:
            n_atoms, n_pairs: of each structure, (n_structures,).
            seconds_per_work: time of a row over the pairs of its structure. A share that follows from it is a power of
                √2, so that it seldom depends on how busy the machine is.
        """
        n_atoms, n_pairs = n_atoms.double(), n_pairs.double()
        n_rows, work = float(3.0 * n_atoms.sum()), max(float(3.0 * n_atoms @ n_pairs), 1.0)
        share = min(1.0, self.n_rows / n_rows, self.work / work)
        if seconds_per_work is None or (in_time := self.seconds / (seconds_per_work * work)) >= share:
            return share
        return 2.0 ** (math.floor(2.0 * math.log2(in_time)) / 2.0)


TRAINING_ROWS = RowLimit(n_rows=30_000, work=5_000_000, seconds=90.0)
HELD_OUT_ROWS = RowLimit(n_rows=6_000, work=1_000_000, seconds=20.0)


class ObservedBatch(ABC):
    """Some structures with their labels, on the device and in the precision of the potential."""

    graph: AtomicGraph

    @abstractmethod
    def embeddings(self) -> Tensor:
        """(n_atoms, n_blocks · n_features)."""

    @abstractmethod
    def tangents(self, directions: Tensor) -> Iterator[Tensor]:
        """Derivatives of the embeddings along displacements (n, n_atoms, 3), in parts that bound memory."""

    @abstractmethod
    def targets(self) -> tuple[Tensor, Tensor | None]:
        """Energies (n_structures,) and forces (n_atoms, 3) to learn; forces are None where they are not labelled."""

    @abstractmethod
    def misses(self) -> tuple[Tensor, Tensor | None]:
        """Targets less the prediction of the backbone's own readout, float64."""


class Observations(ABC):
    """Labelled structures on a frozen backbone."""

    scale: float  # eV per normalised unit
    elements: tuple[int, ...]  # atomic numbers, in order
    has_forces: bool
    unseen_by_backbone: bool  # whether these labels had no part in the weights of the backbone
    n_atoms: Tensor  # (n_structures,)
    n_pairs: Tensor  # (n_structures,)

    def __len__(self) -> int:
        return len(self.n_atoms)

    @abstractmethod
    def batches(self, order: np.ndarray | None = None) -> Iterator[ObservedBatch]:
        """The structures in this order (default: their own), a few at a time."""

    def seconds_per_work(self) -> float | None:
        """Of a force row, over the pairs of its structure; ``None``: as fast as our own networks."""
        return None

    @torch.no_grad()
    def embeddings(self) -> Embeddings:
        batches = list(self.batches())
        features = torch.cat([batch.embeddings() for batch in batches])
        structure_index = torch.arange(len(self)).repeat_interleave(self.n_atoms).to(features.device)
        return Embeddings(features, torch.cat([batch.graph.atomic_numbers for batch in batches]), structure_index)

    def rows(
        self, functions: Sequence[LinearFunction], limit: RowLimit, seed: int
    ) -> Iterator[tuple[list[tuple[Rows, Rows | None]], int]]:
        """By batches in random order: energy and force rows for each function, and the number of structures.

        Energies are those of all structures, forces those of atoms drawn at random from each structure.
        """
        generator = np.random.default_rng(seed)
        share = limit.share(self.n_atoms, self.n_pairs, self.seconds_per_work())
        for batch in self.batches(generator.permutation(len(self))):
            turn, n_turns = _turns(batch.graph, share, generator)
            yield _batch_rows(batch, functions, turn, n_turns), batch.graph.n_structures

    def undetermined_rows(
        self, functions: Sequence[LinearFunction], limit: RowLimit, seed: int, counter: Counter
    ) -> list[list[Rows]]:
        """For each function its energy rows, then its force rows, without those that symmetry determines.

        A kind without rows is left out.
        """
        kinds: list[tuple[list[Rows], list[Rows]]] = [([], []) for _ in functions]
        sizes: list[int] = []
        for rows, n_structures in self.rows(functions, limit, seed):
            for (energies, forces), (energy_rows, force_rows) in zip(kinds, rows, strict=True):
                energies.append(energy_rows)
                forces.append(energy_rows[energy_rows.structures[:0]] if force_rows is None else force_rows)
            sizes.append(n_structures)
            counter.add(n_structures)
        found = [[Rows.joined(parts, sizes).undetermined() for parts in kind] for kind in kinds]
        return [[rows for rows in kind if len(rows.targets)] for kind in found]


def slope_rows(
    batch: ObservedBatch, functions: Sequence[LinearFunction], features: Tensor, directions: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Slope rows of each function along each direction (n, n_atoms, 3) of the positions."""
    parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in functions]
    for tangents in batch.tangents(directions):
        for function, collected in zip(functions, parts, strict=True):
            collected.append(function.slope_rows(features, tangents, batch.graph))
    return [(torch.cat([s for s, _ in part]), torch.cat([r for _, r in part])) for part in parts]


def _turns(graph: AtomicGraph, share: float, generator: np.random.Generator) -> tuple[Tensor, int]:
    """When each atom is moved, in an order drawn for each structure, and the number of turns.

    A structure whose share is a fraction of an atom moves one with that probability.
    """
    n_atoms = graph.atoms_per_structure().cpu().numpy()
    wanted = np.floor(share * n_atoms + generator.random(len(n_atoms))).astype(int)
    order = np.concatenate([generator.permutation(n) for n in n_atoms])
    n_turns = int(wanted.max())
    chosen = order < np.repeat(wanted, n_atoms)
    return torch.as_tensor(np.where(chosen, order, n_turns), device=graph.structure_index.device), n_turns


def _batch_rows(
    batch: ObservedBatch, functions: Sequence[LinearFunction], turn: Tensor, n_turns: int
) -> list[tuple[Rows, Rows | None]]:
    energy_miss, forces_miss = batch.misses()
    features = batch.embeddings()
    energy_rows = []
    for function in functions:
        summed, residual = function.rows(features, batch.graph)
        each = torch.arange(batch.graph.n_structures, device=residual.device)
        energy_rows.append(Rows(features=summed, targets=energy_miss, residual=residual, structures=each))
    if forces_miss is None or n_turns == 0:
        return [(rows, None) for rows in energy_rows]
    directions = unit_displacements(turn, n_turns, batch.graph.positions.dtype)
    return [
        (rows, _force_rows(summed, residual, forces_miss, turn, n_turns, batch.graph))
        for rows, (summed, residual) in zip(
            energy_rows, slope_rows(batch, functions, features, directions), strict=True
        )
    ]


def _force_rows(
    summed: Tensor, residual: Tensor, forces_miss: Tensor, turn: Tensor, n_turns: int, graph: AtomicGraph
) -> Rows:
    """One row for each force component of the atoms that were moved, in the order of atoms."""
    moved = turn < n_turns
    direction = 3 * turn[moved, None] + torch.arange(3, device=turn.device)
    structure = graph.structure_index[moved, None].expand(-1, 3)
    return Rows(
        features=-summed[direction, structure].flatten(0, 1),
        targets=forces_miss[moved].flatten(),
        residual=residual[direction, structure].flatten(),
        structures=structure.flatten(),
    )
