"""Factors C of the covariance C Cᵀ of the LNK's weights, which have unit variance before they see labels."""

from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import linear


class Factor(Protocol):
    def of_rows(self, rows: Tensor) -> Tensor:
        """Φ C, whose squared norm is the variance: (..., n_weights) -> (..., n_weights)."""

    def of_draws(self, draws: Tensor) -> Tensor:
        """C ε of unit-normal draws (n_weights, k)."""

    def part(self, weights: Tensor) -> Tensor:
        """C of some of the weights, by index: (m,) -> (m, n_weights)."""


BLOCK = 256
"""Columns of a triangle that are multiplied together: smaller products leave out more zeros, larger ones are faster."""


class TriangularFactor(NamedTuple):
    matrix: Tensor  # (n_weights, n_weights)
    blocks: tuple[Tensor, ...]  # of its columns from the diagonal on, transposed: so a few rows are multiplied fastest

    @classmethod
    def of(cls, matrix: Tensor) -> Self:
        """matrix: (n_weights, n_weights); what is above the diagonal counts as zero."""
        matrix = matrix.tril()
        starts = range(0, len(matrix), BLOCK)
        return cls(matrix, tuple(matrix[start:, start : start + BLOCK].T.contiguous() for start in starts))

    def of_rows(self, rows: Tensor) -> Tensor:
        starts = range(0, len(self.matrix), BLOCK)
        parts = [linear(rows[..., start:], block) for start, block in zip(starts, self.blocks, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

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
