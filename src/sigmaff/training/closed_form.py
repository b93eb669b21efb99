"""The closed-form LNK: with the backbone frozen, energies and forces are linear in the weights of the Gaussian process.

One pass over the training set collects sufficient statistics for a few lengthscales; all else is algebra on matrices of
the size of the weights (``posterior``). Mean and variance are chosen apart: thousands of force rows protect the mean,
but make the variance of a misspecified model overconfident, so each finds its own noise and weight of force rows.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError
from sigmaff.heads import LNK, Deterministic, LLPRConfig, LNKConfig
from sigmaff.heads.lnk.kernel import LENGTHSCALE_FACTOR, LocalKernel
from sigmaff.models import Potential
from sigmaff.training.posterior import (
    FORCE_WEIGHTS,
    Moments,
    Posterior,
    Rows,
    choose_mean,
    held_out_score,
    marginal_score,
    posteriors,
)
from sigmaff.training.rows import KernelFunction, RowLimit, collect_rows, joined, node_features

LENGTHSCALES = (3.0, 10.0, 30.0)
"""Tried, in units of the mean distance between inducing points of an element."""
LINEAR_SCALES = (0.1, 1.0, 10.0, 100.0)
"""Tried for a kernel of two parts: variance of the linear part over that of the stationary part."""
TRAINING_ROWS = RowLimit(n_rows=30_000, work=5_000_000)
HELD_OUT_ROWS = RowLimit(n_rows=6_000, work=1_000_000)

Progress = Callable[[int, int], None]
"""Called with the number of structures done and their total."""


@dataclass(frozen=True, kw_only=True)
class ClosedFormResult:
    """What the fit chose, for the record in the model file."""

    kernel: str
    n_inducing: int
    lengthscale: float  # in units of the mean distance between inducing points
    linear_scale: float | None
    noise: float
    force_weight: float
    mean_noise: float | None  # None: the backbone's mean was kept
    mean_force_weight: float | None
    score: float
    n_energy_rows: int
    n_force_rows: int


@dataclass(frozen=True, kw_only=True)
class _Choice:
    kernel: LocalKernel
    lengthscale: float
    linear_scale: float | None
    variance: Posterior
    mean: Posterior | None
    score: float
    prior_scale: float


@dataclass(frozen=True, kw_only=True)
class _Collected:
    """What one kernel saw: statistics of training rows, and held-out rows (energies, then forces if there are any)."""

    energy: Moments
    forces: Moments
    held_out: list[Rows]

    def scaled(self, scales: Tensor) -> "_Collected":
        return _Collected(
            energy=self.energy.scaled(scales),
            forces=self.forces.scaled(scales),
            held_out=[rows.scaled(scales) for rows in self.held_out],
        )


@torch.no_grad()
def fit_closed_form(
    potential: Potential,
    config: LNKConfig | LLPRConfig,
    train_set: GraphDataset,
    held_out: GraphDataset,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Potential, ClosedFormResult]:
    """A potential with an LNK head on the frozen backbone of ``potential``, whose own readout becomes the mean."""
    fitted = potential.eval().with_head(config)
    head = fitted.head
    assert isinstance(head, LNK)
    if not isinstance(potential.head, Deterministic) or head.config.mean == "constant":
        raise ConfigError(
            "the closed-form LNK is fitted on a potential with a deterministic head, and its mean is "
            f"'backbone' or 'residual'; got a {potential.head.method} head and mean {head.config.mean!r}"
        )
    kernels = _candidate_kernels(fitted, head, train_set)
    collected = _collect(potential, head, kernels, train_set, held_out, seed, progress)
    choices = [
        _choose(kernel, factor, data, head.config) for (kernel, factor), data in zip(kernels, collected, strict=True)
    ]
    best = min((choice for options in choices for choice in options), key=lambda choice: choice.score)
    _install(head, best)
    moments = collected[0]
    return fitted, ClosedFormResult(
        kernel=head.config.kernel,
        n_inducing=best.kernel.n_inducing,
        lengthscale=best.lengthscale,
        linear_scale=best.linear_scale,
        noise=best.variance.noise,
        force_weight=best.variance.force_weight,
        mean_noise=None if best.mean is None else best.mean.noise,
        mean_force_weight=None if best.mean is None else best.mean.force_weight,
        score=best.score,
        n_energy_rows=moments.energy.count,
        n_force_rows=moments.forces.count,
    )


def _candidate_kernels(fitted: Potential, head: LNK, train_set: GraphDataset) -> list[tuple[LocalKernel, float]]:
    """Kernels of unit scale on the same inducing points, with their lengthscale factors."""
    head.initialize(*node_features(fitted, train_set))
    if head.kernel.stationary is None:
        return [(head.kernel, 1.0)]
    kernels = []
    for factor in LENGTHSCALES:
        kernel = deepcopy(head.kernel)
        kernel.log_lengthscale.add_(float(np.log(factor / LENGTHSCALE_FACTOR)))
        kernels.append((kernel, factor))
    return kernels


def _collect(
    potential: Potential,
    head: LNK,
    kernels: list[tuple[LocalKernel, float]],
    train_set: GraphDataset,
    held_out: GraphDataset,
    seed: int,
    progress: Progress | None,
) -> list[_Collected]:
    """One pass over both data sets for all kernels at once."""
    unscaled = [KernelFunction(kernel=kernel, head=head) for kernel, _ in kernels]
    n_total = len(train_set) + len(held_out)
    done = 0
    energy = [Moments.empty(kernel.n_weights) for kernel, _ in kernels]
    forces = [Moments.empty(kernel.n_weights) for kernel, _ in kernels]
    for rows_of_kernels, n_structures in collect_rows(potential, unscaled, train_set, TRAINING_ROWS, seed):
        for k, (energy_rows, force_rows) in enumerate(rows_of_kernels):
            energy[k] = energy[k].plus(energy_rows)
            forces[k] = forces[k] if force_rows is None else forces[k].plus(force_rows)
        done += n_structures
        if progress is not None:
            progress(done, n_total)
    parts: list[tuple[list[Rows], list[Rows]]] = [([], []) for _ in kernels]
    for rows_of_kernels, n_structures in collect_rows(potential, unscaled, held_out, HELD_OUT_ROWS, seed):
        for (energies, components), (energy_rows, force_rows) in zip(parts, rows_of_kernels, strict=True):
            energies.append(energy_rows)
            components.extend([] if force_rows is None else [force_rows])
        done += n_structures
        if progress is not None:
            progress(done, n_total)
    return [
        _Collected(energy=e, forces=f, held_out=_held_out(kinds))
        for e, f, kinds in zip(energy, forces, parts, strict=True)
    ]


def _held_out(kinds: tuple[list[Rows], ...]) -> list[Rows]:
    """The rows of each kind, of those kinds that have any to tell σ by."""
    found = [joined(rows).undetermined() for rows in kinds if rows]
    return [rows for rows in found if len(rows.targets)]


def _choose(kernel: LocalKernel, lengthscale: float, data: _Collected, config: LNKConfig) -> list[_Choice]:
    """The best posterior of one kernel for each scale of its linear part."""
    two_parts = kernel.stationary is not None and kernel.log_linear_scale is not None
    choices = []
    for linear_scale in LINEAR_SCALES if two_parts else (1.0,):
        scales = torch.ones(kernel.n_weights, dtype=torch.float64)
        scales[kernel.n_inducing :] = linear_scale**0.5
        variance, mean, score, prior_scale = _best_posterior(data.scaled(scales), config)
        choices.append(
            _Choice(
                kernel=kernel,
                lengthscale=lengthscale,
                linear_scale=linear_scale if two_parts else None,
                variance=variance,
                mean=mean,
                score=score,
                prior_scale=prior_scale,
            )
        )
    return choices


def _best_posterior(data: _Collected, config: LNKConfig) -> tuple[Posterior, Posterior | None, float, float]:
    """Posteriors for variance and mean, the score of the former, and the prior's scale."""
    has_forces = data.forces.count > 0
    candidates = posteriors(data.energy, data.forces, FORCE_WEIGHTS if has_forces else FORCE_WEIGHTS[:1])
    tempered = [c for c in candidates if c.force_weight == 0.0 or config.variance_labels == "energy+forces"]
    if config.selection == "marginal_likelihood":
        honest = [c for c in tempered if (c.force_weight > 0) == (has_forces and config.variance_labels != "energy")]
        scores = [marginal_score(c, data.energy, data.forces) for c in honest]
        best = min(range(len(honest)), key=lambda k: scores[k][0])
        return honest[best], honest[best] if config.mean == "residual" else None, *scores[best]
    mean, errors = None, [rows.targets for rows in data.held_out]
    if config.mean == "residual":
        mean, errors = choose_mean(candidates, data.held_out)
    scores = [held_out_score(c, data.held_out, errors) for c in tempered]
    best = min(range(len(tempered)), key=lambda k: scores[k][0])
    return tempered[best], mean, *scores[best]


def _install(head: LNK, choice: _Choice) -> None:
    """Write the chosen posterior into the head, with the prior's scale moved from the weights into the kernel."""
    scale = choice.prior_scale**0.5
    head.kernel.load_state_dict(choice.kernel.state_dict())
    head.kernel.log_scale.fill_(float(np.log(scale)))
    if head.kernel.log_linear_scale is not None:
        head.kernel.log_linear_scale.fill_(float(np.log(scale * (choice.linear_scale or 1.0) ** 0.5)))
    covariance = choice.variance.covariance
    head.weight_cholesky.copy_(_cholesky(covariance))
    if choice.mean is not None:
        head.weight_mean.copy_(choice.mean.mean / scale)


def _cholesky(covariance: Tensor) -> Tensor:
    """Lower factor of a covariance whose smallest eigenvalues may round to zero."""
    smallest = torch.finfo(torch.float64).eps * covariance.diagonal().max()
    return torch.linalg.cholesky(covariance + smallest * torch.eye(len(covariance), dtype=torch.float64))
