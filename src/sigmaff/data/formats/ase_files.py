"""Structures of ASE, its trajectories and its databases: labels in the calculator, in ``info`` or in ``arrays``."""

import sqlite3
from collections import ChainMap
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress

from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.predicted import is_prediction, predicted_frames
from sigmaff.data.source import DataSource
from sigmaff.data.structures import FloatArray
from sigmaff.errors import DataError


def read_ase_traj(path: Path, source: DataSource) -> FileContents:
    from ase.io.trajectory import Trajectory

    with reading(path, "an ASE trajectory"), Trajectory(str(path)) as trajectory:
        frames = list(trajectory)
    return frame_contents(path, frames, source)


def read_ase_db(path: Path, source: DataSource) -> FileContents:
    """Read an SQLite database; labels may also be in the key-value pairs or in the data of a row.

    The metadata may state units, as SchNetPack writes them.
    """
    from ase.db import connect

    with reading(path, "an ASE database"):
        _check_database(path)
        with connect(str(path), type="db", use_lock_file=False) as database:
            frames = [_frame(row) for row in database.select()]
            metadata = database.metadata
    energy_unit = metadata.get("_property_unit_dict", {}).get(source.energy_key or "energy")
    contents = frame_contents(path, frames, source)
    return contents.with_stated_units(path, energy_unit or None, metadata.get("_distance_unit") or None)


def _check_database(path: Path) -> None:
    """Check for ASE's tables, read-only: ASE would write them into any SQLite file without them."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT count(*) FROM sqlite_master WHERE name = 'systems'"
        if connection.execute(query).fetchone()[0] == 0:
            raise DataError(f"{path} is a database, but not an ASE database: it has no table of structures")
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok" or path.stat().st_size % page_size:
            raise DataError(f"{path} is damaged or truncated: its integrity check failed")


def _frame(row: Any) -> Atoms:
    atoms = row.toatoms()
    atoms.info.update(row.key_value_pairs)
    atoms.info.update({key: np.asarray(value) for key, value in row.data.items()})
    return atoms


def frame_contents(path: Path, frames: Sequence[Atoms], source: DataSource) -> FileContents:
    """Find each label under its declared key, or else under its own name with or without the prefix ``REF_``.

    A prediction is no label.
    """
    declared = {"energy": source.energy_key, "forces": source.forces_key, "stress": source.stress_key}
    candidates = {label: (key,) if key else (label, f"REF_{label}") for label, key in declared.items()}
    names = {name for keys in candidates.values() for name in keys}
    predicted = predicted_frames([_stored(atoms) for atoms in frames], [len(atoms) for atoms in frames])
    return FileContents(
        structures=[_bare(atoms, names) for atoms in frames],
        labels={label: _label(path, frames, label, keys, predicted) for label, keys in candidates.items()},
        sought={label: ", ".join(keys) for label, keys in candidates.items()},
        found=lambda index: sorted(_stored(frames[index]).keys() - {"numbers", "positions"}),
        frame_index=np.arange(len(frames)),
        predicted=lambda label, index: next(
            (
                key
                for key in candidates[label]
                if key in _stored(frames[index]) and is_prediction(key, predicted[index])
            ),
            None,
        ),
    )


def _stored(atoms: Atoms) -> ChainMap[str, Any]:
    """All values by name. ASE's getters are not used: constraints would set forces to zero."""
    return ChainMap({} if atoms.calc is None else atoms.calc.results, atoms.info, atoms.arrays)


def _label(
    path: Path, frames: Sequence[Atoms], label: str, candidates: tuple[str, ...], predicted: Sequence[bool]
) -> list[Any]:
    """One label of each frame, ``None`` if missing. A label under two names is ambiguous: an error."""
    values, first_frame = [], dict[str, int]()
    for frame, atoms in enumerate(frames):
        stored = _stored(atoms)
        names = [key for key in candidates if key in stored and not is_prediction(key, predicted[frame])]
        present = {key: _shaped(path, frame, key, stored[key], label) for key in names}
        key, value = next(iter(present.items()), (None, np.nan))
        if not all(np.allclose(value, other, rtol=0, atol=1e-9, equal_nan=True) for other in present.values()):
            raise DataError(
                f"{path}, frame {frame}: {' and '.join(present)} are both present and differ; "
                f"select one with `{label}_key`"
            )
        if key is not None:
            first_frame.setdefault(key, frame)
        values.append(None if key is None else value)
    if len(first_frame) > 1:
        where = " but ".join(f"frame {frame} has {key}" for key, frame in first_frame.items())
        raise DataError(f"{path}: {where}; use one name in all frames, or select one with `{label}_key`")
    return values


def _shaped(path: Path, frame: int, key: str, stored: Any, label: str) -> float | FloatArray:
    try:
        value = np.asarray(stored, dtype=np.float64)
        if label == "energy":
            return value.item()
        if label == "forces":
            return value
        return voigt_6_to_full_3x3_stress(value) if value.shape == (6,) else value.reshape(3, 3)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}, frame {frame}: {key} = {stored!r} is not a valid {label}: {error}") from error


def _bare(atoms: Atoms, label_names: set[str]) -> Atoms:
    """Copy the structure, its info and arrays, without calculator, constraints and labels."""
    info = {key: value for key, value in atoms.info.items() if key not in label_names}
    bare = Atoms(numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc, info=info)
    for name in atoms.arrays.keys() - bare.arrays.keys() - label_names:
        bare.set_array(name, atoms.arrays[name])
    return bare
