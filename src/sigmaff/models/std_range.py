"""The range of σ on held-out structures, beside which the σ of a new structure is usual or not."""

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Of one number for each held-out structure."""

    median: float
    q90: float
    q99: float
    largest: float

    def __post_init__(self) -> None:
        if not 0 <= self.median <= self.q90 <= self.q99 <= self.largest < inf or self.largest == 0:
            raise ValueError("the range of σ is not of finite numbers that increase")

    @classmethod
    def of(cls, values: npt.NDArray[np.float64] | None) -> "Quantiles | None":
        """``None``: there are no values, or they are all 0."""
        if values is None or not values.size or not 0 < values.max() < inf:
            return None
        median, q90, q99, largest = np.quantile(values, (0.5, 0.9, 0.99, 1.0)).tolist()
        return cls(median=median, q90=q90, q99=q99, largest=largest)


@dataclass(frozen=True, kw_only=True)
class StdRange:
    """σ of the structures that σ was calibrated on, as the model reports it; ``None``: there is no such σ."""

    n_structures: int
    forces: Quantiles | None = None  # eV/Å, largest force σ of an atom, the norm of its components
    energy: Quantiles | None = None  # eV/atom, energy σ of the structure, without that of its composition
    atom: Quantiles | None = None  # eV, largest σ of an atom's share of the energy

    def __str__(self) -> str:
        """Usual and largest values, for people."""
        units = {"force": (self.forces, "eV/Å"), "energy": (self.energy, "eV/atom"), "atomic": (self.atom, "eV")}
        words = [
            f"{name} σ {found.median:.3g}, at most {found.largest:.3g} {unit}"
            for name, (found, unit) in units.items()
            if found is not None
        ]
        return f"{'; '.join(words)} ({self.n_structures:,} structures)"
