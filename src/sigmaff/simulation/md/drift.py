"""Drift monitor: has σ left its distribution on the calibration structures? For frames of any correlation.

A look is *above* if its score exceeds all but k − 1 of the n calibration scores, which has a chance of at most
q = k / (n + 1) if the look is exchangeable with them. The alarm is the first look at which the share of looks above,
since the start, reaches q / α. In a stationary run the maximal ergodic theorem (E. Hopf) bounds the largest of all
running means of a non-negative quantity x: P(sup_t (x_1 + … + x_t) / t ≥ c) ≤ E[x] / c, whatever the correlation of
the x_t. With x_t = 1[look t is above] the alarm ever comes with a chance of at most α: for any length of the run, any
interval between looks, and on average over draws of the calibration structures. These must be independent draws of the
ensemble of the run: frames of a few short trajectories count for less than their number.

Nothing is assumed of correlation times, and this has a price. A stationary run may sit for its whole length in one
part of the ensemble, so no alarm is possible with n < 1 / α − 1. The share s = q / α is reached late after a calm: a
drift that brings looks above with frequency r > s is found about t s / (r − s) looks after t looks without drift, and
one with r < s is not found. k is chosen for s = ¼ or, with few calibration structures, as close as it gets.
"""

from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from sigmaff.models.prediction import FloatArray

SHARE = 0.25
"""Of the looks above, for an alarm: small to be quick after a long calm, large to need fewer calibration structures."""
EXACT = 1e-12
"""Relative rounding error that is forgiven, as in 0.01 · 100 = 1."""


@dataclass(frozen=True, kw_only=True)
class DriftRule:
    """When the alarm is given, and what that means."""

    forces_std: float  # eV/Å; looks with a larger force σ of an atom are counted
    share: float  # of the looks so far, that gives the alarm; above 1: never
    statement: str


def drift_rule(reference: FloatArray, false_alarm: float) -> DriftRule:
    """The rule that keeps the chance of a false alarm in a stationary run.

    Arguments:
        reference: (n,) largest force σ of an atom of each calibration structure, eV/Å.
        false_alarm: chance of an alarm, ever, in a replica without drift.
    """
    n = reference.size
    k = max(1, floor(SHARE * false_alarm * (n + 1) * (1 + EXACT)))
    limit, share = float(np.sort(reference)[n - k]), k / (n + 1) / false_alarm
    return DriftRule(forces_std=limit, share=share, statement=_statement(n, k, limit, share, false_alarm))


def _statement(n: int, k: int, limit: float, share: float, false_alarm: float) -> str:
    if share > 1 + EXACT:
        return (
            f"drift monitor: off. {n} calibration structures cannot keep the chance of a false alarm at "
            f"{false_alarm:g}: give at least {_needed(1.0, false_alarm)}, or set false_alarm to "
            f"{ceil(1000 / (n + 1)) / 1000:g} or more"
        )
    meaning = (
        f"drift monitor: alarm when {share:.0%} of the looks since the start have a force σ above {limit:.4g} eV/Å, "
        f"which {k - 1} of the {n} calibration structures exceed. If these are independent draws of the ensemble of a "
        f"stationary run, the chance that a replica ever gives it is at most {false_alarm:g}, however correlated its "
        "frames are"
    )
    if share <= 2 * SHARE:
        return meaning
    enough = _needed(SHARE, false_alarm)
    return f"{meaning}. Only a long drift reaches {share:.0%}: {enough} calibration structures lower it to {SHARE:.0%}"


def _needed(share: float, false_alarm: float) -> int:
    """Calibration structures for an alarm at this share of the looks."""
    return ceil((1 - EXACT) / (share * false_alarm)) - 1


class DriftMonitor:
    """The looks at one replica."""

    def __init__(self, rule: DriftRule) -> None:
        self._rule = rule
        self.seen: list[float] = []
        self._n_above = 0

    def update(self, score: float) -> bool:
        """Whether the alarm is on after this look."""
        self.seen.append(score)
        self._n_above += score > self._rule.forces_std
        return self._n_above >= self._rule.share * (1 - EXACT) * len(self.seen)
