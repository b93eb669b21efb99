"""Labels of ASE structures: in the calculator, in ``info`` or in ``arrays``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress

from sigmaff.data.formats.contents import FileContents
from sigmaff.data.source import DataSource
from sigmaff.data.structures import LABELS, FloatArray
from sigmaff.errors import DataError


def frame_contents(path: Path, frames: Sequence[Atoms], source: DataSource) -> FileContents:
    """Find each label under its declared key, or else under its own name with or without the prefix ``REF_``."""
    explicit = {"energy": source.energy_key, "forces": source.forces_key, "stress": source.stress_key}
    candidates = {label: (key,) if key else (label, f"REF_{label}") for label, key in explicit.items()}
    names = {name for keys in candidates.values() for name in keys}
    values = {label: _label(path, frames, label, candidates[label]) for label in LABELS}
    return FileContents(
        structures=[_bare(atoms, names) for atoms in frames],
        energy=values["energy"],
        forces=values["forces"],
        stress=values["stress"],
        sought={label: ", ".join(keys) for label, keys in candidates.items()},
        found=lambda index: _keys(frames[index]),
        frame_index=np.arange(len(frames)),
    )


def _label(path: Path, frames: Sequence[Atoms], label: str, candidates: tuple[str, ...]) -> list[Any]:
    """One label of each frame, ``None`` if missing. A label under two names is ambiguous: an error."""
    values, first_frame = [], dict[str, int]()
    for frame, atoms in enumerate(frames):
        present = {key: _shaped(path, frame, atoms, key, label) for key in candidates if _has(atoms, key)}
        key, value = next(iter(present.items()), (None, None))
        if not _agree(list(present.values())):
            raise DataError(
                f"{path}, frame {frame}: {' and '.join(present)} are both present and differ; "
                f"select one with `{label}_key`"
            )
        if key is not None:
            first_frame.setdefault(key, frame)
        values.append(value)
    if len(first_frame) > 1:
        where = " but ".join(f"frame {frame} has {key}" for key, frame in first_frame.items())
        raise DataError(f"{path}: {where}; use one name in all frames, or select one with `{label}_key`")
    return values


def _agree(values: list[float | FloatArray]) -> bool:
    return all(np.allclose(values[0], value, rtol=0, atol=1e-9, equal_nan=True) for value in values[1:])


def _results(atoms: Atoms) -> dict[str, Any]:
    return {} if atoms.calc is None else atoms.calc.results


def _has(atoms: Atoms, key: str) -> bool:
    return key in _results(atoms) or key in atoms.info or key in atoms.arrays


def _keys(atoms: Atoms) -> list[str]:
    return sorted({*_results(atoms), *atoms.info, *atoms.arrays} - {"numbers", "positions"})


def _shaped(path: Path, frame: int, atoms: Atoms, key: str, label: str) -> float | FloatArray:
    """The stored value in the shape of the label. ASE's getters are not used: constraints would set forces to zero."""
    holder = next(place for place in (_results(atoms), atoms.info, atoms.arrays) if key in place)
    try:
        value = np.asarray(holder[key], dtype=np.float64)
        if label == "energy":
            return value.item()
        if label == "forces":
            return value
        return voigt_6_to_full_3x3_stress(value) if value.shape == (6,) else value.reshape(3, 3)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}, frame {frame}: {key} = {holder[key]!r} is not a valid {label}: {error}") from error


def _bare(atoms: Atoms, label_names: set[str]) -> Atoms:
    """Copy the structure, its info and arrays, without calculator, constraints and labels."""
    info = {key: value for key, value in atoms.info.items() if key not in label_names}
    bare = Atoms(numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc, info=info)
    for name in atoms.arrays.keys() - bare.arrays.keys() - label_names:
        bare.set_array(name, atoms.arrays[name])
    return bare
