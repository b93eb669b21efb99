"""Kills, signals, full disks and rivals, a few of each. ``make storm`` strikes at every file operation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SHARES = {"kills": "0.02", "cuts": "0.05", "full": "0.03", "signals": "0.007", "rivals": "0.34", "small-disks": "0"}
STRUCK = ("md", "train")

SELF_TEST = """
import json, sys
from pathlib import Path
from storm import layer, trial
from storm.layer import Blow
from storm.results import contents, same_states

def called(arguments):
    for name in arguments:
        Path(name).write_text("one" + name)
    Path("c").mkdir()
    Path(arguments[0]).rename("d")
    return 0

trial._called = called
found = {}
for what, at in (("kill", 3), ("half", 4), ("full", 4), ("kill", 6), ("kill", 7)):
    folder = Path(sys.argv[1], f"{what}{at}", "work")
    folder.mkdir(parents=True)
    ended = trial.run(("a", "b"), folder, Blow(what=what, at=at))
    texts = {str(path.relative_to(folder)): path.is_file() and path.read_text() for path in sorted(folder.rglob("*"))}
    found[f"{what}{at}"] = [ended.code, ended.has_traceback, texts, list(ended.kinds)]
folder = Path(sys.argv[1], "work")
folder.mkdir()
trial.run(("a", "b"), folder, states=Path(sys.argv[1], "states"))
states = {"kill3": "kill at 3", "half4": "half at 4", "kill6": "kill at 6"}
found["cut"] = {name: contents(Path(sys.argv[1], "states", state)) for name, state in states.items()}
found["killed"] = {name: contents(Path(sys.argv[1], name, "work")) for name in states}
found["same"] = [[path.name for path in same] for same in same_states(Path(sys.argv[1], "states"))]
print(json.dumps(found))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=TESTS, capture_output=True, text=True)


def test_the_layer_strikes_where_it_should(tmp_path: Path) -> None:
    """Operations 1 to 6: open, write, open, write, mkdir, rename. The seventh never comes."""
    done = run("-c", SELF_TEST, str(tmp_path))
    assert done.returncode == 0, done.stderr
    kinds = ["open", "write", "open", "write", "mkdir", "rename"]
    found = json.loads(done.stdout)
    assert found["kill3"] == [-9, False, {"a": "onea"}, []]
    assert found["half4"] == [-9, False, {"a": "onea", "b": "on"}, []]
    assert found["full4"][:3] == [99, False, {"a": "onea", "b": "on"}]
    assert found["kill6"] == [-9, False, {"a": "onea", "b": "oneb", "c": False}, []]
    assert found["cut"] == found["killed"]
    assert [name for (name,) in found["same"]] == [
        *("kill at 1", "kill at 2", "half at 2", "kill at 3", "kill at 4", "half at 4", "kill at 5", "kill at 6")
    ]
    assert found["kill7"] == [0, False, {"b": "oneb", "c": False, "d": "onea"}, kinds]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("storm") / "figures.json"
    shares = [text for kind, share in SHARES.items() for text in (f"--{kind}", share)]
    done = run("-m", "storm", "--count", "0", "--json", str(path), *shares, "--commands", *STRUCK)
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("command", STRUCK)
def test_nothing_is_lost(figures: dict[str, Any], command: str) -> None:
    assert figures[command]["broken"] == []
    assert all(figures[command][kind]["struck"] > 0 for kind in ("kills", "cuts", "full", "signals", "rivals"))
