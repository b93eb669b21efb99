"""Mixtures of Gaussians by expectation maximisation, with covariances that few points in many dimensions can carry.

The covariance of a Gaussian that n of the points belong to is shrunk to a multiple of the identity,

    C = (1 − ρ) S + ρ t 1,      t = (n tr(S)/d + t₀)/(n + 1)

where ρ is Ledoit and Wolf's for all points, larger in proportion where only some of them belong to the Gaussian. The
``spread`` t₀ counts as one more point: it is the variance of a single point, or of equal points.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MIN_SHRINKAGE = 1e-6
"""Below, a covariance would resolve the rounding of embeddings computed in single precision."""
MAX_STEPS = 200
TOLERANCE = 1e-6
"""Change of the mean log-likelihood of a point at which the steps end."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    weights: Tensor  # (c,)
    means: Tensor  # (c, d)
    whitening: Tensor  # (c, d, d) inverse Cholesky factors of the covariances

    def log_parts(self, x: Tensor) -> Tensor:
        """log(weight · density) of each Gaussian at each point: (n, d) -> (n, c)."""
        standardized = (x - self.means.unsqueeze(1)) @ self.whitening.transpose(1, 2)
        log_determinants = self.whitening.diagonal(dim1=1, dim2=2).log().sum(-1)
        heights = self.weights.log() + log_determinants - 0.5 * x.shape[1] * math.log(2.0 * math.pi)
        return heights - 0.5 * standardized.square().sum(-1).T

    def padded(self, n: int) -> "Mixture":
        """The same density with n Gaussians, some of them several times."""
        index = torch.arange(n, device=self.means.device) % len(self.weights)
        copies = torch.bincount(index)[index]
        return Mixture(weights=self.weights[index] / copies, means=self.means[index], whitening=self.whitening[index])


@dataclass(frozen=True, kw_only=True)
class Regularization:
    shrinkage: float  # ρ of all points
    spread: float  # t₀


def ledoit_wolf_shrinkage(x: Tensor) -> float:
    """The ρ that minimises the expected squared error of (1 − ρ) S + ρ tr(S)/d 1, estimated from the points (n, d)."""
    n, d = x.shape
    x = x - x.mean(0)
    covariance = x.T @ x / n
    square = covariance.square().sum()
    distance = float(square - covariance.trace().square() / d)
    noise = float(x.square().sum(-1).square().mean() - square) / n
    if distance <= 0.0:
        return 1.0
    return min(1.0, max(MIN_SHRINKAGE, noise / distance))


def fit_mixture(
    x: Tensor, n_components: int, regularization: Regularization, generator: np.random.Generator
) -> Mixture:
    """A mixture of the points (n, d), float64. Fewer distinct points than components: one Gaussian each."""
    everyone = x.new_ones(len(x), 1)
    mixture = _maximised(x, everyone, regularization)
    if n_components > 1:
        standardized = (x - mixture.means) @ mixture.whitening[0].T
        mixture = _improved(x, _nearest_seed(standardized, n_components, generator), regularization)
    return mixture.padded(n_components)


def _improved(x: Tensor, responsibilities: Tensor, regularization: Regularization) -> Mixture:
    """Maximisation and expectation in turn, until the likelihood stands still."""
    likelihood = -math.inf
    for _ in range(MAX_STEPS):
        mixture = _maximised(x, responsibilities, regularization)
        parts = mixture.log_parts(x)
        log_density = parts.logsumexp(-1, keepdim=True)
        responsibilities = (parts - log_density).exp()
        before, likelihood = likelihood, float(log_density.mean())
        if abs(likelihood - before) < TOLERANCE:
            break
    return mixture


def _maximised(x: Tensor, responsibilities: Tensor, regularization: Regularization) -> Mixture:
    """The best mixture for points that belong to Gaussians in these parts, (n, c)."""
    n, d = x.shape
    counts = responsibilities.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
    means = responsibilities.T @ x / counts.unsqueeze(1)
    identity = torch.eye(d, dtype=x.dtype, device=x.device)
    whitening = []
    for count, mean, share in zip(counts, means, responsibilities.T, strict=True):
        centred = x - mean
        covariance = (share.unsqueeze(1) * centred).T @ centred / count
        target = (count * covariance.trace() / d + regularization.spread) / (count + 1.0)
        shrinkage = (regularization.shrinkage * n / count).clamp(max=1.0)
        cholesky = torch.linalg.cholesky((1.0 - shrinkage) * covariance + shrinkage * target * identity)
        whitening.append(torch.linalg.solve_triangular(cholesky, identity, upper=False))
    return Mixture(weights=counts / n, means=means, whitening=torch.stack(whitening))


def _nearest_seed(x: Tensor, n_seeds: int, generator: np.random.Generator) -> Tensor:
    """k-means++: points drawn by their squared distance from those drawn before; 1 for the nearest, (n, n_seeds).

    There are fewer seeds where there are fewer distinct points.
    """
    seed = x[int(generator.integers(len(x)))]
    squares = (x - seed).square().sum(-1, keepdim=True)
    while squares.shape[1] < n_seeds:
        nearest = squares.min(-1).values
        total = float(nearest.sum())
        if total <= 0.0:
            break
        seed = x[int(generator.choice(len(x), p=(nearest / total).cpu().numpy()))]
        squares = torch.cat([squares, (x - seed).square().sum(-1, keepdim=True)], dim=1)
    return torch.nn.functional.one_hot(squares.argmin(-1), squares.shape[1]).to(x.dtype)
