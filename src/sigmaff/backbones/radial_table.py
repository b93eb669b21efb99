"""Functions of distance as tables, for prediction: quintic splines with the values and first two derivatives at knots.

A spline is a polynomial of degree five between two knots, which values, slopes and curvatures there determine. So it is
twice continuously differentiable, and its value at a distance needs six rows of the table. The slopes that it gives are
its own: forces are derivatives of the energy to rounding, whatever the error of the table is.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sigmaff.errors import ConfigError
from sigmaff.graph.neighbors import MIN_DISTANCE
from sigmaff.graph.ops import forward_slope, kept

TOLERANCE = 1e-7
"""Largest error of values and of slopes, each in units of the largest of its kind."""
MAX_INTERVALS = 4096
STEP = 5e-4
"""Å, between slopes whose differences are curvatures."""
START = 0.5 * MIN_DISTANCE
"""Å. Structures with shorter distances are refused; functions may diverge at 0."""

# Rows: polynomials in t of the value, slope and curvature at the lower knot, then of those at the upper one.
_HERMITE = (
    (1.0, 0.0, 0.0, -10.0, 15.0, -6.0),
    (0.0, 1.0, 0.0, -6.0, 8.0, -3.0),
    (0.0, 0.0, 0.5, -1.5, 1.5, -0.5),
    (0.0, 0.0, 0.0, 10.0, -15.0, 6.0),
    (0.0, 0.0, 0.0, -4.0, 7.0, -3.0),
    (0.0, 0.0, 0.0, 0.5, -1.0, 0.5),
)


_SLOPES = tuple(tuple(power * c for power, c in enumerate(row))[1:] for row in _HERMITE)


class RadialTable(nn.Module):
    """Many functions of distance, from ``START`` to the cutoff. Beyond the cutoff they keep their last values.

    The number of intervals is doubled until the error, measured between knots, is below ``TOLERANCE``.
    """

    def __init__(self, functions: Callable[[Tensor], Tensor], cutoff: float, dtype: torch.dtype) -> None:
        """functions: float64 (n,) Å -> (n, width), differentiable in forward mode; dtype: of the table."""
        super().__init__()
        self.rows: Tensor
        self.register_buffer("rows", torch.zeros(0), persistent=False)
        self.cutoff, self.n_intervals, self.error = cutoff, 128, torch.inf
        while self.error > TOLERANCE:
            self.n_intervals *= 2
            if self.n_intervals > MAX_INTERVALS:
                raise ConfigError(f"a table of radial functions has an error of {self.error:.1e}; they are not smooth")
            self._tabulate(functions)
        self.rows = self.rows.to(dtype)

    @property
    def spacing(self) -> float:
        return (self.cutoff - START) / self.n_intervals

    @torch.no_grad()
    def _tabulate(self, functions: Callable[[Tensor], Tensor]) -> None:
        knots = torch.linspace(START, self.cutoff, self.n_intervals + 1, dtype=torch.float64)
        derivatives = [part * self.spacing**order for order, part in enumerate(_derivatives(functions, knots))]
        self.rows = torch.stack(derivatives, dim=1).flatten(0, 1)
        between = knots[:-1] + self.spacing * torch.linspace(0.1, 0.9, 5, dtype=torch.float64).unsqueeze(-1)
        truth, found = _derivatives(functions, between.flatten())[:2], self.with_slopes(between.flatten())
        self.error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))

    def forward(self, distance: Tensor) -> Tensor:
        """(n,) -> (n, width), differentiable once."""
        values, slopes = self.with_slopes(distance.detach())
        return values + slopes * (distance - distance.detach()).unsqueeze(-1)

    def with_slopes(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Values and derivatives by distance, (n, width) each."""
        place = ((distance.double() - START) / self.spacing).clamp(0.0, self.n_intervals)
        interval = place.floor().clamp(max=self.n_intervals - 1)
        inside, row = (place - interval).to(self.rows.dtype), 3 * interval.long()
        within = (distance <= self.cutoff).to(self.rows.dtype) / self.spacing
        values = [_polynomial(c, inside) for c in _HERMITE]
        slopes = [_polynomial(c, inside) * within for c in _SLOPES]
        weights = kept(torch.stack([*values, *slopes]).view(2, 6, -1))
        both = kept(_weighed(weights.permute(1, 2, 0), [self.rows[row + number] for number in range(6)]))
        return both[:, 0], both[:, 1]


def _weighed(weights: Tensor, rows: list[Tensor]) -> Tensor:
    """Σ_k w_kc r_k of weights (6, n, 2) and six rows (n, width), (n, 2, width): one loop reads rows for both."""
    total = weights[0].unsqueeze(-1) * rows[0].unsqueeze(1)
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        total = torch.addcmul(total, weight.unsqueeze(-1), row.unsqueeze(1))
    return total


def _polynomial(coefficients: tuple[float, ...], t: Tensor) -> Tensor:
    total = torch.full_like(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * t + coefficient
    return total


def _derivatives(functions: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values, slopes and curvatures, (n, width) each.

    Curvatures are differences of slopes, of fourth order: torch has no second forward derivative of some activations.
    """

    def slopes(x: Tensor) -> Tensor:
        return forward_slope(functions, (x,), (torch.ones_like(x),))

    near, far = (slopes(at + k * STEP) - slopes(at - k * STEP) for k in (1, 2))
    return functions(at), slopes(at), (8.0 * near - far) / (12.0 * STEP)
