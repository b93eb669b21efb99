"""Small differentiable operations shared by backbones and heads."""

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional


def scatter_sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows of ``values`` (n, ...) with the same ``index`` (n,): (size, ...).

    Build the output with ``values.new_zeros``: under vmap, ``torch.zeros(...).index_add`` miscompiles silently.
    """
    return values.new_zeros((size, *values.shape[1:])).index_add(0, index, values)


def forward_slope(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> Tensor:
    """Derivative of a function along a direction of its inputs, by forward differentiation.

    torch has one count of levels of forward differentiation for all threads: one thread at a time.
    """
    with _FORWARD:
        slope: Tensor = torch.func.jvp(function, inputs, along)[1]
    return slope


_FORWARD = threading.RLock()


def kept(values: Tensor) -> Tensor:
    """The same values. Compiled code computes them once and keeps them, not again wherever they are used."""
    return values.as_strided(values.shape, values.stride())


def is_traced(values: Tensor) -> bool:
    """Whether a program is being made of what happens to these values, so that they are not known."""
    return isinstance(values, FakeTensor)


def permuted(values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """``values[index]`` of rows, for an index that takes no row twice whose derivative counts: it is ``grad[inverse]``.

    Compiled code scatters derivatives slowly, and gathers them fast.
    """
    return _Permuted.apply(values, index, inverse)


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        return values.index_select(0, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


def slot_sum(values: Tensor, row: Tensor, mask: Tensor, owner: Tensor) -> Tensor:
    """``scatter_sum(values, owner)`` of rows that stand in slots: (n, ...) -> (n_owners, ...).

    Arguments:
        row: (n_slots, n_owners), the rows of each owner; any row where a slot is empty.
        mask: (n_slots, n_owners), 0 where a slot is empty.
        owner: (n,) of each row.
    """
    return _SlotSum.apply(values, row, mask, owner)


class _SlotSum(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, row: Tensor, mask: Tensor, owner: Tensor) -> Tensor:
        return (values[row] * mask.to(values.dtype).view(*mask.shape, *[1] * (values.ndim - 1))).sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None, None


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
