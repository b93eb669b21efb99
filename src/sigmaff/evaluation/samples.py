"""Errors together with their σ: what every measure and every figure of σ is computed from."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sigmaff.evaluation.metrics import FloatArray, calibration_score, observed_coverage
from sigmaff.models.prediction import UNCALIBRATED, Calibration, Quantity

IntArray = npt.NDArray[np.int64]
UNITS: dict[Quantity, str] = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³"}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Errors of one quantity that have σ > 0, pooled; a force that vanishes by symmetry has σ = 0."""

    quantity: Quantity
    errors: FloatArray  # (n,) eV, eV/Å or eV/Å³
    std_raw: FloatArray  # (n,)
    structure: IntArray  # (n,) the structure of each error
    calibration: Calibration
    std_fixed: FloatArray  # (n,) σ that no calibration scales: that of compositions
    std_grown: FloatArray | None = None  # (n,) force σ with its growth, before the factor; None: as the raw one

    @property
    def name(self) -> str:
        return "force" if self.quantity == "forces" else self.quantity

    @property
    def unit(self) -> str:
        return UNITS[self.quantity]

    @property
    def std(self) -> FloatArray:
        """Calibrated σ, (n,)."""
        grown = self.std_raw if self.std_grown is None else self.std_grown
        return np.hypot(grown * self.calibration.scale, self.std_fixed)

    @property
    def sizes(self) -> FloatArray:
        return np.abs(self.errors)

    @property
    def uncalibrated(self) -> "Sample":
        return replace(self, calibration=UNCALIBRATED, std_grown=None)

    def part(self, chosen: IntArray) -> "Sample":
        """Some of the errors, by index."""
        names = ("errors", "std_raw", "structure", "std_fixed", "std_grown")
        return replace(self, **{name: a[chosen] for name in names if (a := getattr(self, name)) is not None})

    def coverage(self, levels: npt.ArrayLike) -> FloatArray:
        """Share of errors within the central intervals of these coverages."""
        return observed_coverage(self.errors, self.std, levels, self.calibration)

    def calibration_score(self) -> float:
        return calibration_score(self.errors, self.std, self.calibration)
