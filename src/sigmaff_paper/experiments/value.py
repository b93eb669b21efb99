"""Our numbers: means over trainings, with what is known of their uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sigmaff.runs.jobs import JobResult

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number of one training, or the mean over several."""

    mean: float
    interval: Interval | None = None  # 95 %, for the choice of test structures; of several trainings the mean
    trainings: tuple[float, ...] = ()  # the number of each, if there are several

    def times(self, factor: float) -> "Value":
        if factor == 1.0:
            return self
        interval = None if self.interval is None else (factor * self.interval[0], factor * self.interval[1])
        trainings = tuple(factor * number for number in self.trainings)
        return replace(self, mean=factor * self.mean, interval=interval, trainings=trainings)


def value_of(results: Sequence[JobResult], *path: str) -> Value | None:
    """Look up a number in the results of several trainings; ``None`` if none has it.

    Calibration scores have no interval: resampling biases them.
    """
    found = [(number, result) for result in results if (number := result.number(*path)) is not None]
    if not found:
        return None
    numbers = tuple(number for number, _ in found)
    interval = None if "calibration" in path[-1] else _mean_interval([result.interval(*path) for _, result in found])
    if len(numbers) == 1:
        return Value(mean=numbers[0], interval=interval)
    return Value(mean=sum(numbers) / len(numbers), interval=interval, trainings=numbers)


def mean_of(values: Sequence[Value | None]) -> Value | None:
    """Return the mean over molecules, training by training; ``None`` if a value is missing."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    n = min(len(value.trainings) for value in present)
    trainings = tuple(sum(value.trainings[k] for value in present) / len(present) for k in range(n))
    return Value(mean=sum(value.mean for value in present) / len(present), trainings=trainings)


def _mean_interval(intervals: Sequence[Interval | None]) -> Interval | None:
    known = [interval for interval in intervals if interval is not None]
    if not known or len(known) < len(intervals):
        return None
    low, high = (sum(ends) / len(known) for ends in zip(*known, strict=True))
    return low, high
