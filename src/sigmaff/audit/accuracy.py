"""Desideratum 4: a σ must not cost accuracy."""

from sigmaff.audit import tolerances, words
from sigmaff.audit.finding import Finding, judged, not_applicable
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import mae, rmse

NAME = "Accuracy"


def measure(evaluation: Evaluation | None, backbone: Evaluation | None) -> Finding:
    """MAE and RMSE of energies (eV) and force components (eV/Å), and their MAE over that of the backbone alone."""
    if evaluation is None:
        return not_applicable(NAME, words.NO_LABELS)
    own = _errors(evaluation)
    if not own:
        return not_applicable(NAME, f"{evaluation.name} has no labels, or unknown elements: errors are undefined.")
    if backbone is None:
        return not_applicable(NAME, f"{words.errors(own)}. {words.NO_COMPARISON}", own)
    reference = _errors(backbone)
    ratios = {f"{key}_ratio": own[key] / reference[key] for key in ("energy_mae", "forces_mae") if key in own}
    numbers = own | {f"{key}, backbone": value for key, value in reference.items()} | ratios
    return judged(NAME, numbers, tolerances.ACCURACY, words.accuracy(own, ratios))


def _errors(evaluation: Evaluation) -> dict[str, float]:
    errors = {"energy": evaluation.energy_error, "forces": evaluation.forces_error}
    known = {name: error for name, error in errors.items() if error is not None}
    return {f"{name}_{m.__name__}": m(error) for name, error in known.items() for m in (mae, rmse)}
