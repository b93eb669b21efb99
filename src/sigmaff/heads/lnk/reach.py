"""How far the training set reaches: the distance at which surroundings stop being known.

The prior of what is unknown is physical, and labels do not reduce it. What data tell is where it begins. With a long
reach an atom far from the training set counts as known. With a short one held-out structures, which the model predicts
well, get a σ that is too large. So the reach is such that the unknown has a small, fixed share of the variance of
held-out energies, which changes their likelihood little.
"""

import math
from typing import TYPE_CHECKING

import torch

from sigmaff.heads.observations import Observations

if TYPE_CHECKING:
    from sigmaff.heads.lnk.head import LNK

DISTANCE_ORIGIN = "energy of an atom in molecules and solids (distance_prior)"
SHARE = 0.2
"""Of the variance of a held-out energy, in the median."""
MOST, MOST_SHARE = 0.95, 0.5
"""In most structures the unknown is not the larger part: with few labels some held-out atoms are far from all known
ones, and the median does not see them."""
TYPICAL = 0.99
"""Reaches are told in units of the distance that one in a hundred held-out atoms exceeds."""
LONGEST = 1e3
"""Reach in units of the spacing of known surroundings, and of distances of held-out atoms."""
BISECTIONS = 20


def choose_reach(head: "LNK", train: Observations, held_out: Observations) -> float:
    """Set the prior and the reach of what is unknown; return the reach in units of distances of held-out atoms."""
    unseen = head.unseen
    assert unseen is not None
    unseen.prior.zero_()
    unseen.reach.fill_(1.0)
    distances, variances, structures = [], [], []
    for batch in held_out.batches():
        features = batch.embeddings()
        surroundings, elements = head.embedding.surroundings(features), head.kind_index[batch.graph.atomic_numbers]
        distances.append(unseen.at(surroundings, elements).distance)
        variances.append(head(features, batch.graph).variance)
        structures.append((surroundings, elements, batch.graph))
    unseen.prior.fill_(head.config.distance_prior / train.scale)
    known = torch.cat(variances)
    typical = float(torch.cat(distances).quantile(TYPICAL))
    unit = max(typical, unseen.spacing()) or 1.0
    shortest, longest = math.log(unit), math.log(LONGEST * unit)
    for _ in range(BISECTIONS):
        middle = 0.5 * (shortest + longest)
        unseen.reach.fill_(math.exp(middle))
        unknown = torch.cat([unseen.at(x, elements).variance(graph) for x, elements, graph in structures])
        share = unknown / (known + unknown)
        if float(share.median()) > SHARE or float(share.quantile(MOST)) > MOST_SHARE:
            shortest = middle
        else:
            longest = middle
    return float(unseen.reach) / unit
