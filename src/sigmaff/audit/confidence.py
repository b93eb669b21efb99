"""Desideratum 5: σ is as large as errors are, larger where they are larger, and largest where all is new."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, Series, Tolerance, judged, line, not_applicable
from sigmaff.evaluation.evaluate import Evaluation, IntArray
from sigmaff.evaluation.metrics import CALIBRATION_LEVELS, FloatArray, observed_coverage, standardised_sizes
from sigmaff.evaluation.summary import Summary, summarize
from sigmaff.models.prediction import Calibration

NAME = "Confidence"
MEASURES = (
    "calibration",
    "calibration_raw",
    "nll",
    "crps",
    "ence",
    "sharpness",
    "spearman",
    "coverage_68",
    "coverage_95",
    "auroc",
    "fpr95",
)
PLURALS = {"energy": "energies", "forces": "forces"}


@dataclass(frozen=True, kw_only=True)
class Rated:
    """Errors of energies, or of force components, that have a label and a σ > 0."""

    quantity: str
    errors: FloatArray  # (n,)
    std: FloatArray  # (n,) calibrated
    structure: IntArray  # (n,)
    calibration: Calibration


def no_std() -> Finding:
    return Finding(desideratum=NAME, verdict="fails", figure="no σ", sentence="It says nothing of its own errors.")


def confidence(evaluation: Evaluation | None, ood: Evaluation | None) -> Finding:
    """Measures of σ on labelled structures, and of σ against that of structures of another kind.

    It holds where all of these do, for energies and for forces as far as there is a σ: the calibration score is at most
    0.12 for energies and 0.05 for forces, or too small for these data to tell from perfect; Spearman's correlation of
    σ and |error| is positive; the AUROC of σ, per atom for energies, is at least 0.9.
    """
    if evaluation is None:
        return not_applicable(NAME, "There are no labelled structures to hold σ against.")
    rated, summary = list(_rated(evaluation)), summarize(evaluation, ood)
    numbers = {
        key: value
        for key in (f"{quantity}_{measure}" for quantity in ("energy", "forces") for measure in MEASURES)
        if isinstance(value := summary.get(key), float)
    }
    if not rated:
        return not_applicable(NAME, f"There are no labels, or no σ above 0, on {evaluation.name}.", numbers)
    return judged(
        NAME,
        numbers,
        _tolerances(rated, evaluation.n_structures),
        figure=_figure(numbers),
        sentence=_sentence(summary, evaluation, ood),
        series=[_curve(item) for item in rated],
    )


def calibration_chance(errors: FloatArray, std: FloatArray, structure: IntArray, calibration: Calibration) -> float:
    """√Σ Var p̂ over the levels of the calibration score: what σ that is right scores on so few structures.

    p̂ = Σ k / Σ n over structures with k of n errors inside, so Var p̂ ≈ Σ (k − p̂ n)² / (Σ n)²: errors in one structure
    may go together. For one error a structure it is √(1.65 / n_structures).
    """
    multipliers = calibration.multiplier(CALIBRATION_LEVELS)
    inside = standardised_sizes(errors, std)[:, None] <= multipliers
    excess = inside - inside.mean(axis=0)
    by_structure = np.stack([np.bincount(structure, weights=column) for column in excess.T])
    return float(np.sqrt(np.square(by_structure).sum()) / len(errors))


def _tolerances(rated: list[Rated], n_structures: int) -> dict[str, Tolerance]:
    calibration = {
        f"{item.quantity}_calibration": tolerances.calibration_tolerance(
            tolerances.CALIBRATION[item.quantity],
            calibration_chance(item.errors, item.std, item.structure, item.calibration),
        )
        for item in rated
    }
    spearman = tolerances.spearman_tolerance(n_structures)
    return calibration | {
        "energy_spearman": spearman,
        "forces_spearman": spearman,
        "energy_auroc": tolerances.AUROC,
        "forces_auroc": tolerances.AUROC,
    }


def _pair(numbers: Summary | dict[str, float], measure: str) -> str:
    """Energies / forces."""
    found = [numbers.get(f"{quantity}_{measure}") for quantity in ("energy", "forces")]
    return " / ".join("–" if not isinstance(value, float) else f"{value:.2f}" for value in found)


def _figure(numbers: dict[str, float]) -> str:
    auroc = f", AUROC {_pair(numbers, 'auroc')}" if "energy_auroc" in numbers or "forces_auroc" in numbers else ""
    return f"calibration {_pair(numbers, 'calibration')}{auroc}"


def _sentence(summary: Summary, evaluation: Evaluation, ood: Evaluation | None) -> str:
    told = (
        "there is no set of another kind to be told apart"
        if ood is None
        else f"AUROC of {ood.name} {_pair(summary, 'auroc')}, FPR95 {_pair(summary, 'fpr95')}"
    )
    return (
        f"Energies / forces on {evaluation.n_structures} structures of {evaluation.name}: calibration score "
        f"{_pair(summary, 'calibration')}, share within 95 % intervals {_pair(summary, 'coverage_95')}, Spearman of σ "
        f"and |error| {_pair(summary, 'spearman')}; {told}."
    )


def _curve(item: Rated) -> Series:
    levels = np.linspace(0.0, 1.0, 51)
    observed = observed_coverage(item.errors, item.std, levels, item.calibration)
    return line(f"calibration of {PLURALS[item.quantity]}", levels, observed)


def _rated(evaluation: Evaluation) -> Iterator[Rated]:
    n = np.arange(evaluation.n_structures)
    quantities: tuple[tuple[str, FloatArray | None, FloatArray | None, IntArray, Calibration], ...] = (
        ("energy", evaluation.energy_error, evaluation.energy_std, n, evaluation.energy_calibration),
        (
            "forces",
            evaluation.forces_error,
            evaluation.forces_std,
            np.repeat(evaluation.structure_index, 3),
            evaluation.forces_calibration,
        ),
    )
    for quantity, errors, std, structure, calibration in quantities:
        if errors is not None and std is not None and (std > 0).any():
            kept = std.ravel() > 0
            yield Rated(
                quantity=quantity,
                errors=errors.ravel()[kept],
                std=std.ravel()[kept],
                structure=structure[kept],
                calibration=calibration,
            )
