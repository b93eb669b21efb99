"""Cells that make a model: trained or fitted, joined of others, or another one sampled with dropout."""

from pathlib import Path
from typing import Any

from pydantic import Field

from sigmaff.models.file import read_header
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.run import RunResult, run, run_with
from sigmaff.runs.stages import joining, sampling
from sigmaff_paper.experiments.cell import Cell, Place

KEPT = {"metrics", "ood", "training", "head_training", "fit", "members", "seconds"}
"""What a cell tells of the record of its model."""


class Trained(Cell):
    """A model of one run; a head that comes after its backbone is put on that of the cell that it comes after."""

    config: RunConfig = Field(description="the run; its output directory is the cell's")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        takes_backbone = self.config.model.head.trained != "with_backbone"
        backbone = place.model(self.after[0]) if takes_backbone else None
        return _told(run(_located(self, place, backbone), listener))


class Joined(Cell):
    """An ensemble of the models that it comes after."""

    config: RunConfig = Field(description="the run that it is tested by")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        members = [place.model(name) for name in self.after]
        return _told(run_with(joining(members), _located(self, place), listener))


class Sampled(Cell):
    """The model that it comes after, predicting with dropout on."""

    config: RunConfig = Field(description="the run that it is tested by, with its mc_dropout")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        return _told(run_with(sampling(place.model(self.after[0])), _located(self, place), listener))


def _located(cell: Trained | Joined | Sampled, place: Place, backbone: Path | None = None) -> RunConfig:
    return cell.config.model_copy(update={"output": place.directory(cell.name), "backbone_from": backbone})


def _told(result: RunResult | None) -> dict[str, Any]:
    assert result is not None  # on one device
    record = read_header(result.model_path).record
    assert record.config is not None
    source = record.config["data"]["source"]["path"]
    return {"data": source, **record.model_dump(mode="json", include=KEPT)}
