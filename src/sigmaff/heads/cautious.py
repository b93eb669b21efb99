"""The choice of a correction that does no harm far away, for a backbone that has not seen the labels.

Every label is predicted by a fit without it: training structures are left out a fold at a time, held-out ones are never
in. Labels like the training set cannot tell corrections apart that differ far from it. So the smallest correction, in
the norm of the prior, is taken that is not worse than the best by more than one standard error of the difference, in
energies and in forces.

The best has the smallest sum over energies and forces of log rms error, relative to the backbone's. Standard errors are
to first order and count folds and held-out structures as independent.
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

    @property
    def log_ratio(self) -> Tensor:
        """Of the rms error to that of the backbone, (n_candidates,)."""
        return 0.5 * (self.sums.sum(-1) / self.before.sum()).log()

    @property
    def influence(self) -> Tensor:
        """Of each unit on log rms, but for a constant of the unit, (n_candidates, n_units)."""
        return 0.5 * self.sums / self.sums.sum(-1, keepdim=True)

    @property
    def gain_error(self) -> Tensor:
        """Standard error of the log ratio, (n_candidates,)."""
        return (self.influence - 0.5 * self.before / self.before.sum()).square().sum(-1).sqrt()

    def not_worse_than(self, best: int) -> Tensor:
        """By one standard error of the difference of log rms, (n_candidates,)."""
        error = (self.influence - self.influence[best]).square().sum(-1).sqrt()
        return self.log_ratio <= self.log_ratio[best] + error


def choose_cautious_mean(
    candidates: list[Posterior], folds: Sequence[Fold], held_out: list[Rows], force_weights: Sequence[float]
) -> tuple[Posterior | None, list[Tensor]]:
    """The smallest correction that is not told apart from the best, and what it leaves of the held-out errors.

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
    near = allowed & torch.stack([kind.not_worse_than(best) for kind in kinds]).all(0)
    numbers = near.nonzero().flatten().tolist()
    chosen = candidates[min(numbers, key=lambda number: float(candidates[number].mean.norm()))]
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
    return _Squares(sums.unsqueeze(-1), torch.tensor([rows.square], dtype=torch.float64, device=sums.device))


def _held_out_squares(candidates: list[Posterior], rows: Rows) -> _Squares:
    n = int(rows.structures.max()) + 1
    means = torch.stack([candidate.mean for candidate in candidates])

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], n).index_add(-1, rows.structures, values)

    errors = rows.targets - means @ rows.features.T
    return _Squares(summed(errors.square()), summed(rows.targets.square()))


def _joined(parts: list[_Squares]) -> _Squares:
    return _Squares(*(torch.cat(each, dim=-1) for each in zip(*parts, strict=True)))
