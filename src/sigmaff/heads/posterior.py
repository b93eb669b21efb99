"""Algebra of linear heads: posteriors from sufficient statistics, and the choice among them.

Rows are linear observations of whitened weights w ~ N(0, 1): energies φ·w, and force components g·w. With

    A = A_E + ω A_F = U diag(a) Uᵀ,   b = b_E + ω b_F

the posterior for noise λ (energy noise variance over prior variance) and force weight ω is

    w | data ~ N(U diag(1/(λ + a)) Uᵀ b,  U diag(λ/(λ + a)) Uᵀ)

One eigendecomposition serves all λ. Where there are fewer rows than weights, it is that of the rows: U then holds the
directions that they determine, and the covariance is 1 in all others. The scale s² of the prior drops out of all of
this: it is what makes the standardised held-out errors have unit mean square, and is found last.

Held-out errors determine the noise s²λ, and not λ: on data like the training data σ² tends to s²λ φ·A⁻¹φ for small λ,
and the score to a constant. So the smallest prior is taken that explains them: the largest λ within one standard error
of the best, where the log-likelihood of the held-out structures is ½ below its maximum. A prior may have a least scale
beside this, from what its weights mean.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sigmaff.heads.observations import Rows

NOISES = tuple(10.0**k for k in range(-12, 3))
"""λ, tried for mean and variance, in units of the mean eigenvalue of A."""
ONE_STANDARD_ERROR = 0.5
"""Loss of log-likelihood at which a parameter is one standard error away from its best value."""
REFINEMENTS = 12
"""Bisections of log λ between two values that were tried."""
FORCE_WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""ω, tried for mean and variance."""
TOLERATED_LOSS = 1.005
"""The residual mean may not worsen a held-out error of the backbone by more than this factor."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sufficient statistics of training rows of one kind."""

    gram: Tensor  # Σ φφᵀ (n_weights, n_weights)
    rows: Tensor | None  # φ (count, n_weights), as long as there are fewer of them than weights
    projection: Tensor  # Σ φ r (n_weights,)
    square: float  # Σ r²
    count: int

    @classmethod
    def empty(cls, n_weights: int) -> Self:
        zeros = torch.zeros(n_weights, n_weights, dtype=torch.float64)
        return cls(
            gram=zeros, rows=zeros[:0], projection=torch.zeros(n_weights, dtype=torch.float64), square=0.0, count=0
        )

    @classmethod
    def joined(cls, parts: Sequence["Moments"]) -> Self:
        """Of rows of several parts."""
        n_weights, count = len(parts[0].projection), sum(part.count for part in parts)
        rows = [part.rows for part in parts if part.rows is not None]
        return cls(
            rows=torch.cat(rows) if len(rows) == len(parts) and count < n_weights else None,
            gram=torch.stack([part.gram for part in parts]).sum(0),
            projection=torch.stack([part.projection for part in parts]).sum(0),
            square=sum(part.square for part in parts),
            count=count,
        )

    def plus(self, rows: Rows) -> Self:
        count = self.count + len(rows.targets)
        few = self.rows is not None and count < len(self.projection)
        return replace(
            self,
            rows=torch.cat([self.rows, rows.features]) if self.rows is not None and few else None,
            gram=self.gram + rows.features.T @ rows.features,
            projection=self.projection + rows.features.T @ rows.targets,
            square=self.square + float(rows.targets.square().sum()),
            count=count,
        )

    def scaled(self, scales: Tensor) -> Self:
        return replace(
            self,
            gram=scales[:, None] * self.gram * scales,
            rows=None if self.rows is None else scales * self.rows,
            projection=scales * self.projection,
        )

    def directions(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of the gram matrix and their eigenvectors in columns, without those that rows leave at zero."""
        if self.rows is None:
            return torch.linalg.eigh(self.gram)
        _, singular, directions = torch.linalg.svd(self.rows, full_matrices=False)
        return singular.square(), directions.T


class WeightDistribution(Protocol):
    """A distribution of the weights: its mean, and the variance of linear observations."""

    @property
    def mean(self) -> Tensor: ...  # (n_weights,)

    def variance(self, rows: Rows) -> Tensor: ...  # predictive, of each row, noise apart


Candidate = TypeVar("Candidate", bound=WeightDistribution)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Eigenvalues a, eigenvectors U and Uᵀb for one force weight ω, with the noise λ that was chosen."""

    eigenvalues: Tensor  # (r,)
    eigenvectors: Tensor  # (n_weights, r); all others have the eigenvalue 0
    projection: Tensor  # (r,)
    force_weight: float
    noise: float
    seen: "WeakKeyDictionary[Rows, tuple[Tensor, Tensor]]" = field(default_factory=WeakKeyDictionary, repr=False)
    """Of rows, what all λ have in common."""

    @property
    def relative_noise(self) -> float:
        """λ in units of the mean eigenvalue."""
        return self.noise / _typical(self.eigenvalues, len(self.eigenvectors))

    @property
    def mean(self) -> Tensor:
        return self.eigenvectors @ (self.projection / (self.noise + self.eigenvalues))

    @property
    def kept(self) -> Tensor:
        """λ/(λ + a), the share of the variance of each direction that the labels leave, (r,)."""
        return self.noise / (self.noise + self.eigenvalues)

    @property
    def covariance(self) -> Tensor:
        return self.root @ self.root

    @property
    def root(self) -> Tensor:
        """The symmetric root of the covariance."""
        root = (self.eigenvectors * self.kept.sqrt()) @ self.eigenvectors.T
        return root if self._is_complete else root + self._others

    @property
    def cholesky(self) -> Tensor:
        """Lower factor of the covariance, from its root: the smallest eigenvalues of their product round to zero."""
        upper = torch.linalg.qr(self.root.T, mode="r")[1]
        return upper.T * upper.diagonal().sign()

    @property
    def _is_complete(self) -> bool:
        return self.eigenvectors.shape[0] == self.eigenvectors.shape[1]

    @property
    def _others(self) -> Tensor:
        """Projector on what no row determines, 1 − U Uᵀ."""
        identity = torch.eye(len(self.eigenvectors), dtype=self.eigenvectors.dtype, device=self.eigenvectors.device)
        return identity - self.eigenvectors @ self.eigenvectors.T

    def variance(self, rows: Rows) -> Tensor:
        """Predictive variance of each row, noise apart, for a prior of unit scale."""
        if rows not in self.seen:
            self.seen[rows] = self._see(rows)
        squares, others = self.seen[rows]
        return (rows.residual + others + squares @ self.kept).clamp(min=torch.finfo(torch.float64).tiny)

    def _see(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Squared components of rows along the eigenvectors, (n_rows, r), and their square beside them, (n_rows,)."""
        along = rows.features @ self.eigenvectors
        if self._is_complete:
            return along.square(), torch.zeros_like(rows.residual)
        return along.square(), (rows.features - along @ self.eigenvectors.T).square().sum(-1)


def posteriors(energy: Moments, forces: Moments, force_weights: Iterable[float]) -> list[Posterior]:
    """One posterior for each force weight and noise."""
    found = []
    for weight in force_weights:
        rows = energy if weight == 0.0 else replace(energy, rows=None, gram=energy.gram + weight * forces.gram)
        eigenvalues, eigenvectors = rows.directions()
        projection = eigenvectors.T @ (energy.projection + weight * forces.projection)
        eigenvalues = eigenvalues.clamp(min=0.0)
        typical = _typical(eigenvalues, len(eigenvectors))
        seen: WeakKeyDictionary[Rows, tuple[Tensor, Tensor]] = WeakKeyDictionary()
        for noise in NOISES:
            found.append(
                Posterior(
                    eigenvalues=eigenvalues,
                    eigenvectors=eigenvectors,
                    projection=projection,
                    force_weight=weight,
                    noise=noise * typical,
                    seen=seen,
                )
            )
    return found


def _typical(eigenvalues: Tensor, n_weights: int) -> float:
    """Their mean, those of other directions are 0."""
    return max(float(eigenvalues.sum()) / n_weights, torch.finfo(torch.float64).tiny)


def choose_mean(candidates: list[Candidate], held_out: list[Rows]) -> tuple[Candidate | None, list[Tensor]]:
    """The one whose mean lowers the held-out errors most, and the errors that remain.

    The score is the sum over kinds of rows of log mean |error|. ``None``, and the backbone's own errors, where every
    candidate worsens one of them.
    """
    backbone = [rows.targets.abs().mean() for rows in held_out]
    best: Candidate | None = None
    best_score, best_errors = 0.0, [rows.targets for rows in held_out]
    for candidate in candidates:
        mean = candidate.mean
        errors = [rows.targets - rows.features @ mean for rows in held_out]
        ratios = [float(e.abs().mean() / before) for e, before in zip(errors, backbone, strict=True)]
        score = sum(math.log(ratio) for ratio in ratios)
        if max(ratios) <= TOLERATED_LOSS and score < best_score:
            best, best_score, best_errors = candidate, score, errors
    return best, best_errors


def held_out_score(candidate: WeightDistribution, held_out: list[Rows], errors: list[Tensor]) -> tuple[float, float]:
    """Negative log-likelihood of held-out errors, each kind with the scale of σ that fits it best, summed over kinds.

    Also the prior's scale (its variance), the geometric mean of those scales.
    """
    score, log_scales = 0.0, []
    for rows, error in zip(held_out, errors, strict=True):
        variance = candidate.variance(rows)
        log_scale = float((error.square() / variance).mean().log())
        score += 0.5 * (log_scale + float(variance.log().mean()))
        log_scales.append(log_scale)
    return score, math.exp(sum(log_scales) / len(log_scales))


def choose_variance(
    candidates: list[Posterior],
    held_out: list[Rows],
    errors: list[Tensor],
    n_structures: int,
    least_scale: float = 0.0,
) -> tuple[Posterior, float, float]:
    """Of the force weight with the best score, the posterior of the largest λ within one standard error of that score.

    Arguments:
        candidates: as ``posteriors`` gives them.
        held_out: rows of each kind.
        errors: what remains of their targets, of each kind.
        n_structures: number of held-out structures. They are independent; their rows are not.
        least_scale: of the prior (a variance); λ is lowered until the prior has it, as far as there are candidates.

    Returns the posterior, its score and the prior's scale, as ``held_out_score`` defines them.
    """
    scores = [held_out_score(candidate, held_out, errors)[0] for candidate in candidates]
    best = min(range(len(candidates)), key=lambda k: scores[k])
    limit = scores[best] + ONE_STANDARD_ERROR / n_structures
    ladder = [k for k, c in enumerate(candidates) if c.force_weight == candidates[best].force_weight]

    def within(candidate: Posterior) -> bool:
        score, scale = held_out_score(candidate, held_out, errors)
        return score <= limit and scale >= least_scale

    last = max((k for k in ladder if within(candidates[k])), default=ladder[0])
    chosen = candidates[last]
    if last != ladder[-1]:
        low, high = math.log(chosen.noise), math.log(candidates[last + 1].noise)
        for _ in range(REFINEMENTS):
            middle = replace(chosen, noise=math.exp(0.5 * (low + high)))
            if within(middle):
                chosen, low = middle, math.log(middle.noise)
            else:
                high = math.log(middle.noise)
    return chosen, *held_out_score(chosen, held_out, errors)


def at_ends(choices: Iterable[tuple[str, float | None, Sequence[float]]]) -> tuple[str, ...]:
    """For people, which chosen values are at an end of what was tried: name, value and ends of each."""
    return tuple(
        f"{name}: the {'largest' if end == max(ends) else 'smallest'} value"
        for name, value, ends in choices
        for end in ends
        if value is not None and math.isclose(value, end, rel_tol=1e-6)
    )


def marginal_score(candidate: Posterior, energy: Moments, forces: Moments) -> tuple[float, float]:
    """Negative log marginal likelihood of the training rows per row, its scale profiled out, and that scale.

    With noise λ on energies and λ/ω on force components, y ~ N(0, s²(ΦΦᵀ + noise)).
    """
    weight, noise = candidate.force_weight, candidate.noise
    n_forces = forces.count if weight > 0 else 0
    n_rows = energy.count + n_forces
    fitted = float((candidate.projection.square() / (noise + candidate.eigenvalues)).sum())
    quadratic = (energy.square + weight * forces.square - fitted) / noise
    log_determinant = float((1.0 + candidate.eigenvalues / noise).log().sum()) + n_rows * math.log(noise)
    if n_forces:
        log_determinant -= n_forces * math.log(weight)
    scale = max(quadratic / n_rows, torch.finfo(torch.float64).tiny)
    return 0.5 * (math.log(scale) + log_determinant / n_rows), scale
