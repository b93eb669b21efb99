"""Drift monitor: has σ left its distribution on the calibration structures? A test that may be read at every step.

The frame at hand gets the conformal p-value of its score among those of the calibration structures and of the frames
before it, p = (1 + #{scores at least as large}) / (1 + #scores): if all of them are exchangeable, p-values are
independent and (at least) uniform (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World"). A gambler
bets against that: half of the money sleeps and half is multiplied by ½ p^−½, whose mean is 1 and which is large where σ
is; a small share moves between the halves each time, so that there is always something left to bet with. The money is
a non-negative supermartingale that starts at 1, so it ever reaches 1/α with a chance of at most α (Ville): that is the
alarm.

Frames of one trajectory are exchangeable only as far as they are independent: look at frames that are some way apart.
"""

from bisect import bisect_left, insort

from sigmaff.simulation.md.stepper import FloatArray

SHARED = 0.01
"""Of the money, that is dealt out anew in halves before each bet."""


class DriftMonitor:
    """The gambler of one replica."""

    def __init__(self, reference: FloatArray, false_alarm: float) -> None:
        self._sorted = sorted(reference.tolist())
        self._limit = 1.0 / false_alarm
        self.seen: list[float] = []
        self._sleeping = self._betting = 0.5

    def update(self, score: float) -> bool:
        """Whether the alarm is on after this frame."""
        n_larger = len(self._sorted) - bisect_left(self._sorted, score)
        p_value = (1 + n_larger) / (1 + len(self._sorted))
        dealt = 0.5 * SHARED * (self._sleeping + self._betting)
        self._sleeping = (1.0 - SHARED) * self._sleeping + dealt
        self._betting = ((1.0 - SHARED) * self._betting + dealt) * 0.5 * p_value**-0.5
        insort(self._sorted, score)
        self.seen.append(score)
        return self._sleeping + self._betting >= self._limit
