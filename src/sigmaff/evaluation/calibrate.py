"""Calibrations of a model from its evaluation on held-out structures."""

from dataclasses import replace

import numpy as np

from sigmaff.errors import DataError
from sigmaff.evaluation.calibration import CalibrationMethod, fit_calibration, fit_energy_force_std
from sigmaff.evaluation.evaluate import OPEN, Evaluation
from sigmaff.evaluation.force_growth import fit_force_growth
from sigmaff.models.force_growth import ForceGrowth
from sigmaff.models.prediction import QUANTITIES, Calibration, Calibrations, EnergyForceStd, Quantity


def calibrate_evaluation(
    evaluation: Evaluation, method: CalibrationMethod = "auto", *, force_growth: bool = True
) -> tuple[Calibrations, dict[Quantity, str]]:
    """Calibrations fitted on held-out structures, and for quantities that cannot be calibrated the reason.

    With ``force_growth`` the map of force σ is fitted after its growth with energy σ (``fit_force_growth``). The method
    conformal has none: what it promises holds for a σ that has not seen the structures.

    A quantity without labels or without σ has neither. Energies of compositions that the training set does not
    determine are left out: their errors are those of reference energies.
    """
    fitted: dict[Quantity, Calibration] = {}
    reasons: dict[Quantity, str] = {}
    for quantity in QUANTITIES:
        found = evaluation.compared(quantity)
        if found is None:
            continue
        if quantity == "energy" and evaluation.composition_std is not None:
            closed = evaluation.composition_std <= OPEN
            if not closed.any():
                reasons[quantity] = (
                    "the training set determines no energy of these compositions; calibrate energies on its own ones"
                )
                continue
            found = (found[0][closed], found[1][closed], found[2][closed])
        growth = _growth(evaluation) if quantity == "forces" and force_growth and method != "conformal" else None
        if growth is not None and evaluation.component_std_raw is not None and evaluation.forces_std_raw is not None:
            grown = growth.apply(evaluation.forces_std_raw, evaluation.component_std_raw).ravel()
            found = (found[0], np.where(found[1] > 0, grown, 0.0), found[2])
        try:
            fitted[quantity] = replace(fit_calibration(*found, method), growth=growth)
        except DataError as problem:
            reasons[quantity] = str(problem)
    if not fitted and not reasons:
        labels = {"energy": evaluation.energy, "forces": evaluation.forces, "stress": evaluation.stress}
        stds = (evaluation.energy_std_raw, evaluation.forces_std_raw, evaluation.stress_std_raw)
        labelled = " and ".join(name for name, true in labels.items() if true is not None) or "nothing"
        with_std = " and ".join(name for name, std in zip(labels, stds, strict=True) if std is not None) or "nothing"
        raise DataError(
            f"{evaluation.name}: calibration needs labels and a σ for energies, forces or stress; "
            f"labelled: {labelled}; σ from method {evaluation.provenance.method!r}: {with_std}"
        )
    return Calibrations(**fitted), reasons


def energy_force_std(evaluation: Evaluation) -> EnergyForceStd | None:
    """Force σ from energy σ, fitted on held-out structures; ``None`` where that cannot be done."""
    errors, std = evaluation.forces_error, evaluation.energy_std_raw
    if errors is None or std is None:
        return None
    try:
        return fit_energy_force_std(errors, evaluation.atomic_numbers, evaluation.structure_index, std)
    except DataError:
        return None


def _growth(evaluation: Evaluation) -> ForceGrowth | None:
    errors, std, component_std = evaluation.forces_error, evaluation.forces_std_raw, evaluation.component_std_raw
    if errors is None or std is None or component_std is None:
        return None
    return fit_force_growth(errors, std, component_std, evaluation.structure_index)
