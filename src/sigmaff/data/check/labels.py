"""Energies and forces that cannot be, by themselves."""

from collections.abc import Iterator

import numpy as np

from sigmaff.data.check.finding import Finding, Severity, finding
from sigmaff.data.statistics import composition, reference_energies
from sigmaff.data.structures import FloatArray, LabelledStructures

ABSURD_FORCE = 100.0
"""eV/Å."""

ABSURD_RATIO = 50.0
"""Times the median |F| of the data set, or the median deviation of energies per atom."""

NET_FORCE = 0.1
"""|Σ F| over Σ |F| of an isolated structure: physics says 0, a converged calculation far below this."""

SMALL_FORCE = 0.01
"""eV/Å per atom. Below it a net force is noise."""


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
    """Exact zeros are what a missing label turns into; symmetry makes them too, so a few are no error."""
    if data.forces is None:
        return
    resting = [(forces == 0).all(axis=1) for forces in data.forces]
    frames = [index for index, zero in enumerate(resting) if zero.all() and len(zero) > 1]
    atoms = [index for index, zero in enumerate(resting) if zero.any() and not zero.all()]
    if frames:
        severity: Severity = "error" if len(frames) > len(data) // 2 else "warning"
        message = "all forces are exactly zero: missing labels, or a perfect crystal"
        yield finding(severity, "zero_forces", message, data, frames)
    if atoms:
        message = "some atoms have a force of exactly zero: constrained in the calculation, or by symmetry"
        yield finding("warning", "zero_force_atoms", message, data, atoms)


def check_net_force(data: LabelledStructures) -> Iterator[Finding]:
    if data.forces is None:
        return
    net = np.array([np.linalg.norm(forces.sum(0)) / len(forces) for forces in data.forces])
    mean = np.array([np.linalg.norm(forces, axis=1).mean() for forces in data.forces])
    drifting = np.flatnonzero((net > SMALL_FORCE) & (net > NET_FORCE * mean) & _several_atoms(data))
    if len(drifting):
        message = "forces do not add up to zero: atoms are missing, constrained, or in an external field"
        yield finding("warning", "net_force", message, data, drifting)


def check_energies(data: LabelledStructures) -> Iterator[Finding]:
    if data.energy is None:
        return
    zero = np.flatnonzero(data.energy == 0)
    if len(zero):
        yield finding("warning", "zero_energies", "energies of exactly zero: missing labels?", data, zero)
    deviation = np.abs(_energy_residual(data))
    several = _several_atoms(data)
    spread = float(np.median(deviation[several])) if several.any() else 0.0
    outlying = np.flatnonzero(several & (deviation > ABSURD_RATIO * spread) & (deviation > 0.5))
    if len(outlying):
        message = "energies far (over 0.5 eV per atom) from what the composition and the other structures tell"
        yield finding("warning", "outlying_energies", message, data, outlying)


def _energy_residual(data: LabelledStructures) -> FloatArray:
    """Energy per atom less the median of what reference energies leave over, eV."""
    counts = composition(data)
    references = reference_energies(data, "least_squares")
    residual = (data.energy - counts @ np.array(list(references.values()))) / counts.sum(1)
    return residual - np.median(residual)


def _several_atoms(data: LabelledStructures) -> np.ndarray:
    return np.array([len(atoms) > 1 for atoms in data.structures])
