"""What two candidates have in common, as far as a model knows: the covariance of their energies, and batches from it.

Given the labels so far, energies of candidates are not known: each has a variance, and two of them a covariance

    K = R Rᵀ + residual

| model | R, a row for each candidate | residual |
|---|---|---|
| LNK, LLPR (full covariance) | Σ_i φ_i C, with C Cᵀ the covariance of the weights | what the weights leave out |
| shallow ensemble, SVGP | deviations of the energy in its samples, over √n | diagonal: a share 1/n of the variance |
| ensemble of networks | deviations of the energy in its members, over √(n − 1) | the same, and the members' own σ² |

The residual of an LNK is large where a kernel that falls off with distance meets what its inducing points do not cover.
Near-copies share it. Its covariance follows from variances alone: Var(E₁ + E₂) = V₁ + V₂ + 2 Cov, of the atoms of two
structures taken as one. With n samples the correlation of two independent energies is 1/√n by chance. So a share 1/n of
the variance counts as a structure's own, which a label of another structure does not reduce. Monte Carlo dropout has no
such rows: its masks follow from the place in a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from ase import Atoms
from torch import Tensor

from sigmaff.data import GraphDataset, label_structures
from sigmaff.graph import AtomicGraph
from sigmaff.heads import LNK
from sigmaff.models import Ensemble, Model, Potential
from sigmaff.models.solve import LabelledObservations
from sigmaff.simulation import bare_copy

BATCH_SIZE = 64
NEGLIGIBLE = 0.1
"""Share of a variance below which a residual is taken as a structure's own."""
MAX_COMPARED = 1000
"""Candidates whose residuals are compared, those of the largest: this bounds time. Those of others are their own."""
Choices = list[tuple[int, float]]
"""Indices of candidates in the order of choice, each with the share of its variance that earlier choices leave."""


@dataclass(frozen=True, kw_only=True)
class EnergyCovariance:
    """Of the energies of candidates given the labels so far, in a unit of the model's own."""

    rows: Tensor  # R (n, p)
    residual: Tensor  # its diagonal (n,)
    noise: float  # variance of the noise of a label
    residual_column: Callable[[int], Tensor] | None = None  # None: it is diagonal

    def variances(self) -> Tensor:
        return self.rows.square().sum(1) + self.residual

    def column(self, index: int) -> Tensor:
        """Covariance of each energy with that of one candidate."""
        column = self.rows @ self.rows[index]
        if self.residual_column is not None:
            return column + self.residual_column(index)
        column[index] += self.residual[index]
        return column


def max_det(covariance: EnergyCovariance, n: int, cost: Tensor) -> Choices:
    """One by one the candidate whose label says most per cost, given the labels of those chosen before.

    A label of a candidate of variance v says ½ log(1 + v/noise), by which the log-determinant of K/noise + 1 of the
    chosen grows. At equal costs this is the candidate of largest variance: a pivoted Cholesky factorisation of
    K + noise, of which no more than n columns are computed.

    Arguments:
        n: candidates to choose, at most.
        cost: of each label, in any unit, (n_candidates,).
    """
    first = covariance.variances()
    left, variance, choices = torch.ones_like(first, dtype=torch.bool), first.clone(), Choices()
    factor = first.new_zeros(len(first), min(n, len(first)))
    for step in range(factor.shape[1]):
        index = _best(variance / covariance.noise, cost, left)
        left[index] = False
        choices.append((index, _share(variance[index], first[index])))
        column = covariance.column(index) - factor @ factor[index]
        factor[:, step] = column / (variance[index] + covariance.noise).sqrt()
        variance = (variance - factor[:, step].square()).clamp(min=0.0)
    return choices


def k_centre(covariance: EnergyCovariance, n: int, cost: Tensor) -> Choices:
    """One by one the candidate that is farthest from all that have a label, those chosen before included.

    The squared distance of two candidates is the variance of the difference of their energies. Labelled structures have
    next to no variance left: the distance from them is the candidate's own variance. Arguments as of ``max_det``.
    """
    variance = covariance.variances()
    left, squared, choices = torch.ones_like(variance, dtype=torch.bool), variance.clone(), Choices()
    for _ in range(min(n, len(variance))):
        index = _best(squared / covariance.noise, cost, left)
        left[index] = False
        choices.append((index, _share(squared[index], variance[index])))
        between = variance + variance[index] - 2.0 * covariance.column(index)
        squared = torch.minimum(squared, between.clamp(min=0.0))
    return choices


def _best(in_noise: Tensor, cost: Tensor, left: Tensor) -> int:
    """Where information per cost is largest, among those left."""
    return int((0.5 * torch.log1p(in_noise) / cost).masked_fill(~left, -torch.inf).argmax())


def _share(variance: Tensor, first: Tensor) -> float:
    return float(variance / first) if first > 0 else 0.0


@torch.no_grad()
def energy_covariance(model: Model, candidates: Sequence[Atoms]) -> EnergyCovariance:
    """Of a model for which ``has_covariance``."""
    structures = label_structures([bare_copy(atoms) for atoms in candidates], ())
    dataset = GraphDataset(structures, model.cutoff, model.dtype)
    if isinstance(model, Ensemble):
        return _of_members(model, dataset)
    assert isinstance(model, Potential)
    return (_of_weights if is_linear(model) else _of_samples)(model, dataset)


def has_covariance(model: Model) -> bool:
    """Whether a model knows how the energies of two structures vary together."""
    return isinstance(model, Ensemble) or (isinstance(model, Potential) and "sampled" in model.head.force_std_methods)


def is_linear(model: Model) -> bool:
    """Whether energies are linear in weights of known covariance."""
    return isinstance(model, Potential) and isinstance(model.head, LNK) and model.head.covariance == "full"


def _of_weights(model: Potential, dataset: GraphDataset) -> EnergyCovariance:
    head = model.head
    assert isinstance(head, LNK)
    rows, residuals, atoms = [], [], []
    with head.prepared():
        for batch in LabelledObservations(model, dataset).batches():
            features, graph = batch.embeddings(), batch.graph
            summed, residual = head.rows(features, graph)
            rows.append(head.spread(summed))
            residuals.append(residual.clamp(min=0.0))
            sizes = graph.atoms_per_structure().tolist()
            atoms += list(zip(features.split(sizes), graph.atomic_numbers.split(sizes), strict=True))
    found = EnergyCovariance(rows=torch.cat(rows), residual=torch.cat(residuals), noise=head.label_noise.energy)
    large = (found.residual > NEGLIGIBLE * found.variances()).nonzero().flatten()
    compared = large[found.residual[large].argsort(descending=True)[:MAX_COMPARED]].tolist()
    return replace(found, residual_column=_Residuals(head, atoms, found.residual, compared).column)


@dataclass(frozen=True)
class _Residuals:
    """What the weights of an LNK leave out of the energies of candidates."""

    head: LNK
    atoms: list[tuple[Tensor, Tensor]]  # features and atomic numbers of each candidate
    variance: Tensor  # (n,)
    compared: list[int]  # candidates that may share it; it is diagonal for all others

    @torch.no_grad()
    def column(self, index: int) -> Tensor:
        """Covariance with one candidate, (n,)."""
        column = torch.zeros_like(self.variance)
        column[index] = self.variance[index]
        others = [k for k in self.compared if k != index] if index in self.compared else []
        with self.head.prepared():
            for start in range(0, len(others), BATCH_SIZE):
                part = others[start : start + BATCH_SIZE]
                together = self._variance_of_pairs(part, index)
                column[part] = 0.5 * (together - self.variance[part] - self.variance[index])
        return column

    def _variance_of_pairs(self, others: Sequence[int], index: int) -> Tensor:
        """Of the sum of the energies of two candidates, (n_others,)."""
        pairs = [[torch.cat(both) for both in zip(self.atoms[k], self.atoms[index], strict=True)] for k in others]
        features, numbers = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        sizes = torch.tensor([len(own) for own, _ in pairs], device=features.device)
        none = torch.zeros(2, 0, dtype=torch.int64, device=features.device)
        graph = AtomicGraph(
            positions=features.new_zeros(len(features), 3, dtype=torch.float64),
            atomic_numbers=numbers,
            structure_index=torch.repeat_interleave(torch.arange(len(others), device=features.device), sizes),
            pair_index=none,
            pair_shift=features.new_zeros(0, 3, dtype=torch.float64),
            cell=None,
            n_structures=len(others),
        )
        return self.head.rows(features, graph)[1]


def _of_samples(model: Potential, dataset: GraphDataset) -> EnergyCovariance:
    head = model.head
    head.draw()
    with head.prepared():
        batches = LabelledObservations(model, dataset).batches()
        parts = [head.energy_deviations(batch.embeddings(), batch.graph).T.double() for batch in batches]
    return _from_spread(torch.cat(parts) / head.n_samples**0.5, own=0.0)


def _of_members(model: Ensemble, dataset: GraphDataset) -> EnergyCovariance:
    rows, variances = [], []
    for indices in torch.arange(len(dataset)).split(dataset.batch_size(BATCH_SIZE)):
        graph, _ = dataset.batch(indices)
        prediction = model.predict_raw(graph, forces_std="none")
        members, std = prediction.energy_members, prediction.energy_std
        assert members is not None  # an ensemble has both
        assert std is not None
        rows.append((members - members.mean(-1, keepdim=True)).double() / (members.shape[-1] - 1) ** 0.5)
        variances.append(std.double().square())
    together = torch.cat(rows)
    return _from_spread(together, own=(torch.cat(variances) - together.square().sum(1)).clamp(min=0.0))


def _from_spread(rows: Tensor, own: Tensor | float) -> EnergyCovariance:
    """From deviations of n samples. How noisy labels are, a spread does not say: as its median over the candidates."""
    share = 1.0 / rows.shape[1]
    spread = rows.square().sum(1)
    residual, noise = share * spread + own, float((spread + own).median())
    tiny = torch.finfo(rows.dtype).tiny
    return EnergyCovariance(rows=rows * (1.0 - share) ** 0.5, residual=residual, noise=max(noise, tiny))
