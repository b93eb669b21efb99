"""Desideratum 5: σ is as large as errors, larger where errors are larger, and largest on new structures."""

from collections.abc import Sequence

import numpy as np

from sigmaff.audit import tolerances, words
from sigmaff.audit.finding import Finding, Series, Tolerance, judged, line, not_applicable
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import CALIBRATION_LEVELS, standardised_sizes
from sigmaff.evaluation.samples import Sample
from sigmaff.evaluation.summary import summarize

NAME = "Confidence"
MEASURES = (
    *("calibration", "calibration_raw", "nll", "crps", "ence", "sharpness", "spearman"),
    *("coverage_68", "coverage_95", "auroc", "fpr95"),
)
PLURALS = {"energy": "energies", "forces": "forces"}


NO_STD = Finding(desideratum=NAME, verdict="fails", figure=words.NO_STD.figure, sentence=words.NO_STD.sentence)


def measure(evaluation: Evaluation | None, ood: Evaluation | None) -> Finding:
    """Measures of σ on labelled structures, and of σ against that of structures of another kind.

    It holds where all of these do, for energies and for forces as far as there is a σ: the calibration score is at most
    0.12 for energies and 0.05 for forces, or too small for these data to tell from perfect; Spearman's correlation of
    σ and |error| is positive; the AUROC of σ, per atom for energies, is at least 0.9.
    """
    if evaluation is None:
        return not_applicable(NAME, words.NO_LABELS)
    samples, summary = list(evaluation.samples.values()), summarize(evaluation, ood)
    numbers = {
        key: value
        for key in (f"{quantity}_{measure}" for quantity in ("energy", "forces") for measure in MEASURES)
        if isinstance(value := summary.get(key), float)
    }
    if not samples:
        return not_applicable(NAME, f"There are no labels, or no σ above 0, on {evaluation.name}.", numbers)
    return judged(
        NAME,
        numbers,
        _tolerances(samples, evaluation.n_structures),
        words.confidence(summary, evaluation.name, None if ood is None else ood.name),
        series=[_curve(item) for item in samples],
    )


def calibration_chance(sample: Sample) -> float:
    """√Σ Var p̂ over the levels of the calibration score: what σ that is right scores on so few structures.

    p̂ = Σ k / Σ n over structures with k of n errors inside, so Var p̂ ≈ Σ (k − p̂ n)² / (Σ n)²: errors in one structure
    may be correlated. For one error per structure it is √(1.65 / n_structures).
    """
    multipliers = sample.calibration.multiplier(CALIBRATION_LEVELS)
    inside = standardised_sizes(sample.errors, sample.std)[:, None] <= multipliers
    excess = inside - inside.mean(axis=0)
    by_structure = np.stack([np.bincount(sample.structure, weights=column) for column in excess.T])
    return float(np.sqrt(np.square(by_structure).sum()) / len(sample.errors))


def _tolerances(samples: Sequence[Sample], n_structures: int) -> dict[str, Tolerance]:
    spearman = tolerances.spearman_tolerance(n_structures)
    return {
        f"{item.quantity}_calibration": tolerances.calibration_tolerance(
            tolerances.CALIBRATION[item.quantity], calibration_chance(item)
        )
        for item in samples
    } | {
        "energy_spearman": spearman,
        "forces_spearman": spearman,
        "energy_auroc": tolerances.AUROC,
        "forces_auroc": tolerances.AUROC,
    }


def _curve(sample: Sample) -> Series:
    levels = np.linspace(0.0, 1.0, 51)
    return line(f"calibration of {PLURALS[sample.quantity]}", levels, sample.coverage(levels))
