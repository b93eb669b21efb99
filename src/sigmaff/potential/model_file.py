"""The model file: one safetensors file whose metadata is JSON. Loading it reads numbers and runs no code."""

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from ase.data import chemical_symbols
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sigmaff.data import DatasetStatistics
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.files import written_whole
from sigmaff.heads import LNK, LNKConfig
from sigmaff.potential.potential import Potential, PotentialConfig
from sigmaff.prediction import Calibration

FORMAT_VERSION = 1
METADATA_KEY = "sigmaff"
MAX_DRAWS = 2**27
"""Random numbers behind sampled force σ (a gigabyte); they follow from the description, not from the file's size."""


class Header(BaseModel):
    """What a model file says about itself, beside its tensors."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["sigmaff"] = "sigmaff"
    format_version: int = Field(default=FORMAT_VERSION, ge=1, le=FORMAT_VERSION)
    library_version: str
    config: PotentialConfig
    statistics: DatasetStatistics
    energy_calibration: Calibration | None
    forces_calibration: Calibration | None
    record: dict[str, Any]

    @field_validator("statistics")
    @classmethod
    def _usable_statistics(cls, statistics: DatasetStatistics) -> DatasetStatistics:
        elements, references = statistics.elements, statistics.reference_energies
        if list(elements) != sorted(set(elements)) or not all(0 < z < len(chemical_symbols) for z in elements):
            raise ValueError("elements are not increasing atomic numbers")
        if set(references) != set(elements) or not all(map(math.isfinite, references.values())):
            raise ValueError("reference energies are not one finite number for each element")
        if not 0 < statistics.scale < math.inf or not 0 <= statistics.mean_neighbors < math.inf:
            raise ValueError("scale or mean_neighbors is not a positive finite number")
        return statistics

    @field_validator("energy_calibration", "forces_calibration")
    @classmethod
    def _usable_calibration(cls, calibration: Calibration | None) -> Calibration | None:
        if calibration is None:
            return None
        if not 0 < calibration.scale < math.inf or calibration.n_samples < 0:
            raise ValueError("the factor of σ is not a positive finite number")
        coverages, multipliers = calibration.coverages or (), calibration.multipliers or ()
        if len(coverages) != len(multipliers):
            raise ValueError("coverages and multipliers are not of one length")
        if not _increasing(coverages, 1.0) or not _increasing(multipliers, math.inf):
            raise ValueError("coverages or multipliers do not increase from 0")
        return calibration


def _increasing(knots: tuple[float, ...], limit: float) -> bool:
    """Each at least its predecessor, the first at least 0, the last below the limit; false where one is NaN."""
    return all(low <= high < limit for low, high in zip((0.0, *knots), knots, strict=False))


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
    """Read a potential, ready to predict. Its weights are fixed; ``requires_grad_()`` makes them trainable again."""
    path = Path(path)
    header, tensors = _read(path)
    dtype = _check_tensors(path, header, tensors)
    _check_draws(path, header, tensors)
    potential = Potential(header.config, header.statistics)
    potential.set_precision(dtype)
    potential.load_state_dict(tensors)
    _check_indices(path, potential)
    potential.energy_calibration = header.energy_calibration
    potential.forces_calibration = header.forces_calibration
    potential.record = header.record
    return _moved(potential, device).eval().requires_grad_(False)


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
    if isinstance(found, int | float) and found > FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: written in model format {found} by sigmaff {content.get('library_version')}; this is sigmaff "
            f"{version('sigmaff')}, which reads formats up to {FORMAT_VERSION}: install that version or a newer one"
        )
    try:
        return Header.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({reason})") from None


def _check_draws(path: Path, header: Header, tensors: dict[str, Tensor]) -> None:
    """Refuse a description that takes memory out of proportion to the tensors, which are known to fit it."""
    head, n_elements = header.config.head, len(header.statistics.elements)
    if not isinstance(head, LNKConfig):
        return
    n_features = len(tensors["head.kernel.center"])
    n_draws = head.n_samples * (n_elements * (head.n_frequencies + n_features) + head.n_inducing)
    if n_draws + head.n_frequencies * n_features > MAX_DRAWS:
        raise ModelFileError(
            f"{path}: its description (n_samples {head.n_samples}, n_frequencies {head.n_frequencies}, "
            f"{n_elements} elements) would take more memory than any model has use for; the file is damaged"
        )


def _check_tensors(path: Path, header: Header, tensors: dict[str, Tensor]) -> torch.dtype:
    """Names, shapes, types and values, before memory is taken on the word of the description. The network's type."""
    dtype = torch.float64 if _is_double(tensors) else torch.float32
    try:
        with torch.device("meta"):
            potential = Potential(_without_draws(header.config), header.statistics)
            potential.set_precision(dtype)
            expected = potential.state_dict()
    except DataError as error:
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({error})") from None
    if missing := sorted(expected.keys() ^ tensors.keys()):
        raise ModelFileError(f"{path}: damaged: tensors missing or not of this model: {', '.join(missing[:5])}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise ModelFileError(
                f"{path}: damaged: {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"its description needs {expected[name].dtype} {tuple(expected[name].shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise ModelFileError(f"{path}: damaged: {name} holds values that are not finite numbers")
    return dtype


def _check_indices(path: Path, potential: Potential) -> None:
    """Numbers that point at something must point at something that is there."""
    if isinstance(potential.head, LNK):
        known = torch.arange(len(potential.statistics.elements))
        if not torch.isin(potential.head.kernel.inducing_elements, known).all():
            raise ModelFileError(f"{path}: damaged: an inducing point belongs to no element of the model")


def _without_draws(config: PotentialConfig) -> PotentialConfig:
    """The same tensors, without the random numbers that are made anew with every model."""
    if not isinstance(config.head, LNKConfig):
        return config
    return config.model_copy(update={"head": config.head.model_copy(update={"n_samples": 1, "n_frequencies": 1})})


def _is_double(tensors: dict[str, Tensor]) -> bool:
    return any(tensor.dtype == torch.float64 for name, tensor in tensors.items() if name.startswith("backbone."))


def _moved(potential: Potential, device: torch.device | str) -> Potential:
    try:
        return potential.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise ConfigError(f"the device {str(device)!r} cannot be used ({reason}); cpu always can") from None
