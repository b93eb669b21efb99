"""Desideratum 4: a σ must not cost accuracy."""

from sigmaff.audit import tolerances
from sigmaff.audit.finding import NO_COMPARISON, NO_LABELS, Finding, judged, not_applicable
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import mae, rmse

NAME = "Accuracy"


def measure(evaluation: Evaluation | None, backbone: Evaluation | None) -> Finding:
    """MAE and RMSE of energies (eV) and force components (eV/Å), and their MAE over that of the backbone alone."""
    if evaluation is None:
        return not_applicable(NAME, NO_LABELS)
    own = _errors(evaluation)
    if not own:
        return not_applicable(NAME, f"{evaluation.name} has no labels, or unknown elements: errors are undefined.")
    named = (("energies", "energy_mae", "eV"), ("forces", "forces_mae", "eV/Å"))
    known = [f"{own[key]:.3g} {unit} for {name}" for name, key, unit in named if key in own]
    sentence = "Mean absolute errors are " + " and ".join(known)
    if backbone is None:
        return not_applicable(NAME, f"{sentence}. {NO_COMPARISON}", own)
    reference = _errors(backbone)
    ratios = {f"{key}_ratio": own[key] / reference[key] for key in ("energy_mae", "forces_mae") if key in own}
    numbers = own | {f"{key}, backbone": value for key, value in reference.items()} | ratios
    shown = " / ".join(f"{ratio:.2f}" for ratio in ratios.values())
    sentence += f": {shown} times those of the backbone alone, energies / forces."
    return judged(NAME, numbers, tolerances.ACCURACY, f"{shown} × backbone", sentence)


def _errors(evaluation: Evaluation) -> dict[str, float]:
    errors = {"energy": evaluation.energy_error, "forces": evaluation.forces_error}
    known = {name: error for name, error in errors.items() if error is not None}
    return {f"{name}_{m.__name__}": m(error) for name, error in known.items() for m in (mae, rmse)}
