"""Desideratum 5: σ is as large as errors, larger where errors are larger, and largest on new structures."""

import numpy as np

from sigmaff.audit import tolerances
from sigmaff.audit.finding import NO_LABELS, Finding, judged, line, not_applicable
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import CALIBRATION_LEVELS, standardised_sizes
from sigmaff.evaluation.samples import Sample
from sigmaff.evaluation.summary import Summary, summarize
from sigmaff.models.prediction import QUANTITIES

NAME = "Confidence"
MEASURES = (
    *("calibration", "calibration_raw", "nll", "crps", "ence", "sharpness", "spearman"),
    *("coverage_68", "coverage_95", "auroc", "auroc_geometric_mean", "auroc_largest_atom", "fpr95"),
)
PLURALS = {"energy": "energies", "forces": "forces", "stress": "stress"}
NO_STD = Finding(desideratum=NAME, verdict="fails", figure="no σ", sentence="The model provides no uncertainty.")


def measure(evaluation: Evaluation | None, ood: Evaluation | None) -> Finding:
    """Measures of σ on labelled structures, and of σ against that of structures of another kind.

    It holds where all of these do, for energies, forces and stress as far as there are labels and a σ: the calibration
    score is at most 0.12 for energies and stress and 0.05 for forces, or too small for these data to tell from perfect;
    Spearman's correlation of σ and |error| is positive; the AUROC of σ, per atom for energies, is at least 0.9.
    """
    if evaluation is None:
        return not_applicable(NAME, NO_LABELS)
    samples, summary = evaluation.samples.values(), summarize(evaluation, ood)
    numbers = {
        key: value
        for key in (f"{quantity}_{name}" for quantity in QUANTITIES for name in MEASURES)
        if isinstance(value := summary.get(key), float)
    }
    if not samples:
        return not_applicable(NAME, f"There are no labels, or no σ above 0, on {evaluation.name}.", numbers)
    limits = {
        f"{sample.quantity}_calibration": tolerances.calibration_tolerance(sample.quantity, calibration_chance(sample))
        for sample in samples
    }
    spearman = tolerances.spearman_tolerance(evaluation.n_structures)
    for name, limit in (("spearman", spearman), ("auroc", tolerances.AUROC)):
        limits |= {f"{quantity}_{name}": limit for quantity in QUANTITIES}
    figure, sentence = _words(summary, evaluation, ood)
    levels = np.linspace(0.0, 1.0, 51)
    curves = [line(f"calibration of {PLURALS[s.quantity]}", levels, s.coverage(levels)) for s in samples]
    return judged(NAME, numbers, limits, figure, sentence, series=curves)


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


def _words(summary: Summary, evaluation: Evaluation, ood: Evaluation | None) -> tuple[str, str]:
    """Figure and sentence; numbers are energies / forces, and / stress where it has labels and a σ."""
    shown = [name for name in QUANTITIES if name != "stress" or name in evaluation.samples]
    names = " / ".join(PLURALS[name] for name in shown).capitalize()

    def pair(measure: str) -> str:
        found = [summary.get(f"{quantity}_{measure}") for quantity in shown]
        return " / ".join(f"{value:.2f}" if isinstance(value, float) else "–" for value in found)

    def auroc(score: str, *quantities: str) -> str:
        return " / ".join(_with_interval(summary, f"{quantity}_{score}") for quantity in quantities)

    has_auroc = summary["energy_auroc"] is not None or summary["forces_auroc"] is not None
    detection = "no set of another kind is given"
    if ood is not None:
        detection = (
            f"AUROC of {ood.name} {auroc('auroc', 'energy', 'forces')}, by the largest σ of an atom "
            f"{auroc('auroc_largest_atom', 'energy', 'forces')}, by the geometric mean of force σ over atoms "
            f"{auroc('auroc_geometric_mean', 'forces')}; FPR95 {pair('fpr95')}"
        )
    return (
        f"calibration {pair('calibration')}" + (f", AUROC {pair('auroc')}" if has_auroc else ""),
        f"{names} on {evaluation.n_structures} structures of {evaluation.name}: calibration score "
        f"{pair('calibration')}, share within 95 % intervals {pair('coverage_95')}, Spearman of σ and |error| "
        f"{pair('spearman')}; {detection}.",
    )


def _with_interval(summary: Summary, key: str) -> str:
    value, interval = summary[key], summary[f"{key}_ci"]
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]" if isinstance(interval, list) else "–"
