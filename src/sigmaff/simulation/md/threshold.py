"""A limit on σ with a meaning: conformal risk control on calibration structures.

Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control" (2022). A structure has a score s, the largest
force σ of its atoms, and an error e, the largest force error of its atoms (norms of three components). It does harm
under a limit t if it is accepted and is wrong: L(t) = 1[s ≤ t and e > y], which never falls as t grows. With n
calibration structures and R(t) the mean of L(t) over them, the largest t of

    n / (n + 1) · R(t) + 1 / (n + 1) ≤ x

keeps the chance of harm by one more structure at most x, if it is exchangeable with the calibration structures: on
average over draws of them, for any σ. A σ without information makes t small, not the promise false. A limit that
accepts no more structures than may do harm says nothing, and is refused. Structures are counted, not atoms, because
errors of the atoms of one structure are correlated.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import Evaluation
from sigmaff.simulation.md.config import Limit
from sigmaff.simulation.md.stepper import FloatArray


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of calibration structures, which the model has not seen."""

    forces_std: FloatArray  # (n,) largest force σ of an atom, eV/Å
    forces_error: FloatArray  # (n,) largest force error of an atom, eV/Å

    def __len__(self) -> int:
        return self.forces_std.size


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The largest force σ of an atom that is accepted, and what that means."""

    value: float  # eV/Å
    statement: str
    accepted: float | None = None  # share of calibration structures below the limit


def structure_scores(evaluation: Evaluation) -> Scores:
    """Scores of labelled structures, from calibrated σ."""
    std, error = evaluation.forces_std, evaluation.forces_error
    if std is None or error is None:
        missing = "the model gives no σ of forces" if std is None else "the structures have no forces"
        raise DataError(f"{evaluation.name}: a limit on σ cannot be found on these structures: {missing}")
    first = np.flatnonzero(np.diff(evaluation.structure_index, prepend=-1))
    largest = [np.maximum.reduceat(np.linalg.norm(vectors, axis=1), first) for vectors in (std, error)]
    return Scores(forces_std=largest[0], forces_error=largest[1])


def choose_threshold(
    limit: Limit, error_above: float | None, risk: float, calibration: Scores | None
) -> Threshold | None:
    """The limit on σ that the settings ask for.

    Arguments:
        limit: eV/Å; "auto": by conformal risk control; ``None``: no limit.
        error_above: force error to guard against, eV/Å; for "auto".
        risk: tolerated chance of such an error; for "auto".
        calibration: scores of structures that the model was not trained on; for "auto".
    """
    if limit is None:
        return None
    if limit != "auto":
        return Threshold(value=limit, statement=f"limit on force σ: {limit:g} eV/Å, as given")
    if calibration is None or error_above is None:
        raise ConfigError(
            "stop_above auto needs calibration structures: labelled ones that the model was not trained on"
        )
    return risk_threshold(calibration, error_above, risk)


def risk_threshold(scores: Scores, error_above: float, risk: float) -> Threshold:
    """The largest limit on σ that keeps its promise, or an error that says what would make one possible."""
    n_allowed = floor(risk * (len(scores) + 1) * (1 + 1e-12)) - 1  # largest k of (k + 1) / (n + 1) ≤ x, up to rounding
    if n_allowed < 0:
        raise ConfigError(
            f"{len(scores)} calibration structures cannot promise a risk of {risk:g}: give at least "
            f"{ceil(1.0 / risk) - 1}, or allow a risk of {1.0 / (len(scores) + 1):.2g} or more"
        )
    value = _limit(scores, error_above, n_allowed)
    accepted = scores.forces_std <= value
    if accepted.sum() <= n_allowed:  # which might all be wrong
        raise ConfigError(
            f"no limit on σ keeps the chance of a force error above {error_above:g} eV/Å at {risk:g}: calibration "
            "structures of the smallest σ have such errors. Half of the structures would be below a limit with "
            f"error_above at {_rounded_up(_useful_error(scores, n_allowed)):.3g} eV/Å"
        )
    wrong = float(np.mean(scores.forces_error[accepted] > error_above))
    statement = (
        f"limit on force σ: {value:.4g} eV/Å. A structure like the {len(scores)} calibration structures stays below it "
        f"(no atom's σ exceeds it) and yet has a force error above {error_above:g} eV/Å with a chance of at most "
        f"{risk:g} (conformal risk control; exchangeability with them assumed). Of them, {accepted.mean():.1%} stay "
        f"below it, and {wrong:.2%} of these have such an error"
    )
    return Threshold(value=value, statement=statement, accepted=float(accepted.mean()))


def _limit(scores: Scores, error_above: float, n_allowed: int) -> float:
    """Just below the σ of the first harmful structure too many; where there is none, the largest σ known."""
    harmful = np.sort(scores.forces_std[scores.forces_error > error_above])
    if harmful.size <= n_allowed:
        return float(scores.forces_std.max())
    return float(np.nextafter(harmful[n_allowed], -np.inf))


def _useful_error(scores: Scores, n_allowed: int) -> float:
    """The smallest error at which half of the structures are below the limit: it grows with the tolerated error."""
    errors = np.sort(scores.forces_error).tolist()

    def accepts_half(error: float) -> bool:
        return bool(np.mean(scores.forces_std <= _limit(scores, error, n_allowed)) >= 0.5)

    return errors[bisect_left(errors[:-1], True, key=accepts_half)]


def _rounded_up(value: float) -> float:
    """To three digits."""
    digit = 10.0 ** (floor(np.log10(value)) - 2)
    return ceil(value / digit) * digit
