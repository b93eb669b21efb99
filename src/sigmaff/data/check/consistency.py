"""Check units and signs: consistency of forces and energies, and their magnitudes."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from ase import Atoms
from ase.units import Hartree

from sigmaff.data.check.finding import Finding, finding
from sigmaff.data.statistics import composition
from sigmaff.data.structures import FloatArray, LabelledStructures
from sigmaff.units import ENERGY_UNITS, LENGTH_UNITS

MAX_STEP = 0.25
"""Å. If atoms move less between two frames, −½(F₁ + F₂)·(x₂ − x₁) is the energy difference to third order."""

MIN_STEPS = 10

LARGE_RMS_FORCE = 15.0
"""eV/Å. Structures near equilibrium have about 1 to 3; the number in kcal/mol/Å is 23 times larger."""


def check_forces_against_energies(data: LabelledStructures) -> Iterator[Finding]:
    """Compare the work of the forces with the change of energy between consecutive frames."""
    work, change = _steps(data)
    if len(work) < MIN_STEPS or not work.any() or not change.any():
        return
    correlation = float(np.dot(work, change) / (np.linalg.norm(work) * np.linalg.norm(change)))
    slope = float(np.dot(work, change) / np.dot(work, work))
    if correlation < -0.5:
        message = f"energies increase along the forces (correlation {correlation:.2f} in {len(work)} short steps): "
        yield finding("error", "force_sign", message + "the sign of the forces is wrong; are they gradients?", data)
    elif correlation > 0.9 and not 0.67 < slope < 1.5:
        message = f"energies change {slope:.3g} times as much as the forces predict (in {len(work)} short steps)"
        yield finding("error", "force_unit", message + _explanation(slope), data)
    elif correlation < 0.5:
        message = f"energies and forces are inconsistent (correlation {correlation:.2f} in {len(work)} short steps)"
        yield finding("warning", "force_consistency", message, data)


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
                yield finding("warning", "energy_unit", message, data)
    if data.forces is not None:
        rms = float(np.sqrt(np.mean(np.concatenate(data.forces) ** 2)))
        if rms > LARGE_RMS_FORCE:
            message = f"the rms force component is {rms:.3g} eV/Å: are forces in kcal/mol/Å or Hartree/Bohr?"
            yield finding("warning", "large_forces", message, data)


def all_electron_energy(number: FloatArray) -> FloatArray:
    """Energy of neutral atoms in eV, semiclassical (Thomas–Fermi, Scott, Schwinger).

    E = −(0.768745 Z^{7/3} − Z²/2 + 0.2699 Z^{5/3}) Hartree; the error is 8 % for H, 1 % for C, less for larger Z.

    Arguments:
        number: atomic numbers, any shape.
    """
    z = np.asarray(number, dtype=np.float64)
    return -Hartree * (0.768745 * z ** (7 / 3) - 0.5 * z**2 + 0.2699 * z ** (5 / 3))
