"""The time that is left: closed forms, and what a user sees on a terminal and in a log."""

import io
import re

import pytest
from rich.console import Console

from sigmaff.cli import progress
from sigmaff.cli.progress import Terminal
from sigmaff.progress import Pace, duration


def test_pace_is_that_of_the_later_half_of_the_work() -> None:
    """A resumed run with one slow step at its start, such as compiling, then two steps a second."""
    pace = Pace()
    assert pace.seconds_left(100) is None
    pace.look(0.0, 40)
    assert pace.seconds_left(100) is None
    pace.look(10.0, 41)
    assert pace.seconds_left(100) == pytest.approx(590.0)
    for step in range(1, 31):
        pace.look(10.0 + 0.5 * step, 41 + step)
    assert pace.seconds_left(100) == pytest.approx(0.5 * 29)
    assert pace.seconds_left(71) == 0.0


def test_pace_of_long_work_keeps_few_looks() -> None:
    pace = Pace()
    for step in range(20_000):
        pace.look(0.25 * step, step)
    assert len(pace.times) <= Pace.MAX_LOOKS
    assert pace.seconds_left(30_000) == pytest.approx(0.25 * 10_001)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5300, "88 min"), (12000, "3 h 20 min"), (190800, "2 d 5 h")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("is_terminal", [False, True], ids=["log", "terminal"])
def test_progress_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """Within 80 columns on a terminal; on the later stages too, which begin at a pace of their own."""
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    file = io.StringIO()
    with Terminal(Console(file=file, force_terminal=is_terminal, width=80, highlight=False)) as terminal:
        for stage in ("training the backbone", "testing"):
            terminal.stage(stage)
            for done in range(3):
                terminal.advance(done, 12, "E 3.1 meV" if done else "")
            terminal.progress.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    for stage in ("training the backbone", "testing"):
        assert re.search(rf"{stage}.* 2/12\W+10 min left\W+E 3.1 meV", text), text
    assert max(map(len, text.replace("\r", "\n").splitlines())) <= 80


def test_the_bar_of_the_stage_at_work_is_on_the_screen() -> None:
    """A campaign has hundreds of stages; a screen has 25 lines."""
    file = io.StringIO()
    with Terminal(Console(file=file, force_terminal=True, width=80, height=25, highlight=False)) as terminal:
        for number in range(60):
            terminal.stage(f"stage {number}")
            terminal.advance(1, 2)
        file.seek(0)
        file.truncate()
        terminal.progress.refresh()
        shown = re.findall(r"stage (\d+)", file.getvalue())
    assert shown[-1] == "59"
    assert len(shown) < 25
