"""Time calls against each other."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K", bound=Hashable)
Calls = Mapping[K, Callable[[], object]]
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    pass


def time_calls(
    calls: Calls[K], n_rounds: int, progress: Progress = _silent, clock: Callable[[], float] = time.perf_counter
) -> dict[K, npt.NDArray[np.float64]]:
    """Return the seconds of each call in every round, (n_rounds,); their median is robust against other processes.

    Every round runs all calls, so that the load of the machine affects all alike, and starts with another one. A call
    is made twice in a row and the second one is timed, so that caches do not depend on the call before. One more round
    comes first and warms up.

    Arguments:
        progress: gets the number of rounds done, and of all.
        clock: in seconds; ``time.process_time`` counts what the processor does for this program alone.
    """
    seconds: dict[K, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(n_rounds + 1):
        first = number % max(len(names), 1)
        for name in names[first:] + names[:first]:
            calls[name]()
            began = clock()
            calls[name]()
            if number > 0:
                seconds[name].append(clock() - began)
        progress(number + 1, n_rounds + 1)
    return {name: np.array(values) for name, values in seconds.items()}


def median_seconds(calls: Calls[K], n_rounds: int, progress: Progress = _silent) -> dict[K, float]:
    """Return the median over the rounds of ``time_calls``."""
    return {name: float(np.median(seconds)) for name, seconds in time_calls(calls, n_rounds, progress).items()}
