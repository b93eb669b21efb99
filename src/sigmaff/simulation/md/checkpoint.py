"""Checkpoint and summary files of an MD run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from ase import Atoms

from sigmaff.errors import DataError
from sigmaff.files import RunFile, RunFolder, atomic_write
from sigmaff.models import Model
from sigmaff.models.prediction import Predictor
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.drift import DriftRule
from sigmaff.simulation.md.guard_file import Kind, guarded
from sigmaff.simulation.md.safety import KnownStd, Safety, choose_safety
from sigmaff.simulation.md.state import State
from sigmaff.simulation.md.threshold import Scores, Threshold, choose_threshold

CHECKPOINT = "checkpoint.npz"
NOT_DIGESTED = (
    "head.energy_noise",
    "head.force_weight",
    "head.kernel.linear_center",
    "head.kernel.composition_projector",
    "head.slope_cholesky",
    "head.slope_scale",
)
"""Tensors that were added to models after version 0.1.0, whose runs resume. No prediction depends on the noise of
labels; center and projector of a kernel, and factor and scale of slopes, come with weights that do not fit others."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All replicas at one moment."""

    sizes: dict[str, int]  # of the files then
    memories: Sequence[dict[str, Any]]  # of each replica: record, random numbers, drift monitor
    histories: Sequence[State]  # of each replica: states along the first axis, the last is where it is

    def write(self, directory: Path) -> None:
        """In the file, the arrays of one name of all replicas are one row of numbers."""
        names = sorted({name for state in self.histories for name in state})
        shapes = {name: [state[name].shape if name in state else None for state in self.histories] for name in names}
        text = json.dumps({"sizes": self.sizes, "memories": self.memories, "shapes": shapes})
        arrays = {
            name: np.concatenate([state[name].ravel() for state in self.histories if name in state]) for name in names
        }
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
            for name, shapes in content.get("shapes", {}).items():
                row = file[name]
                for state, shape in zip(histories, shapes, strict=True):
                    if shape is not None:
                        state[name], row = np.split(row, [prod(shape)])
                        state[name] = state[name].reshape(shape)
            for key in file.files:  # of version 0.1.0: an array of each name and replica
                number, _, name = key.partition("/")
                if name:
                    histories[int(number)][name] = file[key]
    except (BadZipFile, ValueError, LookupError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); remove {directory} to start anew") from None
    return Checkpoint(sizes=content["sizes"], memories=content["memories"], histories=histories)


class Summary(RunFile):
    """``md.json``: the run that a directory belongs to, its limit on σ, and the outcome of each replica."""

    finished: bool = False
    steps: int
    threshold: Threshold | None
    safety: Safety | None = None
    drift: DriftRule | None = None
    replicas: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any]  # that decide the trajectories

    def identity(self) -> dict[str, Any]:
        """A setting that the version of the file did not know had its default."""
        return {**self.settings, **_decisive(MDConfig()), **self.settings["config"], "config": {}}


def run_folder(directory: Path) -> RunFolder:
    return RunFolder(directory, "md.json", "choose another directory, or remove it")


def open_run(
    directory: Path,
    model: Predictor,
    structures: Sequence[Atoms],
    config: MDConfig,
    calibration: Scores | None,
    drift: DriftRule | None,
) -> Summary:
    """Begin or resume the run of this directory. One that ended before its first checkpoint begins anew."""
    folder, has_checkpoint = run_folder(directory), (directory / CHECKPOINT).exists()
    is_begun = has_checkpoint and folder.file.exists()
    decisive, its_model, starts = _decisive(config), model_digest(model), starts_digest(structures)
    limit: Threshold | None = None
    known: KnownStd | None = None
    if isinstance(config.stop_above, Path):
        kind = Kind.of(config, structures, model=its_model, starts=starts)
        limit, known, decisive["stop_above"] = guarded(config.stop_above, kind)
    elif not is_begun:
        how = (config.error_above, config.risk, calibration)
        limit = choose_threshold(config.stop_above, *how, kind=config.risk_kind, confidence=config.confidence)
        if config.stop_above == "auto" and calibration is not None:
            known = KnownStd.of_structures(calibration, f"the {len(calibration)} calibration structures")
    settings = {
        "config": decisive,
        "model": its_model,
        "starts": starts,
        "calibration_structures": None if calibration is None else len(calibration),
    }
    safety = choose_safety(config, known)
    summary = Summary(steps=config.steps, threshold=limit, safety=safety, drift=drift, settings=settings)
    if folder.file.exists() and not has_checkpoint:
        folder.write(summary)
    return folder.claim(summary)


def _decisive(config: MDConfig) -> dict[str, Any]:
    """Settings that may not change when a run is resumed."""
    return config.model_dump(mode="json", exclude={"steps", "checkpoint_every"})


def model_digest(model: Predictor) -> str:
    """Of weights and calibrations; of a predictor of another kind, its name."""
    if not isinstance(model, Model):
        return type(model).__name__
    digest = hashlib.sha256(repr((model.energy_calibration, model.forces_calibration)).encode())
    if model.stress_calibration is not None:
        digest.update(repr(model.stress_calibration).encode())
    if model.energy_force_std is not None:
        digest.update(repr(model.energy_force_std).encode())
    if model.forces_calibration is not None and model.forces_calibration.growth is not None:
        digest.update(repr(model.forces_calibration.growth).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.endswith(NOT_DIGESTED):
            digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def starts_digest(structures: Sequence[Atoms]) -> str:
    digest = hashlib.sha256()
    for atoms in structures:
        for values in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, atoms.get_momenta()):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
