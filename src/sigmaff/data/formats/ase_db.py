"""ASE databases (SQLite): labels in the calculator, the key-value pairs, or the data of a row."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.db import connect

from sigmaff.data.formats.ase_frames import frame_contents
from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.formats.stated_units import stated_unit
from sigmaff.data.source import DataSource
from sigmaff.errors import DataError


def read_ase_db(path: Path, source: DataSource) -> FileContents:
    with reading(path, "an ASE database"):
        _check_database(path)
        with connect(str(path), type="db", use_lock_file=False) as database:
            frames = [_frame(row) for row in database.select()]
            metadata = database.metadata
    contents = frame_contents(path, frames, source)
    return _with_stated_units(path, contents, metadata, source.energy_key or "energy")


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


def _with_stated_units(path: Path, contents: FileContents, metadata: dict[str, Any], key: str) -> FileContents:
    """Read units from the metadata, as SchNetPack writes them."""
    units = {"energy": metadata.get("_property_unit_dict", {}).get(key), "length": metadata.get("_distance_unit")}
    stated = {name: stated_unit(path, f"unit of {name}", unit) for name, unit in units.items() if unit}
    return replace(
        contents,
        energy_unit=stated.get("energy", contents.energy_unit),
        length_unit=stated.get("length", contents.length_unit),
        stated_units=tuple(stated.values()),
    )


def _frame(row: Any) -> Atoms:
    atoms = row.toatoms()
    atoms.info.update(row.key_value_pairs)
    atoms.info.update({key: np.asarray(value) for key, value in row.data.items()})
    return atoms
