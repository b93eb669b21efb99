"""A watch over σ of one structure after another: it warns once, and says where to stop."""

from collections.abc import Callable

from sigmaff.errors import ConfigError
from sigmaff.models.prediction import Predictor
from sigmaff.models.std_range import StdRange
from sigmaff.simulation.limits import (
    FACTOR,
    NAMES,
    Above,
    Limits,
    Looked,
    Reading,
    exceeded,
    known_range,
    limits_of,
    readings,
)
from sigmaff.simulation.results import Results

NO_LIMITS = Limits()


class Watch:
    """Limits on σ, and what is said of a σ above them."""

    def __init__(self, model: Predictor, *, warn_above: Above, stop_above: Above, warn: Callable[[str], None]) -> None:
        """
        model: whose σ it is; for limits "auto" it must know its range. Without one, ``warn_above="auto"`` is off.
        warn: called once, with one line, for the first structure with a σ above ``warn_above``.
        """
        self.known = known_range(model)
        self.given: set[Looked] = set()  # limits on σ that must be there
        self.is_range = {"stop": stop_above == "auto", "warn": warn_above == "auto"}
        self.stop = self._limits("stop_above", stop_above, model)
        self.warn_limits = self._limits("warn_above", _possible(warn_above, self.known), model)
        self.has_warned, self._warn = False, warn

    def look(self, results: Results) -> Reading | None:
        """Warn if that is due; return the σ that is above its limit to stop at."""
        if self.stop == NO_LIMITS and (self.has_warned or self.warn_limits == NO_LIMITS):
            return None
        found = readings(results, self.stop)
        if missing := self.given - {reading.of for reading in found}:
            raise ConfigError(f"there is a limit on {NAMES[min(missing)][0]}, which the calculator does not compute")
        if not self.has_warned and (above := exceeded(readings(results, self.warn_limits))) is not None:
            self.has_warned = True
            self._warn(f"{self.words(above, 'warn')}; this is said once")
        return exceeded(found)

    def words(self, above: Reading, what: str = "stop") -> str:
        """A σ above its limit, in one line."""
        words = [f"{above} is above {above.limit:.3g}"]
        if self.known is not None and self.is_range[what]:
            words.append(f"{FACTOR:g} times the largest of the {self.known.n_structures} calibration structures")
        usual = None if self.known is None else getattr(self.known, above.of)
        if usual is not None and usual.median > 0:
            words.append(f"{above.value / usual.median:.3g} times the usual")
        return ", ".join(words)

    def _limits(self, name: str, above: Above, model: Predictor) -> Limits:
        limits = limits_of(name, above, model)
        if above != "auto":
            self.given |= {key for key in NAMES if getattr(limits, key) is not None}
        return limits


def _possible(warn_above: Above, known: StdRange | None) -> Above:
    return None if warn_above == "auto" and known is None else warn_above
