"""A limit on σ with a meaning for whole runs: risk control with the run as unit.

A pilot run is made without a limit, and an engine labels its checks. It is wrong at the first check with a force error
above y. Under a limit t a run is stopped at its first check with σ > t. It does harm if it is wrong at a check that it
passes: if no σ up to and including that check exceeds t. So its score is the largest of these σ, and it does harm under
every limit from its score on (``risk``). A shorter run does no more harm: its checks are the first ones of the longer.

What else can happen counts as an error, on the safe side: a run that ends because it is unphysical is wrong there, and
a check that the engine has no label for is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sigmaff.errors import ConfigError
from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.risk import fewest, highest_risk, largest_limit, n_allowed

CONFIDENCE = 0.95
"""Of the bound that is told beside a promise on average."""


@dataclass(frozen=True, kw_only=True)
class PilotRun:
    """The checks of a run without a limit, and where it is wrong first."""

    steps: npt.NDArray[np.int64]  # (n,) of its checks, rising from 0
    forces_std: FloatArray  # (n,) largest force σ of an atom at each, eV/Å
    wrong_at: int | None  # first step with an error; None: there is none
    ended_at: int  # its last step
    energy_std: FloatArray | None = None  # (n,) energy σ per atom without that of the composition, eV
    atom_std: FloatArray | None = None  # (n,) largest σ of an atom's share of the energy, eV

    @property
    def is_right(self) -> npt.NDArray[np.bool_]:
        """Whether each check is before the first error, (n,)."""
        return np.ones(self.steps.size, dtype=bool) if self.wrong_at is None else self.steps < self.wrong_at

    @property
    def score(self) -> float:
        """The smallest limit under which it does harm; ∞ if it is never wrong."""
        if self.wrong_at is None:
            return np.inf
        return float(self.forces_std[self.steps <= self.wrong_at].max())

    def stopped_at(self, limit: float) -> int | None:
        """Step of the first check above the limit; ``None``: it is not stopped."""
        above = self.forces_std > limit
        return int(self.steps[above.argmax()]) if above.any() else None

    def does_harm(self, limit: float) -> bool:
        return self.score <= limit

    def last_step(self, limit: float) -> int:
        """Where it ends, with this limit."""
        stopped = self.stopped_at(limit)
        return self.ended_at if stopped is None else stopped

    @property
    def oracle_step(self) -> int:
        """Where it would end if it were stopped exactly when it is wrong."""
        return self.ended_at if self.wrong_at is None else self.wrong_at


class Promise(BaseModel):
    """A limit on σ, what it promises for runs, and what it costs on the pilot runs themselves."""

    model_config = ConfigDict(frozen=True)

    limit: float  # eV/Å, on the largest force σ of an atom
    error_above: float  # eV/Å
    risk: float
    confidence: float | None
    n_pilots: int
    wrong: int  # pilot runs with such an error
    harmful: int  # of these, not stopped before it
    stopped: int  # pilot runs that the limit stops
    done: float  # mean share of the steps until the end of a run under the limit
    done_by_oracle: float  # and if each were stopped exactly at its first error

    def statement(self, runs: str) -> str:
        """What is promised. runs: what all runs have in common."""
        sure = (
            f"on average over draws of the pilot runs ({_bound(self)})"
            if self.confidence is None
            else f"with a confidence of {self.confidence:g} over draws of the pilot runs"
        )
        return (
            f"limit on force σ of an atom: {self.limit:.4g} eV/Å. Of runs like the {self.n_pilots} pilot runs "
            f"({runs}), a share of at most {self.risk:g} has a force error above {self.error_above:g} eV/Å at a check "
            f"before it is stopped, {sure}; risk control with the run as unit, exchangeability with them assumed"
        )

    @property
    def cost(self) -> str:
        """What the limit does to the pilot runs."""
        return (
            f"of the {self.n_pilots} pilot runs, {self.wrong} have such an error; the limit stops {self.stopped} and "
            f"lets {self.harmful} of these errors pass. {self.done:.0%} of a run is done on average; "
            f"{self.done_by_oracle:.0%} if each were stopped exactly at its first such error"
        )


def promise(
    runs: Sequence[PilotRun], steps: int, error_above: float, risk: float, confidence: float | None = None
) -> Promise:
    """The largest limit on σ that keeps the promise, or an error that says what would make one possible.

    Arguments:
        runs: pilot runs with their errors above ``error_above``.
        steps: of a whole run.
        error_above: force error to guard against, eV/Å.
        risk: tolerated share of runs with such an error before they are stopped.
        confidence: of the promise over draws of the runs; ``None``: on average over them.
    """
    allowed = n_allowed(len(runs), risk, confidence)
    if allowed < 0:
        raise ConfigError(
            f"{len(runs)} pilot runs cannot promise a risk of {risk:g}: make at least {fewest(risk, confidence)}"
        )
    limit = run_limit(runs, allowed)
    if steps > 0 and _done(runs, steps, limit) == 0.0:
        raise ConfigError(
            f"no limit on σ keeps the share of runs with a force error above {error_above:g} eV/Å at {risk:g} and lets "
            f"a run begin: all pilot runs would be stopped at their start. {_remedy(runs, steps, confidence)}"
        )
    return Promise(
        limit=limit,
        error_above=error_above,
        risk=risk,
        confidence=confidence,
        n_pilots=len(runs),
        wrong=sum(run.wrong_at is not None for run in runs),
        harmful=sum(run.does_harm(limit) for run in runs),
        stopped=sum(run.stopped_at(limit) is not None for run in runs),
        done=_done(runs, steps, limit),
        done_by_oracle=float(np.mean([run.oracle_step for run in runs]) / steps) if steps else 1.0,
    )


def run_limit(runs: Sequence[PilotRun], n_harmful: int) -> float:
    """The largest limit, eV/Å, under which ``n_harmful`` runs at most do harm; at most the largest σ of all."""
    scores = np.array([run.score for run in runs])
    return largest_limit(scores[np.isfinite(scores)], n_harmful, max(float(run.forces_std.max()) for run in runs))


def _done(runs: Sequence[PilotRun], steps: int, limit: float) -> float:
    """Mean share of the steps that are done under a limit."""
    return float(np.mean([run.last_step(limit) for run in runs]) / steps) if steps else 1.0


def _bound(promised: Promise) -> str:
    """What can be said with confidence about a promise that holds on average."""
    n, risk = promised.n_pilots, promised.risk
    text = f"at most {highest_risk(n, n_allowed(n, risk), CONFIDENCE):.2g} with a confidence of {CONFIDENCE:g}"
    if n < (needed := fewest(risk, CONFIDENCE)):
        return f"{text}; {needed} pilot runs or more can promise {risk:g} with it"
    return f"{text}; confidence {CONFIDENCE:g} gives a limit that promises {risk:g} with it"


def _remedy(runs: Sequence[PilotRun], steps: int, confidence: float | None) -> str:
    """The smallest risk at which half of a run is done."""
    n = len(runs)
    for n_harmful in range(n):
        if _done(runs, steps, run_limit(runs, n_harmful)) >= 0.5:
            risk = (n_harmful + 1) / (n + 1) if confidence is None else highest_risk(n, n_harmful, confidence)
            return f"Half of a run would be done with a risk of {ceil(1000 * risk) / 1000:g}; or raise error_above"
    return "Even without a limit runs end early: the model is not fit for them"
