"""The fit of the shallow ensemble: with the backbone frozen, energies and forces are linear in the members' weights.

One pass over the data collects rows; after it the backbone is not needed. The members start as draws from the posterior
of a Bayesian linear readout, and are then moved by Adam to maximise the likelihood of energies and force components,
each normal with the mean and the variance of the members. The best moment on held-out rows is kept.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sigmaff.heads.base import FitSummary
from sigmaff.heads.observations import HELD_OUT_ROWS, TRAINING_ROWS, Observations, RowLimit, Rows
from sigmaff.heads.posterior import (
    NOISES,
    Moments,
    Posterior,
    at_ends,
    choose_mean,
    choose_variance,
    held_out_score,
    posteriors,
)
from sigmaff.progress import Counter, Listener

if TYPE_CHECKING:
    from sigmaff.heads.shallow_ensemble.head import ShallowEnsemble, ShallowEnsembleConfig

FORCE_WEIGHTS = (0.0, 1e-3, 1e-1)
"""Of force rows beside energy rows, tried for the posterior that the members start from."""
TRAINING_NUMBERS, HELD_OUT_NUMBERS = 2**24, 2**21
"""Held in memory as force rows."""
FLOOR = 1e-4
"""Variance added to that of the members, in units of the mean square of the misses."""
STEPS_PER_CHECK = 10
PATIENCE = 10
"""Checks on held-out rows without a better score, after which Adam stops."""


@dataclass(frozen=True, kw_only=True)
class ShallowEnsembleFit(FitSummary):
    """What the fit did. Scores: ``held_out_score``, the lower the better."""

    n_members: int
    noise: float  # of the posterior that the members start from
    force_weight: float
    at_ends: tuple[str, ...]  # of these, the smallest or largest value that was tried
    start_score: float
    score: float
    best_step: int
    keeps_backbone_mean: bool
    n_energy_rows: int
    n_force_rows: int


@dataclass(frozen=True, kw_only=True)
class Members:
    """Weights of the members, beyond those of the backbone's readout: a distribution of weights."""

    weights: Tensor  # (n_members, n_weights)

    @property
    def mean(self) -> Tensor:
        return self.weights.mean(0)

    def variance(self, rows: Rows) -> Tensor:
        return (rows.features @ self.weights.T).var(-1).clamp(min=torch.finfo(torch.float64).tiny)

    def mapped(self, matrix: Tensor) -> "Members":
        return Members(weights=self.weights @ matrix)

    def negative_log_likelihood(self, rows: Rows, floor: float) -> Tensor:
        """Mean over rows of ½[(y − mean)²/v + log v], v = variance over members + floor."""
        predicted = rows.features @ self.weights.T
        variance = predicted.var(-1) + floor
        return 0.5 * ((rows.targets - predicted.mean(-1)).square() / variance + variance.log()).mean()


@torch.no_grad()
def solve(
    head: "ShallowEnsemble", train: Observations, held_out: Observations, *, seed: int, listener: Listener
) -> ShallowEnsembleFit:
    """Place the members around the readout of the backbone."""
    counter = Counter(listener, len(train) + len(held_out))
    [known] = train.undetermined_rows([head.basis], _within(TRAINING_ROWS, TRAINING_NUMBERS, head), seed, counter)
    [unknown] = held_out.undetermined_rows([head.basis], _within(HELD_OUT_ROWS, HELD_OUT_NUMBERS, head), seed, counter)
    factor, chosen = _start(known, unknown, len(held_out))
    ends = [("noise", chosen.relative_noise, NOISES[:: len(NOISES) - 1])]
    for end in (found := at_ends(ends)):
        listener.warn(f"{end} that was tried: σ may depend on where the search ends")
    start, best, best_step = _trained(head.config, _transformed(known, factor), _transformed(unknown, factor), seed)
    members = best.mapped(factor.T)
    mean, score, scale = _assessed(members, unknown)
    _install(head, members, mean, scale)
    return ShallowEnsembleFit(
        n_members=head.config.n_members,
        noise=chosen.noise,
        force_weight=chosen.force_weight,
        at_ends=found,
        start_score=start,
        score=score,
        best_step=best_step,
        keeps_backbone_mean=mean is None,
        n_energy_rows=len(known[0].targets),
        n_force_rows=sum(len(rows.targets) for rows in known[1:]),
    )


def _within(limit: RowLimit, n_numbers: int, head: "ShallowEnsemble") -> RowLimit:
    """The limit, lowered to what memory may hold."""
    return replace(limit, n_rows=min(limit.n_rows, max(1, n_numbers // head.basis.n_weights)))


def _start(known: list[Rows], unknown: list[Rows], n_held_out: int) -> tuple[Tensor, Posterior]:
    """A factor of the covariance of the weights that suits the held-out rows best, and its posterior.

    The factor maps weights of unit variance to weights of the readout.
    """
    moments = [Moments.empty(rows.features.shape[1]).plus(rows) for rows in known]
    forces = moments[1] if len(moments) > 1 else Moments.empty(len(moments[0].projection))
    candidates = posteriors(moments[0], forces, FORCE_WEIGHTS if len(moments) > 1 else FORCE_WEIGHTS[:1])
    errors = [rows.targets for rows in unknown]
    chosen, _, prior_scale = choose_variance(candidates, unknown, errors, n_held_out)
    shrinkage = chosen.noise / (chosen.noise + chosen.eigenvalues)
    return chosen.eigenvectors * (prior_scale * shrinkage).sqrt(), chosen


def _transformed(kinds: list[Rows], factor: Tensor) -> list[Rows]:
    """The rows as they act on weights before the factor."""
    return [replace(rows, features=rows.features @ factor) for rows in kinds]


def _trained(
    config: "ShallowEnsembleConfig", known: list[Rows], unknown: list[Rows], seed: int
) -> tuple[float, Members, int]:
    """The score of the start, and the best members on held-out rows with the step at which they were found."""
    generator = np.random.default_rng(seed)
    draws = torch.as_tensor(generator.standard_normal((config.n_members, known[0].features.shape[1])))
    weights = (draws - draws.mean(0)).requires_grad_()
    floors = [FLOOR * float(rows.targets.square().mean()) for rows in known]
    optimizer = torch.optim.Adam([weights], lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, config.n_steps))
    best, best_step = Members(weights=weights.detach().clone()), 0
    start = best_score = _assessed(best, unknown)[1]
    for step in range(1, config.n_steps + 1):
        _step(weights, [_drawn(rows, config.batch_size, generator) for rows in known], floors, optimizer)
        schedule.step()
        if step % STEPS_PER_CHECK == 0 or step == config.n_steps:
            members = Members(weights=weights.detach().clone())
            score = _assessed(members, unknown)[1]
            if score < best_score:
                best, best_score, best_step = members, score, step
            if step - best_step >= PATIENCE * STEPS_PER_CHECK:
                break
    return start, best, best_step


@torch.enable_grad()
def _step(weights: Tensor, kinds: list[Rows], floors: list[float], optimizer: torch.optim.Adam) -> None:
    members = Members(weights=weights)
    losses = [members.negative_log_likelihood(rows, floor) for rows, floor in zip(kinds, floors, strict=True)]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()


def _drawn(rows: Rows, n: int, generator: np.random.Generator) -> Rows:
    """n rows at random, or all if they are no more."""
    if len(rows.targets) <= n:
        return rows
    return rows[torch.as_tensor(generator.integers(len(rows.targets), size=n))]


def _assessed(members: Members, unknown: list[Rows]) -> tuple[Tensor | None, float, float]:
    """The members' mean, or None where it would worsen the backbone's; score and scale (of variances) beside it."""
    better, errors = choose_mean([members], unknown)
    score, scale = held_out_score(members, unknown, errors)
    return None if better is None else better.mean, score, scale


def _install(head: "ShallowEnsemble", members: Members, mean: Tensor | None, scale: float) -> None:
    """Write the members into the head, their spread scaled to the held-out errors."""
    head.deviations.copy_(scale**0.5 * (members.weights - members.mean))
    if mean is not None:
        n_features = head.readout.weight.shape[1]
        head.readout.weight.add_(mean[:n_features])
        if head.readout.bias is not None:
            head.readout.bias.add_(mean[n_features:])
