"""A finished run is recognised, also one of a version that lacked a setting."""

from pathlib import Path
from typing import Any

import pytest

from sigmaff.models.record import RunRecord
from sigmaff.runs.config import RunConfig
from sigmaff.runs.record import _changes


def run_config(head: str, tmp_path: Path, **settings: Any) -> RunConfig:
    source = tmp_path / "absent.extxyz"
    return RunConfig.model_validate({"data": {"source": str(source)}, "model": {"head": {"name": head}}, **settings})


@pytest.mark.parametrize("head", ["evidential", "gmdn", "svgp", "deterministic", "lnk"])
def test_a_finished_run_without_a_likelihood_unit_is_recognised(head: str, tmp_path: Path) -> None:
    """Its unit is the normalised one, unless settings name another."""
    second = {"head_training": {"max_epochs": 5}} if head == "svgp" else {}
    now = run_config(head, tmp_path, **second)
    old = now.model_dump(mode="json")
    for name in ("training", "head_training"):
        (old[name] or {}).pop("likelihood_unit", None)
    assert _changes(RunRecord(config=old), now) == []
    assert _changes(RunRecord(config=now.model_dump(mode="json")), now) == []
    named = run_config(head, tmp_path, **second, training={"likelihood_unit": "normalised"})
    assert _changes(RunRecord(config=old), named) == []


def test_another_unit_is_another_run(tmp_path: Path) -> None:
    one, other = (
        run_config("evidential", tmp_path, training={"likelihood_unit": unit}) for unit in ("kcal/mol", "normalised")
    )
    record = RunRecord(config=one.model_dump(mode="json"))
    assert _changes(record, other) == ["training.likelihood_unit: was kcal/mol, now normalised"]


def test_the_unit_is_written_only_where_a_likelihood_is_trained(tmp_path: Path) -> None:
    """So finished cells of other methods stay the same."""
    written = {head: run_config(head, tmp_path).model_dump()["training"] for head in ("evidential", "deterministic")}
    assert written["evidential"]["likelihood_unit"] == "kcal/mol"
    assert "likelihood_unit" not in written["deterministic"]
