"""Check contents: composition and sizes; missing, duplicate and non-finite values; order in time."""

from collections.abc import Iterable, Iterator

import numpy as np

from sigmaff.data.check.finding import Finding, findings
from sigmaff.data.elements import symbols
from sigmaff.data.order import describe, find_series
from sigmaff.data.overlap import comparable, first_occurrence
from sigmaff.data.statistics import open_compositions
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures

SAME_ENERGY = 1e-4
"""eV. Energies of equal structures that differ by more than this contradict each other."""

LARGEST = 1e100
"""Of values whose squares and products can be computed."""


def check_composition(data: LabelledStructures) -> Iterator[Finding]:
    sizes = [len(atoms) for atoms in data.structures]
    formulas = {data.structures[alike[0]].get_chemical_formula() for alike in comparable(data.structures)}
    periodic = sum(bool(atoms.pbc.any()) for atoms in data.structures)
    message = f"{len(data)} structures of {min(sizes)} to {max(sizes)} atoms, {len(formulas)} compositions, "
    yield from findings("info", "composition", f"{message}{periodic} periodic; elements {symbols(data.elements)}", data)
    if n_open := len(open_compositions(data)):
        message = (
            f"they determine {len(data.elements) - n_open} of {len(data.elements)} reference energies: energies of "
            "other compositions will have a large σ"
        )
        yield from findings("info", "open_compositions", message, data)
    single = [index for index, size in enumerate(sizes) if size == 1]
    yield from findings("info", "isolated_atoms", f"{len(single)} structures are single atoms", data, single)


def check_units(data: LabelledStructures) -> Iterator[Finding]:
    if data.units:
        yield from findings("info", "units", data.units, data)


def check_ranges(data: LabelledStructures) -> Iterator[Finding]:
    if data.energy is not None:
        per_atom = data.energy / [len(atoms) for atoms in data.structures]
        message = f"energies from {np.min(per_atom):.6g} to {np.max(per_atom):.6g} eV per atom"
        yield from findings("info", "energy_range", message, data)
    if data.forces is not None:
        norms = np.linalg.norm(np.concatenate(data.forces), axis=1)
        rms = np.sqrt(np.mean(norms**2) / 3)
        message = f"force components rms {rms:.4g}, largest |F| {np.max(norms):.4g} eV/Å"
        yield from findings("info", "forces_range", message, data)


def check_missing(data: LabelledStructures) -> Iterator[Finding]:
    for label, values in (("energy", data.energy), ("forces", data.forces)):
        frames = data.incomplete_labels.get(label, ())
        if values is None and frames:
            where = np.flatnonzero(np.isin(data.frame_index, frames))
            yield from findings("error", "missing_labels", f"{label} is missing in some structures", data, where)
        elif values is None:
            names = ", ".join(data.names) or "nothing"
            message = f"{label} is missing in all structures (found {names}); name it with --{label}-key ({label}_key)"
            yield from findings("warning", "missing_labels", message, data)


def check_finite(data: LabelledStructures) -> Iterator[Finding]:
    for name, bad in _not_finite(data).items():
        yield from findings(
            "error", "not_finite", f"{name} has NaN or infinite values, or values above {LARGEST:g}", data, bad
        )


def finite_part(data: LabelledStructures) -> LabelledStructures:
    """The structures whose values, and squares of them, are finite numbers."""
    bad = np.concatenate(list(_not_finite(data).values()))
    return data.subset(np.setdiff1d(np.arange(len(data)), bad))


def _not_finite(data: LabelledStructures) -> dict[str, IndexArray]:
    """For each quantity, the indices of structures where it has values that are no numbers to calculate with."""
    values: dict[str, Iterable[FloatArray]] = {
        "positions": [atoms.positions for atoms in data.structures],
        "cell": [atoms.cell.array for atoms in data.structures],
        **data.labels,
    }
    return {name: np.flatnonzero([not (np.abs(row) < LARGEST).all() for row in rows]) for name, rows in values.items()}


def check_duplicates(data: LabelledStructures) -> Iterator[Finding]:
    first = first_occurrence(data.structures)
    copies = np.flatnonzero(first != np.arange(len(data)))
    message = "duplicate structures; they would leak from the training set into the test set"
    yield from findings("warning", "duplicates", message, data, copies)
    if data.energy is not None:
        contradicting = copies[np.abs(data.energy[copies] - data.energy[first[copies]]) > SAME_ENERGY]
        message = "duplicate structures with different energies"
        yield from findings("error", "contradicting_duplicates", message, data, contradicting)


def check_order(data: LabelledStructures) -> Iterator[Finding]:
    series = find_series(data)
    if any(one.memory > 0 for one in series):
        split = "'sigmaff train' takes training, validation and test structures from different blocks of it"
        message = f"the frames have an order in time: {describe(series)}; {split}, with gaps between them"
    else:
        message = f"the frames have no order in time: {describe(series)}; 'sigmaff train' splits them at random"
    yield from findings("info", "time_order", message, data)
