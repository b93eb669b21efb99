"""Irreducible representations of O(3): how they couple, and spherical harmonics. Conventions are e3nn's."""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Irrep(NamedTuple):
    """Degree l (2l + 1 components) and parity p: under inversion the components are multiplied by p = ±1."""

    l: int  # noqa: E741
    p: int

    @property
    def dim(self) -> int:
        return 2 * self.l + 1


class Path(NamedTuple):
    """One way to couple input number ``source`` with the harmonics of degree ``l`` to output number ``target``."""

    source: int
    l: int  # noqa: E741
    target: int


def all_irreps(l_max: int) -> tuple[Irrep, ...]:
    """Both parities of every degree: 0e, 0o, 1o, 1e, 2e, 2o, ..."""
    return tuple(Irrep(l, sign * (-1) ** l) for l in range(l_max + 1) for sign in (1, -1))  # noqa: E741


def reachable(inputs: Sequence[Irrep], l_max: int) -> tuple[Irrep, ...]:
    """Irreps up to ``l_max`` that products of the inputs with harmonics up to ``l_max`` contain."""
    return tuple(out for out in all_irreps(l_max) if any(_degrees(irrep, out, l_max) for irrep in inputs))


def paths_between(inputs: Sequence[Irrep], outputs: Sequence[Irrep], l_max: int) -> tuple[Path, ...]:
    """All paths from inputs to outputs by harmonics up to ``l_max``, in the order of the outputs."""
    return tuple(
        Path(source, degree, target)
        for target, out in enumerate(outputs)
        for source, irrep in enumerate(inputs)
        for degree in _degrees(irrep, out, l_max)
    )


def _degrees(irrep: Irrep, out: Irrep, l_max: int) -> list[int]:
    """Degrees of the harmonics (of parity (−1)ˡ) that couple one irrep to another."""
    between = range(abs(irrep.l - out.l), min(irrep.l + out.l, l_max) + 1)
    return [degree for degree in between if irrep.p * (-1) ** degree == out.p]


@cache
def coupling(l_1: int, l_2: int, l_3: int) -> npt.NDArray[np.float64]:
    """√(2l₃ + 1) times the Wigner 3j symbol, (2l₁ + 1, 2l₂ + 1, 2l₃ + 1).

    It couples vectors whose components have variance 1 to a vector whose components have variance 1.
    """
    from e3nn.o3 import wigner_3j  # it takes more than a second to import

    with torch.device("cpu"):
        return math.sqrt(2 * l_3 + 1) * wigner_3j(l_1, l_2, l_3, dtype=torch.float64).numpy()


@cache
def ladder(degree: int) -> npt.NDArray[np.float64]:
    """A with Y_l = A (Y_{l−1} ⊗ r̂), (3 (2l − 1), 2l + 1): the coupling, scaled so that Y_l(ŷ) = √(2l + 1) at m = 0."""
    matrix = coupling(degree - 1, 1, degree).reshape(-1, 2 * degree + 1)
    below = np.zeros((2 * degree - 1, 3))
    below[degree - 1, 1] = math.sqrt(2 * degree - 1)
    return matrix * (math.sqrt(2 * degree + 1) / (below.ravel() @ matrix)[degree])


def spherical_harmonics(unit: Tensor, ladders: Sequence[Tensor]) -> Tensor:
    """Real harmonics of degrees 0, 1, ... of unit vectors, Σ_m Y_lm² = 2l + 1: (n, 3) -> (n, (l_max + 1)²).

    ``ladders`` are those of degrees 1 to l_max.
    """
    harmonics = [unit.new_ones(unit.shape[0], 1)]
    for step in ladders:
        product = harmonics[-1].unsqueeze(-1) * unit.unsqueeze(-2)
        harmonics.append(product.flatten(1) @ step.to(unit.dtype))
    return torch.cat(harmonics, dim=-1)
