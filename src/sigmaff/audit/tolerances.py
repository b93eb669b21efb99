"""How large a deviation may be, and why; the only place where it is said."""

from sigmaff.audit.finding import Tolerance
from sigmaff.evaluation.samples import Quantity

SYMMETRY: dict[str, Tolerance] = {
    "energy": Tolerance(
        holds=1e-4, approximately=2e-3, unit="eV/atom", reason="float32 rounding is 1e-6; 2e-3 is kT at 25 K"
    ),
    "forces": Tolerance(holds=1e-3, approximately=2e-2, reason="of the rms force; float32 rounding is 1e-5"),
    "energy_std": Tolerance(
        holds=1e-2, approximately=0.1, reason="of σ itself: the root of a difference keeps half the digits of float32"
    ),
    "forces_std": Tolerance(holds=1e-2, approximately=0.1, reason="of the rms σ, for the same reason"),
}

CONSERVATION: dict[str, Tolerance] = {
    "forces_against_differences": Tolerance(
        holds=1e-3, approximately=2e-2, reason="of the rms force, beyond three times the rounding of the differences"
    ),
    "loop_work": Tolerance(
        holds=1e-3, approximately=2e-2, reason="of the work done on the way, to and fro; rounding is below 1e-5"
    ),
    "drift": Tolerance(
        holds=1e-4,
        approximately=1e-3,
        unit="eV/atom/ps",
        reason="beyond two standard errors; at 1e-4 a simulation of 100 ps warms by some 40 K, at a step of 0.5 fs",
    ),
}

LOCALITY: dict[str, Tolerance] = {
    "distance_to_law": Tolerance(
        holds=0.05, approximately=0.15, reason="of the slope of log σ over log n to 1 (σ ∝ n) or 1/2 (σ² ∝ n)"
    ),
    "irregularity": Tolerance(
        holds=0.05, approximately=0.2, reason="largest distance of log σ to the line: 5 % and 20 % of σ"
    ),
    "additivity": Tolerance(
        holds=1e-4,
        approximately=2e-3,
        unit="eV/atom",
        reason="rounding is 1e-6; true dipoles 15 Å apart stay below 2e-3",
    ),
    "copies": Tolerance(holds=3, approximately=3, at_least=True, reason="fewer tell nothing of a law of growth"),
}

ACCURACY: dict[str, Tolerance] = {
    "energy_mae_ratio": Tolerance(
        holds=1.02, approximately=1.2, reason="of the backbone's; 2 % are within the chance of a test set"
    ),
    "forces_mae_ratio": Tolerance(holds=1.02, approximately=1.2, reason="of the backbone's, likewise"),
}

AUROC = Tolerance(
    holds=0.9, approximately=0.7, at_least=True, reason="nine of ten new structures have the larger σ; 0.5 is guessing"
)
CALIBRATION: dict[Quantity, float] = {"energy": 0.12, "forces": 0.05}
"""Calibration scores that hold, where there are data enough to tell; 2.5 times as much holds approximately."""


def calibration_tolerance(quantity: Quantity, chance: float) -> Tolerance:
    """Limits of a calibration score, 0 at best and 1.69 at worst; ``chance``: the mean score of perfect σ."""
    holds = max(CALIBRATION[quantity], 2.0 * chance)
    return Tolerance(
        holds=holds,
        approximately=2.5 * holds,
        reason=f"0 is perfect; chance gives perfect σ {chance:.2g} on these data, and twice that is no evidence",
    )


def spearman_tolerance(n_structures: int) -> Tolerance:
    """Spearman's correlation is of no use at 0; N structures leave it uncertain by 1/√N."""
    return Tolerance(
        holds=0.0,
        approximately=-2.0 / n_structures**0.5,
        at_least=True,
        reason="a larger σ must mean a larger error; approximately: not clearly less than 0 on these data",
    )


SPEED: dict[str, Tolerance] = {
    "ratio_to_backbone": Tolerance(
        holds=1.5, approximately=3.0, reason="energy, forces and energy σ against energy and forces of the backbone"
    ),
}
