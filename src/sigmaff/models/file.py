"""The model file: one safetensors file whose metadata is JSON. Loading it reads numbers and runs no code."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sigmaff.backbones import Host, HostConfig, build_host
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.models.dropout import MonteCarloDropout
from sigmaff.models.ensemble import Ensemble
from sigmaff.models.header import FORMAT_VERSION, Header, Part, member_prefix
from sigmaff.models.integrity import find_damage, is_whole, once, opened, sealed, unnamed
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential
from sigmaff.models.tensors import write_tensors
from sigmaff.models.upgrade import completed, upgraded

METADATA_KEY = "sigmaff"


def save(model: Model, path: Path | str, *, force: bool = False) -> None:
    """Write a model with its configuration, statistics, calibrations and record, whole or not at all."""
    potentials = model.potentials
    first, *others = map(Part.of, potentials)
    header = Header(
        **dict(first),
        library_version=version("sigmaff"),
        energy_calibration=model.energy_calibration,
        forces_calibration=model.forces_calibration,
        stress_calibration=model.stress_calibration,
        energy_force_std=model.energy_force_std,
        std_range=model.std_range,
        record=model.record,
        mc_dropout=model.config if isinstance(model, MonteCarloDropout) else None,
        other_members=others,
    )
    tensors = {
        member_prefix(number) + name: value.detach().cpu().contiguous()
        for number, potential in enumerate(potentials)
        for name, value in potential.state_dict().items()
    }
    write_tensors(Path(path), tensors, {METADATA_KEY: sealed(header.model_dump_json(), tensors)}, force=force)


def load(path: Path | str, *, device: torch.device | str = "cpu", trust: bool = False) -> Model:
    """Read a model, ready to predict. Its weights are fixed; ``requires_grad_()`` makes them trainable again.

    Arguments:
        path: a model file, or an artefact of ``export`` (``.pt2``).
        device: where to put it; an artefact stays on the processor.
        trust: run the machine code of an artefact that this user neither made nor said to trust.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        from sigmaff.models.export import open_exported

        return open_exported(path, trust=trust)
    header, tensors = _read(path)
    parts = zip(header.parts, _by_member(path, header, tensors), strict=True)
    model = _assemble(path, header, [_build(path, part, own) for part, own in parts])
    model.calibrations = header.calibrations
    model.energy_force_std, model.std_range = header.energy_force_std, header.std_range
    model.record, model.file = header.record, path
    return _moved(model, device).eval().requires_grad_(False)


def load_potential(path: Path | str, *, device: torch.device | str = "cpu") -> Potential:
    """Read a model that must be a single potential."""
    model = load(path, device=device)
    if not isinstance(model, Potential):
        raise ModelFileError(f"{path}: a single potential is needed here; this is an ensemble, or sampled with dropout")
    return model


def _assemble(path: Path, header: Header, potentials: list[Potential]) -> Model:
    try:
        if len(potentials) > 1:
            return Ensemble(potentials)
        return potentials[0] if header.mc_dropout is None else MonteCarloDropout(potentials[0], header.mc_dropout)
    except ConfigError as error:
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({error})") from None


def _by_member(path: Path, header: Header, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of each potential, under its own names."""
    parts: list[dict[str, Tensor]] = [{} for _ in header.parts]
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        number = int(first.removeprefix("member")) if re.fullmatch(r"member[1-9][0-9]{0,3}", first) else 0
        if number >= len(parts):
            raise ModelFileError(f"{path}: damaged: tensors missing or not of this model: {name}")
        parts[number][rest if number else name] = tensor
    return parts


def _build(path: Path, part: Part, tensors: dict[str, Tensor]) -> Potential:
    host = build_host(part.config.backbone) if isinstance(part.config.backbone, HostConfig) else None
    dtype = _check_tensors(path, part, tensors, host)
    potential = Potential(part.config, part.statistics, host)
    potential.set_precision(dtype)
    potential.load_state_dict(tensors)
    if damage := find_damage(potential.head):
        raise ModelFileError(f"{path}: damaged: {damage}")
    return potential


def read_header(path: Path | str) -> Header:
    """What a model file says about itself, without building the model."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get(METADATA_KEY)
            if metadata is None:
                raise ModelFileError(f"{path}: not a sigmaff model (a safetensors file of another program)")
            description, seal = opened(metadata)
            header = _parse(path, description)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if (seal or header.format_version > 5) and not is_whole(description, tensors, seal):
                raise ModelFileError(f"{path}: damaged: its content is not what was written; copy the file again")
            return header, upgraded(path, header, tensors)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: not a sigmaff model, or a damaged one ({error})") from None


def _parse(path: Path, metadata: str) -> Header:
    try:
        content = json.loads(metadata, object_pairs_hook=once)
        found = content.get("format_version") if isinstance(content, dict) else None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: its description is not readable; the file is damaged ({error})") from None
    if isinstance(found, int | float) and found > FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: written in model format {found} by sigmaff {content.get('library_version')}; this is sigmaff "
            f"{version('sigmaff')}, which reads formats up to {FORMAT_VERSION}: install that version or a newer one"
        )
    try:
        header = Header.model_validate(completed(content))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({reason})") from None
    if found == FORMAT_VERSION and (lacks := unnamed(content, header.model_dump(mode="json", exclude={"record"}))):
        raise ModelFileError(f"{path}: damaged: its description lacks {', '.join(lacks[:5])}")
    return header


def _check_tensors(path: Path, part: Part, tensors: dict[str, Tensor], host: Host | None) -> torch.dtype:
    """Check names, shapes, types and values before allocating memory; return the precision of the network.

    host: an adopted network, which is built already: its classes may not go without memory.
    """
    backbone = (tensor for name, tensor in tensors.items() if name.startswith("backbone."))
    is_double = any(t.dtype == torch.float64 for t in backbone) if part.dtype is None else part.dtype == "float64"
    dtype = torch.float64 if is_double else torch.float32
    try:
        with torch.device("meta"):
            potential = Potential(part.config, part.statistics, host)
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
            raise ModelFileError(f"{path}: damaged: {name} has values that are not finite numbers")
    return dtype


def _moved(model: Model, device: torch.device | str) -> Model:
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        return model.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise ConfigError(f"the device {str(device)!r} cannot be used ({reason}); cpu always can") from None
