"""Radial and angular basis functions of DimeNet."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import scipy
import torch
from numpy.polynomial.chebyshev import chebinterpolate
from torch import Tensor, nn

from sigmaff.graph.ops import polynomial_cutoff

CHEBYSHEV_RANGE = 1.1  # largest distance of the series, in cutoffs: > 1, so that arccos is smooth up to the cutoff


def envelope(x: Tensor, exponent: int) -> Tensor:
    """1/x times the polynomial cutoff of power exponent + 1."""
    return polynomial_cutoff(x, exponent + 1) / x


class RadialBasis(nn.Module):
    """u(x) sin(f_n x), x = d / cutoff, with trainable frequencies f_n that start at n π."""

    def __init__(self, n_radial: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, n_radial + 1))

    def forward(self, x: Tensor, envelope: Tensor) -> Tensor:
        """(n,) -> (n, n_radial)."""
        return envelope.unsqueeze(-1) * torch.sin(x.unsqueeze(-1) * self.frequencies)


class SphericalBasis(nn.Module):
    """u(x) R_ln(x) with R_ln(x) = (−1)ˡ √((2l + 1) / 4π) √2 / |j_{l+1}(z_ln)| · j_l(z_ln x), z_ln the n-th zero of j_l.

    Multiplied by a Legendre polynomial P_l of the cosine of the angle between two edges at their common atom, these are
    the spherical Fourier-Bessel functions of an edge's length and of the angle between the directions of the two edges.
    That angle is π minus the angle at the atom, hence the signs.

    R_ln are entire functions. Chebyshev series of about fifty terms are exact to rounding at every distance, while
    recurrences in l lose digits at short distances. They are always summed in float64. Their coefficients are
    therefore not a buffer, which would be cast to the precision of the network.
    """

    def __init__(self, n_spherical: int, n_radial: int) -> None:
        super().__init__()
        self.shape = (n_spherical, n_radial)
        self.coefficients = torch.as_tensor(_chebyshev_coefficients(n_spherical, n_radial), device="cpu")

    def forward(self, x: Tensor, envelope: Tensor) -> Tensor:
        """(n,) -> (n, n_spherical, n_radial)."""
        coefficients = self.coefficients.to(x.device)
        order = torch.arange(len(coefficients), dtype=coefficients.dtype, device=x.device)
        angle = torch.arccos(x.to(coefficients.dtype) / CHEBYSHEV_RANGE)
        radial = torch.cos(angle.unsqueeze(-1) * order) @ coefficients
        return (radial.to(x.dtype) * envelope.unsqueeze(-1)).unflatten(-1, self.shape)


def legendre(cosine: Tensor, first: Tensor, n: int) -> Tensor:
    """P_0 … P_{n−1} of ``cosine`` (...,), multiplied by ``first`` (broadcast): (..., n)."""
    polynomials = [first.expand_as(cosine), cosine * first]
    for order in range(1, n - 1):
        last, before = polynomials[-1], polynomials[-2]
        polynomials.append(((2 * order + 1) / (order + 1)) * cosine * last - (order / (order + 1)) * before)
    return torch.stack(polynomials[:n], dim=-1)


def bessel_zeros(n_spherical: int, n_radial: int) -> np.ndarray:
    """The first zeros of spherical Bessel functions, (n_spherical, n_radial). Zeros of j_{l−1} bracket those of j_l."""
    zeros = np.pi * np.arange(1, n_radial + n_spherical)
    rows = [zeros[:n_radial]]
    for order in range(1, n_spherical):
        function = partial(scipy.special.spherical_jn, order)
        zeros = np.array([scipy.optimize.brentq(function, *interval, xtol=1e-14) for interval in pairwise(zeros)])
        rows.append(zeros[:n_radial])
    return np.stack(rows)


def _chebyshev_coefficients(n_spherical: int, n_radial: int) -> np.ndarray:
    """Coefficients of R_ln(CHEBYSHEV_RANGE · t), t in [−1, 1]: (n_terms, n_spherical · n_radial)."""
    zeros = bessel_zeros(n_spherical, n_radial)
    order = np.arange(n_spherical)[:, None]
    norm = (
        (-1.0) ** order * np.sqrt((2 * order + 1) / (2 * np.pi)) / np.abs(scipy.special.spherical_jn(order + 1, zeros))
    )
    widest = CHEBYSHEV_RANGE * zeros.max()

    def functions(t: np.ndarray) -> np.ndarray:
        values = norm * scipy.special.spherical_jn(order, zeros * (CHEBYSHEV_RANGE * np.abs(t))[:, None, None])
        return (np.where(t[:, None, None] < 0, (-1.0) ** order, 1.0) * values).reshape(len(t), -1)

    return chebinterpolate(functions, math.ceil(widest + 10 * widest ** (1 / 3) + 6))
