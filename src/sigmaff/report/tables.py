"""The words and tables of a report, made from the numbers of ``summarize``."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.groups import group_summaries
from sigmaff.evaluation.metrics import ONE_SIGMA
from sigmaff.evaluation.summary import Summary
from sigmaff.models.prediction import COVARIANCES, FORCE_STD_SOURCES, STD_KINDS, Calibration

BLANK = "–"
CLOSE, CHANCE = 0.03, 2.58
"""A share of errors that is right, and the standard errors within which 99 % of right ones lie."""


class Measure(NamedTuple):
    """A row of the table of key figures: a key of ``summarize`` in words. Shares have the unit %."""

    key: str
    label: str
    unit: str = ""
    between: bool = False  # one number for both data sets


def _calibration_measures(quantity: str, unit: str) -> tuple[Measure, ...]:
    return (
        Measure(f"{quantity}_calibration", "Calibration score (0 is perfect, 1.69 the worst)"),
        Measure(f"{quantity}_calibration_raw", "Calibration score of the raw σ"),
        Measure(f"{quantity}_coverage_68", "Errors within the 68 % interval", "%"),
        Measure(f"{quantity}_coverage_95", "Errors within the 95 % interval", "%"),
        Measure(f"{quantity}_rms_z", "Root mean square of error over σ"),
        Measure(f"{quantity}_nll", "Negative log-likelihood of the reported distribution"),
        Measure(f"{quantity}_crps", "Continuous ranked probability score", unit),
        Measure(f"{quantity}_sharpness", "Typical σ (root mean square)", unit),
    )


GROUPS: dict[str, tuple[Measure, ...]] = {
    "Errors": (
        Measure("n_structures", "Structures"),
        Measure("energy_mae", "Energy, mean absolute error", "eV"),
        Measure("energy_rmse", "Energy, root mean square error", "eV"),
        Measure("energy_mae_per_atom", "Energy per atom, mean absolute error", "eV/atom"),
        Measure("forces_mae", "Force components, mean absolute error", "eV/Å"),
        Measure("forces_rmse", "Force components, root mean square error", "eV/Å"),
        Measure("stress_mae", "Stress components, mean absolute error", "eV/Å³"),
        Measure("stress_rmse", "Stress components, root mean square error", "eV/Å³"),
    ),
    "Calibration of the energy σ": _calibration_measures("energy", "eV"),
    "Calibration of the force σ": _calibration_measures("forces", "eV/Å"),
    "Calibration of the stress σ": _calibration_measures("stress", "eV/Å³"),
    "Ranking: does a larger σ mean a larger error?": (
        Measure("energy_spearman", "Energy, rank correlation of σ and |error|"),
        Measure("forces_spearman", "Forces, rank correlation of σ and |error|"),
        Measure("stress_spearman", "Stress, rank correlation of σ and |error|"),
    ),
    "Detection: does σ tell the two sets apart?": (
        Measure("energy_auroc", "AUROC of the energy σ per atom", between=True),
        Measure("energy_auroc_largest_atom", "AUROC of the largest σ of an atom's share of the energy", between=True),
        Measure("forces_auroc", "AUROC of the force σ, root mean square", between=True),
        Measure("forces_auroc_geometric_mean", "AUROC of the force σ, geometric mean over atoms", between=True),
        Measure("forces_auroc_largest_atom", "AUROC of the force σ, largest of an atom", between=True),
        Measure("forces_fpr95", "False alarms where 95 % are caught, force σ", "%", between=True),
    ),
}


def verdict(summary: Summary, name: str, ood: Summary | None, ood_name: str | None) -> str:
    """What the numbers say, in a sentence for each set.

    Arguments:
        summary: of the structures, beside the other set.
        name: of the structures.
        ood: of the other set alone; ``None``: there is none.
        ood_name: of the other set.
    """
    words: tuple[str, ...] = (_error_words(summary), _coverage_words(summary))
    sentences = [(summary["n_structures"], name, words)]
    if ood is not None:
        words = (_error_words(ood), _coverage_words(ood), _detection_words(summary))
        sentences.append((ood["n_structures"], ood_name or "", words))
    return " ".join(f"On {n} structures of {of} {'; '.join(filter(None, words))}." for n, of, words in sentences)


def _error_words(summary: Summary) -> str:
    known = [
        f"the typical {word} error is {quantity(summary[key])} {unit}"
        for key, word, unit in (("forces_mae", "force", "eV/Å"), ("energy_mae", "energy", "eV"))
        if summary[key] is not None
    ]
    return " and ".join(known) or "there are no labels to compare with"


def _coverage_words(summary: Summary) -> str:
    said = []
    for quantity, word in (("forces", "force"), ("energy", "energy")):
        shares = [summary[f"{quantity}_coverage_{level}"] for level in (68, 95)]
        if isinstance(shares[0], float) and isinstance(shares[1], float):
            n = summary["n_structures"]
            assert isinstance(n, int)
            width = _width(shares[0], shares[1], n)
            within = f"{percent(shares[0])} % of {word} errors lie within the stated 68 % interval and "
            said.append(f"{within}{percent(shares[1])} % within that of 95 % ({width})")
    if said:
        return ", ".join(said)
    has_std = summary["energy_std_zero"] is not None or summary["forces_std_zero"] is not None
    return "" if has_std else "the model states no error bars"


def _width(share_68: float, share_95: float, n_structures: int) -> str:
    """Whether intervals are too narrow or too wide: by more than 3 %, and by more than chance allows (99 %)."""
    pairs = ((share_68, ONE_SIGMA), (share_95, 0.95))
    misses = [share - nominal for share, nominal in pairs]
    if max(map(abs, misses)) <= CLOSE:
        return "as wide as they should be"
    chances = [CHANCE * math.sqrt(nominal * (1 - nominal) / n_structures) for _, nominal in pairs]
    wrong = [math.copysign(1, miss) for miss, by in zip(misses, chances, strict=True) if abs(miss) > max(CLOSE, by)]
    if not wrong:
        return f"off by no more than chance with {n_structures} structures"
    return "too narrow" if sum(wrong) < 0 else "too wide" if sum(wrong) > 0 else "not of the right shape"


def _detection_words(summary: Summary) -> str:
    for key, word in (("forces_auroc", "force"), ("energy_auroc", "energy")):
        value = summary[key]
        if isinstance(value, float):
            how = "well" if value >= 0.9 else "only in part" if value >= 0.7 else "hardly"
            return f"the {word} σ tells them apart {how} (AUROC {value:.3f})"
    return ""


def quantity(value: object) -> str:
    """A number to three significant digits; counts as integers; a dash if there is none."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float):
        return BLANK
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")).replace("-", "−")


def percent(value: float) -> str:
    """A share as per cent, without the sign."""
    return f"{100 * value:.1f}"


def seconds(value: float) -> str:
    """A time in the unit that reads best."""
    for least, divisor, unit in ((120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms")):
        if value >= least:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def key_figures(summary: Summary, ood: Summary | None) -> list[dict[str, object]]:
    """The table of key figures, without rows that have no value."""

    def is_known(measure: Measure) -> bool:
        return any(values is not None and values[measure.key] is not None for values in (summary, ood))

    known = {name: list(filter(is_known, measures)) for name, measures in GROUPS.items()}
    return [{"name": name, "rows": [_row(m, summary, ood) for m in rows]} for name, rows in known.items() if rows]


def _row(measure: Measure, summary: Summary, ood: Summary | None) -> dict[str, object]:
    biased = measure.key.endswith("_calibration")  # resampling adds its own scatter to the score: misleading
    interval = None if biased else summary.get(f"{measure.key}_ci")
    return measure._asdict() | {
        "value": _shown(measure, summary[measure.key]),
        "interval": " to ".join(map(quantity, interval)) if isinstance(interval, list) else "",
        "ood": "" if ood is None else _shown(measure, ood[measure.key]),
    }


def _shown(measure: Measure, value: object) -> str:
    return percent(value) if measure.unit == "%" and isinstance(value, float) else quantity(value)


def group_rows(evaluation: Evaluation) -> list[list[str]]:
    """Header and rows of the table of groups, energies / forces; empty if structures name none."""
    groups = group_summaries(evaluation)
    if not groups:
        return []
    measures = (
        ("mae", "Mean absolute error (eV, eV/Å)", ""),
        ("rmse", "Root mean square error (eV, eV/Å)", ""),
        ("coverage_68", "Within the 68 % interval (%)", "%"),
        ("coverage_95", "Within the 95 % interval (%)", "%"),
        ("rms_z", "Root mean square of error over σ", ""),
    )
    rows = [["Group", "Structures", *(label for _, label, _ in measures)]]
    for name, figures in groups.items():
        cells = [
            " / ".join(_shown(Measure(key, label, unit), figures[f"{each}_{key}"]) for each in ("energy", "forces"))
            for key, label, unit in measures
        ]
        rows.append([name, str(figures["n_structures"]), *cells])
    return rows


def meaning_of_std(evaluation: Evaluation) -> dict[str, str]:
    """What the σ of this evaluation is, in words."""
    provenance = evaluation.provenance
    return {
        "Method": provenance.method,
        "Kind of σ": STD_KINDS[provenance.kind],
        "Covariance between atoms": COVARIANCES[provenance.covariance],
        "Force σ": FORCE_STD_SOURCES[provenance.forces_std],
        "Calibration of energies": _calibration_words(evaluation.energy_calibration),
        "Calibration of forces": _calibration_words(evaluation.forces_calibration),
        **(
            {}
            if evaluation.stress_std_raw is None
            else {"Calibration of stress": _calibration_words(evaluation.stress_calibration)}
        ),
    }


def _calibration_words(calibration: Calibration) -> str:
    return "none: σ is raw, not calibrated" if calibration.n_samples == 0 else str(calibration)


def timing_table(evaluation: Evaluation, timings: Mapping[str, float]) -> dict[str, str]:
    measured = {f"Prediction per structure, {evaluation.name}": evaluation.seconds_per_structure}
    return {name: seconds(value) for name, value in (measured | dict(timings)).items()}
