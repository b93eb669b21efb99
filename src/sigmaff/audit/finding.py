"""What an audit finds out about one desideratum: numbers, their tolerances, a verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sigmaff.evaluation.metrics import FloatArray

Verdict = Literal["holds", "approximately", "fails", "not applicable"]
MARKS: dict[Verdict, str] = {"not applicable": "–", "holds": "✓", "approximately": "(✓)", "fails": "✗"}
"""From the best to the worst."""
NO_LABELS = "There are no labelled structures to measure errors on."
NO_COMPARISON = "There is no backbone without σ to compare with."


@dataclass(frozen=True)
class Tolerance:
    """A number holds up to ``holds``, approximately up to ``approximately``; ``at_least``: both are lower limits."""

    holds: float
    approximately: float
    reason: str
    unit: str = ""
    at_least: bool = False

    def verdict(self, value: float) -> Verdict:
        if not math.isfinite(value):
            return "fails"
        sign = -1.0 if self.at_least else 1.0
        if sign * value <= sign * self.holds:
            return "holds"
        return "approximately" if sign * value <= sign * self.approximately else "fails"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a plot."""

    plot: str  # what it belongs to: "locality", "nve", "calibration of energies", ...
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One desideratum of one subject."""

    desideratum: str
    verdict: Verdict
    figure: str  # the number that stands in the table
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)
    tolerances: dict[str, Tolerance] = field(default_factory=dict)  # of the numbers that are judged, by name
    series: tuple[Series, ...] = ()

    @property
    def mark(self) -> str:
        return MARKS[self.verdict]


def judged(
    desideratum: str,
    numbers: Mapping[str, float],
    tolerances: Mapping[str, Tolerance],
    figure: str,
    sentence: str,
    *,
    series: Sequence[Series] = (),
) -> Finding:
    """A finding whose verdict is the worst of its numbers; tolerances of missing numbers are left out.

    A judged number that is not finite is a failure. It is left out of the numbers, because JSON has no such value.
    """
    used = {name: tolerance for name, tolerance in tolerances.items() if name in numbers}
    verdicts = [tolerance.verdict(numbers[name]) for name, tolerance in used.items()]
    return Finding(
        desideratum=desideratum,
        verdict=max(verdicts, key=list(MARKS).index, default="not applicable"),
        figure=figure,
        sentence=sentence,
        numbers={name: float(value) for name, value in numbers.items() if math.isfinite(value)},
        tolerances=used,
        series=tuple(series),
    )


def not_applicable(desideratum: str, sentence: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """Numbers without a verdict, and the reason why there is none."""
    return judged(desideratum, numbers or {}, {}, "", sentence)


def line(plot: str, x: FloatArray, y: FloatArray) -> Series:
    return Series(plot=plot, x=tuple(x.tolist()), y=tuple(y.tolist()))
