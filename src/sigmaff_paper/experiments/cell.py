"""Cells: the independent pieces that experiments are made of, each in a directory of its own, kept when it is done."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from sigmaff.allocator import keep_large_blocks
from sigmaff.errors import ConfigError
from sigmaff.files import folder_lock, write_json
from sigmaff.progress import Collecting, Listener


@dataclass(frozen=True)
class Place:
    """Where cells live: their directories are shared by all experiments."""

    root: Path

    def directory(self, name: str) -> Path:
        return self.root / "cells" / name

    def model(self, name: str) -> Path:
        """The model file of a cell that makes one."""
        return self.directory(name) / "model.sigmaff"


class Cell(BaseModel, ABC):
    """What is to be done, all of it: the same specification has the same result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="its directory, which tells what it is")
    after: tuple[str, ...] = Field(default=(), description="cells whose results it takes")
    needs: tuple[Path, ...] = Field(default=(), description="data files")

    @abstractmethod
    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        """The result, as JSON. Called again after an interruption, it goes on from what its directory holds."""

    def missing(self) -> str | None:
        """Which of its data files is not there."""
        lacking = [path for path in self.needs if not path.is_file()]
        return f"there is no {lacking[0]}" if lacking else None

    def specification(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **self.model_dump(mode="json")}


Status = Literal["done", "failed", "missing"]


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What became of a cell: its result, or why there is none."""

    name: str
    status: Status
    reason: str | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)

    def number(self, *path: str) -> float | None:
        """A number of the result by its keys; ``None`` where there is none."""
        value: Any = self.content
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, int | float) else None


Results = Mapping[str, CellResult]
"""By name."""


def number(results: Results, name: str, *path: str) -> float | None:
    """A number of one cell; ``None`` where the cell or the number is not there."""
    return results[name].number(*path) if name in results else None


def finished(cell: Cell, place: Place) -> CellResult | None:
    """The kept result of a cell. One of the same name that was made in another way is an error."""
    path = place.directory(cell.name) / "cell.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["specification"] != cell.specification():
        raise ConfigError(f"{path} was made with other settings or other data; choose another --output")
    return CellResult(
        name=cell.name,
        status="done",
        seconds=content["seconds"],
        warnings=tuple(content["warnings"]),
        content=content["result"],
    )


def do_cell(place: Place, cell: Cell) -> None:
    """Work and keep the result; in a process of its own, on one thread."""
    keep_large_blocks()
    torch.set_num_threads(1)
    with folder_lock(place.directory(cell.name)):
        if finished(cell, place) is not None:
            return
        began, listener = time.monotonic(), Collecting()
        result = cell.work(place, listener)
        content = {
            "specification": cell.specification(),
            "seconds": time.monotonic() - began,
            "warnings": listener.texts,
            "result": result,
        }
        write_json(place.directory(cell.name) / "cell.json", content, force=True)
