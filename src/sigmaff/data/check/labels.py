"""Check energies and forces: impossible, missing and outlying values, and their magnitudes."""

from collections.abc import Iterator

import numpy as np
from ase.units import Hartree

from sigmaff.data.check.finding import Finding, Severity, findings
from sigmaff.data.check.geometry import is_more_bonded, rests_by_symmetry
from sigmaff.data.check.stacks import spaced
from sigmaff.data.statistics import composition, energy_residual, reference_energies
from sigmaff.data.structures import FloatArray, LabelledStructures
from sigmaff.units import ENERGY_UNITS

ABSURD_FORCE = 100.0
"""eV/Å. A larger force is an error."""

ABSURD_RATIO = 50.0
"""Outliers exceed this multiple of the median |F|, or of the median deviation of energies per atom."""

MAX_SYMMETRIES = 200
"""Structures whose symmetry is looked at."""

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
    """Find forces of exactly zero that symmetry does not explain: missing labels, or constrained atoms."""
    if data.forces is None:
        return
    resting = [(forces == 0).all(axis=1) for forces in data.forces]
    found = [index for index, zero in enumerate(resting) if zero.any() and len(zero) > 1]
    looked_at = spaced(np.array(found, dtype=np.int64), MAX_SYMMETRIES).tolist()
    strange = [index for index in looked_at if not rests_by_symmetry(data.structures[index])[resting[index]].all()]
    strange = strange if len(looked_at) == len(found) or not strange else found
    frames = [index for index in strange if resting[index].all()]
    atoms = [index for index in strange if not resting[index].all()]
    severity: Severity = "error" if len(frames) > len(data) // 2 else "warning"
    message = "all forces are exactly zero, and not by symmetry: are labels missing?"
    yield from findings(severity, "zero_forces", message, data, frames)
    message = "some atoms have a force of exactly zero, and not by symmetry: were they constrained?"
    yield from findings("warning", "zero_force_atoms", message, data, atoms)


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
    low = residual < np.median(residual)
    strange = [index for index in outlying.tolist() if not (low[index] and is_more_bonded(data, index))]
    message = "energies differ by more than 0.5 eV per atom from the value expected for the composition"
    yield from findings("warning", "outlying_energies", message, data, strange)


def _several_atoms(data: LabelledStructures) -> np.ndarray:
    return np.array([len(atoms) > 1 for atoms in data.structures])


def check_magnitudes(data: LabelledStructures) -> Iterator[Finding]:
    """Compare all-electron total energies, and forces, with their typical magnitudes.

    Energies without core electrons are far smaller than the estimate, so only ratios that match a unit are reported.
    """
    if data.energy is not None:
        ratio = float(np.median(data.energy / (composition(data) @ all_electron_energy(np.array(data.elements)))))
        for unit in ("Hartree", "kcal/mol", "kJ/mol"):
            if abs(ratio * ENERGY_UNITS[unit] - 1) < 0.03:
                message = (
                    f"total energies are {ratio:.4g} times the sum of atomic energies in eV: are they in {unit}? "
                    f"Read them with energy_unit: {unit} (--energy-unit)"
                )
                severity: Severity = "error" if ratio > 1 else "warning"  # energies of valence electrons are small
                yield from findings(severity, "energy_unit", message, data)
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
