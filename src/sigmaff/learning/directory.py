"""The directory of a campaign: every structure, label, model and decision, in files that are written whole."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms

from sigmaff.errors import ConfigError, DataError
from sigmaff.files import atomic_write, holds_files, write_json
from sigmaff.learning.config import FREE, CampaignConfig
from sigmaff.training.checkpoint import flatten

OWN_FILES = ("campaign.json", "failures.json", "dataset.extxyz", "report.html", "rounds")


@dataclass(frozen=True)
class Round:
    """Files of one round. Round 0 labels the start; the others explore with the model of the round before."""

    number: int
    path: Path

    @property
    def candidates(self) -> Path:
        return self.path / "candidates.extxyz"

    @property
    def explored(self) -> Path:
        """What came of the exploration; there once it is over."""
        return self.path / "explored.json"

    @property
    def selected(self) -> Path:
        return self.path / "selected.extxyz"

    @property
    def dataset(self) -> Path:
        """All labelled structures, up to those of this round."""
        return self.path / "dataset.extxyz"

    @property
    def model(self) -> Path:
        return self.path / "model.sigmaff"

    @property
    def summary(self) -> Path:
        """Figures of the round; there once it is over."""
        return self.path / "round.json"

    def label(self, index: int) -> Path:
        return self.path / "labels" / f"{index:04d}.extxyz"

    def errors(self, index: int) -> Path:
        """Why attempts at this label failed."""
        return self.path / "labels" / f"{index:04d}.json"

    def trajectory(self, temperature: float) -> Path:
        return self.path / "explore" / f"{temperature:g}K.extxyz"


@dataclass(frozen=True)
class Directory:
    path: Path

    def round(self, number: int) -> Round:
        return Round(number, self.path / "rounds" / f"{number:02d}")

    @property
    def dataset(self) -> Path:
        return self.path / "dataset.extxyz"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def campaign(self) -> Path:
        return self.path / "campaign.json"

    @property
    def failures(self) -> Path:
        """Structures that were set aside."""
        return self.path / "failures.json"

    def claim(self, config: CampaignConfig, *, force: bool) -> None:
        """The directory is this campaign's own from now on. With ``force`` another one that is there is removed."""
        settings = {"settings": _decisive(config), "files": _digests(config)}
        if self.campaign.exists():
            changes = _changes(read_json(self.campaign), settings)
            if not changes and not force:
                return
            if not force:
                raise ConfigError(
                    f"{self.path} holds a campaign with other settings ({'; '.join(changes)}); choose another output "
                    "directory, or use --force to remove that campaign and all its labels"
                )
            self._remove()
        elif holds_files(self.path):
            raise ConfigError(f"{self.path} holds other files and no campaign; choose another output directory")
        write_json(self.campaign, settings | {"versions": _versions(), "ended": None})

    def end(self, reason: str | None) -> None:
        """Write down why the campaign is over, or that it goes on."""
        content = read_json(self.campaign)
        if content["ended"] != reason:
            write_json(self.campaign, content | {"ended": reason}, force=True)

    def _remove(self) -> None:
        for name in OWN_FILES:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{path} is not what a campaign wrote; remove it to have it made again") from None


def read_frames(path: Path) -> list[Atoms]:
    """No frames in an empty file."""
    return ase.io.read(path, ":", format="extxyz") if path.stat().st_size else []


def write_frames(path: Path, frames: Sequence[Atoms]) -> None:
    with atomic_write(path, force=True) as temporary:
        if frames:
            ase.io.write(temporary, frames, format="extxyz")


def _decisive(config: CampaignConfig) -> dict[str, Any]:
    """Settings that decide the structures and labels of a campaign, by name."""
    content = config.model_dump(mode="json", exclude=FREE)
    limits = config.training.model_dump(include={"max_epochs", "patience", "time_limit_minutes"})
    content["training"] = config.training.trajectory() | limits
    return dict(sorted(flatten("", content).items()))


def _digests(config: CampaignConfig) -> dict[str, str]:
    return {str(path): _digest(path) for path in _sources(config)}


def _sources(config: CampaignConfig) -> Iterator[Path]:
    for source in (config.start.source, config.explore.pool, config.test):
        if source is not None:
            yield source.path


def _digest(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = before["settings"], now["settings"]
    changed = [f"{key}: was {old.get(key)}, now {new.get(key)}" for key in old | new if old.get(key) != new.get(key)]
    digests = before["files"]
    return changed + [f"{path} has changed" for path, digest in now["files"].items() if digests.get(path) != digest]


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy", "tblite")}
