"""Check energies and forces for impossible and outlying values."""

from collections.abc import Iterator

import numpy as np

from sigmaff.data.check.finding import Finding, Severity, finding
from sigmaff.data.statistics import composition, reference_energies
from sigmaff.data.structures import FloatArray, LabelledStructures

ABSURD_FORCE = 100.0
"""eV/Å. A larger force is an error."""

ABSURD_RATIO = 50.0
"""Outliers exceed this multiple of the median |F|, or of the median deviation of energies per atom."""

NET_FORCE = 0.1
"""|Σ F| / Σ |F| of an isolated structure: exactly 0 in theory, far below this in a converged calculation."""

SMALL_FORCE = 0.01
"""eV/Å per atom. A smaller net force is noise."""


def check_force_size(data: LabelledStructures) -> Iterator[Finding]:
    if data.forces is None:
        return
    largest = np.array([np.linalg.norm(forces, axis=1).max() for forces in data.forces])
    median = float(np.median(np.linalg.norm(np.concatenate(data.forces), axis=1)))
    absurd = np.flatnonzero(largest > ABSURD_FORCE)
    if len(absurd):
        message = f"forces above {ABSURD_FORCE:g} eV/Å: the calculation failed, or the unit is wrong"
        yield finding("error", "absurd_forces", message, data, absurd)
    outlying = np.flatnonzero((largest > ABSURD_RATIO * median) & (largest > 1.0) & (largest <= ABSURD_FORCE))
    if len(outlying):
        message = f"forces above {ABSURD_RATIO:g} times the median of {median:.3g} eV/Å"
        yield finding("warning", "outlying_forces", message, data, outlying)


def check_zero_forces(data: LabelledStructures) -> Iterator[Finding]:
    """Find forces of exactly zero. They may be missing labels, or due to symmetry: a few are not an error."""
    if data.forces is None:
        return
    resting = [(forces == 0).all(axis=1) for forces in data.forces]
    frames = [index for index, zero in enumerate(resting) if zero.all() and len(zero) > 1]
    atoms = [index for index, zero in enumerate(resting) if zero.any() and not zero.all()]
    if frames:
        severity: Severity = "error" if len(frames) > len(data) // 2 else "warning"
        message = "all forces are exactly zero: labels are missing, or the structure is a perfect crystal"
        yield finding(severity, "zero_forces", message, data, frames)
    if atoms:
        message = "some atoms have a force of exactly zero: they were constrained, or it is due to symmetry"
        yield finding("warning", "zero_force_atoms", message, data, atoms)


def check_net_force(data: LabelledStructures) -> Iterator[Finding]:
    if data.forces is None:
        return
    net = np.array([np.linalg.norm(forces.sum(0)) / len(forces) for forces in data.forces])
    mean = np.array([np.linalg.norm(forces, axis=1).mean() for forces in data.forces])
    drifting = np.flatnonzero((net > SMALL_FORCE) & (net > NET_FORCE * mean) & _several_atoms(data))
    if len(drifting):
        message = "the sum of forces is not zero: atoms are missing, constrained, or in an external field"
        yield finding("warning", "net_force", message, data, drifting)


def check_energies(data: LabelledStructures) -> Iterator[Finding]:
    if data.energy is None:
        return
    zero = np.flatnonzero(data.energy == 0)
    if len(zero):
        yield finding("warning", "zero_energies", "energies are exactly zero: are labels missing?", data, zero)
    deviation = np.abs(_energy_residual(data))
    several = _several_atoms(data)
    spread = float(np.median(deviation[several])) if several.any() else 0.0
    outlying = np.flatnonzero(several & (deviation > ABSURD_RATIO * spread) & (deviation > 0.5))
    if len(outlying):
        message = "energies differ by more than 0.5 eV per atom from the value expected for the composition"
        yield finding("warning", "outlying_energies", message, data, outlying)


def _energy_residual(data: LabelledStructures) -> FloatArray:
    """Energy per atom minus reference energies, relative to the median, eV."""
    counts = composition(data)
    references = reference_energies(data, "least_squares")
    residual = (data.energy - counts @ np.array(list(references.values()))) / counts.sum(1)
    return residual - np.median(residual)


def _several_atoms(data: LabelledStructures) -> np.ndarray:
    return np.array([len(atoms) > 1 for atoms in data.structures])
