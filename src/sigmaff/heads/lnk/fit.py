"""The closed-form LNK: with the backbone frozen, energies and forces are linear in the weights of the Gaussian process.

One pass over the training set collects sufficient statistics for a few lengthscales; all else is algebra on matrices of
the size of the weights (``posterior``). Mean and variance are chosen apart: thousands of force rows protect the mean,
but make the variance of a misspecified model overconfident. So the variance of energies comes from energy rows alone,
and that of forces too, unless force rows are asked for; then it finds its own noise and weight of force rows. Errors of
held-out energies set the scale of σ of energies, those of forces that of forces.

Last comes the reach of the training set (``UnseenSurroundings``): the shortest that held-out energies allow.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sigmaff.errors import ConfigError
from sigmaff.heads.base import FitSummary
from sigmaff.heads.cautious import N_FOLDS, Fold, choose_cautious_mean
from sigmaff.heads.lnk.reach import DISTANCE_ORIGIN, choose_reach
from sigmaff.heads.observations import HELD_OUT_ROWS, TRAINING_ROWS, Observations, Rows
from sigmaff.heads.posterior import (
    FORCE_WEIGHTS,
    NOISES,
    Moments,
    Posterior,
    at_ends,
    choose_mean,
    choose_variance,
    marginal_score,
    posteriors,
)
from sigmaff.progress import Counter, Listener

if TYPE_CHECKING:
    from sigmaff.heads.lnk.head import LNK, LNKConfig

LENGTHSCALES = (3.0, 10.0, 30.0)
"""Tried, in units of the mean distance between inducing points of an element."""
MARGINAL_LIKELIHOOD = (
    "selection marginal_likelihood: σ is too narrow. It explains labels that the backbone was trained on; calibrate σ, "
    "or select by held_out"
)
LEAST_PRIOR = 1.0
"""Of the variance of an atom's share, in the normalised unit: in other surroundings it is at least as uncertain as the
energy scale of the data, the rms force times 1 Å. Held-out data like the training data cannot tell."""
ONE_SIGMA = math.erf(math.sqrt(0.5))
LINEAR_SCALES = (0.1, 1.0, 10.0, 100.0)
"""Tried for a kernel of two parts: variance of the linear part over that of the stationary part."""


@dataclass(frozen=True, kw_only=True)
class LNKFit(FitSummary):
    """What the fit chose."""

    kernel: str
    n_inducing: int
    lengthscale: float  # in units of the mean distance between inducing points
    linear_scale: float | None
    noise: float
    relative_noise: float  # in units of the mean eigenvalue of the rows
    force_weight: float
    mean_noise: float | None  # None: the backbone's mean was kept
    mean_force_weight: float | None
    prior_std: float  # eV, of the share of an atom in other surroundings
    prior_origin: str
    at_ends: tuple[str, ...]  # settings of σ whose chosen value is the smallest or largest that was tried
    score: float
    n_energy_rows: int
    n_force_rows: int
    distance_prior: float | None = None  # eV, σ of an atom in surroundings unlike all known ones; None: not used
    distance_origin: str | None = None
    reach: float | None = None  # distance at which half of that variance is there, over that of held-out atoms


class _Posteriors(NamedTuple):
    variance: Posterior
    slopes: Posterior | None  # None: as the variance of energies
    mean: Posterior | None
    score: float
    prior_scale: float  # of energies
    slope_scale: float  # of forces


class _Choice(NamedTuple):
    head: "LNK"
    lengthscale: float
    linear_scale: float | None
    found: _Posteriors


@dataclass(frozen=True, kw_only=True)
class _Collected:
    """What one kernel saw: statistics of training rows, and held-out rows (energies, then forces if there are any)."""

    energy: Moments
    forces: Moments
    held_out: list[Rows]
    folds: tuple[Fold, ...] = ()  # the same rows in parts, if the backbone has not seen their labels
    columns: Tensor | None = None  # of the weights that it is about; None: all
    readout: "_Collected | None" = None
    """The same of the weights of the embedding alone, if there are others: hidden layers have a part in σ, and the mean
    is that of the last layer."""

    @property
    def of_mean(self) -> "_Collected":
        return self.readout or self

    @classmethod
    def empty(cls, head: "LNK", *, in_folds: bool = False) -> "_Collected":
        columns = head.kernel.readout_columns()
        nothing = Moments.empty(head.n_weights)
        folds = (Fold.empty(head.n_weights),) * N_FOLDS if in_folds and columns is None else ()
        own = None if columns is None else Moments.empty(len(columns))
        readout = None if own is None else _Collected(energy=own, forces=own, held_out=[], columns=columns)
        return _Collected(energy=nothing, forces=nothing, held_out=[], folds=folds, readout=readout)

    def plus(self, energy: Rows, forces: Rows | None) -> "_Collected":
        """With training rows. Where the mean has statistics of its own, force rows are for it alone."""
        if self.readout is not None:
            return replace(self, energy=self.energy.plus(energy), readout=self.readout.plus(energy, forces))
        return replace(
            self,
            energy=self.energy.plus(self._own(energy)),
            forces=self.forces if forces is None else self.forces.plus(self._own(forces)),
            folds=(*self.folds[1:], self.folds[0].plus(energy, forces)) if self.folds else (),
        )

    def with_held_out(self, kinds: list[Rows]) -> "_Collected":
        readout = None if self.readout is None else self.readout.with_held_out(kinds)
        return replace(self, held_out=[self._own(rows) for rows in kinds], readout=readout)

    def _own(self, rows: Rows) -> Rows:
        return rows if self.columns is None else rows.of(self.columns)

    def scaled(self, scales: Tensor) -> "_Collected":
        return _Collected(
            energy=self.energy.scaled(scales),
            forces=self.forces.scaled(scales),
            held_out=[rows.scaled(scales) for rows in self.held_out],
            folds=tuple(fold.scaled(scales) for fold in self.folds),
        )


@torch.no_grad()
def solve(head: "LNK", train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> LNKFit:
    """Compute the posterior around the readout of the backbone, which becomes the mean of the process."""
    if problem := head.config.unsolvable:
        raise ConfigError(f"the closed-form LNK: {problem}")
    if head.config.selection == "marginal_likelihood":
        listener.warn(MARGINAL_LIKELIHOOD)
    candidates = _candidates(head, train)
    counter = Counter(listener, len(train) + len(held_out))
    collected = _collect([candidate for candidate, _ in candidates], train, held_out, seed, counter)
    choices = [
        _choose(candidate, factor, data, len(held_out))
        for (candidate, factor), data in zip(candidates, collected, strict=True)
    ]
    best = min((choice for options in choices for choice in options), key=lambda choice: choice.found.score)
    found = best.found
    _install(head, best)
    reach = None if head.unseen is None else choose_reach(head, train, held_out)
    for end in (ends := _at_ends(best)):
        listener.warn(f"{end} that was tried: σ may depend on where the search ends")
    return LNKFit(
        kernel=head.config.kernel,
        n_inducing=head.kernel.n_inducing,
        lengthscale=best.lengthscale,
        linear_scale=best.linear_scale,
        noise=found.variance.noise,
        relative_noise=found.variance.relative_noise,
        force_weight=0.0 if found.slopes is None else found.slopes.force_weight,
        mean_noise=None if found.mean is None else found.mean.noise,
        mean_force_weight=None if found.mean is None else found.mean.force_weight,
        prior_std=found.prior_scale**0.5 * train.scale,
        prior_origin=_origin(head.config, best),
        at_ends=ends,
        score=found.score,
        n_energy_rows=collected[0].energy.count,
        n_force_rows=collected[0].of_mean.forces.count,
        distance_prior=None if reach is None else head.config.distance_prior,
        distance_origin=None if reach is None else DISTANCE_ORIGIN,
        reach=reach,
    )


def _candidates(head: "LNK", train: Observations) -> list[tuple["LNK", float]]:
    """Heads of unit scale on the same inducing points, with their lengthscale factors."""
    head.initialize(*train.embeddings())
    if head.kernel.stationary is None:
        return [(head, 1.0)]
    candidates = []
    for factor in LENGTHSCALES:
        candidate = deepcopy(head)
        candidate.kernel.log_lengthscale.add_(float(np.log(factor / head.config.lengthscale_factor)))
        candidates.append((candidate, factor))
    return candidates


def _collect(
    candidates: list["LNK"], train: Observations, held_out: Observations, seed: int, counter: Counter
) -> list[_Collected]:
    """One pass over both data sets for all candidates at once."""
    found = [_Collected.empty(candidate, in_folds=train.unseen_by_backbone) for candidate in candidates]
    for rows, n_structures in train.rows(candidates, TRAINING_ROWS, seed):
        found = [collected.plus(*own) for collected, own in zip(found, rows, strict=True)]
        counter.add(n_structures)
    kinds = held_out.undetermined_rows(candidates, HELD_OUT_ROWS, seed, counter)
    return [collected.with_held_out(own) for collected, own in zip(found, kinds, strict=True)]


def _origin(config: "LNKConfig", choice: _Choice) -> str:
    """Of the prior, for people."""
    if config.selection == "marginal_likelihood":
        return "marginal likelihood of the training set"
    if config.by_element and math.isclose(choice.found.prior_scale, LEAST_PRIOR, rel_tol=0.01):
        return "energy scale of the data: rms force times 1 Å"
    return "held-out likelihood: the smallest prior within one standard error"


def _at_ends(choice: _Choice) -> tuple[str, ...]:
    """Settings of σ whose chosen value is the first or last of its grid. A force weight of 0 is not an end."""
    lengthscales = LENGTHSCALES if choice.head.kernel.stationary else LENGTHSCALES[:0]
    return at_ends(
        [
            ("noise", choice.found.variance.relative_noise, NOISES[:: len(NOISES) - 1 or 1]),
            (
                "weight of force rows",
                None if choice.found.slopes is None else choice.found.slopes.force_weight,
                FORCE_WEIGHTS[-1:],
            ),
            ("lengthscale", choice.lengthscale, lengthscales[:: len(LENGTHSCALES) - 1]),
            ("scale of the linear part", choice.linear_scale, LINEAR_SCALES[:: len(LINEAR_SCALES) - 1]),
        ]
    )


def _choose(head: "LNK", lengthscale: float, data: _Collected, n_held_out: int) -> list[_Choice]:
    """The best posterior of one candidate for each scale of the linear part of its kernel."""
    kernel = head.kernel
    two_parts = kernel.stationary is not None and kernel.log_linear_scale is not None
    choices = []
    for linear_scale in LINEAR_SCALES if two_parts else (1.0,):
        scales = torch.ones(kernel.n_weights, dtype=torch.float64)
        scales[kernel.n_inducing :] = linear_scale**0.5
        found = _best_posteriors(data.scaled(scales) if two_parts else data, head.config, n_held_out)
        choices.append(_Choice(head, lengthscale, linear_scale if two_parts else None, found))
    return choices


def _best_posteriors(data: _Collected, config: "LNKConfig", n_held_out: int) -> _Posteriors:
    """Of variance, slopes and mean."""
    has_forces = data.of_mean.forces.count > 0
    force_weights = FORCE_WEIGHTS if has_forces else FORCE_WEIGHTS[:1]
    candidates = posteriors(data.of_mean.energy, data.of_mean.forces, force_weights)
    mean, errors = None, [rows.targets for rows in data.held_out]
    if config.mean == "residual" and config.selection == "held_out":
        if folds := [fold for fold in data.folds if fold.energy.count]:
            mean, errors = choose_cautious_mean(candidates, folds, data.held_out, force_weights)
        else:
            mean, errors = choose_mean(candidates, data.of_mean.held_out)
    if data.readout is not None:
        candidates = posteriors(data.energy, data.forces, FORCE_WEIGHTS[:1])

    def chosen(options: list[Posterior]) -> tuple[Posterior, float, float]:
        if config.selection == "marginal_likelihood":
            scores = [marginal_score(option, data.energy, data.forces) for option in options]
            best = min(range(len(options)), key=lambda k: scores[k][0])
            return options[best], *scores[best]
        least = LEAST_PRIOR if config.by_element else 0.0
        return choose_variance(options, data.held_out, errors, n_held_out, least)

    variance, score, scale = chosen([c for c in candidates if c.force_weight == 0.0])
    slopes, slope_scale = None, scale
    if has_forces and config.variance_labels == "energy+forces":
        honest = config.selection == "marginal_likelihood"  # every label that the variance uses counts
        slopes, _, slope_scale = chosen([c for c in candidates if c.force_weight > 0.0 or not honest])
    if config.selection == "held_out":
        each = (variance, slopes or variance)
        scale, *rest = [_scale(*kind) for kind in zip(each, data.held_out, errors, strict=False)]
        slope_scale = rest[0] if rest else scale
    elif config.mean == "residual":
        mean = slopes or variance
    return _Posteriors(variance, slopes, mean, score, scale, slope_scale)


def _scale(posterior: Posterior, rows: Rows, errors: Tensor) -> float:
    """Of the prior (its variance), such that 68 % of the errors of one kind are within σ.

    A few errors that are far larger than all others, as of a molecule that the network has not learned, do not move it.
    """
    scale = float((errors.square() / posterior.variance(rows)).quantile(ONE_SIGMA))
    return scale if 0.0 < scale < math.inf else 1.0


def _install(head: "LNK", choice: _Choice) -> None:
    """Write the chosen posterior into the head, with the prior's scale moved from the weights into the kernel."""
    found = choice.found
    scale = found.prior_scale**0.5
    head.kernel.load_state_dict(choice.head.kernel.state_dict())
    head.kernel.log_scale.fill_(float(np.log(scale)))
    if head.kernel.log_linear_scale is not None:
        head.kernel.log_linear_scale.fill_(float(np.log(scale * (choice.linear_scale or 1.0) ** 0.5)))
    assert head.energy_noise is not None
    assert head.force_weight is not None
    head.energy_noise.fill_(found.prior_scale * found.variance.noise)
    _install_covariance(head, found.variance)
    assert head.slope_scale is not None
    head.slope_scale.fill_(found.slope_scale / found.prior_scale)
    if head.slope_cholesky is not None:
        slopes = found.slopes or found.variance
        head.force_weight.fill_(slopes.force_weight)
        head.slope_cholesky.copy_(slopes.cholesky)
    if found.mean is not None:
        own = head.kernel.readout_columns()
        head.weight_mean[slice(None) if own is None else own] = found.mean.mean / scale


def _install_covariance(head: "LNK", variance: Posterior) -> None:
    if head.weight_directions is None or head.weight_shrinkage is None:
        assert head.weight_cholesky is not None
        head.weight_cholesky.copy_(variance.cholesky)
        return
    known = variance.eigenvalues.argsort(descending=True)[: len(head.weight_shrinkage)]
    head.weight_directions[:, : len(known)] = variance.eigenvectors[:, known]
    head.weight_shrinkage[: len(known)] = 1.0 - variance.kept[known].sqrt()
