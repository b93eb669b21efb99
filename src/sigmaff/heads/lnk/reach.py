"""How far the training set reaches: the distance at which surroundings stop being known.

The prior of what is unknown is physical, and labels do not reduce it. What data tell is where it begins: with a long
reach an atom far from the training set counts as known; with a short one held-out structures, which the model predicts
well, get a σ that is too large. So the reach is the shortest at which held-out energies are as likely as without it, to
within one standard error. It is counted in units of the distance of held-out atoms themselves or, where these are
copies of training atoms, of the spacing of known surroundings.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigmaff.heads.observations import Observations
from sigmaff.heads.posterior import ONE_STANDARD_ERROR

if TYPE_CHECKING:
    from sigmaff.heads.lnk.head import LNK

DISTANCE_ORIGIN = "energy of an atom in molecules and solids (distance_prior)"
REACHES = tuple(1.1**k for k in range(4, 42))
"""Tried, in units of the distance that one in a hundred held-out atoms exceeds, and of the spacing at least."""
TYPICAL = 0.99


def choose_reach(head: "LNK", train: Observations, held_out: Observations) -> float:
    """Set the prior and the reach of what is unknown; return the reach in units of distances of held-out atoms."""
    unseen = head.unseen
    assert unseen is not None
    distances, errors, variances = [], [], []
    batches = []
    for batch in held_out.batches():
        features, (energy, _) = batch.embeddings(), batch.targets()
        distribution = head(features, batch.graph)
        surroundings, elements = head.embedding.surroundings(features), head.kind_index[batch.graph.atomic_numbers]
        distances.append(unseen.distances(unseen.coordinates(surroundings, elements), elements))
        errors.append(energy.double() - distribution.mean)
        variances.append(distribution.variance)
        batches.append((surroundings, elements, batch.graph))
    unit = max(float(torch.cat(distances).quantile(TYPICAL)), unseen.spacing()) or 1.0
    unseen.prior.fill_(head.config.distance_prior / train.scale)
    error, known = torch.cat(errors), torch.cat(variances)
    limit = _score(error, known) + ONE_STANDARD_ERROR / len(error)
    for reach in REACHES:
        unseen.reach.fill_(reach * unit)
        unknown = torch.cat([unseen.variance(*batch) for batch in batches])
        if _score(error, known + unknown) <= limit:
            return reach
    return reach


def _score(error: Tensor, variance: Tensor) -> float:
    """Negative log-likelihood of errors, but for a constant."""
    variance = variance.clamp(min=torch.finfo(torch.float64).tiny)
    score = 0.5 * (error.square() / variance + variance.log()).mean()
    return float(score) if math.isfinite(score) else math.inf
