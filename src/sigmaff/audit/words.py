"""The figures and sentences of all findings; measurements hold numbers only."""

from collections.abc import Mapping
from typing import NamedTuple

from sigmaff.evaluation.summary import Summary

Numbers = Mapping[str, float | None]
NO_LABELS = "There are no labelled structures to measure errors on."
NO_COMPARISON = "There is no backbone without σ to compare with."
SYMMETRY_UNITS = {
    "energy": ("The energy", "eV/atom"),
    "forces": ("A force", "of the rms force"),
    "energy_std": ("The energy σ", "of itself"),
    "forces_std": ("A force σ", "of the rms σ"),
}


class Words(NamedTuple):
    """What the table shows of a finding, and the sentence below it."""

    figure: str
    sentence: str


NO_STD = Words("no σ", "The model provides no uncertainty.")


def symmetry(overall: Mapping[str, float], quantity: str, operation: str) -> Words:
    """``quantity`` is the one that is worst for its tolerance, ``operation`` where it is."""
    name, unit = SYMMETRY_UNITS[quantity]
    return Words(
        f"ΔF {overall['forces']:.1g}",
        f"{name} changes by {overall[quantity]:.2g} {unit} under {operation}; "
        "all other quantities change less, relative to their tolerances.",
    )


def conservation(numbers: Numbers, stopped: str | None, time_step: float) -> Words:
    """``stopped``: why the run ended early, if it did; ``time_step`` in fs."""
    slope, error, length = (numbers.get(key) for key in (DRIFT, DRIFT_ERROR, RUN_LENGTH))
    if slope is None or error is None:
        figure = f"loops yield {numbers['loop_work']:.0e}"
        run = "the run is too short to measure a drift."
    else:
        figure = f"{1e3 * slope:.2g} ± {1e3 * error:.1g} meV/atom/ps"
        run = f"the total energy drifts by {figure} in {length:.2g} ps at {time_step} fs."
    return Words(
        figure,
        f"Forces differ from the slope of the energy by {numbers[DIFFERENCES]:.1e} of their rms (rounding alone: "
        f"{numbers[ROUNDING]:.1e}); closed paths yield up to {numbers['loop_work']:.1e} of the work done along them; "
        f"{run}" + ("" if stopped is None else f" The run ended early, {stopped}"),
    )


DRIFT, DRIFT_ERROR = "drift, slope (eV/atom/ps)", "drift, its standard error (eV/atom/ps)"
RUN_LENGTH = "run (ps)"
DIFFERENCES, ROUNDING = "forces_against_differences, with rounding", "rounding of the differences"


def too_few_copies(n: int, wanted: int, refused: object) -> Words:
    return Words(f"takes {n} of {wanted} copies", f"The model cannot predict far copies of a structure: {refused}")


def locality(numbers: Numbers, refused: object, *, has_std: bool, law: str | None) -> Words:
    """``law``: of the growth of σ, if it follows one; ``refused``: why there are no more copies, if so."""
    added = f"Energies of up to {numbers['copies']:.0f} copies add up to {numbers['additivity']:.1e} eV/atom"
    partly = "" if refused is None else f" It takes no more than {numbers['copies']:.0f} copies: {refused}"
    if not has_std:
        return Words("energies; no σ", f"{added}; there is no σ to add up.{partly}")
    slope = numbers.get("slope")
    if slope is None:
        return Words("σ = 0", f"{added}, but the energy σ is 0.{partly}")
    shown = f"{round(slope, 2) + 0.0:.2f}"  # no −0
    low, high = numbers["slope, lower end of 95 %"], numbers["slope, upper end of 95 %"]
    return Words(
        f"slope {shown}, by no law" if law is None else f"σ ∝ n^{shown}",
        f"{added}; σ of n copies grows as n^{slope:.3f} (95 %: {low:.3f} to {high:.3f}), "
        f"{law or 'by no law of size'}.{partly}",
    )


def errors(numbers: Numbers) -> str:
    named = (("energies", "energy_mae", "eV"), ("forces", "forces_mae", "eV/Å"))
    known = [f"{numbers[key]:.3g} {unit} for {name}" for name, key, unit in named if key in numbers]
    return "Mean absolute errors are " + " and ".join(known)


def accuracy(numbers: Numbers, ratios: Mapping[str, float]) -> Words:
    shown = " / ".join(f"{ratio:.2f}" for ratio in ratios.values())
    sentence = f"{errors(numbers)}: {shown} times those of the backbone alone, energies / forces."
    return Words(f"{shown} × backbone", sentence)


def confidence(summary: Summary, name: str, ood_name: str | None) -> Words:
    """Pairs of numbers are energies / forces."""

    def pair(measure: str) -> str:
        found = [summary.get(f"{quantity}_{measure}") for quantity in ("energy", "forces")]
        return " / ".join("–" if not isinstance(value, float) else f"{value:.2f}" for value in found)

    has_auroc = summary.get("energy_auroc") is not None or summary.get("forces_auroc") is not None
    detection = (
        "no set of another kind is given"
        if ood_name is None
        else f"AUROC of {ood_name} {pair('auroc')}, FPR95 {pair('fpr95')}"
    )
    return Words(
        f"calibration {pair('calibration')}" + (f", AUROC {pair('auroc')}" if has_auroc else ""),
        f"Energies / forces on {summary['n_structures']} structures of {name}: calibration score "
        f"{pair('calibration')}, share within 95 % intervals {pair('coverage_95')}, Spearman of σ and |error| "
        f"{pair('spearman')}; {detection}.",
    )


def speed(numbers: Numbers, *, has_std: bool, n_members: int) -> Words:
    """``n_members``: of the ensemble that the model is compared with."""
    forces, ensemble = numbers.get("ratio_to_backbone, with force σ"), numbers.get("ratio_to_ensemble")
    return Words(
        f"{numbers['ratio_to_backbone']:.2f} × backbone",
        f"{'Energy, forces and energy σ' if has_std else 'Energy and forces'} take "
        f"{numbers['milliseconds, model']:.3g} ms, {numbers['ratio_to_backbone']:.2f} times the energy and forces of "
        "the backbone"
        + ("" if forces is None else f" ({forces:.2f} times with σ of every force)")
        + ("" if ensemble is None else f" and {ensemble:.2f} times an ensemble of {n_members}")
        + f"; passes: {numbers['passes']:.0f}, parameters: {numbers['parameters']:,.0f}.",
    )


def speed_of_calls(milliseconds: float, formula: str) -> str:
    return f"{milliseconds:.3g} ms for energy, forces and available σ of {formula}. {NO_COMPARISON}"
