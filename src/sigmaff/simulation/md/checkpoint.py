"""What a run keeps in its directory to go on from, and what it says of itself there."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from ase import Atoms

from sigmaff.errors import ConfigError, DataError
from sigmaff.files import atomic_write, holds_files, write_json
from sigmaff.models import Model
from sigmaff.models.prediction import Predictor
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.replica import Origin, Record, State
from sigmaff.simulation.md.threshold import Scores, Threshold, choose_threshold

SUMMARY, CHECKPOINT = "md.json", "checkpoint.npz"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All replicas at one moment."""

    sizes: dict[str, int]  # of the files then
    memories: list[dict[str, Any]]  # of each replica: record, random numbers, drift monitor
    histories: list[State]  # of each replica: states along the first axis, the last is where it is

    def write(self, directory: Path) -> None:
        text = json.dumps({"sizes": self.sizes, "memories": self.memories})
        arrays = {f"{number}/{name}": a for number, state in enumerate(self.histories) for name, a in state.items()}
        with atomic_write(directory / CHECKPOINT, force=True) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, text=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def read_checkpoint(directory: Path) -> Checkpoint | None:
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            content = json.loads(file["text"].tobytes())
            histories: list[State] = [{} for _ in content["memories"]]
            for key in file.files:
                number, _, name = key.partition("/")
                if name:
                    histories[int(number)][name] = file[key]
    except (BadZipFile, ValueError, LookupError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); remove {directory} to start anew") from None
    return Checkpoint(sizes=content["sizes"], memories=content["memories"], histories=histories)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run is: the settings that decide its trajectories, and the limit it keeps."""

    settings: dict[str, Any]
    threshold: Threshold | None

    def write(self, directory: Path, config: MDConfig, replicas: Sequence[tuple[Origin, Record]]) -> None:
        content = {
            "finished": bool(replicas),
            "steps": config.steps,
            "threshold": None if self.threshold is None else asdict(self.threshold),
            "replicas": [asdict(origin) | asdict(record) for origin, record in replicas],
            "settings": self.settings,
        }
        write_json(directory / SUMMARY, content, force=True)


def open_run(
    directory: Path, model: Predictor, structures: Sequence[Atoms], config: MDConfig, calibration: Scores | None
) -> Summary:
    """The run of this directory, which must be the same one if there is one."""
    settings = {
        "config": config.model_dump(mode="json", exclude={"steps", "checkpoint_every"}),
        "model": _model_digest(model),
        "starts": _starts_digest(structures),
        "calibration_structures": None if calibration is None else len(calibration),
    }
    path = directory / SUMMARY
    if path.exists() and (directory / CHECKPOINT).exists():
        return _same_run(path, settings)
    if not path.exists() and holds_files(directory):
        raise ConfigError(f"{directory} holds other files and no run; choose another directory, or an empty one")
    summary = Summary(settings=settings, threshold=choose_threshold(config, calibration))
    summary.write(directory, config, [])
    return summary


def _same_run(path: Path, settings: dict[str, Any]) -> Summary:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        before = content["settings"]
        threshold = None if content["threshold"] is None else Threshold(**content["threshold"])
    except (ValueError, LookupError, TypeError):
        raise DataError(f"{path} is not what a run wrote; remove {path.parent} to start anew") from None
    if changed := _changes(before, settings):
        raise ConfigError(
            f"{path.parent} holds a run with other settings ({'; '.join(changed)}); "
            "choose another directory, or remove it"
        )
    return Summary(settings=before, threshold=threshold)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = ({**settings, **settings["config"]} for settings in (before, now))
    names = sorted((old.keys() | new.keys()) - {"config"})
    return [f"{name}: was {old.get(name)}, now {new.get(name)}" for name in names if old.get(name) != new.get(name)]


def _model_digest(model: Predictor) -> str:
    """Of weights and calibrations; of a predictor of another kind, its name."""
    if not isinstance(model, Model):
        return type(model).__name__
    digest = hashlib.sha256(repr((model.energy_calibration, model.forces_calibration)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _starts_digest(structures: Sequence[Atoms]) -> str:
    digest = hashlib.sha256()
    for atoms in structures:
        for values in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, atoms.get_momenta()):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
