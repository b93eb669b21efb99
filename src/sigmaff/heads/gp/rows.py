"""Covariance of values and slopes of a stationary Gaussian process."""

from typing import NamedTuple

import torch
from torch import Tensor

from sigmaff.heads.kernels import StationaryKernel, squared_distances

JITTER = 1e-10
"""Added to the diagonal of K, relative to each row's prior variance."""


class ValuesAndSlopes(NamedTuple):
    """Linear observations of a function: its values at all inputs, then its slopes along tangents at some of them."""

    inputs: Tensor  # (n, d)
    tangents: Tensor  # (m, d)
    owners: Tensor  # (m,) input at which each tangent is

    def __len__(self) -> int:
        return self.inputs.shape[0] + self.tangents.shape[0]


class Geometry(NamedTuple):
    """Distances and products of two sets of rows: their covariance follows for any kernel and lengthscale."""

    squares: Tensor  # |z − z'|² (n, n')
    along_first: Tensor  # t·(z − z') (m, n')
    along_second: Tensor  # t'·(z' − z) (n, m')
    products: Tensor  # t·t' (m, m')
    owners: tuple[Tensor, Tensor]

    @classmethod
    def between(cls, first: ValuesAndSlopes, second: ValuesAndSlopes) -> "Geometry":
        return cls(
            squares=squared_distances(first.inputs, second.inputs),
            along_first=_along(first, second.inputs),
            along_second=_along(second, first.inputs).T,
            products=first.tangents @ second.tangents.T,
            owners=(first.owners, second.owners),
        )

    def covariance(self, kernel: StationaryKernel, lengthscale: Tensor) -> Tensor:
        """Covariance of all first with all second rows, (n + m, n' + m')."""
        first, second = self.owners
        u = self.squares / lengthscale.square()
        slope = 2.0 / lengthscale.square() * kernel.first_derivative(u)
        curvature = 4.0 / lengthscale**4 * kernel.second_derivative(u)
        crossed = self.along_first[:, second] * self.along_second[first]
        slopes = curvature[first][:, second] * crossed - slope[first][:, second] * self.products
        upper = torch.cat([kernel.value(u), slope[:, second] * self.along_second], dim=1)
        lower = torch.cat([slope[first] * self.along_first, slopes], dim=1)
        return torch.cat([upper, lower])


def factorized(geometry: Geometry, kernel: StationaryKernel, lengthscale: Tensor, noise: Tensor) -> Tensor:
    """Cholesky factor of K + noise of one set of rows; ``noise`` (2,) are variances of values and of slopes."""
    covariance = geometry.covariance(kernel, lengthscale)
    n, m = len(geometry.squares), len(geometry.products)
    of_rows = torch.cat([noise[:1].expand(n), noise[1:].expand(m)]) + JITTER * covariance.diagonal()
    return torch.linalg.cholesky(covariance + torch.diag(of_rows))


def prior_variance(rows: ValuesAndSlopes, kernel: StationaryKernel, lengthscale: Tensor) -> Tensor:
    """κ(0) of values, −2κ'(0) |t|²/ℓ² of slopes, (n + m,)."""
    zero = lengthscale.new_zeros(())
    slopes = -2.0 * kernel.first_derivative(zero) * rows.tangents.square().sum(-1) / lengthscale.square()
    return torch.cat([kernel.value(zero).expand(len(rows.inputs)), slopes])


def _along(rows: ValuesAndSlopes, points: Tensor) -> Tensor:
    """t·(z − p) for the tangents t at inputs z, and all points p: (m, n_points)."""
    return (rows.tangents * rows.inputs[rows.owners]).sum(-1, keepdim=True) - rows.tangents @ points.T
