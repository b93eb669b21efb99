"""Read a data source: find the reader, require the labels, convert units once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols

from sigmaff.data.formats import READERS, detect_format
from sigmaff.data.formats.ase_files import frame_contents
from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.source import DataSource, forces_unit
from sigmaff.data.structures import LABELS, NO_GROUP, LabelledStructures
from sigmaff.errors import ConfigError, DataError
from sigmaff.units import energy_unit, length_unit

KEYED_FORMATS = ("extxyz", "ase_db", "ase_traj")


def read_structures(source: DataSource | Path | str) -> LabelledStructures:
    """Read all structures of a file. Return them in eV and Å, each with all labels in ``source.labels``.

    Arguments:
        source: file, format, labels and units; a path means all defaults.
    """
    source = DataSource.model_validate(source)
    if not source.path.is_file():
        raise DataError(f"{source.path} {'is a folder, not a file' if source.path.is_dir() else 'does not exist'}")
    if source.path.stat().st_size == 0:
        raise DataError(f"{source.path} is empty")
    name = _format(source)
    _check_options(name, source)
    with reading(source.path, name):
        contents = READERS[name](source.path, source)
    return _converted(contents, source)


def with_ase_names(source: DataSource) -> DataSource:
    """Look for labels under ASE's names alone: values under others, as ``REF_energy``, stay in the structures."""
    if not source.path.is_file() or _format(source) not in KEYED_FORMATS:
        return source
    return source.model_copy(update={f"{label}_key": label for label in LABELS})


def _format(source: DataSource) -> str:
    return detect_format(source.path) if source.format == "auto" else source.format


def label_structures(frames: Sequence[Atoms], labels: tuple[str, ...] = ("energy", "forces")) -> LabelledStructures:
    """Take ASE structures with their labels, as ``read_structures`` takes those of an extxyz file.

    Arguments:
        frames: structures in Å; labels in eV and Å, in the calculator, ``info`` or ``arrays``.
        labels: those that every structure must have.
    """
    source = DataSource(path=Path("structures"), labels=labels)
    return _converted(frame_contents(source.path, frames, source), source)


def _check_options(name: str, source: DataSource) -> None:
    if name != "qm7x" and source.structures != "all":
        raise ConfigError(f"structures: {source.structures} is only for QM7-X files; {source.path} is {name}")
    keys = [key for key in (source.energy_key, source.forces_key, source.stress_key) if key is not None]
    if keys and name not in KEYED_FORMATS:
        raise ConfigError(f"label keys ({', '.join(keys)}) do not apply to {source.path}: {name} has fixed names")


def _check_structures(path: Path, contents: FileContents) -> None:
    if not contents.structures:
        raise DataError(f"{path} contains no structures")
    for frame, atoms, forces in zip(contents.frame_index, contents.structures, contents.labels["forces"], strict=True):
        if len(atoms) == 0:
            raise DataError(f"{path}, frame {frame}: the structure has no atoms")
        unknown = np.flatnonzero((atoms.numbers < 1) | (atoms.numbers >= len(chemical_symbols)))
        if len(unknown):
            number = atoms.numbers[unknown[0]]
            raise DataError(f"{path}, frame {frame}: atom {unknown[0]} is not an element (atomic number {number})")
        if forces is not None and forces.shape != (len(atoms), 3):
            raise DataError(f"{path}, frame {frame}: forces of shape {forces.shape} for {len(atoms)} atoms")


def _incomplete_labels(contents: FileContents, source: DataSource) -> dict[str, tuple[int, ...]]:
    """For labels that only some frames have, the frames without them. A missing required label is an error."""
    no_label = [None] * len(contents.structures)
    values = {label: contents.labels.get(label, no_label) for label in LABELS}
    missing = {label: [i for i, value in enumerate(values[label]) if value is None] for label in LABELS}
    for label in source.labels:
        if missing[label]:
            first = missing[label][0]
            _refuse_predicted(contents, source, label, first)
            sought = contents.sought.get(label, "nothing: the layout has none")
            found = ", ".join(contents.found(first)) or "nothing"
            raise DataError(
                f"{source.path}, frame {contents.frame_index[first]}: no {label} (looked for {sought}; found {found}). "
                f"It is missing in {len(missing[label])} of {len(contents.structures)} frames. "
                f"Add it, name it with `{label}_key`" + ("" if label == "energy" else ", or remove it from `labels`")
            )
    partly = {label: frames for label, frames in missing.items() if 0 < len(frames) < len(contents.structures)}
    return {label: tuple(contents.frame_index[frames].tolist()) for label, frames in partly.items()}


def _refuse_predicted(contents: FileContents, source: DataSource, label: str, index: int) -> None:
    """Raise an error if the label that is missing from a structure is a prediction."""
    if (key := contents.predicted(label, index)) is not None:
        raise DataError(
            f"{source.path}, frame {contents.frame_index[index]}: {key} is a prediction of a sigmaff model, not a "
            f"label. Compute labels with the reference method, or name theirs with `{label}_key`. To learn from "
            "another model on purpose, copy its predictions to a name of your own"
        )


def _units(contents: FileContents, source: DataSource) -> tuple[float, float, float]:
    """Values of the units of energy, length and force in eV, Å and eV/Å."""
    declared = (source.energy_unit, source.length_unit)
    native = (contents.energy_unit, contents.length_unit)
    for said, own in zip(declared, native, strict=True):
        if own in contents.stated_units and said not in (None, own):
            raise DataError(f"{source.path} states the unit {own}, but {said} is declared; remove one of the two")
    energy, length = energy_unit(declared[0] or native[0]), length_unit(declared[1] or native[1])
    return energy, length, forces_unit(source.forces_unit) if source.forces_unit else energy / length


def _converted(contents: FileContents, source: DataSource) -> LabelledStructures:
    """Check the contents, and convert them to eV and Å. A label that some structure does not have is dropped."""
    _check_structures(source.path, contents)
    incomplete = _incomplete_labels(contents, source)
    energy, length, force = _units(contents, source)
    units = {"energy": energy, "forces": force, "stress": energy / length**3}
    converted = {
        label: tuple(None if value is None else value * units[label] for value in values)
        for label, values in contents.labels.items()
    }
    labels: dict[str, Any] = {name: each for name, each in converted.items() if not any(v is None for v in each)}
    return LabelledStructures(
        structures=tuple(_scaled(atoms, length) for atoms in contents.structures),
        energy=np.array(labels["energy"]) if "energy" in labels else None,
        forces=tuple(labels["forces"]) if "forces" in labels else None,
        stress=np.array(labels["stress"]) if "stress" in labels else None,
        source=str(source.path),
        frame_index=contents.frame_index,
        time_index=contents.time_index,
        official_splits=contents.official_splits,
        groups=_groups(contents.structures, source.group_key),
        incomplete_labels=incomplete,
        partial_labels={label: converted[label] for label in incomplete},
        units=_told_units(contents, source),
        names=tuple(contents.found(0)),
    )


def _groups(structures: Sequence[Atoms], key: str) -> tuple[str, ...] | None:
    named = [atoms.info.get(key) for atoms in structures]
    return None if all(name is None for name in named) else tuple(NO_GROUP if n is None else str(n) for n in named)


def _told_units(contents: FileContents, source: DataSource) -> str:
    """The units in which a file is read, and why, for people."""

    def told(quantity: str, declared: str | None, own: str) -> str:
        reason = "stated in the file" if own in contents.stated_units else "as declared" if declared else "assumed"
        return f"{quantity} as {declared or own} ({reason})"

    energy, length = source.energy_unit, source.length_unit
    forces = f", forces as {source.forces_unit} (as declared)" if source.forces_unit else ""
    texts = (told("energies", energy, contents.energy_unit), told("lengths", length, contents.length_unit))
    return f"read {', '.join(texts)}{forces}; from here on eV and Å"


def _scaled(atoms: Atoms, length: float) -> Atoms:
    if length != 1.0:
        atoms.set_cell(atoms.cell.array * length)
        atoms.set_positions(atoms.positions * length)
    return atoms
