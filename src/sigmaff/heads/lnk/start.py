"""Where a variational fit begins, and where it ends: at solutions of the closed form.

With the network frozen, energies and forces are linear in the weights of the process, so gradient descent need not look
for what one solve gives. The start takes the smallest weights w that meet held-out labels as well as the best do
(``TOLERANCE``), forces first (``FORCES_FIRST``): they have most of the weight in a training. Of the priors of scale s
and closed-form covariances S that give training energies a mean variance of the square of their rms error ε, it takes
the pair of least divergence:

    ½ |w|²/s² + ½ Σ_k (S_k − log S_k − 1),      s² (mean φ·S·φ + residual) + noise² = ε²

Where the variances of atoms add up (``covariance: diagonal``), S is that of the expected likelihood, which sees each
atom by itself, A = Σ φφᵀ over atoms. Labels are totals and leave the shares of atoms open: a covariance that is solved
from totals has a large variance for every atom, known or not.

What is left to gradient descent are kernel, points and mean. It also shakes the factor of S: after a few epochs S is
nearly the same in all directions, and σ no higher off the data than on it. So after a training mean and covariance are
solved for again. The mean is kept if held-out errors are lower; σ is multiplied by the factor that makes training
energies most likely. A network that was trained with the process has left the inducing points behind: what they leave
out of its embeddings had most of σ, the same on the data and off it. So they are placed again before that.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph
from sigmaff.heads.base import EnergyDistribution
from sigmaff.heads.observations import HELD_OUT_ROWS, TRAINING_ROWS, LinearFunction, Observations, Rows
from sigmaff.heads.posterior import FORCE_WEIGHTS, Moments, Posterior, posteriors
from sigmaff.progress import Counter, Listener

if TYPE_CHECKING:
    from sigmaff.heads.lnk.head import LNK

TOLERANCE = 0.01
"""Relative increase of the held-out errors (geometric mean over energies and forces) that smaller weights may cost."""
FORCES_FIRST = 0.02
"""Relative increase of the held-out errors of forces, over the least of all, that lower errors of energies may cost."""
NOISE = 0.1
"""σ of the noise of labels at the start, over the rms error of training energies: σ of the process accounts for it."""
NOISES = (-16.0, 4.0, 0.1)
"""Tried for a covariance, in units of the mean eigenvalue: powers of ten."""
ROWS_PER_WEIGHT = 50
"""Force rows of a solve for each weight, at most: more move the solution by less than the rest of the training does."""
TINY = 1e-24


def start(head: "LNK", train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> None:
    """Place inducing points, and begin with the posterior of the closed form unless the settings say otherwise."""
    head.initialize(*train.embeddings())
    if head.config.begins_solved:
        start_from_solution(head, head, train, held_out, seed, listener)


def refit(
    head: "LNK", train: Observations, held_out: Observations, *, moved: bool, seed: int, listener: Listener
) -> None:
    """Solve for mean and covariance again, after training, with inducing points on embeddings as they are now."""
    if head.config.begins_solved:
        if moved:
            head.initialize(*train.embeddings())
        refit_process(head, head, train, held_out, seed, listener)


class Linear(LinearFunction, Protocol):
    """A head whose energies are linear in the weights of its process."""

    def __call__(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution: ...


@torch.no_grad()
def start_from_solution(
    process: "LNK", head: Linear, train: Observations, held_out: Observations, seed: int, listener: Listener
) -> None:
    """Set mean, covariance, scale and noise of a process to those of the closed form.

    Arguments:
        process: a variational process of unit scale with inducing points. Its mean is that of the prior.
        head: the energy of a structure as a function of the weights of the process.
        train, held_out: observations whose misses are those of the process.
    """
    solved = _Solved.of(head, train, held_out, seed, listener)
    found, _ = solved.smallest()
    process.weight_mean.copy_(found.mean)
    _solve_covariance(process, solved, found, train)


@torch.no_grad()
def refit_process(
    process: "LNK", head: Linear, train: Observations, held_out: Observations, seed: int, listener: Listener
) -> None:
    """Solve for the process again, as it predicts: without dropout, and for its points as they are now.

    The mean is kept only where it lowers the held-out errors of energies and forces together. σ gets the size of errors
    of training energies.
    """
    before = process.weight_mean.clone()
    process.weight_mean.zero_()
    solved = _Solved.of(head, train, held_out, seed, listener)
    found, errors = solved.smallest()
    trained = [rows.targets - rows.features @ before for rows in solved.held_out]
    process.weight_mean.copy_(found.mean if _score(errors) < _score(trained) else before)
    _solve_covariance(process, solved, found, train)
    _rescale(process, math.sqrt(_misfit(process, head, train)))


def _rescale(process: "LNK", factor: float) -> None:
    """Multiply σ of process and noise. The mean function stays."""
    for log_scale in (process.kernel.log_scale, process.kernel.log_linear_scale, process.log_noise):
        if log_scale is not None:
            log_scale.add_(math.log(factor))
    process.weight_mean.div_(factor)


def _solve_covariance(process: "LNK", solved: "_Solved", found: Posterior, train: Observations) -> None:
    """Scale, covariance and noise of the module's docstring. The mean function stays."""
    mean, seen = process.weight_mean.clone(), solved.seen
    error = solved.training_error(mean)
    if process.covariance == "diagonal":
        seen = _seen_by_atoms(process, train)
        eigenvalues, eigenvectors = torch.linalg.eigh(seen.moment)
        found = replace(found, eigenvalues=eigenvalues.clamp(min=0.0), eigenvectors=eigenvectors)
    scale, noise = _best_prior(found, mean, seen, error)
    _rescale(process, scale)
    process.log_noise.fill_(math.log(NOISE * error))
    assert process.weight_cholesky is not None
    process.weight_cholesky.copy_(replace(found, noise=noise).cholesky)


def _misfit(process: "LNK", head: Linear, observed: Observations) -> float:
    """Mean square of errors of energies over σ."""
    variance, square = _predicted(process, head, observed)
    return max(float((square / variance).mean()), TINY)


def _predicted(process: "LNK", head: Linear, observed: Observations) -> tuple[Tensor, Tensor]:
    """Variance with noise, and squares of errors, of energies, each (n_structures,)."""
    variances, squares = [], []
    for batch in observed.batches():
        found = head(batch.embeddings(), batch.graph)
        assert found.variance is not None
        variances.append(found.variance + torch.exp(2.0 * process.log_noise))
        squares.append((batch.targets()[0].double() - found.mean).square())
    return torch.cat(variances), torch.cat(squares)


class _Seen(NamedTuple):
    """Training energies as a process of unit scale sees them, mean over structures."""

    moment: Tensor  # φφᵀ (p, p)
    residual: float  # variance that φ leaves out


class _Solved(NamedTuple):
    """Posteriors of several noises and weights of force rows."""

    candidates: list[Posterior]
    energy: Moments  # of training energies
    residual: float  # variance that their features leave out, summed
    held_out: list[Rows]  # of energies and of forces

    @classmethod
    def of(
        cls, function: LinearFunction, train: Observations, held_out: Observations, seed: int, listener: Listener
    ) -> "_Solved":
        energy = forces = Moments.empty(function.n_weights)
        counter, residual = Counter(listener, len(train) + len(held_out)), 0.0
        n_rows = min(TRAINING_ROWS.n_rows, ROWS_PER_WEIGHT * function.n_weights)
        for ((own, of_forces),), n_structures in train.rows([function], replace(TRAINING_ROWS, n_rows=n_rows), seed):
            energy, residual = energy.plus(own), residual + float(own.residual.sum())
            forces = forces if of_forces is None else forces.plus(of_forces)
            counter.add(n_structures)
        (held,) = held_out.undetermined_rows([function], HELD_OUT_ROWS, seed, counter)
        weights = FORCE_WEIGHTS[1:] if forces.count else FORCE_WEIGHTS[:1]
        return cls(posteriors(energy, forces, weights), energy, residual, held)

    @property
    def seen(self) -> _Seen:
        return _Seen(self.energy.gram / self.energy.count, self.residual / self.energy.count)

    def smallest(self) -> tuple[Posterior, list[Tensor]]:
        """Of those whose held-out errors are within the tolerance of the best, the one of smallest weights."""
        errors = [self._errors(candidate) for candidate in self.candidates]
        last = [float(each[-1].abs().mean()) for each in errors]  # of forces, if there are any
        first = [k for k, error in enumerate(last) if error <= (1.0 + FORCES_FIRST) * min(last)]
        scores = {k: _score(errors[k]) for k in first}
        limit = min(scores.values()) + math.log(1.0 + TOLERANCE)
        allowed = [k for k, score in scores.items() if score <= limit]
        found = min(allowed, key=lambda k: float(self.candidates[k].mean.square().sum()))
        return self.candidates[found], errors[found]

    def _errors(self, candidate: Posterior) -> list[Tensor]:
        mean = candidate.mean
        return [rows.targets - rows.features @ mean for rows in self.held_out]

    def training_error(self, mean: Tensor) -> float:
        """Rms error of training energies by these weights."""
        energy = self.energy
        total = energy.square - 2.0 * float(mean @ energy.projection) + float(mean @ energy.gram @ mean)
        return math.sqrt(max(total, TINY * energy.square) / energy.count)


def _score(errors: list[Tensor]) -> float:
    """Log of the geometric mean of mean absolute errors, over kinds of rows."""
    return sum(float(error.abs().mean().log()) for error in errors) / len(errors)


def _seen_by_atoms(process: "LNK", train: Observations) -> _Seen:
    """Where each atom has a variance by itself: sums over the atoms of a structure."""
    moment, residual = torch.zeros_like(process.weight_mean).diag(), 0.0
    for batch in train.batches():
        basis, left = process.basis(batch.embeddings(), batch.graph)
        moment, residual = moment + basis.T @ basis, residual + float(left.sum())
    return _Seen(moment / len(train), residual / len(train))


def _best_prior(posterior: Posterior, mean: Tensor, seen: _Seen, error: float) -> tuple[float, float]:
    """The scale of the prior and the noise of the covariance: the pair of the module's docstring."""
    vectors, typical = posterior.eigenvectors, float(posterior.eigenvalues.mean())
    along = torch.einsum("ik,ij,jk->k", vectors, seen.moment, vectors)
    outside = float(seen.moment.trace() - along.sum()) + seen.residual  # directions that no label determines

    def squares_and_divergences(log_noises: Tensor) -> tuple[Tensor, Tensor]:
        noises = typical * 10.0 ** log_noises.unsqueeze(-1)
        kept = 1.0 / (1.0 + posterior.eigenvalues / noises)
        squares = (1.0 - NOISE**2) * error**2 / (kept @ along + outside)  # s²
        return squares, 0.5 * (mean.square().sum() / squares + (kept - kept.log() - 1.0).sum(-1))

    tried = torch.arange(*NOISES, dtype=torch.float64)
    _, divergences = squares_and_divergences(tried)
    index = int(divergences.argmin())
    best = tried[index] + NOISES[2] * _lowest(divergences, index)
    square, _ = squares_and_divergences(best.unsqueeze(0))
    return math.sqrt(float(square)), typical * 10.0 ** float(best)


def _lowest(values: Tensor, index: int) -> float:
    """Where the parabola through the lowest value and its two neighbours is lowest, in steps from the index."""
    if not 0 < index < len(values) - 1:
        return 0.0
    before, here, after = values[index - 1 : index + 2].tolist()
    curvature = before - 2.0 * here + after
    return 0.5 * (before - after) / curvature if curvature > 0.0 else 0.0
