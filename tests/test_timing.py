"""The timer: which calls it makes, and what it returns of them."""

import time

from sigmaff.timing import median_seconds, time_calls


def test_rounds_alternate_and_each_call_is_made_twice_in_a_row():
    made: list[str] = []
    progress: list[tuple[int, int]] = []
    calls = {name: lambda name=name: made.append(name) for name in "abc"}
    seconds = time_calls(calls, 2, lambda done, total: progress.append((done, total)))
    assert "".join(made) == "aabbcc" + "bbccaa" + "ccaabb"
    assert {name: values.shape for name, values in seconds.items()} == {"a": (2,), "b": (2,), "c": (2,)}
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_the_second_call_is_timed_and_the_first_round_is_not():
    """A call that is slow when cold or not warmed up."""
    n_calls = 0

    def cold_first() -> None:
        nonlocal n_calls
        if n_calls < 2 or n_calls % 2 == 0:
            time.sleep(0.2)
        n_calls += 1

    seconds = median_seconds({"cold first": cold_first, "slow": lambda: time.sleep(0.05)}, 3)
    assert seconds["cold first"] < 0.05 <= seconds["slow"] < 0.2


def test_nothing_to_time():
    assert time_calls({}, 3) == {}


def test_seconds_are_those_of_the_clock():
    """One that each call moves on by itself."""
    now = 0.0

    def lasts(seconds: float) -> None:
        nonlocal now
        now += seconds

    found = time_calls({"one": lambda: lasts(1.0), "two": lambda: lasts(2.0)}, 2, clock=lambda: now)
    assert {name: values.tolist() for name, values in found.items()} == {"one": [1.0, 1.0], "two": [2.0, 2.0]}
