"""Factors C of the covariance C Cᵀ of the LNK's weights, which have unit variance before they see labels."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Factor(Protocol):
    def of_rows(self, rows: Tensor) -> Tensor:
        """Φ C, whose squared norm is the variance: (..., n_weights) -> (..., n_weights)."""

    def of_draws(self, draws: Tensor) -> Tensor:
        """C ε of unit-normal draws (n_weights, k)."""

    def part(self, weights: Tensor) -> Tensor:
        """C of some of the weights, by index: (m,) -> (m, n_weights)."""


class TriangularFactor(NamedTuple):
    matrix: Tensor  # (n_weights, n_weights)

    def of_rows(self, rows: Tensor) -> Tensor:
        return rows @ self.matrix

    def of_draws(self, draws: Tensor) -> Tensor:
        return self.matrix @ draws

    def part(self, weights: Tensor) -> Tensor:
        return self.matrix[weights]


class LowRankFactor(NamedTuple):
    """1 − U diag(g) Uᵀ: labels determine fewer directions than there are weights, and leave the others as they were."""

    directions: Tensor  # U (n_weights, r), orthonormal columns
    shrinkage: Tensor  # g (r,), from 0 (nothing is known) to 1

    def of_rows(self, rows: Tensor) -> Tensor:
        return rows - (rows @ self.directions * self.shrinkage) @ self.directions.T

    def of_draws(self, draws: Tensor) -> Tensor:
        return draws - self.directions @ (self.shrinkage.unsqueeze(-1) * (self.directions.T @ draws))

    def part(self, weights: Tensor) -> Tensor:
        part = -(self.directions[weights] * self.shrinkage) @ self.directions.T
        part[torch.arange(len(weights), device=weights.device), weights] += 1.0
        return part
