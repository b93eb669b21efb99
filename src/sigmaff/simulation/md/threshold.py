"""A limit on σ with a meaning, from calibration structures: a promise about one structure, not about a whole run.

A structure has a score s, the largest force σ of its atoms, and an error e, the largest force error of its atoms (norms
of three components). It is wrong if e > y. Structures are counted, not atoms, because errors of the atoms of one
structure are correlated. Two kinds of risk:

- "joint": the chance that a structure is below the limit t *and* is wrong, P(s ≤ t, e > y) ≤ x, on average over draws
  of the calibration structures (``risk.n_allowed``), for any σ. A σ without information makes t small, not the promise
  false. A limit that accepts no more structures than may be wrong says nothing, and is refused.
- "conditional": the share of wrong ones *among* structures below the limit, P(e > y | s ≤ t) ≤ x, with a confidence of
  1 − δ: a fixed sequence of tests (Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then test", 2021). Limits grow
  from the smallest with enough structures below it; each is the σ of a structure, those below it are its binomial
  sample, and the sequence ends before the first whose bound by Clopper and Pearson exceeds x. The start is chosen by
  σ, so one assumption is needed: as the limit grows, the share passes x at most once.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import scipy

from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import Evaluation
from sigmaff.evaluation.detection import largest_of_atoms
from sigmaff.evaluation.std_range import structure_std
from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.config import Limit, RiskKind
from sigmaff.simulation.md.risk import ROUNDING, fewest, highest_risk, largest_limit, n_allowed


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of labelled structures that the model was not trained on."""

    forces_std: FloatArray  # (n,) largest force σ of an atom, eV/Å
    forces_error: FloatArray  # (n,) largest force error of an atom, eV/Å
    energy_std: FloatArray | None = None  # (n,) energy σ per atom without that of the composition, eV
    atom_std: FloatArray | None = None  # (n,) largest σ of an atom's share of the energy, eV
    chose_model: bool = False  # the validation set: early stopping, hyper-parameters and calibration looked at it

    def __len__(self) -> int:
        return self.forces_std.size

    def part(self, chosen: npt.NDArray[np.bool_]) -> "Scores":
        names = ("forces_std", "forces_error", "energy_std", "atom_std")
        known = {name: values for name in names if (values := getattr(self, name)) is not None}
        return replace(self, **{name: values[chosen] for name, values in known.items()})


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The largest force σ of an atom that is accepted, and what that means."""

    value: float  # eV/Å
    statement: str
    accepted: float | None = None  # share of calibration structures below the limit


def structure_scores(evaluation: Evaluation, *, chose_model: bool = False) -> Scores:
    """Scores of labelled structures, from calibrated σ."""
    std, error = evaluation.forces_std, evaluation.forces_error
    if std is None or error is None:
        missing = "the model gives no σ of forces" if std is None else "the structures have no forces"
        raise DataError(f"{evaluation.name}: a limit on σ cannot be found on these structures: {missing}")
    found = structure_std(evaluation)
    assert found.forces is not None
    return Scores(
        forces_std=found.forces,
        forces_error=largest_of_atoms(evaluation, np.linalg.norm(error, axis=1)),
        energy_std=found.energy,
        atom_std=found.atom,
        chose_model=chose_model,
    )


def choose_threshold(
    limit: Limit,
    error_above: float | None,
    risk: float,
    calibration: Scores | None,
    *,
    kind: RiskKind = "joint",
    confidence: float = 0.95,
) -> Threshold | None:
    """The limit on σ that the settings ask for.

    Arguments:
        limit: eV/Å; "auto": from calibration structures; ``None``: no limit.
        error_above: force error to guard against, eV/Å; for "auto".
        risk: tolerated chance of such an error; for "auto".
        calibration: scores of structures that the model was not trained on; for "auto".
        kind: of the risk; for "auto".
        confidence: of the promise; for a conditional risk.
    """
    if limit is None:
        return None
    if limit != "auto":
        return Threshold(value=limit, statement=f"limit on force σ: {limit:g} eV/Å, as given")
    if calibration is None or error_above is None:
        raise ConfigError(
            "stop_above auto needs calibration structures: labelled ones that the model was not trained on"
        )
    if kind == "joint":
        return risk_threshold(calibration, error_above, risk)
    return conditional_threshold(calibration, error_above, risk, confidence)


def risk_threshold(scores: Scores, error_above: float, risk: float) -> Threshold:
    """The largest limit on σ that keeps the joint risk, or an error that says what would make one possible."""
    allowed = n_allowed(len(scores), risk)
    _refuse_too_few(scores, risk, fewest(risk), 1.0 / (len(scores) + 1))

    def limit(error: float) -> float:
        return largest_limit(scores.forces_std[scores.forces_error > error], allowed, float(scores.forces_std.max()))

    value = limit(error_above)
    accepted = scores.forces_std <= value
    if accepted.sum() <= allowed:  # which might all be wrong
        raise ConfigError(
            f"no limit on σ keeps the chance of a force error above {error_above:g} eV/Å at {risk:g}: calibration "
            f"structures of the smallest σ have such errors. {_remedy(scores, limit)}"
        )
    promise = (
        f"a structure like the {len(scores)} calibration structures stays below it and yet has a force error above "
        f"{error_above:g} eV/Å with a chance of at most {risk:g}, on average over draws of them (conformal risk "
        "control; exchangeability with them assumed)"
    )
    return _threshold(scores, value, error_above, promise)


def conditional_threshold(scores: Scores, error_above: float, risk: float, confidence: float) -> Threshold:
    """The largest limit on σ that keeps the conditional risk, or an error that says what would make one possible."""
    smallest = fewest(risk, confidence)
    _refuse_too_few(scores, risk, smallest, highest_risk(len(scores), 0, confidence))

    def limit(error: float) -> float:
        return _sequence_end(scores, error, risk, confidence, smallest)

    value = limit(error_above)
    if value == -np.inf:
        raise ConfigError(
            f"no limit on σ keeps the share of force errors above {error_above:g} eV/Å among structures below it at "
            f"{risk:g} with a confidence of {confidence:g}: of the {smallest} calibration structures of the smallest "
            f"σ, none may have such an error. {_remedy(scores, limit)}"
        )
    promise = (
        f"of structures like the {len(scores)} calibration structures that stay below it, a share of at most {risk:g} "
        f"has a force error above {error_above:g} eV/Å, with a confidence of {confidence:g} over draws of them (learn "
        "then test; exchangeability with them assumed, and a share that passes this value at most once as the limit "
        "grows)"
    )
    return _threshold(scores, value, error_above, promise)


def _sequence_end(scores: Scores, error_above: float, risk: float, confidence: float, smallest: int) -> float:
    """The last limit before the first that fails its test; −∞ if the first does.

    The m-th smallest σ as a limit has m − 1 structures below it: given this σ, they are independent. The last limit
    has all structures below it.
    """
    order = np.argsort(scores.forces_std, kind="stable")
    std, n_wrong = scores.forces_std[order], np.cumsum(scores.forces_error[order] > error_above)
    limits = np.append(np.nextafter(std[1:], -np.inf), std[-1])  # with 1, 2, ..., n structures below
    n_below = np.arange(smallest, len(scores) + 1)
    fails = scipy.stats.binom.cdf(n_wrong[n_below - 1], n_below, risk) > (1.0 - confidence) * (1.0 + ROUNDING)
    n_passed = int(fails.argmax()) if fails.any() else fails.size
    return float(limits[n_below[n_passed - 1] - 1]) if n_passed else -np.inf


def _threshold(scores: Scores, value: float, error_above: float, promise: str) -> Threshold:
    accepted = scores.forces_std <= value
    wrong = float(np.mean(scores.forces_error[accepted] > error_above))
    chosen = (
        " The calibration structures are the validation set, at which training, choices and the calibration of σ have "
        "looked: the promise is approximate; other labelled structures (--calibration) make it strict."
    )
    statement = (
        f"limit on force σ of an atom: {value:.4g} eV/Å. About one structure, not a whole run: {promise}. Of them, "
        f"{accepted.mean():.1%} stay below it, and {wrong:.2%} of these have such an error."
        f"{chosen if scores.chose_model else ''} For a promise about runs use sigmaff guard"
    )
    return Threshold(value=value, statement=statement, accepted=float(accepted.mean()))


def _refuse_too_few(scores: Scores, risk: float, n_needed: int, possible: float) -> None:
    if len(scores) < n_needed:
        raise ConfigError(
            f"{len(scores)} calibration structures cannot promise a risk of {risk:g}: give at least {n_needed}, or "
            f"allow a risk of {_rounded_up(possible, 2):.2g} or more"
        )


def _remedy(scores: Scores, limit: Callable[[float], float]) -> str:
    """The smallest error at which half of the structures are below the limit, which grows with the tolerated error."""
    errors = np.sort(scores.forces_error).tolist()

    def accepts_half(error: float) -> bool:
        return bool(np.mean(scores.forces_std <= limit(error)) >= 0.5)

    useful = errors[bisect_left(errors[:-1], True, key=accepts_half)]
    return f"Half of the structures would be below a limit with error_above at {_rounded_up(useful, 3):.3g} eV/Å"


def _rounded_up(value: float, n_digits: int) -> float:
    digit = 10.0 ** (floor(np.log10(value)) + 1 - n_digits)
    return ceil(value / digit * (1.0 - 1e-12)) * digit
