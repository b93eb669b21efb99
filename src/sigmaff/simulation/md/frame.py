"""Frames of trajectories in the extended XYZ format, as ASE writes them, in one piece of text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from sigmaff.data import predicted
from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.state import BoolArray, IndexArray
from sigmaff.simulation.results import PER_ATOM_KEYS, PER_STRUCTURE_KEYS, Results

QUOTED = set(" \"'{}[]")
FULL = (0, 5, 4, 5, 1, 3, 4, 3, 2)
"""Places of the components of a symmetric 3 × 3 matrix among the six."""


def frame_text(
    numbers: IndexArray,
    positions: FloatArray,
    momenta: FloatArray,
    cell: FloatArray,
    periodic: BoolArray,
    results: Results,
    info: dict[str, float | str],
) -> str:
    """A frame with its σ.

    Arguments:
        numbers: (n_atoms,) elements.
        positions, momenta: (n_atoms, 3) in ASE's units.
        cell, periodic: (3, 3) Å and (3,).
        results: under ASE's names; empty: none.
        info: of the frame.
    """
    columns = {"pos": positions, "momenta": momenta}
    columns |= {name: results[name] for name in (*PER_ATOM_KEYS, "forces", "energies") if name in results}
    values = [column if column.ndim == 2 else column[:, None] for column in columns.values()]
    shapes = ":".join(f"{name}:R:{value.shape[1]}" for name, value in zip(columns, values, strict=True))
    lattice = f'Lattice="{" ".join(map(str, cell.ravel().tolist()))}" ' if cell.any() else ""
    entries = " ".join(f"{name}={_text(value)}" for name, value in _entries(results, info, periodic).items())
    table = np.concatenate(values, axis=1)
    row = " %16.8f" * table.shape[1] + "\n"
    rows = "".join([f"{chemical_symbols[number]:<2}{row}" for number in numbers.tolist()])
    body = rows % tuple(table.ravel().tolist())
    return f"{len(numbers)}\n{lattice}Properties=species:S:1:{shapes} {entries}\n{body}"


def _entries(results: Results, info: dict[str, float | str], periodic: BoolArray) -> dict[str, Any]:
    found: dict[str, Any] = dict(info)
    found |= {name: results[name] for name in PER_STRUCTURE_KEYS if name in results}
    if "energy" in results:
        found |= {predicted.ENERGY: results["energy"], "energy": results["energy"]}
    if "stress" in results:
        found["stress"] = np.asarray(results["stress"])[list(FULL)]
    if "free_energy" in results:
        found["free_energy"] = results["free_energy"]
    return found | {"pbc": periodic}


def _text(value: float | str | bool | Sequence[float] | FloatArray | BoolArray) -> str:
    if isinstance(value, np.ndarray):
        value = " ".join(_text(item) for item in value.tolist())
    if isinstance(value, bool):
        return "T" if value else "F"
    text = str(value)
    return f'"{text}"' if QUOTED & set(text) else text
