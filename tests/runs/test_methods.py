"""The configurations that docs/methods.md gives for each method are those of the method of that name."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sigmaff.config import read_config
from sigmaff.runs.config import RunConfig
from sigmaff.runs.methods import METHODS

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
DATA = {"source": "data.extxyz"}
IDLE = {"n_samples", "variance_labels"}
"""Settings without effect on a variational head with a diagonal covariance: nothing is solved or sampled."""


def of_table() -> dict[str, dict[str, Any]]:
    """Settings of a run by method, from the rows whose last column has them: (name, source of σ, configuration)."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", TEXT.split("| method |")[1].split("\n\n")[0], re.MULTILINE)
    found = {}
    for name, cell in rows:
        parts = [yaml.safe_load(snippet) for snippet in re.findall(r"`([^`]*)`", cell)]
        settings = {key: value for part in parts for key, value in part.items()}
        model = {key: settings.pop(key) for key in ("head", "backbone") if key in settings}
        found[name] = {"data": DATA, "model": {"head": {"name": "deterministic"}} | model, **settings} if parts else {}
    return found


def of_blocks() -> dict[str, dict[str, Any]]:
    """The same, from the blocks that begin with the name of a method."""
    return {name: yaml.safe_load(text) for name, text in re.findall(r"^```yaml\n# (\w+)\n(.*?)^```", TEXT, re.M | re.S)}


def documented() -> dict[str, dict[str, Any]]:
    table, below = of_table(), of_blocks()
    assert {name for name, settings in table.items() if not settings} == set(below)
    return table | below


def decisive(run: RunConfig) -> dict[str, Any]:
    content = run.model_dump(include={"model", "ensemble", "mc_dropout"})
    head = content["model"]["head"]
    is_idle = head.get("fit") == "variational" and head["covariance"] == "diagonal"
    content["model"]["head"] = {key: value for key, value in head.items() if not (is_idle and key in IDLE)}
    return content


def test_every_method_has_a_configuration() -> None:
    assert set(documented()) == set(METHODS) - {"backbone"}


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"backbone"}))
def test_documented_configuration_is_the_method(name: str) -> None:
    plain = read_config(RunConfig, {"data": DATA, "model": {"head": {"name": "deterministic"}}})
    run = read_config(RunConfig, documented()[name])
    assert decisive(run) == decisive(METHODS[name].settings(plain))
