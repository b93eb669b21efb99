"""The model file: one safetensors file whose metadata is JSON. Loading it reads numbers and runs no code."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sigmaff.data import DatasetStatistics
from sigmaff.errors import ModelFileError
from sigmaff.files import written_whole
from sigmaff.potential.potential import Potential, PotentialConfig
from sigmaff.prediction import Calibration

FORMAT_VERSION = 1
METADATA_KEY = "sigmaff"


class Header(BaseModel):
    """What a model file says about itself, beside its tensors."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["sigmaff"] = "sigmaff"
    format_version: int = FORMAT_VERSION
    library_version: str
    config: PotentialConfig
    statistics: DatasetStatistics
    energy_calibration: Calibration | None
    forces_calibration: Calibration | None
    record: dict[str, Any]


def save(potential: Potential, path: Path | str, *, force: bool = False) -> None:
    """Write a potential with its configuration, statistics, calibrations and record, whole or not at all."""
    header = Header(
        library_version=version("sigmaff"),
        config=potential.config,
        statistics=potential.statistics,
        energy_calibration=potential.energy_calibration,
        forces_calibration=potential.forces_calibration,
        record=potential.record,
    )
    tensors = {name: value.detach().cpu().contiguous() for name, value in potential.state_dict().items()}
    with written_whole(Path(path), force=force) as temporary:
        save_file(tensors, temporary, metadata={METADATA_KEY: header.model_dump_json()})


def load(path: Path | str, *, device: torch.device | str = "cpu") -> Potential:
    """Read a potential, ready to predict."""
    path = Path(path)
    header, tensors = _read(path)
    _check_tensors(path, header, tensors)
    potential = Potential(header.config, header.statistics)
    potential.set_precision(_network_dtype(tensors))
    potential.load_state_dict(tensors)
    potential.energy_calibration = header.energy_calibration
    potential.forces_calibration = header.forces_calibration
    potential.record = header.record
    return potential.to(device).eval()


def read_header(path: Path | str) -> Header:
    """What a model file says about itself, without building the model."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such model file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get(METADATA_KEY)
            if metadata is None:
                raise ModelFileError(f"{path}: not a sigmaff model (a safetensors file of another program)")
            header = _parse(path, metadata)
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: not a sigmaff model, or a damaged one ({error})") from None


def _parse(path: Path, metadata: str) -> Header:
    try:
        content = json.loads(metadata)
        found = content.get("format_version") if isinstance(content, dict) else None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path}: its description is not readable; the file is damaged") from None
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: written in model format {found} by sigmaff {content.get('library_version')}; this is sigmaff "
            f"{version('sigmaff')}, which reads formats up to {FORMAT_VERSION}: install that version or a newer one"
        )
    try:
        return Header.model_validate(content)
    except (ValidationError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({reason})") from None


def _check_tensors(path: Path, header: Header, tensors: dict[str, Tensor]) -> None:
    """Names, shapes and values, before any memory is taken on the word of the description."""
    with torch.device("meta"):
        expected = Potential(header.config, header.statistics).state_dict()
    if missing := sorted(expected.keys() ^ tensors.keys()):
        raise ModelFileError(f"{path}: damaged: tensors missing or not of this model: {', '.join(missing[:5])}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.is_floating_point() != expected[name].is_floating_point():
            raise ModelFileError(
                f"{path}: damaged: {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"its description needs {expected[name].dtype} {tuple(expected[name].shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise ModelFileError(f"{path}: damaged: {name} holds values that are not finite numbers")


def _network_dtype(tensors: dict[str, Tensor]) -> torch.dtype:
    return next(tensor.dtype for name, tensor in tensors.items() if name.startswith("backbone."))
