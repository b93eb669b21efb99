"""Mutants of model files: of every method, in the format of today and in that of the first version."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from ase.io import read
from safetensors.torch import load as unpacked
from safetensors.torch import save as packed

import sigmaff
from fuzz.edits import Rng, any_array, any_bytes, at, cut, edited, flipped, pick, places, spliced
from fuzz.mutant import Mutant
from fuzz.sandbox import BrokenPromiseError
from sigmaff.models.integrity import opened, sealed

KEPT = Path(__file__).parents[1] / "data" / "v0.1.0" / "models"
MOLECULES, CRYSTAL = read(KEPT / "molecules.extxyz", ":"), read(KEPT / "crystal.extxyz")


@dataclass(frozen=True, kw_only=True)
class Base:
    """A model file, and what it predicts."""

    name: str
    content: bytes
    predicted: dict[str, np.ndarray]

    @property
    def n_header(self) -> int:
        """Bytes before the tensors."""
        return 8 + int.from_bytes(self.content[:8], "little")

    @property
    def description(self) -> str:
        return str(json.loads(self.content[8 : self.n_header])["__metadata__"]["sigmaff"])

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return unpacked(self.content)


@cache
def bases() -> tuple[Path, ...]:
    return tuple(sorted(KEPT.glob("*.sigmaff")))


@cache
def base(path: Path) -> Base:
    """The file as this version writes it."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = Path(folder) / path.name
        sigmaff.save(sigmaff.load(path), copy)
        return Base(name=path.stem, content=copy.read_bytes(), predicted=predicted(copy))


def predicted(path: Path) -> dict[str, np.ndarray]:
    """All that the calculator says of one molecule that the model knows."""
    calculator = sigmaff.Calculator(path, stress_uncertainty=True)
    atoms = (CRYSTAL if path.stem.startswith("crystal") else MOLECULES[0]).copy()
    calculator.calculate(atoms, ["energy"])
    return {name: np.asarray(value) for name, value in calculator.results.items()}


def mutant(rng: Rng) -> Mutant:
    """Damage of the file itself, or a change by someone who also makes the digest right."""
    origin = base(pick(rng, bases()))
    kinds: tuple[Callable[[Rng, Base], bytes], ...] = (*DAMAGES, *CHANGES)
    weights = np.array([3.0] * len(DAMAGES) + [2.0] * len(CHANGES))
    change = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
    expected = origin.predicted if change in DAMAGES else None
    content = change(rng, origin)
    return Mutant(kind=change.__name__.strip("_"), name=f"{origin.name}.sigmaff", content=content, expected=expected)


def trial(path: Path, expected: dict[str, np.ndarray] | None = None) -> str:
    """Load and predict. What is expected is all that a file may say."""
    found = predicted(path)
    for name, value in found.items():
        if name.endswith("_uncertainty") and not (value >= 0).all():
            raise BrokenPromiseError(f"{name} is negative")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise BrokenPromiseError(f"{name} is not finite")
    if expected is None:
        return "accepted"
    if found.keys() != expected.keys() or not all(np.array_equal(found[name], expected[name]) for name in found):
        raise BrokenPromiseError("a damaged file is accepted and predicts other numbers")
    return "accepted with equal numbers"


# Damage: the digest is as it was


def _flip_in_tensors(rng: Rng, origin: Base) -> bytes:
    return flipped(rng, origin.content, low=origin.n_header)


def _flip_in_description(rng: Rng, origin: Base) -> bytes:
    return flipped(rng, origin.content, low=8, high=origin.n_header)


def _flip_anywhere(rng: Rng, origin: Base) -> bytes:
    return flipped(rng, origin.content)


def _splice(rng: Rng, origin: Base) -> bytes:
    other = base(pick(rng, bases())).content if rng.random() < 0.5 else None
    return spliced(rng, origin.content, other)


def _cut(rng: Rng, origin: Base) -> bytes:
    return cut(rng, origin.content)


def _swap_descriptions(rng: Rng, origin: Base) -> bytes:
    """The description of another model with its own digest, or of this one with the digest of another."""
    kept = origin.content[origin.n_header :]  # some models differ in their calibration alone: theirs would be right
    others = [other for other in map(base, bases()) if other.content[other.n_header :] != kept]
    other = pick(rng, others).description
    text = other if rng.random() < 0.5 else origin.description[:-66] + other[-66:]
    return packed(origin.tensors, {"sigmaff": text})


def _edit_description(rng: Rng, origin: Base) -> bytes:
    description = opened(origin.description)[0]
    text = json.dumps(edited(rng, json.loads(description)), separators=(",", ":"))
    return packed(origin.tensors, {"sigmaff": text[:-1] + origin.description[len(description) - 1 :]})


def _edit_tensors(rng: Rng, origin: Base) -> bytes:
    return packed(_changed(rng, origin.tensors), {"sigmaff": origin.description})


# Changes: the digest fits, or the file says that it is of a version that had none


def _reseal_description(rng: Rng, origin: Base) -> bytes:
    content = edited(rng, json.loads(opened(origin.description)[0]), n=int(rng.integers(1, 3)))
    return _written(content, origin.tensors)


def _reseal_setting(rng: Rng, origin: Base) -> bytes:
    """A number among the settings and statistics becomes another one: most are legal and let the file be used."""
    content = json.loads(opened(origin.description)[0])
    paths = [("config", *path) for path in places(content["config"])]
    paths += [("statistics", *path) for path in places(content["statistics"])]
    path = pick(rng, [p for p in paths if isinstance(at(content, p), bool | int | float)])
    holder, value = at(content, path[:-1]), at(content, path)
    known = (
        value * 2,
        value + 1,
        value / 2,
        -value,
        value * 1e-9,
        value * 1e9,
        int(value) + 1,
        10**7,
        1e-300,
        not value,
    )
    holder[path[-1]] = pick(rng, known)
    return _written(content, origin.tensors)


def _reseal_twice(rng: Rng, origin: Base) -> bytes:
    """A key appears twice."""
    description = opened(origin.description)[0]
    key, value = pick(rng, list(json.loads(description).items()))
    text = f"{description[:-1]},{json.dumps(key)}:{json.dumps(value)}}}"
    return packed(origin.tensors, {"sigmaff": sealed(text, origin.tensors)})


def _reseal_tensors(rng: Rng, origin: Base) -> bytes:
    return _written(json.loads(opened(origin.description)[0]), _changed(rng, origin.tensors))


def _change_old(rng: Rng, origin: Base) -> bytes:
    """A file of the first version, which has no digest."""
    content = (KEPT / f"{origin.name}.sigmaff").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    description, tensors = json.loads(header["__metadata__"]["sigmaff"]), unpacked(content)
    match int(rng.integers(3)):
        case 0:
            return any_bytes(rng, content)
        case 1:
            description = edited(rng, description, n=int(rng.integers(1, 3)))
        case _:
            tensors = _changed(rng, tensors)
    return packed(tensors, {"sigmaff": json.dumps(description)})


def _written(content: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    return packed(tensors, {"sigmaff": sealed(json.dumps(content, separators=(",", ":")), tensors)})


def _changed(rng: Rng, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    changed = dict(tensors)
    name = pick(rng, list(tensors))
    match int(rng.integers(8)):
        case 0:
            del changed[name]
        case 1:
            changed[name + pick(rng, ("", "x", ".0"))] = changed.pop(pick(rng, list(tensors)))
        case 2:
            changed[pick(rng, ("x", "member1.x", "member9999.backbone.x", "head."))] = tensors[name].clone()
        case 3:
            changed[name] = pick(rng, list(tensors.values())).clone()
        case _:
            array = any_array(rng, tensors[name].numpy())
            changed[name] = torch.from_numpy(np.array(array)) if array.dtype.kind in "fiub" else tensors[name].half()
    return {key: tensor.contiguous().clone() for key, tensor in changed.items()}


DAMAGES = (
    _flip_in_tensors,
    _flip_in_description,
    _flip_anywhere,
    _splice,
    _cut,
    _swap_descriptions,
    _edit_description,
    _edit_tensors,
)
CHANGES = (
    _reseal_description,
    _reseal_setting,
    _reseal_setting,
    _reseal_twice,
    _reseal_tensors,
    _reseal_tensors,
    _change_old,
)
