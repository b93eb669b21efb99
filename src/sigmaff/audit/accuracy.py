"""Desideratum 4: a σ must not cost accuracy."""

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, judged, not_applicable
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import FloatArray, mae, rmse

NAME = "Accuracy"


def accuracy(evaluation: Evaluation | None, backbone: Evaluation | None) -> Finding:
    """MAE and RMSE of energies (eV) and force components (eV/Å), and their MAE over that of the backbone alone."""
    if evaluation is None:
        return not_applicable(NAME, "There are no labelled structures to measure errors on.")
    own = _errors(evaluation)
    if not own:
        return not_applicable(
            NAME, f"There is nothing to compare with on {evaluation.name}: no labels, or unseen elements."
        )
    errors = _words(own)
    if backbone is None:
        sentence = f"{errors}. There is no backbone without σ to hold this against."
        return not_applicable(NAME, sentence, own)
    reference = _errors(backbone)
    ratios = {f"{key}_ratio": own[key] / reference[key] for key in ("energy_mae", "forces_mae") if key in own}
    shown = " / ".join(f"{ratio:.2f}" for ratio in ratios.values())
    return judged(
        NAME,
        own | {f"{key}, backbone": value for key, value in reference.items()} | ratios,
        tolerances.ACCURACY,
        figure=f"{shown} × backbone",
        sentence=f"{errors}: {shown} times those of the backbone alone, energies / forces.",
    )


def _errors(evaluation: Evaluation) -> dict[str, float]:
    named: tuple[tuple[str, FloatArray | None], ...] = (
        ("energy", evaluation.energy_error),
        ("forces", evaluation.forces_error),
    )
    return {
        f"{name}_{measure.__name__}": measure(error)
        for name, error in named
        if error is not None
        for measure in (mae, rmse)
    }


def _words(errors: dict[str, float]) -> str:
    named = (("energies", "energy_mae", "eV"), ("forces", "forces_mae", "eV/Å"))
    known = [f"{errors[key]:.3g} {unit} for {name}" for name, key, unit in named if key in errors]
    return "Mean absolute errors are " + " and ".join(known)
