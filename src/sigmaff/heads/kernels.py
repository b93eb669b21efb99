"""Stationary kernels of the Localized Neural Kernel, as functions of the scaled squared distance u = |h − h'|²/ℓ².

Each gives its value κ(u) and first two derivatives, which is all that variances of energies and of their slopes need:

    ∂_a ∂'_b κ = −(2/ℓ²) κ'(u) δ_ab − (4/ℓ⁴) κ''(u) (h − h')_a (h − h')_b
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SMOOTHING = 1e-6
"""Added to the squared distance under Matérn's root: still a positive definite kernel, now with derivatives of every
order that automatic differentiation gets right at zero distance. κ(0) is 1.7e-7 short of one."""


@dataclass(frozen=True, kw_only=True)
class StationaryKernel:
    value: Callable[[Tensor], Tensor]  # κ(u), κ(0) ≈ 1
    first_derivative: Callable[[Tensor], Tensor]  # κ'(u)
    second_derivative: Callable[[Tensor], Tensor]  # κ''(u)
    draw_frequencies: Callable[[int, int, torch.Generator], Tensor]  # n draws from the spectral density, ℓ = 1: (n, d)


def _gaussian_frequencies(n: int, n_features: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, n_features, generator=generator, dtype=torch.float64, device="cpu")


def _student_frequencies(n: int, n_features: int, generator: torch.Generator) -> Tensor:
    """The Matérn-5/2 spectrum is a multivariate Student t with 5 degrees of freedom."""
    chi_squared = (
        torch.randn(n, 5, generator=generator, dtype=torch.float64, device="cpu").square().sum(-1, keepdim=True)
    )
    return _gaussian_frequencies(n, n_features, generator) * (5.0 / chi_squared).sqrt()


def _scaled_distance(u: Tensor) -> Tensor:
    """√5 r/ℓ."""
    return (5.0 * u + SMOOTHING).sqrt()


def _matern52(u: Tensor) -> Tensor:
    r = _scaled_distance(u)
    return (1.0 + r + r.square() / 3.0) * torch.exp(-r)


def _rbf(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u)


def _rbf_first(u: Tensor) -> Tensor:
    return -0.5 * _rbf(u)


def _rbf_second(u: Tensor) -> Tensor:
    return 0.25 * _rbf(u)


def _matern52_first(u: Tensor) -> Tensor:
    r = _scaled_distance(u)
    return -5.0 / 6.0 * (1.0 + r) * torch.exp(-r)


def _matern52_second(u: Tensor) -> Tensor:
    return 25.0 / 12.0 * torch.exp(-_scaled_distance(u))


RBF = StationaryKernel(
    value=_rbf,
    first_derivative=_rbf_first,
    second_derivative=_rbf_second,
    draw_frequencies=_gaussian_frequencies,
)

MATERN52 = StationaryKernel(
    value=_matern52,
    first_derivative=_matern52_first,
    second_derivative=_matern52_second,
    draw_frequencies=_student_frequencies,
)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i − b_j|² of float64 rows near the origin: (..., n, d), (..., m, d) -> (..., n, m).

    Expanded into a matrix product, which is safe here and only here: in float64 and with centred rows its rounding is
    1e-16 of the squared spread of the data, not of the squared distance of the data from the origin.
    """
    products = a @ b.transpose(-1, -2)
    return (a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2) - 2.0 * products).clamp(min=0.0)
