"""Small differentiable operations shared by backbones and heads."""

import math

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional


def scatter_sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows of ``values`` (n, ...) with the same ``index`` (n,): (size, ...).

    Build the output with ``values.new_zeros``: under vmap, ``torch.zeros(...).index_add`` miscompiles silently.
    """
    return values.new_zeros((size, *values.shape[1:])).index_add(0, index, values)


def kept(values: Tensor) -> Tensor:
    """The same values. Compiled code computes them once and keeps them, not again wherever they are used."""
    return values.as_strided(values.shape, values.stride())


def is_traced(values: Tensor) -> bool:
    """Whether a program is being made of what happens to these values, so that they are not known."""
    return isinstance(values, FakeTensor)


class ShiftedSoftplus(nn.Module):
    """ln(1 + eˣ) − ln 2: smooth, zero at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x) - math.log(2.0)


def gaussian_basis(distance: Tensor, centers: Tensor) -> Tensor:
    """exp(−(d − c)² / 2Δ²) for evenly spaced centers c of spacing Δ: (n,) -> (n, n_centers)."""
    spacing = centers[1] - centers[0]
    return torch.exp(-0.5 * ((distance.unsqueeze(-1) - centers) / spacing).square())


def polynomial_cutoff(x: Tensor, power: int) -> Tensor:
    """1 − (p+1)(p+2)/2 xᵖ + p(p+2) xᵖ⁺¹ − p(p+1)/2 xᵖ⁺²: value, slope and curvature vanish for x ≥ 1."""
    p = power
    x = x.clamp(max=1.0)
    return 1.0 - x**p * ((p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2)))


def cosine_cutoff(distance: Tensor, cutoff: float) -> Tensor:
    """(cos(πd/r) + 1)/2 inside the cutoff r: value and slope vanish at r."""
    return 0.5 * (torch.cos(distance * (math.pi / cutoff)) + 1.0)


def unit_displacements(turn: Tensor, n_turns: int, dtype: torch.dtype) -> Tensor:
    """Displace atoms in turn along x, y and z, those of one turn together: (3 · n_turns, n_atoms, 3).

    An atom whose ``turn`` (n_atoms,) is not below ``n_turns`` stays in place.
    """
    moves = turn == torch.arange(n_turns, device=turn.device)[:, None]
    axes = torch.eye(3, dtype=dtype, device=turn.device)
    return (moves[:, None, :, None] * axes[None, :, None, :]).flatten(0, 1)
