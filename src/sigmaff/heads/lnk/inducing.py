"""Inducing points: a few points among the training embeddings, or between them, for those of each element."""

import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from sigmaff.errors import ConfigError

Placement = Literal["farthest", "kmeans", "random", "first_k"]


@dataclass(frozen=True, kw_only=True)
class PointSettings:
    """How inducing points are placed."""

    placement: Placement = "farthest"
    readout_pairs: bool = False
    lengthscale_factor: float = 3.0


class Points(NamedTuple):
    """Inducing points (n, d), their elements (n,), and a lengthscale; ``None`` where no element has two points."""

    points: Tensor
    elements: Tensor
    lengthscale: Tensor | None


def place_points(
    settings: PointSettings, features: Tensor, directions: Tensor, elements: Tensor, n_points: int
) -> Points:
    """Inducing points of a training set.

    The lengthscale is that of the settings, in units of the mean distance between points of one element, pairs along
    the readout left out. Without three points to an element there are no pairs.

    Arguments:
        features: what is compared (n_atoms, d).
        directions: along which the readout of each atom grows (n_atoms, d).
        elements: (n_atoms,).
    """
    n_kinds = len(elements.unique())
    n_pairs = 2 * n_kinds if settings.readout_pairs and n_points >= 3 * n_kinds else 0
    points, kinds = choose_inducing_points(features, elements, n_points - n_pairs, settings.placement)
    same = (kinds[:, None] == kinds).triu(diagonal=1)
    distance = (points[:, None] - points).norm(dim=-1)[same].mean() if same.any() else None
    if n_pairs:
        width = points.new_ones(()) if distance is None else distance
        pairs, of_pairs = _readout_pairs(features, directions, elements, width)
        points, kinds = torch.cat([points, pairs]), torch.cat([kinds, of_pairs])
    return Points(points, kinds, None if distance is None else settings.lengthscale_factor * distance)


def choose_inducing_points(
    features: Tensor, elements: Tensor, n_points: int, placement: Placement = "farthest"
) -> tuple[Tensor, Tensor]:
    """Points of each element, and their elements.

    features (n_atoms, d), elements (n_atoms,) -> points (n_points, d), elements of points (n_points,). No point is
    chosen twice. Points are shared out by the square root of each element's number of atoms.

    Arguments:
        placement: each as far as possible from all others (farthest), centres of clusters (kmeans), at random, or the
            first of the training set, of whatever elements (first_k; the paper's: the same number for each atom of a
            molecule).
    """
    if placement == "first_k":
        return _first(features, elements, n_points)
    kinds, counts = elements.unique(return_counts=True)
    distinct = [features[elements == kind].unique(dim=0) for kind in kinds]
    shares = share_out(n_points, counts.double().sqrt().tolist(), [len(points) for points in distinct])
    place = {"farthest": farthest_points, "kmeans": _centres, "random": _random_points}[placement]
    chosen = [place(points, share) for points, share in zip(distinct, shares, strict=True)]
    return torch.cat(chosen), kinds.repeat_interleave(torch.tensor(shares, device=kinds.device))


def share_out(total: int, weights: list[float], capacities: list[int]) -> list[int]:
    """Whole shares, at least one each, as near to the weights as the capacities allow (D'Hondt's method)."""
    if total < len(weights):
        raise ConfigError(f"n_inducing is {total}, but {len(weights)} elements need at least one inducing point each")
    if total > sum(capacities):
        raise _too_many(total, sum(capacities))
    shares = [1] * len(weights)
    while sum(shares) < total:
        claims = [
            weight / (share + 1) if share < capacity else -1.0
            for weight, share, capacity in zip(weights, shares, capacities, strict=True)
        ]
        shares[claims.index(max(claims))] += 1
    return shares


def _too_many(total: int, n_distinct: int) -> ConfigError:
    return ConfigError(
        f"n_inducing is {total}, but the training set holds only {n_distinct} distinct atomic environments; "
        f"set n_inducing to at most {n_distinct}"
    )


def farthest_points(points: Tensor, n: int) -> Tensor:
    """Start next to the mean, then add the point farthest from all chosen ones, until there are n."""
    chosen = [int((points - points.mean(0)).norm(dim=-1).argmin())]
    distance = (points - points[chosen[0]]).norm(dim=-1)
    while len(chosen) < n:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).norm(dim=-1))
    return points[chosen]


def _centres(points: Tensor, n: int) -> Tensor:
    """Of n clusters; where clusters are empty or alike, points farthest apart take their places."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters
        centres, _ = scipy.cluster.vq.kmeans2(points.cpu().numpy(), n, minit="++", seed=np.random.default_rng(0))
    found = torch.as_tensor(centres, dtype=points.dtype, device=points.device).unique(dim=0)
    if len(found) == n:
        return found
    return torch.cat([found, farthest_points(points, n)[: n - len(found)]])


def _random_points(points: Tensor, n: int) -> Tensor:
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0), device="cpu")
    return points[order[:n].to(points.device)]


def _first(features: Tensor, elements: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """The first n distinct environments."""
    keyed = torch.cat([elements.unsqueeze(-1).to(features.dtype), features], dim=-1)
    _, groups = keyed.unique(dim=0, return_inverse=True)
    order = torch.arange(len(groups), device=groups.device)
    first = torch.full_like(order, len(order)).scatter_reduce(0, groups, order, "amin")  # of each group
    places = first[first < len(order)].sort().values
    if n_points > len(places):
        raise _too_many(n_points, len(places))
    chosen = places[:n_points]
    if missing := set(elements.unique().tolist()) - set(elements[chosen].tolist()):
        raise ConfigError(
            f"the first {n_points} atomic environments hold no point of {len(missing)} element(s); raise n_inducing, "
            "or choose inducing points of each element (inducing: farthest)"
        )
    return features[chosen], elements[chosen]


def _readout_pairs(features: Tensor, directions: Tensor, elements: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Two points of each element, on both sides of its mean along the readout: their difference is a slope along it."""
    kinds, pairs = elements.unique(), []
    for kind in kinds:
        step = width * torch.nn.functional.normalize(directions[elements == kind].mean(0), dim=0)
        mean = features[elements == kind].mean(0)
        pairs += [mean - step, mean + step]
    return torch.stack(pairs), kinds.repeat_interleave(2)
