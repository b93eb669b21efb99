"""The label that takes most variance of forces from all candidates together, in closed form.

The closed-form LNK is linear in its weights, w ~ N(μ, Σ), beside a residual of each observation's own. A label of
structure j adds observations of the weights: an energy and, if the fit uses them, the force components. With R_j their
rows and N the noise of labels plus their residual,

    Σ' = Σ − Σ R_jᵀ (R_j Σ R_jᵀ + N)⁻¹ R_j Σ

is the posterior after that label, for any value of it. So the effect of a label on σ is known before it is computed.
The chosen one takes away the largest share of the variance σ² of a force component, on average over all components
(rows g) of all candidates, weighted by their σ,

    Σ_g σ · (g (Σ − Σ') gᵀ + [g of j] residual_g) / σ² / Σ_g σ,      σ² = g Σ gᵀ + residual_g

so that near-copies of a chosen structure gain little, and candidates that resemble many others gain most. To first
order this is twice the share of the mean σ that is taken away. Weighted by variance, a few distorted structures would
be chosen even if they say nothing about the others.

| symbol | here |
|---|---|
| R_j, N | ``_Label.rows`` (n_rows, n_weights), ``_Label.noise`` (n_rows,) |
| g | ``StructureRows.forces`` (3 · n_atoms, n_weights) of each candidate |
| Σ | ``covariance`` (n_weights, n_weights) |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from ase import Atoms
from torch import Tensor

from sigmaff.data import GraphDataset, label_structures
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads import LNK
from sigmaff.heads.lnk.head import LabelNoise
from sigmaff.heads.observations import slope_rows
from sigmaff.models import Potential
from sigmaff.models.solve import LabelledObservations
from sigmaff.simulation import bare_copy

VANISHING = 1e-8
"""Variance of a force component, over the mean, below which it is rounding."""


@dataclass(frozen=True, kw_only=True)
class StructureRows:
    """A structure as linear observations of the weights, in the model's normalised unit."""

    energy: Tensor  # (n_weights,)
    energy_residual: Tensor  # () variance that the weights leave out
    forces: Tensor  # (3 · n_atoms, n_weights)
    residual: Tensor  # (3 · n_atoms,) variance of forces that the weights leave out


@dataclass(frozen=True, kw_only=True)
class _Label:
    rows: Tensor  # (n_rows, n_weights)
    noise: Tensor  # (n_rows,)

    def evidence(self, covariance: Tensor) -> Tensor:
        """R Σ Rᵀ + N."""
        return self.rows @ covariance @ self.rows.T + torch.diag(self.noise)


@torch.no_grad()
def by_variance_reduction(
    potential: Potential, candidates: Sequence[Atoms], n: int, cost: Tensor
) -> list[tuple[int, float]]:
    """Indices in the order of choice, each with the share of the variance of forces that its label takes away.

    Arguments:
        potential: with an LNK or LLPR head of full covariance.
        cost: of each label, in any unit, (n_candidates,).
    """
    head = potential.head
    assert isinstance(head, LNK)
    structures = label_structures([bare_copy(atoms) for atoms in candidates], ())
    with head.prepared():
        rows = list(structure_rows(potential, GraphDataset(structures, potential.cutoff, potential.dtype)))
        factor = head.spread(torch.eye(head.n_weights, dtype=torch.float64, device=head.weight_mean.device))
        return greedy(rows, factor @ factor.T, head.label_noise, n, cost)


@torch.no_grad()
def structure_rows(potential: Potential, dataset: GraphDataset) -> Iterator[StructureRows]:
    """Rows of each structure, in order. Constants of a head are computed once within ``head.prepared()``."""
    head = potential.head
    assert isinstance(head, LNK)
    for batch in LabelledObservations(potential, dataset).batches():
        graph, features = batch.graph, batch.embeddings()
        n_atoms = graph.atoms_per_structure()
        energy, energy_residual = head.rows(features, graph)
        directions = unit_displacements(graph.atom_rank(), int(n_atoms.max()), graph.positions.dtype)
        [(gradient, residual)] = slope_rows(batch, [head], features, directions)
        for index, n in enumerate((3 * n_atoms).tolist()):
            yield StructureRows(
                energy=energy[index],
                energy_residual=energy_residual[index].clamp(min=0.0),
                forces=-gradient[:n, index],
                residual=residual[:n, index].clamp(min=0.0),
            )


def greedy(
    rows: Sequence[StructureRows], covariance: Tensor, noise: LabelNoise, n: int, cost: Tensor
) -> list[tuple[int, float]]:
    """As ``by_variance_reduction``. covariance: Σ (n_weights, n_weights)."""
    labels = [_label(part, noise) for part in rows]
    forces, residual = torch.cat([part.forces for part in rows]), torch.cat([part.residual for part in rows])
    owner = torch.cat([torch.full_like(part.residual, index, dtype=torch.int64) for index, part in enumerate(rows)])
    picks: list[tuple[int, float]] = []
    left = list(range(len(rows)))
    while left and len(picks) < n:
        target, own = _target(forces, residual, covariance, owner)
        weighted = covariance @ target @ covariance
        gains = {index: _gain(labels[index], covariance, weighted) + float(own[index]) for index in left}
        index = max(left, key=lambda index: gains[index] / float(cost[index]))
        left.remove(index)
        picks.append((index, gains[index]))
        covariance = _updated(covariance, labels[index])
        residual = residual.masked_fill(owner == index, 0.0)
    return picks


def _label(part: StructureRows, noise: LabelNoise) -> _Label:
    rows, variance = part.energy[None], part.energy_residual[None] + noise.energy
    if noise.forces is not None:
        rows = torch.cat([rows, part.forces])
        variance = torch.cat([variance, part.residual + noise.forces])
    return _Label(rows=rows, noise=variance)


def _target(forces: Tensor, residual: Tensor, covariance: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """M with tr(M (Σ − Σ')) the share taken by the weights, and the share of each structure's residual.

    Forces that vanish by symmetry have no variance to take away.
    """
    variances = residual + ((forces @ covariance) * forces).sum(1)
    counted = variances > VANISHING * variances.mean()
    forces, std = forces[counted], variances[counted].sqrt()
    own = residual.new_zeros(int(owner.max()) + 1).index_add(0, owner[counted], residual[counted] / std)
    return (forces / std[:, None]).T @ forces / std.sum(), own / std.sum()


def _gain(label: _Label, covariance: Tensor, weighted: Tensor) -> float:
    """tr(M (Σ − Σ'))."""
    return float(torch.trace(torch.linalg.solve(label.evidence(covariance), label.rows @ weighted @ label.rows.T)))


def _updated(covariance: Tensor, label: _Label) -> Tensor:
    """Σ'."""
    crossed = label.rows @ covariance
    updated = covariance - crossed.T @ torch.linalg.solve(label.evidence(covariance), crossed)
    return 0.5 * (updated + updated.T)
