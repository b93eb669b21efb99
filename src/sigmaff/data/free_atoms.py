"""Energies of free atoms by a named method, computed on the spot."""

import re
from collections.abc import Iterable
from typing import Literal, get_args

from ase import Atoms
from ase.data import chemical_symbols, ground_state_magnetic_moments

from sigmaff.data.labelling import EngineConfig, LabelError, label
from sigmaff.data.structures import LabelledStructures
from sigmaff.errors import ConfigError
from sigmaff.extras import require

FreeAtomMethod = Literal["gfn2-xtb", "gfn1-xtb"]
"""Methods whose free atoms take milliseconds."""
FREE_ATOM_METHODS: tuple[FreeAtomMethod, ...] = get_args(FreeAtomMethod)
NAMES: dict[FreeAtomMethod, re.Pattern[str]] = {
    "gfn2-xtb": re.compile(r"gfn-?2", re.IGNORECASE),
    "gfn1-xtb": re.compile(r"gfn-?1", re.IGNORECASE),
}
"""How files write them: GFN2-xTB, gfn2, GFN-2, ..."""

LANTHANIDES = range(58, 72)
"""Their f electrons belong to the core in both methods, which leaves three, two of them paired."""


def free_atoms(method: FreeAtomMethod, elements: Iterable[int]) -> dict[int, float]:
    """Energy of a free, neutral atom of each element in the spin of its ground state, eV, by atomic number.

    Arguments:
        method: of tblite.
        elements: atomic numbers.
    """
    require(f"free atoms of {method}", "tblite")
    return {number: _free_atom(method, number) for number in elements}


def _free_atom(method: FreeAtomMethod, number: int) -> float:
    unpaired = 1 if number in LANTHANIDES else round(float(ground_state_magnetic_moments[number]))
    try:
        atom = label(Atoms([number]), EngineConfig(calculator=method, multiplicity=1 + unpaired))
    except LabelError as error:
        raise ConfigError(
            f"reference_energies: {method}: no energy of a free atom of {chemical_symbols[number]} ({error}); give "
            "energies in eV by symbol"
        ) from None
    return float(atom.get_potential_energy())


def named_method(structures: LabelledStructures) -> FreeAtomMethod | None:
    """The method that the structures name in ``info``, under any key; ``None`` if they name none, or several."""
    texts = {value for atoms in structures.structures for value in atoms.info.values() if isinstance(value, str)}
    found = [method for method, pattern in NAMES.items() if any(map(pattern.search, texts))]
    return found[0] if len(found) == 1 else None
