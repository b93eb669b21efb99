"""Which structures are worth a label.

The closed-form LNK is linear in its weights, w ~ N(μ, Σ). A label of structure j adds linear observations of them: an
energy and, if the fit uses them, the force components. With R_j their rows and N their noise,

    Σ' = Σ − Σ R_jᵀ (R_j Σ R_jᵀ + N)⁻¹ R_j Σ

is the posterior after that label, for any value of it. So the effect of a label on σ can be estimated before it is
computed, and many labels can be chosen one after the other without a training in between. The chosen one takes away
the largest share of the variance σ² of a force component, on average over all components (rows g) of all candidates,
weighted by their σ,

    Σ_g σ · g (Σ − Σ') gᵀ / σ² / Σ_g σ = tr(M (Σ − Σ')),   M = Σ_g gᵀg / σ / Σ_g σ,   σ² = g Σ gᵀ + residual

so that near-copies of a chosen structure gain little, and candidates that resemble many others gain most. To first
order this is twice the share of the mean σ that is taken away, and mean errors scale with σ. Weighted by variance, a
few distorted structures, which hold most of it, would be chosen even if they say nothing about the others. For the same
reason N is heuristic: the noise of the fit, but for structures above the median of variance larger in proportion to
their variance, because what a model knows least it also represents least well. No fit does so. After a fit, less
variance is left of those structures than Σ' says; where the noise is not enlarged, exactly as much.

| symbol | here |
|---|---|
| R_j, in units of its noise | ``_labels`` (n_rows, n_weights) each |
| g | ``StructureRows.forces`` (3 · n_atoms, n_weights) of each candidate |
| Σ | ``covariance`` (n_weights, n_weights) |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from sigmaff.data import GraphDataset, label_structures
from sigmaff.errors import DataError
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads import LNK
from sigmaff.heads.lnk.head import LabelNoise
from sigmaff.heads.observations import slope_rows
from sigmaff.learning.config import SelectConfig
from sigmaff.models import Model, Potential
from sigmaff.models.solve import LabelledObservations
from sigmaff.simulation import bare_copy

VANISHING = 1e-8
"""Variance of a force component, over the mean, below which it is rounding."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A structure that was chosen."""

    index: int  # among the candidates
    forces_std: float | None  # eV/Å, largest of an atom
    variance_share: float | None  # of force components, that its label takes away; None: not computed


@dataclass(frozen=True, kw_only=True)
class StructureRows:
    """A structure as linear observations of the weights, in the model's normalised unit."""

    energy: Tensor  # (n_weights,)
    forces: Tensor  # (3 · n_atoms, n_weights)
    residual: Tensor  # (3 · n_atoms,) variance of forces that the weights leave out: labels do not reduce it


def select(
    model: Model,
    candidates: Sequence[Atoms],
    config: SelectConfig,
    *,
    limit: float | None,
    rng: np.random.Generator,
) -> list[Pick]:
    """At most ``config.n`` of the candidates, in the order of choice.

    Arguments:
        candidates: with the model's σ (``predict_structures``).
        limit: on the largest force σ of an atom, eV/Å: the unit of the window of σ; ``None``: no window.
    """
    chosen: Sequence[tuple[int, float | None]]
    if config.method == "random":
        chosen = [(index, None) for index in rng.permutation(len(candidates))[: config.n].tolist()]
    else:
        std = in_window(candidates, config, limit)
        chosen = [(index, None) for index in sorted(std, key=lambda index: std[index], reverse=True)[: config.n]]
        is_linear = isinstance(model, Potential) and isinstance(model.head, LNK) and model.head.covariance == "full"
        if std and is_linear and config.method == "variance_reduction":
            compared = np.sort(rng.permutation(list(std))[: config.max_candidates]).tolist()
            chosen = _by_variance(model.potentials[0], candidates, compared, config.n)
    return [
        Pick(index=index, forces_std=largest_std(candidates[index]), variance_share=share) for index, share in chosen
    ]


def largest_std(atoms: Atoms) -> float | None:
    """Largest force σ of an atom, the norm of its components, eV/Å; ``None`` where it was not computed."""
    std = atoms.arrays.get("forces_uncertainty")
    return None if std is None else float(np.linalg.norm(std, axis=1).max())


def in_window(candidates: Sequence[Atoms], config: SelectConfig, limit: float | None) -> dict[int, float]:
    """The candidates that qualify: largest force σ by index, eV/Å."""
    lower, upper = (0.0, np.inf) if limit is None else (config.lower * limit, config.upper * limit)
    found = {}
    for index, std in enumerate(map(largest_std, candidates)):
        if std is None:
            raise DataError("the model gives no σ of forces to select by; select at random, or use a model that has it")
        if lower <= std <= upper:
            found[index] = std
    return found


@torch.no_grad()
def structure_rows(potential: Potential, dataset: GraphDataset) -> Iterator[StructureRows]:
    """Rows of each structure, in order. Constants of a head are computed once within ``head.prepared()``."""
    head = potential.head
    assert isinstance(head, LNK)
    for batch in LabelledObservations(potential, dataset).batches():
        graph, features = batch.graph, batch.embeddings()
        n_atoms = graph.atoms_per_structure()
        energy, _ = head.rows(features, graph)
        directions = unit_displacements(graph.atom_rank(), int(n_atoms.max()), graph.positions.dtype)
        [(gradient, residual)] = slope_rows(batch, [head], features, directions)
        forces, residual = -gradient, residual.clamp(min=0.0)
        for index, n in enumerate((3 * n_atoms).tolist()):
            yield StructureRows(energy=energy[index], forces=forces[:n, index], residual=residual[:n, index])


def greedy(rows: Sequence[StructureRows], covariance: Tensor, noise: LabelNoise, n: int) -> list[tuple[int, float]]:
    """Indices in the order of choice, each with the share of the variance of forces that its label takes away."""
    labels = _labels(rows, covariance, noise)
    forces, residual = torch.cat([part.forces for part in rows]), torch.cat([part.residual for part in rows])
    picks: list[tuple[int, float]] = []
    left = list(range(len(rows)))
    while left and len(picks) < n:
        weighted = covariance @ _target(forces, residual + _explained(forces, covariance)) @ covariance
        gains = [_gain(labels[index], covariance, weighted) for index in left]
        best = int(np.argmax(gains))
        index = left.pop(best)
        picks.append((index, gains[best]))
        covariance = _updated(covariance, labels[index])
    return picks


def _labels(rows: Sequence[StructureRows], covariance: Tensor, noise: LabelNoise) -> list[Tensor]:
    """The rows that each label adds, in units of their noise."""
    variances = torch.stack([(part.residual + _explained(part.forces, covariance)).mean() for part in rows])
    inflation = (variances / variances.median()).clamp(min=1.0)
    labels = []
    for part, factor in zip(rows, inflation.sqrt(), strict=True):
        energy = part.energy[None] / noise.energy**0.5
        label = energy if noise.forces is None else torch.cat([energy, part.forces / noise.forces**0.5])
        labels.append(label / factor)
    return labels


def _target(forces: Tensor, variances: Tensor) -> Tensor:
    """M. Forces that vanish by symmetry have no variance to take away."""
    counted = variances > VANISHING * variances.mean()
    std = variances[counted].sqrt()
    return (forces[counted] / std[:, None]).T @ forces[counted] / std.sum()


def _explained(forces: Tensor, covariance: Tensor) -> Tensor:
    """Variance of forces that comes from that of the weights."""
    return ((forces @ covariance) * forces).sum(1)


def _gain(label: Tensor, covariance: Tensor, weighted: Tensor) -> float:
    """tr(M (Σ − Σ'))."""
    return float(torch.trace(torch.linalg.solve(_evidence(label, covariance), label @ weighted @ label.T)))


def _updated(covariance: Tensor, label: Tensor) -> Tensor:
    """Σ'."""
    crossed = label @ covariance
    updated = covariance - crossed.T @ torch.linalg.solve(_evidence(label, covariance), crossed)
    return 0.5 * (updated + updated.T)


def _evidence(label: Tensor, covariance: Tensor) -> Tensor:
    """R Σ Rᵀ + N, in units of the noise."""
    return label @ covariance @ label.T + torch.eye(len(label), dtype=label.dtype, device=label.device)


def _by_variance(
    potential: Potential, candidates: Sequence[Atoms], compared: Sequence[int], n: int
) -> list[tuple[int, float]]:
    head = potential.head
    assert isinstance(head, LNK)
    structures = label_structures([bare_copy(candidates[index]) for index in compared], ())
    with torch.no_grad(), head.prepared():
        rows = list(structure_rows(potential, GraphDataset(structures, potential.cutoff, potential.dtype)))
        factor = head.weight_cholesky.tril()
        picks = greedy(rows, factor @ factor.T, head.label_noise, n)
    return [(compared[index], gain) for index, gain in picks]
