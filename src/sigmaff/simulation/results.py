"""Results of a calculator in the structure itself, where files keep them.

ASE's writers save energy, forces and stress of a calculator and drop all that they do not know, such as σ. They do
save ``atoms.info`` (extxyz and traj) and ``atoms.arrays`` (extxyz alone).
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator

PerAtom = Literal["arrays", "info"]
PER_STRUCTURE_KEYS = ("energy_uncertainty",)
PER_ATOM_KEYS = ("energies_uncertainty", "forces_uncertainty")


def store_results(atoms: Atoms, *, per_atom: PerAtom = "arrays") -> None:
    """Copy the σ of the structure as it is now into ``atoms.info`` and, where per atom, ``atoms.arrays``.

    Energy, forces and stress stay in the attached calculator, from which ASE's writers take them, brought up to date.
    σ stored earlier is replaced, or removed where there is none any more. ``per_atom="info"`` puts σ per atom into
    ``atoms.info`` instead, for .traj files, which drop ``atoms.arrays``.
    """
    _store(atoms, _current_results(atoms), per_atom)


def snapshot(atoms: Atoms, *, per_atom: PerAtom = "arrays") -> Atoms:
    """A copy that keeps its results whatever becomes of ``atoms`` and its calculator: a frame to collect or write.

    Energy, forces and stress are in a ``SinglePointCalculator``, σ is where ``store_results`` puts it.
    """
    results = _current_results(atoms)
    frame = atoms.copy()
    known = {name: results[name] for name in all_properties if name in results}
    frame.calc = SinglePointCalculator(frame, **known)
    frame.calc.name = atoms.calc.name
    _store(frame, results, per_atom)
    return frame


def _current_results(atoms: Atoms) -> Mapping[str, Any]:
    atoms.get_potential_energy()
    return atoms.calc.results


def _store(atoms: Atoms, results: Mapping[str, Any], per_atom: PerAtom) -> None:
    for key in (*PER_STRUCTURE_KEYS, *PER_ATOM_KEYS):
        atoms.info.pop(key, None)
        atoms.arrays.pop(key, None)
    holder = {"arrays": atoms.arrays, "info": atoms.info}[per_atom]
    atoms.info.update({key: results[key] for key in PER_STRUCTURE_KEYS if key in results})
    holder.update({key: np.array(results[key]) for key in PER_ATOM_KEYS if key in results})
