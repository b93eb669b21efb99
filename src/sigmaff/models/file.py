"""The model file: one safetensors file whose metadata is JSON. Loading it reads numbers and runs no code."""

import json
import math
import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from ase.data import chemical_symbols
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sigmaff.backbones import Host, HostConfig, build_host
from sigmaff.data import DatasetStatistics
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.heads import HEADS, LLPRConfig, LNKConfig
from sigmaff.heads.base import SampledHeadSettings
from sigmaff.heads.lnk.head import KERNELS
from sigmaff.models.dropout import MonteCarloDropout, MonteCarloDropoutConfig
from sigmaff.models.ensemble import Ensemble
from sigmaff.models.integrity import find_damage, is_whole, once, opened, sealed, unnamed
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential, PotentialConfig
from sigmaff.models.prediction import Calibration, Calibrations, EnergyForceStd
from sigmaff.models.record import RunRecord
from sigmaff.models.std_range import StdRange
from sigmaff.models.tensors import write_tensors

FORMAT_VERSION = 6
"""6: a digest, and every setting named; a new setting needs a new version, and its value in older ones a line in
``_completed``; origin of reference energies, charge and spin, shortest distances.
5: unseen surroundings, variance of energies from energies alone, draws of sampled force σ, force σ from energy σ,
growth of force σ.
4: centred linear kernels, calibration of stress, structures and standard errors of calibrations, open compositions.
3: precision of each network, noise of labels in Gaussian processes. 2: ensembles and dropout. All versions load."""
METADATA_KEY = "sigmaff"
MAX_MEMBERS = 1000
SAMPLED = [name for name, kind in HEADS.items() if issubclass(kind.Config, SampledHeadSettings)]
"""Names of heads whose settings say how the samples behind force σ are drawn."""


class Part(BaseModel):
    """A potential without its tensors."""

    model_config = ConfigDict(extra="forbid")

    config: PotentialConfig
    statistics: DatasetStatistics
    dtype: Literal["float32", "float64"] | None = None  # of the network; None: a file of version 1 or 2

    @classmethod
    def of(cls, potential: Potential) -> "Part":
        dtype: Any = str(potential.dtype).removeprefix("torch.")
        return cls(config=potential.config, statistics=potential.statistics, dtype=dtype)

    @field_validator("statistics")
    @classmethod
    def _usable_statistics(cls, statistics: DatasetStatistics) -> DatasetStatistics:
        elements, references = statistics.elements, statistics.reference_energies
        if elements[:1] < (1,) or list(elements) != sorted(set(elements)) or elements[-1] >= len(chemical_symbols):
            raise ValueError("elements are not increasing atomic numbers")
        if set(references) != set(elements) or not all(map(math.isfinite, references.values())):
            raise ValueError("reference energies are not one finite number for each element")
        if not 0 < statistics.scale < math.inf or not 0 <= statistics.mean_neighbors < math.inf:
            raise ValueError("scale or mean_neighbors is not a positive finite number")
        directions = statistics.open_compositions
        if any(len(d) != len(elements) or not all(map(math.isfinite, d)) for d in directions):
            raise ValueError("open compositions are not one finite number for each element")
        for *pair, length in statistics.shortest_distances or ():
            if not set(pair) <= set(elements) or not 0 <= length < math.inf:
                raise ValueError(f"the shortest distance of {pair} is {length}")
        if statistics.reference_std is not None and not 0 <= statistics.reference_std < math.inf:
            raise ValueError("σ of reference energies is not a finite number of at least 0")
        if not math.isfinite(statistics.electrons.charge or 0.0):
            raise ValueError("the total charge is not a finite number")
        return statistics


def _readable(record: Any) -> Any:
    return RunRecord.readable(record) if isinstance(record, dict) else record


class Header(Part):
    """The description of a model beside its tensors: its first potential, and how the model uses it."""

    format: Literal["sigmaff"] = "sigmaff"
    format_version: int = Field(default=FORMAT_VERSION, ge=1, le=FORMAT_VERSION)
    library_version: str
    energy_calibration: Calibration | None
    forces_calibration: Calibration | None
    stress_calibration: Calibration | None = None  # files up to format 3 have none: their stress σ is raw
    energy_force_std: EnergyForceStd | None = None  # files up to format 4 have none
    std_range: StdRange | None = None  # None: a model that was not calibrated, or by a version that did not record it
    record: Annotated[RunRecord, BeforeValidator(_readable)]
    mc_dropout: MonteCarloDropoutConfig | None = None
    other_members: list[Part] = Field(default=[], max_length=MAX_MEMBERS - 1)  # of an ensemble, after the first

    @property
    def parts(self) -> list[Part]:
        return [self, *self.other_members]

    @property
    def calibrations(self) -> Calibrations:
        return Calibrations(self.energy_calibration, self.forces_calibration, self.stress_calibration)

    @field_validator("energy_calibration", "forces_calibration", "stress_calibration")
    @classmethod
    def _usable_calibration(cls, calibration: Calibration | None) -> Calibration | None:
        if calibration is None:
            return None
        if not 0 < calibration.scale < math.inf or calibration.n_samples < 0:
            raise ValueError("the factor of σ is not a positive finite number")
        if calibration.dof is not None and not 1 < calibration.dof < math.inf:
            raise ValueError("the degrees of freedom are not a finite number above 1")
        coverages, multipliers = calibration.coverages or (), calibration.multipliers or ()
        if len(coverages) != len(multipliers):
            raise ValueError("coverages and multipliers are not of one length")
        if not _increasing(coverages, 1.0) or not _increasing(multipliers, math.inf):
            raise ValueError("coverages or multipliers do not increase from 0")
        return calibration

    @field_validator("energy_force_std")
    @classmethod
    def _usable_energy_force_std(cls, found: EnergyForceStd | None) -> EnergyForceStd | None:
        if found is not None:
            numbers = (*found.scales.values(), found.reference)
            if not found.scales or not all(0 < number < math.inf for number in numbers):
                raise ValueError("scales of force σ from energy σ are not positive finite numbers")
            if not 0 <= found.exponent < math.inf or min(found.scales) < 1:
                raise ValueError("exponent or elements of force σ from energy σ are invalid")
        return found

    @field_validator("energy_calibration", "forces_calibration", "stress_calibration")
    @classmethod
    def _usable_growth(cls, calibration: Calibration | None, info: ValidationInfo) -> Calibration | None:
        growth = None if calibration is None else calibration.growth
        if growth is None:
            return calibration
        if info.field_name != "forces_calibration":
            raise ValueError("only force σ has a growth")
        usable = 0 <= growth.isotropy <= 1 and 0 <= growth.exponent < math.inf and 0 < growth.typical < math.inf
        if not usable:
            raise ValueError("the growth of force σ is not of an isotropy from 0 to 1 and numbers above 0")
        return calibration


def _increasing(knots: tuple[float, ...], limit: float) -> bool:
    """Each at least its predecessor, the first at least 0, the last below the limit; false where one is NaN."""
    return all(low <= high < limit for low, high in zip((0.0, *knots), knots, strict=False))


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
        _member(number) + name: value.detach().cpu().contiguous()
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


def _member(number: int) -> str:
    """Before the names of the tensors of a member."""
    return f"member{number}." if number else ""


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
            return header, _upgraded(path, header, tensors)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: not a sigmaff model, or a damaged one ({error})") from None


def _upgraded(path: Path, header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as this version has them."""
    if header.format_version < 3:
        tensors = tensors | _label_noise(header, tensors)
    if header.format_version < 4:
        tensors = tensors | _linear_kernels(path, header, tensors)
    return tensors if header.format_version > 4 else tensors | _slope_factors(header, tensors)


def _slope_factors(header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Up to format 4 energies and slopes have one factor and one scale."""
    added = {}
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{_member(number)}head."
        if isinstance(head, LLPRConfig) or (isinstance(head, LNKConfig) and head.fit == "closed_form"):
            added[f"{prefix}slope_scale"] = torch.ones((), dtype=torch.float64)
            if head.variance_labels == "energy+forces" and f"{prefix}weight_cholesky" in tensors:
                added[f"{prefix}slope_cholesky"] = tensors[f"{prefix}weight_cholesky"].clone()
    return added


def _linear_kernels(path: Path, header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Linear parts of kernels up to format 3 are not centred, and all their constants are free."""
    added, none = {}, torch.empty(0)
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{_member(number)}head."
        if not isinstance(head, LNKConfig) or not KERNELS[head.kernel][1]:
            continue
        if part.config.backbone.name == "dimenet++":
            raise ModelFileError(
                f"{path}: written by sigmaff {header.library_version}, whose linear kernel did not act on what the "
                "readout of DimeNet++ acts on, so that its σ was wrong; solve for the head again: "
                "sigmaff train with backbone_from: the backbone.sigmaff of its run"
            )
        if not head.by_element:
            continue
        n_elements = len(part.statistics.elements)
        points, weights = (tensors.get(f"{prefix}{name}", none) for name in ("kernel.inducing_points", "weight_mean"))
        n_inducing, n_weights = len(torch.atleast_1d(points)), len(torch.atleast_1d(weights))
        n_linear = max((n_weights - n_inducing) // n_elements - 1, 0)
        center = torch.zeros(n_elements + 1, n_linear, dtype=torch.float64)
        added[f"{prefix}kernel.linear_center"] = center
        added[f"{prefix}kernel.composition_projector"] = torch.eye(n_elements, dtype=torch.float64)
    return added


def _label_noise(header: Header, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The noise of labels in closed-form heads, which files up to format 2 have in their record; 0 if it is missing."""
    recorded = {} if header.record.fit is None else header.record.fit.model_dump()
    fit = {name: value for name, value in recorded.items() if isinstance(value, int | float)}
    added = {}
    for number, part in enumerate(header.parts):
        head, prefix = part.config.head, f"{_member(number)}head."
        if isinstance(head, LLPRConfig) or (isinstance(head, LNKConfig) and head.fit == "closed_form"):
            log_scale = tensors.get(f"{prefix}kernel.log_scale", torch.zeros((), dtype=torch.float64))
            added[f"{prefix}energy_noise"] = torch.exp(2.0 * log_scale.double()) * fit.get("noise", 0.0)
            added[f"{prefix}force_weight"] = torch.tensor(fit.get("force_weight", 0.0), dtype=torch.float64)
    return added


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
        header = Header.model_validate(_completed(content))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
        raise ModelFileError(f"{path}: its description does not fit a sigmaff model ({reason})") from None
    if found == FORMAT_VERSION and (lacks := unnamed(content, header.model_dump(mode="json", exclude={"record"}))):
        raise ModelFileError(f"{path}: damaged: its description lacks {', '.join(lacks[:5])}")
    return header


def _completed(content: Any) -> Any:
    """With the settings of heads that a file does not name.

    Draws behind sampled force σ are then independent. Stationary kernels compare embeddings before their activation.
    Heads up to format 4 do not look at surroundings.
    """
    if not isinstance(content, dict):
        return content
    others = content.get("other_members")
    for part in (content, *(others if isinstance(others, list) else ())):
        config = part.get("config") if isinstance(part, dict) else None
        head = config.get("head") if isinstance(config, dict) else None
        if isinstance(head, dict) and head.get("name") in SAMPLED:
            if head.get("covariance") != "diagonal":  # whose forces are not sampled
                head.setdefault("draws", "independent")
            if head["name"] == "svgp" or (head["name"] == "lnk" and head.get("kernel") != "linear"):
                head.setdefault("embedding", "pre_activation")
            if head["name"] == "lnk" and content.get("format_version") in range(5):
                head["distance_aware"] = False
    return content


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
