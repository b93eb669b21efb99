"""MD17 in the sGDML layout: arrays z, R, E, F, and the units r_unit, e_unit."""

from pathlib import Path

from sigmaff.data.formats.contents import FileContents
from sigmaff.data.formats.npz import Arrays, load_arrays, numbers_array, require, trajectory_contents
from sigmaff.data.formats.stated_units import stated_unit
from sigmaff.data.source import DataSource

MARKS = ("R", "z")
"""Arrays that identify the layout."""


def read_md17(path: Path, source: DataSource) -> FileContents:
    arrays = load_arrays(path)
    require(path, arrays, source.format, *MARKS)
    energy, length = _stated(path, arrays, "e_unit"), _stated(path, arrays, "r_unit")
    return trajectory_contents(
        path,
        arrays=arrays,
        names={"numbers": "z", "positions": "R", "energy": "E", "forces": "F"},
        cell=numbers_array(path, arrays, "lattice").T if "lattice" in arrays else None,
        energy_unit=energy or "kcal/mol",
        length_unit=length or "Angstrom",
        stated_units=tuple(unit for unit in (energy, length) if unit),
    )


def _stated(path: Path, arrays: Arrays, field: str) -> str | None:
    if field not in arrays:
        return None
    value = arrays[field].item()
    return stated_unit(path, field, value.decode() if isinstance(value, bytes) else str(value))
