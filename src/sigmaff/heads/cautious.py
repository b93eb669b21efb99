"""The choice of a correction that does no harm far away, for a backbone that has not seen the labels.

Every label is predicted by a fit without it: training structures are left out a fold at a time, held-out ones are never
in. Labels like the training set cannot tell corrections apart that differ far from it. So the smallest correction, in
the norm of the prior, is taken that is within one standard error of the best.

The score is the sum over energies and forces of log rms error, relative to the backbone's. Its standard error is to
first order and counts folds and held-out structures as independent.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from sigmaff.heads.observations import Rows
from sigmaff.heads.posterior import TOLERATED_LOSS, Moments, Posterior, posteriors

N_FOLDS = 5
MAX_WEIGHTS = 1200
"""Of kernels whose folds are fitted: one more eigendecomposition for each fold. Larger ones use held-out rows alone."""


class Fold(NamedTuple):
    """Training rows of some structures."""

    energy: Moments
    forces: Moments

    @classmethod
    def empty(cls, n_weights: int) -> Self:
        return cls(Moments.empty(n_weights), Moments.empty(n_weights))

    def plus(self, energy: Rows, forces: Rows | None) -> Self:
        return type(self)(self.energy.plus(energy), self.forces if forces is None else self.forces.plus(forces))

    def scaled(self, scales: Tensor) -> Self:
        return type(self)(*(kind.scaled(scales) for kind in self))


class _Squares(NamedTuple):
    """Squared errors of one kind of rows in each unit: a fold, or a held-out structure."""

    sums: Tensor  # (n_candidates, n_units)
    before: Tensor  # (n_units,) of the backbone
    counts: Tensor  # (n_units,)

    @property
    def log_ratio(self) -> Tensor:
        """Of the rms error to that of the backbone, (n_candidates,)."""
        return 0.5 * (self.sums.sum(-1) / self.before.sum()).log()

    @property
    def influence(self) -> Tensor:
        """Of each unit on log rms, (n_candidates, n_units)."""
        return 0.5 * (self.sums / self.sums.sum(-1, keepdim=True) - self.counts / self.counts.sum())

    @property
    def gain_error(self) -> Tensor:
        """Standard error of the log ratio, (n_candidates,)."""
        paired = self.sums / self.sums.sum(-1, keepdim=True) - self.before / self.before.sum()
        return 0.5 * paired.square().sum(-1).sqrt()


def choose_cautious_mean(
    candidates: list[Posterior], folds: Sequence[Fold], held_out: list[Rows], force_weights: Sequence[float]
) -> tuple[Posterior | None, list[Tensor]]:
    """The smallest correction within one standard error of the best, and what it leaves of the held-out errors.

    ``None``, and the backbone's own errors, where no candidate is better without worsening energies or forces.

    Arguments:
        candidates: as ``posteriors`` gives them for all training rows and these force weights.
        folds: parts of the training rows.
        held_out: energy rows, then force rows if there are any.
    """
    fitted = list(folds) if len(candidates[0].eigenvectors) <= MAX_WEIGHTS and len(folds) > 1 else []
    left_out = [_without(fold, folds, force_weights) for fold in fitted]
    kinds = []
    for number, rows in enumerate(held_out):
        parts = [_fold_squares(means, fold[number]) for means, fold in zip(left_out, fitted, strict=True)]
        kinds.append(_joined([*parts, _held_out_squares(candidates, rows)]))
    score = torch.stack([kind.log_ratio for kind in kinds]).sum(0)
    tolerable = torch.stack([kind.log_ratio <= kind.gain_error.clamp(min=math.log(TOLERATED_LOSS)) for kind in kinds])
    allowed = tolerable.all(0) & (score < 0.0)
    if not allowed.any():
        return None, [rows.targets for rows in held_out]
    best = int(torch.where(allowed, score, torch.inf).argmin())
    n_units = max(kind.counts.numel() for kind in kinds)
    influence = sum(torch.nn.functional.pad(kind.influence[best], (0, n_units - kind.counts.numel())) for kind in kinds)
    limit = score[best] + torch.as_tensor(influence).square().sum().sqrt()
    near = [number for number in range(len(candidates)) if allowed[number] and score[number] <= limit]
    chosen = candidates[min(near, key=lambda number: float(candidates[number].mean.norm()))]
    return chosen, [rows.targets - rows.features @ chosen.mean for rows in held_out]


def _without(fold: Fold, folds: Sequence[Fold], force_weights: Sequence[float]) -> Tensor:
    """Means of all candidates that were fitted without a fold, (n_candidates, n_weights)."""
    others = [other for other in folds if other is not fold]
    energy, forces = (Moments.joined(list(kind)) for kind in zip(*others, strict=True))
    return torch.stack([candidate.mean for candidate in posteriors(energy, forces, force_weights)])


def _fold_squares(means: Tensor, rows: Moments) -> _Squares:
    """Σ (r − φ·w)² from the moments of the rows."""
    fitted = torch.einsum("ck,kl,cl->c", means, rows.gram, means) - 2.0 * means @ rows.projection
    sums = (rows.square + fitted).clamp(min=0.0)
    before = torch.tensor([rows.square], dtype=torch.float64)
    return _Squares(sums.unsqueeze(-1), before, torch.tensor([float(rows.count)], dtype=torch.float64))


def _held_out_squares(candidates: list[Posterior], rows: Rows) -> _Squares:
    n = int(rows.structures.max()) + 1
    means = torch.stack([candidate.mean for candidate in candidates])

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], n).index_add(-1, rows.structures, values)

    errors = rows.targets - means @ rows.features.T
    return _Squares(summed(errors.square()), summed(rows.targets.square()), summed(torch.ones_like(rows.targets)))


def _joined(parts: list[_Squares]) -> _Squares:
    return _Squares(*(torch.cat(each, dim=-1) for each in zip(*parts, strict=True)))
