"""The directory of a campaign: every structure, label, model and decision is a file, written atomically."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import ase.io
from ase import Atoms
from pydantic import BeforeValidator, Field

from sigmaff.backbones import AdoptConfig
from sigmaff.config import with_unnamed
from sigmaff.errors import DataError
from sigmaff.files import RunFile, RunFolder, atomic_write, file_digest, flatten
from sigmaff.heads import LNKConfig
from sigmaff.heads.base import FORMER_DEFAULTS, UNTRAINED
from sigmaff.learning.config import FREE, CampaignConfig, ExploreConfig, SelectConfig
from sigmaff.models.adopt import network_file
from sigmaff.progress import Listener

if TYPE_CHECKING:
    from distributed import Client

OWN_FILES = ("campaign.json", "failures.json", "dataset.extxyz", "report.html", "rounds")


@dataclass(frozen=True)
class Context:
    """What all stages of a campaign share."""

    config: CampaignConfig
    listener: Listener
    workers: Callable[[], "Client"]  # started at the first call


class Round:
    """Files of one round. Round 0 labels the start; the others explore with the model of the round before."""

    def __init__(self, number: int, folder: Path) -> None:
        """folder: of all rounds."""
        path = folder / f"{number:02d}"
        self.number, self.folder, self.path = number, folder, path
        self.candidates = path / "candidates.extxyz"
        self.explored = path / "explored.json"  # ``Explored``; exists once the exploration is over
        self.selected = path / "selected.extxyz"
        self.dataset = path / "dataset.extxyz"  # all labelled structures, up to those of this round
        self.backbone = path / "fit" / "backbone.sigmaff"
        self.model = path / "model.sigmaff"
        self.summary = path / "round.json"  # ``RoundSummary``; exists once the round is over

    @property
    def before(self) -> "Round":
        return Round(self.number - 1, self.folder)

    def so_far(self) -> list["Round"]:
        """All rounds up to this one."""
        return [Round(number, self.folder) for number in range(self.number + 1)]

    def label_id(self, index: int) -> str:
        return f"{self.number:02d}-{index:04d}"

    def label(self, index: int) -> Path:
        return self.path / "labels" / f"{index:04d}.extxyz"

    def errors(self, index: int) -> Path:
        """Why attempts at this label failed: a list of messages."""
        return self.label(index).with_suffix(".json")

    def trajectory(self, temperature: float) -> Path:
        return self.path / "explore" / f"{temperature:g}K.extxyz"


FORMER = {"select.method": "variance_reduction", "reference_energies": "least_squares"} | FORMER_DEFAULTS


def _current(settings: Any) -> Any:
    """Settings of this version: old names replaced, and defaults for those that did not exist."""
    if not isinstance(settings, dict):
        return settings
    renamed = {"explore.stop_above": "explore.trust_below"}
    added = {
        "select.cost_power": SelectConfig().cost_power,
        "training.likelihood_unit": "normalised",
        "explore.connectivity": ExploreConfig().connectivity,
    }
    if settings.get("model.head.name") == "lnk":
        added |= {"model.head.distance_aware": False, "model.head.distance_prior": LNKConfig().distance_prior}
    return added | {renamed.get(key, key): value for key, value in settings.items()}


class CampaignFile(RunFile):
    """``campaign.json``: the campaign that a directory belongs to."""

    settings: Annotated[dict[str, Any], BeforeValidator(_current)]  # by dotted name
    files: dict[str, str]  # SHA-256 of each file of structures, and of an adopted network
    versions: dict[str, str] = Field(
        default_factory=lambda: {name: version(name) for name in ("sigmaff", "torch", "ase", "numpy", "tblite")}
    )
    ended: str | None = None  # why it is over

    def identity(self) -> dict[str, Any]:
        decisive = {name: value for name, value in self.settings.items() if name not in UNTRAINED}
        return decisive | self.files


class Directory:
    """Files of a campaign."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = path / "dataset.extxyz"
        self.report = path / "report.html"
        self.failures = path / "failures.json"  # structures that were set aside
        remedy = "choose another output directory, or use --force to remove that campaign and all its labels"
        self.folder = RunFolder(path, "campaign.json", remedy)

    def round(self, number: int) -> Round:
        return Round(number, self.path / "rounds")

    def claim(self, config: CampaignConfig, *, force: bool) -> CampaignConfig:
        """Begin or resume the campaign; its settings. With ``force`` remove the one that is there.

        A campaign keeps what the settings do not name and whose default was another when it began.
        """
        if self.folder.file.exists() and not force:
            began = self.folder.read(CampaignFile).settings
            config = with_unnamed(config, {name: began.get(name, was) for name, was in FORMER.items()})
        campaign = CampaignFile(settings=_decisive(config), files=_digests(config))
        if force and self.folder.file.exists():
            for path in (self.path / name for name in OWN_FILES):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.folder.write(campaign)
        self.folder.claim(campaign)
        return config

    def end(self, reason: str | None) -> None:
        """Write the reason why the campaign is over; ``None``: it is not."""
        content = self.folder.read(CampaignFile)
        if content.ended != reason:
            self.folder.write(content.model_copy(update={"ended": reason}))


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
    return dict(sorted(flatten(content).items()))


def _digests(config: CampaignConfig) -> dict[str, str]:
    sources = (config.start.source, config.explore.pool, config.test)
    backbone = config.model.backbone
    network = network_file(backbone) if isinstance(backbone, AdoptConfig) else None
    paths = [source.path for source in sources if source is not None] + ([] if network is None else [network])
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(f"{missing[0]} does not exist")
    return {str(path): file_digest(path) for path in paths}
