"""Which structures are worth a label.

The closed-form LNK is linear in its weights, w ~ N(μ, Σ), and a label of structure j is a few more linear observations
of them: an energy and, as far as the fit counts them, the force components. With R_j their rows and N their noise,

    Σ' = Σ − Σ R_jᵀ (R_j Σ R_jᵀ + N)⁻¹ R_j Σ

is the posterior after that label, whatever its value. So what a label would do to σ is known before it is computed,
exactly, and many labels can be chosen one after the other without a training in between. The one chosen lowers

    Σ_i tr(G_i Σ G_iᵀ) = tr(M Σ),   M = Σ_i G_iᵀ G_i

most, the variance of all force components (rows G_i) of all candidates i: near-copies of a structure that was chosen
gain nothing, and candidates that many others resemble gain most.

| symbol | here |
|---|---|
| R_j | ``Rows.label`` (n_rows, n_weights) |
| G_i | ``Rows.forces`` (3 · n_atoms, n_weights) |
| Σ | ``covariance`` (n_weights, n_weights) |
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.heads import LNK
from sigmaff.learning.config import SelectConfig
from sigmaff.ops import scatter_sum
from sigmaff.potential import Model, Potential
from sigmaff.potential.forces_std import embedding_tangents, unit_displacements
from sigmaff.training.rows import batches


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A structure that was chosen."""

    index: int  # among the candidates
    forces_std: float | None  # eV/Å, largest of an atom
    variance_share: float | None  # of all candidates' force variance, that its label takes away; None: not computed


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A structure as linear observations of the weights, in the model's normalised unit."""

    energy: Tensor  # (n_weights,)
    forces: Tensor  # (3 · n_atoms, n_weights)

    def label(self, noise: "Noise") -> Tensor:
        """The rows that a label adds, each in units of its noise."""
        energy = self.energy[None] / noise.energy**0.5
        return energy if noise.forces is None else torch.cat([energy, self.forces / noise.forces**0.5])


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Variance of the noise of labels as the fit of the head has it, normalised."""

    energy: float
    forces: float | None  # None: force labels do not inform the variance


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


def label_noise(potential: Potential) -> Noise:
    """From the record of the closed form, or from a variational head's own noise."""
    head, fit = potential.head, potential.record.get("fit", {})
    assert isinstance(head, LNK)
    if "noise" not in fit:
        return Noise(energy=math.exp(2.0 * head.log_noise.item()), forces=None)
    prior = math.exp(2.0 * head.kernel.log_scale.item())
    energy, weight = prior * fit["noise"], fit["force_weight"]
    return Noise(energy=energy, forces=energy / weight if weight > 0 else None)


@torch.no_grad()
def structure_rows(potential: Potential, dataset: GraphDataset) -> Iterator[Rows]:
    """Rows of each structure, in order. Constants of a head are computed once within ``head.prepared()``."""
    head = potential.head
    assert isinstance(head, LNK)
    for graph, _ in batches(dataset, np.arange(len(dataset)), potential):
        nodes, elements = potential.backbone(graph), head.element_index[graph.atomic_numbers]
        features, n_atoms = head.compared(nodes), graph.atoms_per_structure()
        energy = scatter_sum(head.kernel.basis(features, elements), graph.structure_index, graph.n_structures)
        directions = unit_displacements(graph.atom_rank(), int(n_atoms.max()), potential.dtype)
        slopes = []
        for tangents in embedding_tangents(potential.backbone, graph, directions):
            by_atom = head.kernel.basis_slopes(features, head.compared(tangents), elements)
            shape = (len(by_atom), graph.n_structures, by_atom.shape[-1])
            slopes.append(by_atom.new_zeros(shape).index_add(1, graph.structure_index, by_atom))
        gradient = torch.cat(slopes)  # (3 · largest n_atoms, n_structures, n_weights)
        for index, count in enumerate(n_atoms.tolist()):
            yield Rows(energy=energy[index], forces=-gradient[: 3 * count, index])


def greedy(rows: Sequence[Rows], covariance: Tensor, noise: Noise, n: int) -> list[tuple[int, float]]:
    """Indices in the order of choice, each with the force variance of all candidates that its label takes away."""
    target = torch.stack([part.forces.T @ part.forces for part in rows]).sum(0)  # M
    labels = [part.label(noise) for part in rows]
    picks: list[tuple[int, float]] = []
    left = list(range(len(rows)))
    while left and len(picks) < n:
        weighted = covariance @ target @ covariance
        gains = [_gain(labels[index], covariance, weighted) for index in left]
        best = int(np.argmax(gains))
        index = left.pop(best)
        picks.append((index, gains[best]))
        covariance = _updated(covariance, labels[index])
    return picks


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
        before = sum(float((part.forces @ factor).square().sum()) for part in rows)
        picks = greedy(rows, factor @ factor.T, label_noise(potential), n)
    return [
        Pick(index=int(compared[index]), forces_std=float(std[compared[index]]), variance_share=gain / before)
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
