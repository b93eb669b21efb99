"""The words and tables of a report, made from the numbers of ``summarize``."""

from collections.abc import Mapping
from dataclasses import dataclass

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.summary import Summary
from sigmaff.models.prediction import COVARIANCES, FORCE_STD_SOURCES, STD_KINDS, Calibration

BLANK = "–"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A row of the table of key figures: a key of ``summarize`` in words."""

    key: str
    label: str
    unit: str = ""
    percent: bool = False
    between: bool = False  # one number for both data sets


GROUPS: dict[str, tuple[Measure, ...]] = {
    "Errors": (
        Measure(key="n_structures", label="Structures"),
        Measure(key="energy_mae", label="Energy, mean absolute error", unit="eV"),
        Measure(key="energy_rmse", label="Energy, root mean square error", unit="eV"),
        Measure(key="energy_mae_per_atom", label="Energy per atom, mean absolute error", unit="eV/atom"),
        Measure(key="forces_mae", label="Force components, mean absolute error", unit="eV/Å"),
        Measure(key="forces_rmse", label="Force components, root mean square error", unit="eV/Å"),
    ),
    "Calibration of the energy σ": (
        Measure(key="energy_calibration", label="Calibration score (0 is perfect, 1.69 the worst)"),
        Measure(key="energy_calibration_raw", label="Calibration score of the raw σ"),
        Measure(key="energy_coverage_68", label="Errors within the 68 % interval", unit="%", percent=True),
        Measure(key="energy_coverage_95", label="Errors within the 95 % interval", unit="%", percent=True),
        Measure(key="energy_nll", label="Negative log-likelihood"),
        Measure(key="energy_crps", label="Continuous ranked probability score", unit="eV"),
        Measure(key="energy_sharpness", label="Typical σ (root mean square)", unit="eV"),
    ),
    "Calibration of the force σ": (
        Measure(key="forces_calibration", label="Calibration score (0 is perfect, 1.69 the worst)"),
        Measure(key="forces_calibration_raw", label="Calibration score of the raw σ"),
        Measure(key="forces_coverage_68", label="Errors within the 68 % interval", unit="%", percent=True),
        Measure(key="forces_coverage_95", label="Errors within the 95 % interval", unit="%", percent=True),
        Measure(key="forces_nll", label="Negative log-likelihood"),
        Measure(key="forces_crps", label="Continuous ranked probability score", unit="eV/Å"),
        Measure(key="forces_sharpness", label="Typical σ (root mean square)", unit="eV/Å"),
    ),
    "Ranking: does a larger σ mean a larger error?": (
        Measure(key="energy_spearman", label="Energy, rank correlation of σ and |error|"),
        Measure(key="forces_spearman", label="Forces, rank correlation of σ and |error|"),
    ),
    "Detection: does σ tell the two sets apart?": (
        Measure(key="energy_auroc", label="AUROC of the energy σ per atom", between=True),
        Measure(key="forces_auroc", label="AUROC of the force σ", between=True),
        Measure(
            key="forces_fpr95",
            label="False alarms where 95 % are caught, force σ",
            unit="%",
            percent=True,
            between=True,
        ),
    ),
}


def verdict(summary: Summary, name: str, ood_name: str | None) -> str:
    """What the numbers say, in one sentence."""
    parts = (_error_words(summary), _coverage_words(summary), _detection_words(summary, ood_name))
    return f"On {summary['n_structures']} structures of {name} " + "; ".join(filter(None, parts)) + "."


def _error_words(summary: Summary) -> str:
    known = [
        f"the typical {word} error is {quantity(summary[key])} {unit}"
        for key, word, unit in (("forces_mae", "force", "eV/Å"), ("energy_mae", "energy", "eV"))
        if summary[key] is not None
    ]
    return " and ".join(known) or "there are no labels to compare with"


def _coverage_words(summary: Summary) -> str:
    for key, word in (("forces_coverage_95", "force"), ("energy_coverage_95", "energy")):
        share = summary[key]
        if isinstance(share, float):
            width = "too narrow" if share < 0.92 else "too wide" if share > 0.98 else "as wide as they should be"
            return f"{percent(share)} % of {word} errors lie within the stated 95 % interval ({width})"
    has_std = summary["energy_std_zero"] is not None or summary["forces_std_zero"] is not None
    return "" if has_std else "the model states no error bars"


def _detection_words(summary: Summary, ood_name: str | None) -> str:
    for key, word in (("forces_auroc", "force"), ("energy_auroc", "energy")):
        value = summary[key]
        if isinstance(value, float):
            how = "well" if value >= 0.9 else "only in part" if value >= 0.7 else "hardly"
            return f"the {word} σ tells structures of {ood_name} apart {how} (AUROC {value:.3f})"
    return ""


def quantity(value: object) -> str:
    """A number to three significant digits; counts whole; a dash for what is not known."""
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
    """The table of key figures without the rows of which nothing is known."""
    groups: list[dict[str, object]] = []
    for name, measures in GROUPS.items():
        known = [m for m in measures if summary[m.key] is not None or (ood and ood[m.key] is not None)]
        if known:
            groups.append({"name": name, "rows": [_row(m, summary, ood) for m in known]})
    return groups


def _row(measure: Measure, summary: Summary, ood: Summary | None) -> dict[str, object]:
    biased = measure.key.endswith("_calibration")  # resampling adds its own scatter to the score: misleading
    interval = None if biased else summary.get(f"{measure.key}_ci")
    return {
        "label": measure.label,
        "unit": measure.unit,
        "between": measure.between,
        "value": _shown(measure, summary[measure.key]),
        "interval": " to ".join(map(quantity, interval)) if isinstance(interval, list) else "",
        "ood": "" if ood is None else _shown(measure, ood[measure.key]),
    }


def _shown(measure: Measure, value: object) -> str:
    return percent(value) if measure.percent and isinstance(value, float) else quantity(value)


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
    }


def _calibration_words(calibration: Calibration) -> str:
    if calibration.n_samples == 0:
        return "none: σ is raw"
    fitted = f"fitted on {calibration.n_samples:,} held-out errors"
    return f"{calibration.method}: raw σ × {calibration.scale:.3g}, {fitted}"


def timing_table(evaluation: Evaluation, timings: Mapping[str, float]) -> dict[str, str]:
    measured = {f"Prediction per structure, {evaluation.name}": evaluation.seconds_per_structure}
    return {name: seconds(value) for name, value in (measured | dict(timings)).items()}
