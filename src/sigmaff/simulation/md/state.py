"""Replicas that move together, as arrays: what stays the same of them, and their state at one step.

A state is never changed in place: the next one shares what did not change, so that keeping states costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms, units

from sigmaff.models.prediction import FloatArray

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
State = dict[str, npt.NDArray[Any]]
"""Arrays by name, of many replicas, or of one. Those in ``PER_ATOM`` are (n_atoms, 3), all others (n_replicas, ...)."""
PER_ATOM = ("positions", "momenta", "forces")
FORMER_NAMES = {
    "_thermostat._eta": "thermostat",
    "_thermostat._p_eta": "thermostat_momenta",
    "_barostat._xi": "barostat",
    "_barostat._p_xi": "barostat_momenta",
    "_p_eps": "cell_momenta",
    "_p_g": "cell_momenta",
}
"""Names in checkpoints of version 0.1.0."""


@dataclass(frozen=True, kw_only=True)
class System:
    """What stays the same of replicas that move together; atoms of all replicas in one row."""

    numbers: IndexArray  # (n_atoms,) elements
    masses: FloatArray  # (n_atoms, 1) u
    n_atoms: IndexArray  # (n_replicas,) of each replica
    periodic: BoolArray  # (n_replicas, 3)

    @classmethod
    def of(cls, structures: Sequence[Atoms]) -> "System":
        return cls(
            numbers=np.concatenate([atoms.numbers for atoms in structures]).astype(np.int64),
            masses=np.concatenate([atoms.get_masses() for atoms in structures])[:, None],
            n_atoms=np.array([len(atoms) for atoms in structures]),
            periodic=np.array([atoms.pbc for atoms in structures]),
        )

    @property
    def n_replicas(self) -> int:
        return len(self.n_atoms)

    @cached_property
    def first_atom(self) -> IndexArray:
        """Of each replica, (n_replicas,)."""
        return np.cumsum(self.n_atoms) - self.n_atoms

    @cached_property
    def replica(self) -> IndexArray:
        """Of each atom, (n_atoms,)."""
        return np.repeat(np.arange(self.n_replicas), self.n_atoms)

    @cached_property
    def total_mass(self) -> FloatArray:
        """u, (n_replicas, 1)."""
        return self.sum(self.masses)

    def atoms(self, replica: int) -> slice:
        first = int(self.first_atom[replica])
        return slice(first, first + int(self.n_atoms[replica]))

    def sum(self, values: FloatArray) -> FloatArray:
        """Over the atoms of each replica: (n_atoms, ...) → (n_replicas, ...)."""
        return np.add.reduceat(values, self.first_atom, axis=0)

    def largest(self, values: FloatArray) -> FloatArray:
        """Of the atoms of each replica: (n_atoms,) → (n_replicas,)."""
        return np.maximum.reduceat(values, self.first_atom)

    def doubled_kinetic(self, momenta: FloatArray) -> FloatArray:
        """Σp²/m, twice the kinetic energy, (n_replicas,) eV."""
        return self.sum((np.square(momenta) / self.masses).sum(1))

    def temperature(self, momenta: FloatArray) -> FloatArray:
        """K, (n_replicas,), with the centre of mass at rest: 3n − 3 degrees of freedom."""
        return self.doubled_kinetic(momenta) / ((3 * self.n_atoms - 3) * units.kB)

    def select(self, chosen: BoolArray) -> "System":
        """Of these replicas alone."""
        atoms = chosen[self.replica]
        return System(
            numbers=self.numbers[atoms],
            masses=self.masses[atoms],
            n_atoms=self.n_atoms[chosen],
            periodic=self.periodic[chosen],
        )

    def selected(self, state: State, chosen: BoolArray) -> State:
        """The state of these replicas alone."""
        atoms = chosen[self.replica]
        return {name: values[atoms if name in PER_ATOM else chosen] for name, values in state.items()}

    def part(self, state: State, replica: int) -> State:
        """The state of one replica, without an axis of replicas."""
        atoms = self.atoms(replica)
        return {name: values[atoms if name in PER_ATOM else replica].copy() for name, values in state.items()}

    def replaced(self, state: State, replica: int, part: State) -> State:
        """The state with that of one replica replaced."""
        changed = {name: values.copy() for name, values in state.items()}
        for name, values in part.items():
            changed[name][self.atoms(replica) if name in PER_ATOM else replica] = values
        return changed


def joined(parts: Sequence[State]) -> State:
    """One state of several replicas."""
    return {
        name: np.concatenate([part[name] for part in parts])
        if name in PER_ATOM
        else np.stack([part[name] for part in parts])
        for name in parts[0]
    }
