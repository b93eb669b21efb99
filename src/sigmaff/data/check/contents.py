"""Check the contents: composition, sizes, ranges; missing, duplicate and non-finite values."""

from collections.abc import Iterator

import numpy as np
from ase.data import chemical_symbols

from sigmaff.data.check.finding import Finding, finding
from sigmaff.data.overlap import first_occurrence
from sigmaff.data.structures import IndexArray, LabelledStructures

SAME_ENERGY = 1e-4
"""eV. Energies of equal structures that differ by more than this contradict each other."""


def check_composition(data: LabelledStructures) -> Iterator[Finding]:
    sizes = [len(atoms) for atoms in data.structures]
    formulas = {atoms.get_chemical_formula() for atoms in data.structures}
    periodic = sum(bool(atoms.pbc.any()) for atoms in data.structures)
    symbols = ", ".join(chemical_symbols[number] for number in data.elements)
    message = f"{len(data)} structures of {min(sizes)} to {max(sizes)} atoms, {len(formulas)} compositions, "
    yield finding("info", "composition", f"{message}{periodic} periodic; elements {symbols}", data)
    single = [index for index, size in enumerate(sizes) if size == 1]
    if single:
        yield finding("info", "isolated_atoms", f"{len(single)} structures are single atoms", data, single)


def check_ranges(data: LabelledStructures) -> Iterator[Finding]:
    if data.energy is not None:
        per_atom = data.energy / [len(atoms) for atoms in data.structures]
        low, high = np.min(per_atom), np.max(per_atom)
        yield finding("info", "energy_range", f"energies from {low:.6g} to {high:.6g} eV per atom", data)
    if data.forces is not None:
        norms = np.linalg.norm(np.concatenate(data.forces), axis=1)
        rms, most = np.sqrt(np.mean(norms**2) / 3), np.max(norms)
        yield finding("info", "forces_range", f"force components rms {rms:.4g}, largest |F| {most:.4g} eV/Å", data)


def check_missing(data: LabelledStructures) -> Iterator[Finding]:
    for label, values in (("energy", data.energy), ("forces", data.forces)):
        frames = data.incomplete_labels.get(label, ())
        if values is None and frames:
            where = np.flatnonzero(np.isin(data.frame_index, frames))
            yield finding("error", "missing_labels", f"{label} is missing in some structures", data, where)
        elif values is None:
            yield finding("warning", "missing_labels", f"{label} is missing in all structures", data)


def check_finite(data: LabelledStructures) -> Iterator[Finding]:
    for name, bad in _not_finite(data).items():
        if len(bad):
            yield finding("error", "not_finite", f"{name} has NaN or infinite values", data, bad)


def finite_part(data: LabelledStructures) -> LabelledStructures:
    """The structures without NaN or infinite values."""
    bad = np.concatenate(list(_not_finite(data).values()))
    return data.subset(np.setdiff1d(np.arange(len(data)), bad))


def _not_finite(data: LabelledStructures) -> dict[str, IndexArray]:
    """For each quantity, the indices of structures where it has NaN or infinite values."""
    values = {
        "positions": [atoms.positions for atoms in data.structures],
        "cell": [atoms.cell.array for atoms in data.structures],
        "energy": data.energy,
        "forces": data.forces,
        "stress": data.stress,
    }
    present = {name: rows for name, rows in values.items() if rows is not None}
    return {name: np.flatnonzero([not np.isfinite(row).all() for row in rows]) for name, rows in present.items()}


def check_duplicates(data: LabelledStructures) -> Iterator[Finding]:
    first = first_occurrence(data.structures)
    copies = np.flatnonzero(first != np.arange(len(data)))
    if len(copies):
        message = "duplicate structures; they would leak from the training set into the test set"
        yield finding("warning", "duplicates", message, data, copies)
    if data.energy is not None:
        contradicting = copies[np.abs(data.energy[copies] - data.energy[first[copies]]) > SAME_ENERGY]
        if len(contradicting):
            message = "duplicate structures with different energies"
            yield finding("error", "contradicting_duplicates", message, data, contradicting)
