"""Mutants of data files in every format: of their bytes, of their text, and of what is in them."""

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import ase.io
import h5py
import numpy as np
from ase import Atoms

from data_files import calculated_frames, labelled_frames, md17_arrays, rmd17_arrays, write_qm7x
from fuzz.edits import NUMBERS, TEXTS, Rng, any_array, any_bytes, any_text, pick
from fuzz.mutant import Mutant
from sigmaff.data import DataSource, check_structures, read_structures
from sigmaff.errors import DataError
from sigmaff.graph import build_graph

CUTOFF = 5.0  # Å


def trial(path: Path, expected: None = None) -> str:
    """All that ``sigmaff check`` does, then the graphs that a model is given."""
    data = read_structures(DataSource(path=path, labels=()))
    check_structures(data)
    n_refused = 0
    for atoms in data.structures[:5]:
        try:
            build_graph(atoms, CUTOFF)
        except DataError:
            n_refused += 1
    return "accepted" if n_refused == 0 else "accepted, a structure refused"


def mutant(rng: Rng) -> Mutant:
    change = pick(rng, CHANGES)
    name, content = change(rng)
    return Mutant(kind=change.__name__.strip("_"), name=name, content=content)


def _bytes(rng: Rng) -> tuple[str, bytes]:
    name = pick(rng, ("a.extxyz", "a.traj", "a.db", "md17.npz", "rmd17.npz", "a.hdf5"))
    return name, any_bytes(rng, good(name))


def _text(rng: Rng) -> tuple[str, bytes]:
    text = good(pick(rng, ("a.extxyz", "b.extxyz"))).decode()
    for _ in range(int(rng.integers(1, 4))):
        text = any_text(rng, text)
    return "a.extxyz", text.encode("utf-8", "replace")


def _header(rng: Rng) -> tuple[str, bytes]:
    """A comment line of extxyz that says something else of its columns, its cell or its labels."""
    lines = good(pick(rng, ("a.extxyz", "b.extxyz"))).decode().splitlines(keepends=True)
    number = str(pick(rng, NUMBERS))
    said = (
        f"Properties=species:S:{number}:pos:R:3",
        f"Properties=species:S:1:pos:R:3:{pick(rng, TEXTS)}:R:{number}",
        f"Properties=pos:R:3:species:{pick(rng, 'SRIL')}:1",
        f'Lattice="{number} 0 0 0 {pick(rng, NUMBERS)} 0 0 0 9" pbc="T T T"',
        'Lattice="' + " ".join(str(pick(rng, NUMBERS)) for _ in range(int(rng.integers(12)))) + '"',
        f'Lattice="10 0 0 {number} 1 0 0 0 10" pbc="{pick(rng, ("T F F", "T T T", "F T", "x"))}"',
        f"energy={number}",
        f"energy={pick(rng, TEXTS)}",
        f"stress={number}",
        f'{pick(rng, ("charge", "spin", "group", "config_type", "multiplicity"))}="{pick(rng, (*TEXTS, number))}"',
        "Properties=" + "a:R:1:" * 2000,
        f'info_{number}="[{"[" * 500}"',
    )
    lines[1] = pick(
        rng, (f"{pick(rng, said)} {lines[1]}", f"{lines[1].rstrip()} {pick(rng, said)}\n", f"{pick(rng, said)}\n")
    )
    return "a.extxyz", "".join(lines).encode("utf-8", "replace")


def _structures(rng: Rng) -> tuple[str, bytes]:
    """Structures that no one has: far, flat, overlapping, of unknown elements, with odd labels."""
    frames = [atoms.copy() for atoms in (calculated_frames(3) if rng.random() < 0.5 else labelled_frames(rng, 3))]
    atoms = frames[int(rng.integers(3))]
    size = float(pick(rng, (1e-300, 1e-5, 0.01, 1.0, 30.0, 1e3, 4.95e5, 1e6, 1e9, 1e15, 1e150, 1e308, np.nan, np.inf)))
    with np.errstate(all="ignore"):
        match int(rng.integers(8)):
            case 0:
                atoms.positions[int(rng.integers(len(atoms))), int(rng.integers(3))] = size
            case 1:
                atoms.positions *= size
            case 2:
                atoms.positions[:] = size
            case 3:
                cell = np.eye(3) * pick(rng, (3.0, 10.0, 50.0))
                cell[int(rng.integers(3)), int(rng.integers(3))] = size * pick(rng, (1, -1))
                atoms.cell[:], atoms.pbc = cell, rng.random(3) < 0.7
            case 4:
                atoms.cell[:], atoms.pbc = rng.normal(size=(3, 3)) * size, rng.random(3) < 0.7
            case 5:
                atoms.numbers[:] = pick(rng, (0, 1, 118, 119, 255, -1))
            case 6:
                atoms.arrays["forces"] = rng.normal(size=(len(atoms), pick(rng, (1, 2, 3, 4)))) * size
            case _:
                atoms.info[pick(rng, ("energy", "stress", "charge", "spin", "x"))] = pick(rng, NUMBERS)
    ending = pick(rng, (".extxyz", ".extxyz", ".traj", ".db"))
    try:
        return f"a{ending}", written(f"a{ending}", frames)
    except Exception:  # ASE cannot write all of these
        return "a.extxyz", any_bytes(rng, good("a.extxyz"))


def _arrays(rng: Rng) -> tuple[str, bytes]:
    """An archive of other arrays, compressed or not."""
    layout = pick(rng, (md17_arrays, rmd17_arrays))
    arrays = layout(rng)
    name = pick(rng, list(arrays))
    match int(rng.integers(6)):
        case 0:
            del arrays[name]
        case 1:
            arrays[name] = pick(rng, list(arrays.values()))
        case 2:
            arrays[pick(rng, ("lattice", "split_train", "split_test", "x"))] = any_array(
                rng, pick(rng, list(arrays.values()))
            )
        case 3 if arrays[name].dtype.kind == "f":
            arrays[name] = np.zeros((int(10 ** rng.uniform(0, 5)), *arrays[name].shape[1:]))
        case _:
            arrays[name] = any_array(rng, arrays[name])
    file = io.BytesIO()
    pick(rng, (np.savez, np.savez_compressed))(file, **arrays)
    content = file.getvalue()
    return "a.npz", any_bytes(rng, content) if rng.random() < 0.2 else content


def _datasets(rng: Rng) -> tuple[str, bytes]:
    """A QM7-X file with another dataset, link or group."""
    file = io.BytesIO(good("a.hdf5"))
    with h5py.File(file, "r+") as content:
        group = pick(rng, [geometry for molecule in content.values() for geometry in molecule.values()])
        key = pick(rng, ("atNUM", "atXYZ", "ePBE0+MBD", "totFOR"))
        array = group[key][()]
        del group[key]
        match int(rng.integers(7)):
            case 0:
                pass
            case 1:
                group[key] = h5py.SoftLink(pick(rng, ("/nowhere", group.name, f"{group.name}/{key}")))
            case 2:
                group[key] = h5py.ExternalLink(pick(rng, ("/etc/hostname", "a.hdf5")), "/")
            case 3:
                group.create_group(key)
            case 4:
                shape = (int(10 ** rng.uniform(3, 10)), 3)
                group.create_dataset(key, shape=shape, chunks=(1000, 3), dtype="f8", compression="gzip")
            case 5:
                group[key] = pick(rng, ("text", b"bytes", 1.0, np.array([]), h5py.Empty("f8")))
            case _:
                changed = any_array(rng, array)
                group[key] = array if changed.dtype.kind in "UV" else changed
    return "a.hdf5", file.getvalue()


def _rows(rng: Rng) -> tuple[str, bytes]:
    """A database whose rows hold something else."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        path.write_bytes(good("a.db"))
        with closing(sqlite3.connect(path)) as connection, connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(systems)")]
            column = pick(rng, [name for name in columns if name != "id"])
            (found,) = connection.execute(f"SELECT {column} FROM systems WHERE id = 1").fetchone()
            blob = any_bytes(rng, found) if isinstance(found, bytes) and found else b"\xff" * 7
            text = any_text(rng, found) if isinstance(found, str) and found else '{"a": [[['
            number = float(pick(rng, NUMBERS))
            values = (None, number, blob, blob, text, text, '{"energy": {"__ndarray__": [[9], "float64", 0]}}')
            connection.execute(f"UPDATE systems SET {column} = ? WHERE id = 1", (pick(rng, values),))
            if rng.random() < 0.2:
                units = pick(rng, (None, 1, "eV", "x", ["Ang"], {"energy": None}))
                connection.execute("DELETE FROM information WHERE name = 'metadata'")
                metadata = f'{{"_property_unit_dict": {json.dumps(units)}, "_distance_unit": {json.dumps(units)}}}'
                connection.execute("INSERT INTO information VALUES ('metadata', ?)", (metadata,))
        return "a.db", path.read_bytes()


def written(name: str, frames: list[Atoms]) -> bytes:
    with TemporaryDirectory() as folder:
        ase.io.write(Path(folder) / name, frames)
        return (Path(folder) / name).read_bytes()


@cache
def good(name: str) -> bytes:
    """A whole file."""
    rng = np.random.default_rng(7)
    match name:
        case "a.extxyz":
            return written(name, labelled_frames(rng, 4))
        case "b.extxyz" | "a.traj" | "a.db":
            return written(name, calculated_frames(3))
        case "a.hdf5":
            with TemporaryDirectory() as folder:
                return write_qm7x(Path(folder) / name, rng).read_bytes()
        case _:
            file = io.BytesIO()
            np.savez(file, **(md17_arrays if name.startswith("md17") else rmd17_arrays)(rng))
            return file.getvalue()


CHANGES: tuple[Callable[[Rng], tuple[str, bytes]], ...] = (
    *(_bytes, _bytes, _text, _header, _structures, _structures, _arrays, _datasets, _rows),
)
