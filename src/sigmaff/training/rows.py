"""Energies and forces as linear observations of the weights of a function: one row each, on a frozen backbone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sigmaff.data import GraphDataset
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, Labels
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads import LNK
from sigmaff.heads.lnk.kernel import LocalKernel
from sigmaff.models import Potential
from sigmaff.models.force_std import embedding_tangents, unit_displacements
from sigmaff.training.posterior import Rows

BATCH_ATOMS = 300


@dataclass(frozen=True, kw_only=True)
class RowLimit:
    """How many force components a fit looks at. A row takes one derivative of the whole structure."""

    n_rows: int
    work: int  # rows times pairs of their structures

    def share(self, dataset: GraphDataset) -> float:
        """The part of the atoms of every structure whose forces are used."""
        n_atoms, n_pairs = dataset.n_atoms.double(), dataset.n_pairs.double()
        n_rows, work = float(3.0 * n_atoms.sum()), float(3.0 * n_atoms @ n_pairs)
        return min(1.0, self.n_rows / n_rows, self.work / max(work, 1.0))


class LinearFunction(Protocol):
    """A function of the embeddings of atoms, summed over the atoms of a structure, that is linear in its weights."""

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """What multiplies the weights, (n_structures, n_weights), and the variance that it leaves out (n_structures,).

        Embeddings are float64, (n_atoms, n_blocks · n_features).
        """

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The same of the slopes along tangents (c, n_atoms, n_blocks · n_features): one more axis c in front."""


@dataclass(frozen=True, kw_only=True)
class KernelFunction:
    """The Gaussian process of a kernel on what a head compares of embeddings, in the weights of the kernel's basis."""

    kernel: LocalKernel
    head: LNK

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        features, elements = self.head.compared(node_features), self.head.element_index[graph.atomic_numbers]
        summed = scatter_sum(self.kernel.basis(features, elements), graph.structure_index, graph.n_structures)
        return summed, self.kernel.residual(features, elements, summed, graph)

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        features, tangents = self.head.compared(node_features), self.head.compared(tangents)
        elements = self.head.element_index[graph.atomic_numbers]
        slopes = self.kernel.basis_slopes(features, tangents, elements)
        shape = (len(slopes), graph.n_structures, slopes.shape[-1])
        summed = slopes.new_zeros(shape).index_add(1, graph.structure_index, slopes)
        return summed, self.kernel.slope_residual(features, tangents, elements, summed, graph)


def collect_rows(
    potential: Potential, functions: Sequence[LinearFunction], dataset: GraphDataset, limit: RowLimit, seed: int
) -> Iterator[tuple[list[tuple[Rows, Rows | None]], int]]:
    """For each function, energy rows of all structures and force rows of atoms drawn at random from each, by batches.

    With every batch comes its number of structures.
    """
    generator = np.random.default_rng(seed)
    share = limit.share(dataset)
    for graph, labels in batches(dataset, generator.permutation(len(dataset)), potential):
        turn, n_turns = _turns(graph, share, generator)
        yield _batch_rows(potential, functions, graph, labels, turn, n_turns), graph.n_structures


def joined(rows: Sequence[Rows]) -> Rows:
    return Rows(
        features=torch.cat([part.features for part in rows]),
        targets=torch.cat([part.targets for part in rows]),
        residual=torch.cat([part.residual for part in rows]),
    )


@torch.no_grad()
def node_features(potential: Potential, dataset: GraphDataset) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, atomic numbers and structures of all atoms of a data set."""
    graphs = [graph for graph, _ in batches(dataset, np.arange(len(dataset)), potential)]
    features = [potential.backbone(graph) for graph in graphs]
    structure_index = torch.arange(len(dataset)).repeat_interleave(dataset.n_atoms).to(potential.device)
    return torch.cat(features), torch.cat([graph.atomic_numbers for graph in graphs]), structure_index


def batches(dataset: GraphDataset, order: np.ndarray, potential: Potential) -> Iterator[tuple[AtomicGraph, Labels]]:
    """Batches of about BATCH_ATOMS atoms, on the potential's device and in its precision."""
    ends = np.cumsum(dataset.n_atoms.numpy()[order]) // BATCH_ATOMS
    for part in np.split(order, np.flatnonzero(np.diff(ends)) + 1):
        graph, labels = dataset.batch(part)
        yield potential.backbone.prepare(graph.to(device=potential.device, dtype=potential.dtype)), labels


def _turns(graph: AtomicGraph, share: float, generator: np.random.Generator) -> tuple[Tensor, int]:
    """When each atom is moved, in an order drawn for each structure, and the number of turns until enough have been.

    A structure whose share is a fraction of an atom moves one with that probability.
    """
    n_atoms = graph.atoms_per_structure().cpu().numpy()
    wanted = np.floor(share * n_atoms + generator.random(len(n_atoms))).astype(int)
    order = np.concatenate([generator.permutation(n) for n in n_atoms])
    n_turns = int(wanted.max())
    chosen = order < np.repeat(wanted, n_atoms)
    return torch.as_tensor(np.where(chosen, order, n_turns), device=graph.structure_index.device), n_turns


def _batch_rows(
    potential: Potential,
    functions: Sequence[LinearFunction],
    graph: AtomicGraph,
    labels: Labels,
    turn: Tensor,
    n_turns: int,
) -> list[tuple[Rows, Rows | None]]:
    """Rows of one batch for each function: targets are what the backbone's readout misses, in normalised units."""
    energy_target, forces_target = potential.normalised_targets(graph, labels)
    if energy_target is None:
        raise DataError("fitting a head needs energies: the data set has none")
    distribution, features, forces, _ = potential.derivatives(graph)
    energy_miss = (energy_target - distribution.mean).double()
    energy_rows = []
    for function in functions:
        summed, residual = function.rows(features.double(), graph)
        energy_rows.append(Rows(features=summed, targets=energy_miss, residual=residual))
    if forces_target is None or n_turns == 0:
        return [(rows, None) for rows in energy_rows]
    forces_miss = (forces_target - forces).double()
    slopes = _slopes(potential, functions, graph, features, unit_displacements(turn, n_turns, potential.dtype))
    return [
        (rows, _force_rows(summed, residual, forces_miss, turn, n_turns, graph))
        for rows, (summed, residual) in zip(energy_rows, slopes, strict=True)
    ]


def _slopes(
    potential: Potential, functions: Sequence[LinearFunction], graph: AtomicGraph, features: Tensor, directions: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Slope rows of each function along each direction of the positions."""
    parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in functions]
    for tangents in embedding_tangents(potential.backbone, graph, directions):
        for function, collected in zip(functions, parts, strict=True):
            collected.append(function.slope_rows(features.double(), tangents.double(), graph))
    return [(torch.cat([s for s, _ in part]), torch.cat([r for _, r in part])) for part in parts]


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
    )
