"""Check energies and forces: impossible and outlying values; consistency, units and signs."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from ase import Atoms
from ase.units import Hartree

from sigmaff.data.check.finding import Finding, Severity, findings
from sigmaff.data.statistics import composition, energy_residual, reference_energies
from sigmaff.data.structures import FloatArray, LabelledStructures
from sigmaff.units import ENERGY_UNITS, LENGTH_UNITS

ABSURD_FORCE = 100.0
"""eV/Å. A larger force is an error."""

ABSURD_RATIO = 50.0
"""Outliers exceed this multiple of the median |F|, or of the median deviation of energies per atom."""

NET_FORCE = 0.1
"""|Σ F| / Σ |F| of an isolated structure: exactly 0 in theory, far below this in a converged calculation."""

SMALL_FORCE = 0.01
"""eV/Å per atom. A smaller net force is noise."""

MAX_STEP = 0.25
"""Å. If atoms move less between two frames, −½(F₁ + F₂)·(x₂ − x₁) is the energy difference to third order."""

MIN_STEPS = 10

LARGE_RMS_FORCE = 15.0
"""eV/Å. Structures near equilibrium have about 1 to 3; the number in kcal/mol/Å is 23 times larger."""


def check_force_size(data: LabelledStructures) -> Iterator[Finding]:
    if data.forces is None:
        return
    largest = np.array([np.linalg.norm(forces, axis=1).max() for forces in data.forces])
    median = float(np.median(np.linalg.norm(np.concatenate(data.forces), axis=1)))
    absurd = np.flatnonzero(largest > ABSURD_FORCE)
    message = f"forces above {ABSURD_FORCE:g} eV/Å: the calculation failed, or the unit is wrong"
    yield from findings("error", "absurd_forces", message, data, absurd)
    outlying = np.flatnonzero((largest > ABSURD_RATIO * median) & (largest > 1.0) & (largest <= ABSURD_FORCE))
    message = f"forces above {ABSURD_RATIO:g} times the median of {median:.3g} eV/Å"
    yield from findings("warning", "outlying_forces", message, data, outlying)


def check_zero_forces(data: LabelledStructures) -> Iterator[Finding]:
    """Find forces of exactly zero. They may be missing labels, or due to symmetry: a few are not an error."""
    if data.forces is None:
        return
    resting = [(forces == 0).all(axis=1) for forces in data.forces]
    frames = [index for index, zero in enumerate(resting) if zero.all() and len(zero) > 1]
    atoms = [index for index, zero in enumerate(resting) if zero.any() and not zero.all()]
    severity: Severity = "error" if len(frames) > len(data) // 2 else "warning"
    message = "all forces are exactly zero: labels are missing, or the structure is a perfect crystal"
    yield from findings(severity, "zero_forces", message, data, frames)
    message = "some atoms have a force of exactly zero: they were constrained, or it is due to symmetry"
    yield from findings("warning", "zero_force_atoms", message, data, atoms)


def check_net_force(data: LabelledStructures) -> Iterator[Finding]:
    if data.forces is None:
        return
    net = np.array([np.linalg.norm(forces.sum(0)) / len(forces) for forces in data.forces])
    mean = np.array([np.linalg.norm(forces, axis=1).mean() for forces in data.forces])
    drifting = np.flatnonzero((net > SMALL_FORCE) & (net > NET_FORCE * mean) & _several_atoms(data))
    message = "the sum of forces is not zero: atoms are missing, constrained, or in an external field"
    yield from findings("warning", "net_force", message, data, drifting)


def check_energies(data: LabelledStructures) -> Iterator[Finding]:
    if data.energy is None:
        return
    zero = np.flatnonzero(data.energy == 0)
    yield from findings("warning", "zero_energies", "energies are exactly zero: are labels missing?", data, zero)
    residual = energy_residual(data, reference_energies(data, "least_squares"))
    deviation = np.abs(residual - np.median(residual))
    several = _several_atoms(data)
    spread = float(np.median(deviation[several])) if several.any() else 0.0
    outlying = np.flatnonzero(several & (deviation > ABSURD_RATIO * spread) & (deviation > 0.5))
    message = "energies differ by more than 0.5 eV per atom from the value expected for the composition"
    yield from findings("warning", "outlying_energies", message, data, outlying)


def _several_atoms(data: LabelledStructures) -> np.ndarray:
    return np.array([len(atoms) > 1 for atoms in data.structures])


def check_forces_against_energies(data: LabelledStructures) -> Iterator[Finding]:
    """Compare the work of the forces with the change of energy between consecutive frames."""
    work, change = _steps(data)
    if len(work) < MIN_STEPS or not work.any() or not change.any():
        return
    correlation = float(np.dot(work, change) / (np.linalg.norm(work) * np.linalg.norm(change)))
    slope = float(np.dot(work, change) / np.dot(work, work))
    if correlation < -0.5:
        message = f"energies increase along the forces (correlation {correlation:.2f} in {len(work)} short steps): "
        yield from findings(
            "error", "force_sign", message + "the sign of the forces is wrong; are they gradients?", data
        )
    elif correlation > 0.9 and not 0.67 < slope < 1.5:
        message = f"energies change {slope:.3g} times as much as the forces predict (in {len(work)} short steps)"
        yield from findings("error", "force_unit", message + _explanation(slope), data)
    elif correlation < 0.5:
        message = f"energies and forces are inconsistent (correlation {correlation:.2f} in {len(work)} short steps)"
        yield from findings("warning", "force_consistency", message, data)


def _steps(data: LabelledStructures) -> tuple[FloatArray, FloatArray]:
    """Work against the forces and change of energy for each short step between consecutive frames, eV."""
    work, change = [], []
    if data.energy is None or data.forces is None:
        return np.zeros(0), np.zeros(0)
    order = np.arange(len(data)) if data.time_index is None else np.argsort(data.time_index)
    for one, two in pairwise(order):
        step = _displacement(data.structures[one], data.structures[two])
        if step is not None and 0 < np.abs(step).max() < MAX_STEP:
            work.append(-0.5 * np.sum((data.forces[one] + data.forces[two]) * step))
            change.append(data.energy[two] - data.energy[one])
    return np.array(work), np.array(change)


def _displacement(one: Atoms, two: Atoms) -> FloatArray | None:
    """Shortest displacement of each atom, (n_atoms, 3) Å; ``None`` if the frames are not of one trajectory."""
    if not (np.array_equal(one.numbers, two.numbers) and np.array_equal(one.pbc, two.pbc)):
        return None
    step = two.positions - one.positions
    if not one.pbc.any():
        return step
    if not np.allclose(one.cell.array, two.cell.array) or one.cell.rank < 3:
        return None
    turns = np.round(one.cell.scaled_positions(step)) * one.pbc
    return step - turns @ one.cell.array


def _explanation(slope: float) -> str:
    """Units that explain this slope if energies and forces were read as eV and eV/Å."""
    fitting = [
        f"energies in {energy} with forces in {force}/{length}"
        for energy, energy_value in ENERGY_UNITS.items()
        for force, force_value in ENERGY_UNITS.items()
        for length, length_value in LENGTH_UNITS.items()
        if abs(slope * energy_value * length_value / force_value - 1) < 0.05
    ]
    return f": {' or '.join(fitting[:3])}?" if fitting else ": is one of the units wrong?"


def check_magnitudes(data: LabelledStructures) -> Iterator[Finding]:
    """Compare all-electron total energies, and forces, with their typical magnitudes.

    Energies without core electrons are far smaller than the estimate, so only ratios that match a unit are reported.
    """
    if data.energy is not None:
        ratio = float(np.median(data.energy / (composition(data) @ all_electron_energy(np.array(data.elements)))))
        for unit in ("Hartree", "kcal/mol", "kJ/mol"):
            if abs(ratio * ENERGY_UNITS[unit] - 1) < 0.03:
                message = f"total energies are {ratio:.4g} times the sum of atomic energies in eV: are they in {unit}?"
                yield from findings("warning", "energy_unit", message, data)
    if data.forces is not None:
        rms = float(np.sqrt(np.mean(np.concatenate(data.forces) ** 2)))
        if rms > LARGE_RMS_FORCE:
            message = f"the rms force component is {rms:.3g} eV/Å: are forces in kcal/mol/Å or Hartree/Bohr?"
            yield from findings("warning", "large_forces", message, data)


def all_electron_energy(number: FloatArray) -> FloatArray:
    """Energy of neutral atoms in eV, semiclassical (Thomas–Fermi, Scott, Schwinger).

    E = −(0.768745 Z^{7/3} − Z²/2 + 0.2699 Z^{5/3}) Hartree; the error is 8 % for H, 1 % for C, less for larger Z.

    Arguments:
        number: atomic numbers, any shape.
    """
    z = np.asarray(number, dtype=np.float64)
    return -Hartree * (0.768745 * z ** (7 / 3) - 0.5 * z**2 + 0.2699 * z ** (5 / 3))
