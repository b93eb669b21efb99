"""Inducing points: a few training embeddings that cover those of each element."""

import torch
from torch import Tensor

from sigmaff.errors import ConfigError


def choose_inducing_points(features: Tensor, elements: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Farthest-point choice within each element.

    features (n_atoms, d), elements (n_atoms,) -> points (n_points, d), their elements (n_points,). Points are shared
    out by the square root of each element's number of atoms; none is chosen twice.
    """
    kinds, counts = elements.unique(return_counts=True)
    distinct = [features[elements == kind].unique(dim=0) for kind in kinds]
    shares = share_out(n_points, counts.double().sqrt().tolist(), [len(points) for points in distinct])
    chosen = [farthest_points(points, share) for points, share in zip(distinct, shares, strict=True)]
    return torch.cat(chosen), kinds.repeat_interleave(torch.tensor(shares, device=kinds.device))


def share_out(total: int, weights: list[float], capacities: list[int]) -> list[int]:
    """Whole shares, at least one each, as near to the weights as the capacities allow (D'Hondt's method)."""
    if total < len(weights):
        raise ConfigError(f"n_inducing is {total}, but {len(weights)} elements need at least one inducing point each")
    if total > sum(capacities):
        raise ConfigError(
            f"n_inducing is {total}, but the training set holds only {sum(capacities)} distinct atomic environments; "
            f"set n_inducing to at most {sum(capacities)}"
        )
    shares = [1] * len(weights)
    while sum(shares) < total:
        claims = [
            weight / (share + 1) if share < capacity else -1.0
            for weight, share, capacity in zip(weights, shares, capacities, strict=True)
        ]
        shares[claims.index(max(claims))] += 1
    return shares


def farthest_points(points: Tensor, n: int) -> Tensor:
    """Start next to the mean, then add the point farthest from all chosen ones, until there are n."""
    chosen = [int((points - points.mean(0)).norm(dim=-1).argmin())]
    distance = (points - points[chosen[0]]).norm(dim=-1)
    while len(chosen) < n:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).norm(dim=-1))
    return points[chosen]
