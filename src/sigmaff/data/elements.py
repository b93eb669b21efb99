"""Elements that a model was not trained on: how to find them, and how to say so."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols

from sigmaff.data.structures import LabelledStructures
from sigmaff.errors import DataError


def symbols(elements: Sequence[int]) -> str:
    """Chemical symbols of atomic numbers, for messages."""
    return ", ".join(chemical_symbols[number] for number in elements)


def unknown_element(atomic_numbers: npt.ArrayLike, known: Sequence[int], *, reason: str | None = None) -> str | None:
    """The first atom of an unknown element and what to do about it, for an error message; ``None`` if all are known.

    Arguments:
        atomic_numbers: (n_atoms,) of one structure.
        known: atomic numbers that the model was trained on.
        reason: what follows "atom 3 is Cl, "; by default that the model was not trained on it.
    """
    numbers = np.asarray(atomic_numbers)
    unknown = np.flatnonzero(~np.isin(numbers, known))
    if not unknown.size:
        return None
    default = (
        f"an element this model was not trained on (it knows {symbols(known)}); "
        "leave the structure out, or train on structures that contain it"
    )
    return f"atom {unknown[0]} is {chemical_symbols[numbers[unknown[0]]]}, {reason or default}"


def require_elements(structures: LabelledStructures, known: Sequence[int], *, reason: str | None = None) -> None:
    """Raise a ``DataError`` that names the first structure and atom of an unknown element; see ``unknown_element``."""
    for index, atoms in enumerate(structures.structures):
        if problem := unknown_element(atoms.numbers, known, reason=reason):
            raise DataError(f"{structures.frame_name(index)}: {problem}")
