"""A new head takes one file, one registry line and one line in the contract list, as CONTRIBUTING says.

The test makes these three changes in a copy of the package and of the contract, and runs the contract on the new head.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import sigmaff

PACKAGE = Path(sigmaff.__file__).parent
TESTS = Path(__file__).parents[1]
REGISTRY = {
    "from sigmaff.heads.svgp import": "from sigmaff.heads.toy import Toy\nfrom sigmaff.heads.svgp import",
    "    SVGP,\n)": "    SVGP,\n    Toy,\n)",
}
CONTRACT = {
    "from sigmaff.models import": "from sigmaff.heads.toy import ToyConfig\nfrom sigmaff.models import",
    "    EvidentialConfig(),\n": "    EvidentialConfig(),\n    ToyConfig(),\n",
}


def edit(path: Path, changes: dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, f"{path.name} holds {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def test_a_new_head_inherits_the_contract(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "src" / "sigmaff", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "models").mkdir(parents=True)
    for name in ("conftest.py", "contract.py", "toy_host.py", "models/test_contract.py"):
        shutil.copy(TESTS / name, tmp_path / "tests" / name)
    shutil.copy(TESTS / "toy_head.py", tmp_path / "src" / "sigmaff" / "heads" / "toy.py")
    edit(tmp_path / "src" / "sigmaff" / "heads" / "__init__.py", REGISTRY)
    edit(tmp_path / "tests" / "contract.py", CONTRACT)

    command = [sys.executable, "-m", "pytest", "tests/models", "-k", "schnet-toy", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 30
