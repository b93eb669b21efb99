"""QM7-X in its published HDF5 layout: molecule / ``Geom-m<mol>-i<isomer>-c<conformer>-opt|d<k>`` / datasets.

The label is the total energy ``ePBE0+MBD``; the forces ``totFOR`` are its derivatives. Energies of free atoms are
subtracted as for every other data set, by the reference energies of ``DatasetStatistics``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ase import Atoms

from sigmaff.data.formats.contents import FileContents, atomic_numbers, reading, refuse_swollen
from sigmaff.data.source import DataSource
from sigmaff.data.structures import FloatArray
from sigmaff.errors import DataError
from sigmaff.extras import require

if TYPE_CHECKING:
    from h5py import Dataset, File, Group

ENERGY, FORCES = "ePBE0+MBD", "totFOR"
USED = ("atNUM", "atXYZ", ENERGY, FORCES)  # of about forty datasets of a structure


def read_qm7x(path: Path, source: DataSource) -> FileContents:
    require(f"reading {path} (QM7-X HDF5)", "h5py")
    from h5py import File

    with reading(path, "QM7-X HDF5"), File(path, "r") as file:
        chosen = list(_chosen(path, file, source))
    if not chosen:
        raise DataError(
            f"{path} contains no structures ({source.structures}) in the QM7-X layout: "
            "<molecule>/Geom-m<molecule>-i<isomer>-c<conformer>-opt or -d<k>"
        )
    return FileContents(
        structures=[_structure(path, name, data) for _, name, data in chosen],
        labels={
            "energy": [data[ENERGY].ravel()[0] if ENERGY in data else None for _, _, data in chosen],
            "forces": [data.get(FORCES) for _, _, data in chosen],
        },
        sought={"energy": ENERGY, "forces": FORCES},
        found=lambda index: list(chosen[index][2]),
        frame_index=np.array([index for index, _, _ in chosen]),
    )


def _chosen(path: Path, file: "File", source: DataSource) -> Iterator[tuple[int, str, dict[str, FloatArray]]]:
    """Number, name and arrays of each structure that the source asks for."""
    n_bytes = 0
    for index, (name, group) in enumerate(_geometries(file)):
        if source.structures == "all" or name.endswith("-opt") == (source.structures == "equilibrium"):
            datasets = {key: group[key] for key in USED if key in group}
            n_bytes += sum(dataset.nbytes for dataset in datasets.values())
            refuse_swollen(path, n_bytes)
            yield index, name, {key: _values(path, dataset) for key, dataset in datasets.items()}


def _values(path: Path, dataset: "Dataset") -> FloatArray:
    if dataset.dtype.kind not in "iuf":
        raise DataError(f"{path}: {dataset.name} contains {dataset.dtype} values, not real numbers")
    return np.asarray(dataset, dtype=np.float64)


def _geometries(file: "File") -> Iterator[tuple[str, "Group"]]:
    from h5py import Group

    for molecule in file.values():
        if isinstance(molecule, Group):
            yield from ((name, group) for name, group in molecule.items() if name.startswith("Geom-"))


def _structure(path: Path, name: str, data: dict[str, FloatArray]) -> Atoms:
    for needed in ("atNUM", "atXYZ"):
        if needed not in data:
            raise DataError(f"{path}: {name} has no {needed}")
    if (shape := data["atXYZ"].shape) != (n := data["atNUM"].size, 3):
        raise DataError(f"{path}: {name} has {n} atomic numbers (atNUM), but positions of shape {shape} (atXYZ)")
    with reading(f"{path}, {name}", "QM7-X HDF5"):
        numbers = atomic_numbers(f"{path}, {name}", data["atNUM"])
        return Atoms(numbers=numbers, positions=data["atXYZ"], info={"structure": name})
