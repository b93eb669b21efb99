"""Mutants of everything that users hand to the program, and all that ever broke it. ``make fuzz`` runs more of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
KINDS = ("models", "data", "configs", "commands")
COUNT = 500

SELF_TEST = """
import json, os
from fuzz.sandbox import BrokenPromiseError, Trial, tried
from sigmaff.errors import DataError

def refuse(): raise DataError("no")
def betray(): raise BrokenPromiseError("other numbers")
def swell(): return str(len(bytearray(b"x") * 400_000_000))
def spin():
    while True: pass

trials = [
    Trial(run=lambda: "accepted"),
    Trial(run=refuse),
    Trial(run=lambda: str(1 / 0)),
    Trial(run=betray),
    Trial(run=os.abort),
    Trial(run=swell),
    Trial(run=swell, size=10**8),
    Trial(run=spin, seconds=0.2),
    Trial(run=spin, seconds=0.2, may_be_long=True),
    Trial(run=lambda: "accepted"),
]
outcomes = tried(trials.__getitem__, len(trials))
print(json.dumps([[outcome.verdict, outcome.broken is not None] for outcome in outcomes]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=TESTS, capture_output=True, text=True)


def test_what_trials_can_break_is_seen() -> None:
    done = run("-c", SELF_TEST)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["accepted", False],
        ["refused", False],
        ["exception", True],
        ["broken", True],
        ["crash", True],
        ["memory", True],
        ["400000000", False],
        ["hang", True],
        ["at work", False],
        ["accepted", False],
    ]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("fuzz") / "figures.json"
    done = run("-m", "fuzz", "--count", str(COUNT), "--json", str(path))
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_breaks(figures: dict[str, Any], kind: str) -> None:
    assert figures[kind]["broken"] == []
    verdicts = figures[kind]["verdicts"]
    assert verdicts["corpus"] == len(list((TESTS / "fuzz" / "corpus" / kind).iterdir())) > 0
    assert verdicts["refused"] > 0
    assert sum(n for verdict, n in verdicts.items() if verdict.startswith(("accepted", "at work"))) > 0
