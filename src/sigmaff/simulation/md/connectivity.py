"""Molecules that fall apart: atoms that lose all their neighbours, and bonds of the start that break.

No σ has to be right for this: it is geometry alone. What a start has not, it cannot lose: an atom that is isolated from
the beginning stops nothing.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.symbols import Symbols

from sigmaff.graph import Pairs, SkinList
from sigmaff.simulation.md.state import BoolArray, IndexArray, System

BONDED, APART = 1.25, 1.6
"""Two atoms have a bond if they are closer than this many sums of their covalent radii, and none beyond the second.

In between nothing is said: bonds vibrate."""

Watched = Literal["isolated", "bonds", "off"]
"""What ends a replica: an atom that loses all neighbours; also a bond that breaks; neither."""
Lost = Literal["isolated", "bond broken"]


class Connectivity:
    """What the starts of a system have that may get lost: of each atom whether it has neighbours; bonds."""

    def __init__(self, system: System, cutoff: float, has_neighbors: BoolArray, bonds: IndexArray) -> None:
        """
        cutoff: of neighbours, Å.
        has_neighbors: (n_atoms,) at the start.
        bonds: (2, n_bonds) atoms of the system, the lower one first.
        """
        self.system, self.cutoff, self.has_neighbors, self.bonds = system, cutoff, has_neighbors, bonds
        self.radii = APART * covalent_radii[system.numbers]
        self._bond_keys = self._keys(bonds)

    @classmethod
    def of(cls, starts: Sequence[Atoms], cutoff: float, watched: Watched) -> "Connectivity":
        """
        cutoff: of neighbours, Å.
        watched: isolated or bonds.
        """
        system, radii = System.of(starts), np.concatenate([covalent_radii[atoms.numbers] for atoms in starts])
        cells = np.array([atoms.cell.array for atoms in starts])
        neighbors = SkinList(system.n_atoms.tolist(), system.periodic, max(cutoff, 2.0 * BONDED * float(radii.max())))
        pairs = neighbors.pairs(np.concatenate([atoms.positions for atoms in starts]), cells)
        has_neighbors = np.zeros(len(radii), dtype=bool)
        has_neighbors[pairs.atoms[:, pairs.distance <= cutoff]] = True
        is_bond = (pairs.distance < BONDED * radii[pairs.atoms].sum(0)) & (watched == "bonds")
        return cls(system, cutoff, has_neighbors, np.unique(np.sort(pairs.atoms[:, is_bond], axis=0), axis=1))

    @property
    def reach(self) -> float:
        """Å, how far pairs have to be known."""
        return max(self.cutoff, 2.0 * float(self.radii.max()) if self.bonds.size else 0.0)

    def select(self, chosen: BoolArray) -> "Connectivity":
        """Of these replicas alone."""
        kept = chosen[self.system.replica]
        number = np.cumsum(kept) - 1
        bonds = number[self.bonds[:, kept[self.bonds[0]]]]
        return Connectivity(self.system.select(chosen), self.cutoff, self.has_neighbors[kept], bonds)

    def lost(self, pairs: Pairs) -> dict[int, tuple[Lost, str]]:
        """By replica: the first bond that is broken, or atom that is alone, among pairs up to ``reach``."""
        found: dict[int, tuple[Lost, str]] = {}
        if self.bonds.size:
            first, second = pairs.atoms
            near = pairs.atoms[:, pairs.distance < self.radii[first] + self.radii[second]]
            is_broken = ~np.isin(self._bond_keys, self._keys(np.sort(near, axis=0)))
            for one, other in self.bonds[:, is_broken].T[::-1].tolist():
                text = f"the bond {self._name(one)}–{self._name(other)} is broken"
                found[int(self.system.replica[one])] = ("bond broken", text)
        alone = self.has_neighbors.copy()
        alone[pairs.atoms[:, pairs.distance <= self.cutoff]] = False
        for atom in np.flatnonzero(alone)[::-1].tolist():
            text = f"atom {self._name(atom)} has no neighbour left within {self.cutoff:g} Å: the model does not see it"
            found[int(self.system.replica[atom])] = ("isolated", text)
        return found

    def _keys(self, pairs: IndexArray) -> IndexArray:
        return pairs[0] * len(self.system.numbers) + pairs[1]

    def _name(self, atom: int) -> str:
        index = atom - int(self.system.first_atom[self.system.replica[atom]])
        return f"{Symbols(self.system.numbers[[atom]])}{index}"
