"""How large a deviation may be, and why; the only place where it is said."""

from sigmaff.audit.finding import Tolerance
from sigmaff.models.prediction import Quantity

SYMMETRY = {
    "energy": Tolerance(1e-4, 2e-3, "float32 rounding is 1e-6; 2e-3 is kT at 25 K", unit="eV/atom"),
    "forces": Tolerance(1e-3, 2e-2, "of the rms force; float32 rounding is 1e-5"),
    "energy_std": Tolerance(1e-2, 0.1, "of σ itself: the root of a difference keeps half the digits of float32"),
    "forces_std": Tolerance(1e-2, 0.1, "of the rms σ, for the same reason"),
}
CONSERVATION = {
    "forces_against_differences": Tolerance(
        1e-3, 2e-2, "of the rms force, beyond three times the rounding of the differences"
    ),
    "loop_work": Tolerance(1e-3, 2e-2, "of the work done on the way, to and fro; rounding is below 1e-5"),
    "drift": Tolerance(
        1e-4,
        1e-3,
        "beyond two standard errors; at 1e-4 a simulation of 100 ps warms by some 40 K, at a step of 0.5 fs",
        unit="eV/atom/ps",
    ),
    "fluctuation": Tolerance(
        2e-2,
        0.1,
        "of the total energy; steps of 0.5 fs make 1e-4 of smooth energies, and heat at 300 K is 2e-2",
        unit="eV/atom",
    ),
}
LOCALITY = {
    "distance_to_law": Tolerance(0.05, 0.15, "of the slope of log σ over log n to 1 (σ ∝ n) or 1/2 (σ² ∝ n)"),
    "irregularity": Tolerance(0.05, 0.2, "largest distance of log σ to the line: 5 % and 20 % of σ"),
    "additivity": Tolerance(1e-4, 2e-3, "rounding is 1e-6; true dipoles 15 Å apart stay below 2e-3", unit="eV/atom"),
    "copies": Tolerance(3, 3, "fewer tell nothing of a law of growth", at_least=True),
}
ACCURACY = {
    "energy_mae_ratio": Tolerance(1.02, 1.2, "of the backbone's; 2 % are within the chance of a test set"),
    "forces_mae_ratio": Tolerance(1.02, 1.2, "of the backbone's, likewise"),
}
SPEED = {
    "ratio_to_backbone": Tolerance(1.5, 3.0, "energy, forces and energy σ against energy and forces of the backbone"),
}
AUROC = Tolerance(0.9, 0.7, "nine of ten new structures have the larger σ; 0.5 is guessing", at_least=True)
CALIBRATION: dict[Quantity, float] = {"energy": 0.12, "forces": 0.05, "stress": 0.12}
"""Calibration scores that hold, where there are data enough to tell; 2.5 times as much holds approximately."""


def calibration_tolerance(quantity: Quantity, chance: float) -> Tolerance:
    """Limits of a calibration score, 0 at best and 1.69 at worst; ``chance``: the mean score of perfect σ."""
    holds = max(CALIBRATION[quantity], 2.0 * chance)
    reason = f"0 is perfect; chance gives perfect σ {chance:.2g} on these data, and twice that is no evidence"
    return Tolerance(holds, 2.5 * holds, reason)


def spearman_tolerance(n_structures: int) -> Tolerance:
    """Spearman's correlation is of no use at 0; N structures leave it uncertain by 1/√N."""
    reason = "a larger σ must mean a larger error; approximately: not clearly less than 0 on these data"
    return Tolerance(0.0, -2.0 / n_structures**0.5, reason, at_least=True)
