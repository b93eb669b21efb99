"""Which structures are worth a label.

The closed-form LNK is linear in its weights, w ~ N(μ, Σ), and a label of structure j is a few more linear observations
of them: an energy and, as far as the fit counts them, the force components. With R_j their rows and N their noise,

    Σ' = Σ − Σ R_jᵀ (R_j Σ R_jᵀ + N)⁻¹ R_j Σ

is the posterior after that label, whatever its value. So what a label would do to σ is known before it is computed,
exactly, and many labels can be chosen one after the other without a training in between. The one chosen takes away the
largest share of the variance σ² of a force component, on average over all components (rows g) of all candidates, which
count by their σ,

    Σ_g σ · g (Σ − Σ') gᵀ / σ² / Σ_g σ = tr(M (Σ − Σ')),   M = Σ_g gᵀg / σ / Σ_g σ,   σ² = g Σ gᵀ + what weights leave

so that near-copies of a structure that was chosen gain little, and candidates that many others resemble gain most. To
first order this is twice the share of the mean σ that is taken away, and mean errors go as σ does; by variance itself a
few distorted structures, which hold most of it, would be chosen whatever they tell of the others. For the same reason
the noise of a label, which is that of the fit, is larger for structures above the median, in proportion to their
variance: what a model knows least it also represents least well.

| symbol | here |
|---|---|
| R_j, in units of its noise | ``_labels`` (n_rows, n_weights) each |
| g | ``StructureRows.forces`` (3 · n_atoms, n_weights) of each candidate |
| Σ | ``covariance`` (n_weights, n_weights) |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads import LNK
from sigmaff.heads.lnk.head import LabelNoise
from sigmaff.heads.observations import slope_rows
from sigmaff.learning.config import SelectConfig
from sigmaff.models import Model, Potential
from sigmaff.models.solve import LabelledObservations

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
    n: int | None = None,
) -> list[Pick]:
    """At most ``n`` (else ``config.n``) of the candidates, which hold the model's σ (``predict_structures``), in order.

    limit: on the largest force σ of an atom, eV/Å, in units of which the window of σ is; ``None`` leaves it open.
    """
    n = config.n if n is None else n
    std = [largest_std(atoms) for atoms in candidates]
    if config.method == "random":
        drawn = rng.permutation(len(candidates))[:n]
        return [Pick(index=int(index), forces_std=std[index], variance_share=None) for index in drawn]
    known = _known(std)
    inside = np.flatnonzero(_inside(known, config, limit))
    if config.method == "variance_reduction" and (potential := _linear(model)) is not None:
        compared = np.sort(rng.permutation(inside)[: config.max_candidates])
        return _by_variance(potential, candidates, compared, known, n)
    ranked = inside[np.argsort(-known[inside], kind="stable")][:n]
    return [Pick(index=int(index), forces_std=float(known[index]), variance_share=None) for index in ranked]


def largest_std(atoms: Atoms) -> float | None:
    """Largest force σ of an atom, the norm of its components, eV/Å; ``None`` where it was not computed."""
    std = atoms.arrays.get("forces_uncertainty")
    return None if std is None else float(np.linalg.norm(std, axis=1).max())


def in_window(candidates: Sequence[Atoms], config: SelectConfig, limit: float | None) -> int:
    """How many candidates have a σ that qualifies them."""
    return int(_inside(_known([largest_std(atoms) for atoms in candidates]), config, limit).sum())


@torch.no_grad()
def structure_rows(potential: Potential, dataset: GraphDataset) -> Iterator[StructureRows]:
    """Rows of each structure, in order. Constants of a head are computed once within ``head.prepared()``."""
    head = potential.head
    assert isinstance(head, LNK)
    for batch in LabelledObservations(potential, dataset).batches():
        graph, features = batch.graph, batch.embeddings()
        n_atoms = graph.atoms_per_structure()
        energy, _ = head.rows(features, graph)
        directions = unit_displacements(graph.atom_rank(), int(n_atoms.max()), potential.dtype)
        [(gradient, residual)] = slope_rows(batch, [head], features, directions)
        residual = residual.clamp(min=0.0)
        for index, count in enumerate(n_atoms.tolist()):
            yield StructureRows(
                energy=energy[index], forces=-gradient[: 3 * count, index], residual=residual[: 3 * count, index]
            )


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
    potential: Potential, candidates: Sequence[Atoms], compared: np.ndarray, std: np.ndarray, n: int
) -> list[Pick]:
    if not compared.size:
        return []
    head = potential.head
    assert isinstance(head, LNK)
    structures = LabelledStructures(
        structures=tuple(candidates[index] for index in compared),
        energy=None,
        forces=None,
        source="candidates",
        frame_index=compared,
    )
    with torch.no_grad(), head.prepared():
        rows = list(structure_rows(potential, GraphDataset(structures, potential.cutoff, potential.dtype)))
        factor = head.weight_cholesky.tril()
        picks = greedy(rows, factor @ factor.T, head.label_noise, n)
    return [
        Pick(index=int(compared[index]), forces_std=float(std[compared[index]]), variance_share=gain)
        for index, gain in picks
    ]


def _linear(model: Model) -> Potential | None:
    """The potential whose σ is that of a function linear in its weights, if this model is one."""
    linear = isinstance(model, Potential) and isinstance(model.head, LNK) and model.head.covariance == "full"
    return model if linear and isinstance(model, Potential) else None


def _known(std: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    if any(value is None for value in std):
        raise DataError("the model gives no σ of forces to select by; select at random, or use a model that has it")
    return np.array(std, dtype=np.float64)


def _inside(std: np.ndarray, config: SelectConfig, limit: float | None) -> np.ndarray:
    if limit is None:
        return np.full(len(std), True)
    return (std >= config.lower * limit) & (std <= config.upper * limit)
