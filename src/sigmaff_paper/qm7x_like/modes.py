"""Normal modes of a molecule, and displacements along them at a temperature."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ase import Atoms, units

FloatArray = npt.NDArray[np.float64]

STEP = 0.01
"""Å, of central differences of forces."""

WAVENUMBER = units._hbar * 1e10 / np.sqrt(units._e * units._amu) / units.invcm
"""cm⁻¹ of a mode with ω² of 1 eV/(Å² u)."""


@dataclass(frozen=True, kw_only=True)
class Modes:
    """Vibrations, from soft to hard. A unit of amplitude along mode i moves atoms by displacements[i]."""

    squared_frequencies: FloatArray  # (n_modes,) ω², eV/(Å² u); negative where the energy falls on both sides
    displacements: FloatArray  # (n_modes, n_atoms, 3), 1/√u: M^(-1/2) times orthonormal eigenvectors

    @property
    def wavenumbers(self) -> FloatArray:
        """(n_modes,) cm⁻¹; imaginary ones as negative numbers."""
        size = WAVENUMBER * np.sqrt(np.abs(self.squared_frequencies))
        return np.copysign(size, self.squared_frequencies)

    @property
    def lowest_wavenumber(self) -> float:
        """cm⁻¹; ∞ of a single atom."""
        return float(self.wavenumbers.min(initial=np.inf))


def force_constants(atoms: Atoms) -> FloatArray:
    """Return ∂²E/∂x∂x by central differences of the forces of the atoms' calculator, (3n, 3n), eV/Å²."""
    rows = []
    for coordinate in range(3 * len(atoms)):
        shift = np.zeros(3 * len(atoms))
        shift[coordinate] = STEP
        forward, backward = (_forces(atoms, sign * shift.reshape(-1, 3)) for sign in (1, -1))
        rows.append((backward - forward).ravel() / (2 * STEP))
    constants = np.array(rows)
    return (constants + constants.T) / 2


def normal_modes(atoms: Atoms, constants: FloatArray) -> Modes:
    """Return eigenvectors of M^(-1/2) H M^(-1/2) orthogonal to translations and rotations."""
    root_mass = np.sqrt(np.repeat(atoms.get_masses(), 3))
    vibrations = _orthogonal_complement(_rigid_motions(atoms) * root_mass)
    weighted = constants / np.outer(root_mass, root_mass)
    squared, vectors = np.linalg.eigh(vibrations @ weighted @ vibrations.T)
    displacements = vectors.T @ vibrations / root_mass
    return Modes(squared_frequencies=squared, displacements=displacements.reshape(-1, len(atoms), 3))


def thermal_displacements(
    modes: Modes, temperature: float, n: int, generator: np.random.Generator, *, softest: float
) -> FloatArray:
    """Draw displacements of the classical harmonic molecule: amplitudes N(0, kT/ω²). Return (n, n_atoms, 3), Å.

    Arguments:
        temperature: K.
        softest: cm⁻¹. Softer modes move only as far as a mode of this wavenumber: large displacements along a straight
            line would break bonds.
    """
    squared = np.maximum(modes.squared_frequencies, (softest / WAVENUMBER) ** 2)
    amplitudes = generator.normal(size=(n, len(squared))) * np.sqrt(units.kB * temperature / squared)
    return np.einsum("nm,mac->nac", amplitudes, modes.displacements)


def _forces(atoms: Atoms, shift: FloatArray) -> FloatArray:
    moved = atoms.copy()
    moved.positions += shift
    moved.calc = atoms.calc
    return np.array(moved.get_forces())


def _rigid_motions(atoms: Atoms) -> FloatArray:
    """Translations along and rotations about three axes through the centre of mass, (6, 3n)."""
    centered = atoms.positions - atoms.get_center_of_mass()
    translations = [np.tile(axis, (len(atoms), 1)) for axis in np.eye(3)]
    rotations = [np.cross(axis, centered) for axis in np.eye(3)]
    return np.array(translations + rotations).reshape(6, -1)


def _orthogonal_complement(vectors: FloatArray) -> FloatArray:
    """Orthonormal rows orthogonal to the vectors (rows). A linear molecule has one rotation less."""
    _, sizes, rows = np.linalg.svd(vectors, full_matrices=True)
    rank = int((sizes > 1e-3 * sizes.max()).sum())
    return rows[rank:]
