"""Irreducible representations of O(3), their coupling, and spherical harmonics. Conventions are e3nn's."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class Irrep(NamedTuple):
    """Degree l (2l + 1 components) and parity p: under inversion the components are multiplied by p = ±1."""

    l: int  # noqa: E741
    p: int

    @property
    def dim(self) -> int:
        return 2 * self.l + 1


Triple = tuple[int, int, int]
"""Degrees of an irrep, of the harmonics that multiply it, and of the product."""


class Path(NamedTuple):
    """One way to couple an irrep with the harmonics of a degree to another irrep."""

    source: Irrep
    degree: int
    target: Irrep

    @property
    def triple(self) -> Triple:
        return self.source.l, self.degree, self.target.l


def all_irreps(l_max: int) -> tuple[Irrep, ...]:
    """Both parities of every degree: 0e, 0o, 1o, 1e, 2e, 2o, ..."""
    return tuple(Irrep(l, sign * (-1) ** l) for l in range(l_max + 1) for sign in (1, -1))  # noqa: E741


def reachable(inputs: Sequence[Irrep], l_max: int) -> tuple[Irrep, ...]:
    """Irreps up to ``l_max`` in the products of the inputs with harmonics up to ``l_max``."""
    return tuple(out for out in all_irreps(l_max) if any(_degrees(irrep, out, l_max) for irrep in inputs))


def paths_between(inputs: Sequence[Irrep], outputs: Sequence[Irrep], l_max: int) -> tuple[Path, ...]:
    """All paths from inputs to outputs by harmonics up to ``l_max``, in the order of the outputs."""
    return tuple(
        Path(source, degree, target)
        for target in outputs
        for source in inputs
        for degree in _degrees(source, target, l_max)
    )


def _degrees(irrep: Irrep, out: Irrep, l_max: int) -> list[int]:
    """Degrees of the harmonics (of parity (−1)ˡ) that couple one irrep to another."""
    between = range(abs(irrep.l - out.l), min(irrep.l + out.l, l_max) + 1)
    return [degree for degree in between if irrep.p * (-1) ** degree == out.p]


@cache
def wigner_3j(l_1: int, l_2: int, l_3: int) -> npt.NDArray[np.float64]:
    """Wigner 3j symbols of real harmonics, (2l₁ + 1, 2l₂ + 1, 2l₃ + 1), for degrees up to 3 that satisfy the triangle.

    The table lists l₁ ≤ l₂ ≤ l₃. Exchanging two columns multiplies a symbol by (−1)^(l₁ + l₂ + l₃).
    """
    degrees = (l_1, l_2, l_3)
    order = np.argsort(degrees, kind="stable")
    n_exchanges = sum(before > after for before, after in combinations(degrees, 2))
    symbols = _tabulated()[tuple(sorted(degrees))].transpose(np.argsort(order))
    return symbols * (-1.0) ** (sum(degrees) * n_exchanges)


@cache
def _tabulated() -> dict[tuple[int, ...], npt.NDArray[np.float64]]:
    table: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
    for line in (files("sigmaff.backbones") / "wigner_3j.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            *numbers, square = line.split()
            degrees, orders = tuple(map(int, numbers[:3])), map(int, numbers[3:])
            symbols = table.setdefault(degrees, np.zeros([2 * degree + 1 for degree in degrees]))
            value = float(Fraction(square))
            index = tuple(degree + m for degree, m in zip(degrees, orders, strict=True))
            symbols[index] = math.copysign(math.sqrt(abs(value)), value)
    return table


@cache
def coupling(l_1: int, l_2: int, l_3: int) -> npt.NDArray[np.float64]:
    """√(2l₃ + 1) times the Wigner 3j symbol, (2l₁ + 1, 2l₂ + 1, 2l₃ + 1).

    Coupling two vectors with components of variance 1 gives a vector with components of variance 1.
    """
    return math.sqrt(2 * l_3 + 1) * wigner_3j(l_1, l_2, l_3)


@cache
def ladder(degree: int) -> npt.NDArray[np.float64]:
    """A with Y_l = A (Y_{l−1} ⊗ r̂), (3 (2l − 1), 2l + 1): the coupling, scaled so that Y_l(ŷ) = √(2l + 1) at m = 0."""
    matrix = coupling(degree - 1, 1, degree).reshape(-1, 2 * degree + 1)
    below = np.zeros((2 * degree - 1, 3))
    below[degree - 1, 1] = math.sqrt(2 * degree - 1)
    return matrix * (math.sqrt(2 * degree + 1) / (below.ravel() @ matrix)[degree])


def spherical_harmonics(unit: Tensor, ladders: Sequence[Tensor]) -> Tensor:
    """Real harmonics of degrees 1, 2, ... of unit vectors, Σ_m Y_lm² = 2l + 1: (n, 3) -> (n, (l_max + 1)² − 1).

    ``ladders`` are those of degrees 2 to l_max.
    """
    harmonics = [math.sqrt(3.0) * unit]
    for step in ladders:
        product = harmonics[-1].unsqueeze(-1) * unit.unsqueeze(-2)
        harmonics.append(product.flatten(1) @ step.to(unit.dtype))
    return torch.cat(harmonics, dim=-1)


class CoupledHarmonics(nn.Module):
    """Spherical harmonics contracted with coupling constants. Features times these are messages.

    H_ac = Σ_b C_abc Y_b for each triple of degrees up to l_max, except harmonics of degree 0, where H = 1.
    """

    def __init__(self, l_max: int) -> None:
        super().__init__()
        degrees = range(l_max + 1)
        triples = [(a, b, c) for a in degrees for b in degrees for c in degrees if b > 0 and abs(a - b) <= c <= a + b]
        self.shapes = {(a, b, c): (2 * a + 1, 2 * c + 1) for a, b, c in triples}
        self.l_max = l_max
        for degree in range(2, l_max + 1):
            self.register_buffer(f"ladder_{degree}", torch.tensor(ladder(degree)), persistent=False)
        self.constants = nn.Buffer(torch.tensor(_coupling_matrix(triples, l_max)), persistent=False)
        signs = np.repeat([(-1.0) ** b for _, b, _ in triples], [math.prod(self.shapes[t]) for t in triples])
        self.signs = nn.Buffer(torch.tensor(signs), persistent=False)

    def forward(self, unit: Tensor) -> dict[Triple, Tensor]:
        """(n, 3) -> (2n, 2l₁ + 1, 2l₃ + 1) for each triple: first all n vectors, then all reversed vectors."""
        ladders = [self.get_buffer(f"ladder_{degree}") for degree in range(2, self.l_max + 1)]
        forth = spherical_harmonics(unit, ladders) @ self.constants.to(unit.dtype)
        both = torch.cat([forth, forth * self.signs.to(unit.dtype)])  # Y_l(−r) = (−1)ˡ Y_l(r)
        parts = both.split([math.prod(shape) for shape in self.shapes.values()], dim=-1)
        return {t: part.unflatten(-1, shape) for (t, shape), part in zip(self.shapes.items(), parts, strict=True)}


def _coupling_matrix(triples: Sequence[Triple], l_max: int) -> npt.NDArray[np.float64]:
    """Rows are harmonics of degrees 1 to l_max, columns the entries of H for all triples."""
    columns = []
    for a, b, c in triples:
        block = np.zeros(((l_max + 1) ** 2 - 1, (2 * a + 1) * (2 * c + 1)))
        block[b**2 - 1 : (b + 1) ** 2 - 1] = coupling(a, b, c).transpose(1, 0, 2).reshape(2 * b + 1, -1)
        columns.append(block)
    return np.concatenate(columns, axis=1)
