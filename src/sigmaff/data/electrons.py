"""Total charge and spin that structures state in ``info``. A model has no input for them: it knows one state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms

from sigmaff.data.structures import LabelledStructures
from sigmaff.errors import DataError

CHARGE_KEYS = ("charge", "total_charge", "molecular_charge", "net_charge")
MULTIPLICITY_KEYS = ("multiplicity", "spin_multiplicity", "mult")
SPIN_KEYS = ("spin", "total_spin")
"""Programs write 2S + 1, 2S or S under these; see ``_multiplicity``."""


@dataclass(frozen=True, kw_only=True)
class ElectronicState:
    """Charge and spin of structures; ``None``: not stated."""

    charge: float | None = None  # e, of the whole structure
    excess_spin: int | None = None  # unpaired electrons beyond the fewest that their number allows, which are 0 or 1

    def __str__(self) -> str:
        """For people."""
        charge = [] if self.charge is None else [_charge(self.charge)]
        return ", ".join(charge + ([] if self.excess_spin is None else [_spin(self.excess_spin)])) or "not stated"


NOT_STATED = ElectronicState()


def stated_state(atoms: Atoms) -> ElectronicState:
    """What a structure states. Arrays, such as charges of atoms, are none of it; a free atom has the spin it has."""
    charge = stated_number(atoms, CHARGE_KEYS)
    multiplicity = _multiplicity(atoms, charge) if len(atoms) > 1 else None
    return ElectronicState(charge=charge, excess_spin=None if multiplicity is None else excess_spin(multiplicity))


def excess_spin(multiplicity: int) -> int:
    """Unpaired electrons beyond 0 or 1, whichever their number allows, of a multiplicity 2S + 1."""
    return (multiplicity - 1) // 2 * 2


def common_state(structures: LabelledStructures) -> ElectronicState:
    """The one state of all structures; several are a ``DataError``. Free atoms do not count: they are references.

    A structure that states nothing has the state of the others if that is the usual one: no charge, lowest spin.
    """
    chosen = [index for index, atoms in enumerate(structures.structures) if len(atoms) > 1]
    stated = {index: stated_state(structures.structures[index]) for index in chosen or range(len(structures))}
    charge = _common(structures, {index: state.charge for index, state in stated.items()}, _charge)
    spin = _common(structures, {index: state.excess_spin for index, state in stated.items()}, _spin)
    return ElectronicState(charge=charge, excess_spin=spin)


def other_state(atoms: Atoms, known: ElectronicState, *, of: str = "the model") -> str | None:
    """How a structure contradicts a known state, for an error message; ``None``: it does not.

    What one of both does not state is not compared.

    Arguments:
        of: what has the known state, of which there is one for all structures.
    """
    stated = stated_state(atoms)
    pairs = ((stated.charge, known.charge, _charge), (stated.excess_spin, known.excess_spin, _spin))
    for found, trained, words in pairs:
        if found is not None and trained is not None and found != trained:
            return (
                f"info states {words(found)}, but {of} is for {words(trained)} alone: leave the structure out, correct "
                f"its info, or use another {of.removeprefix('the ')}"
            )
    return None


def require_state(structures: LabelledStructures, known: ElectronicState, *, of: str = "the model") -> None:
    """Raise a ``DataError`` that names the first structure of another state."""
    for index, atoms in enumerate(structures.structures):
        if problem := other_state(atoms, known, of=of):
            raise DataError(f"{structures.frame_name(index)}: {problem}")


def _common(structures: LabelledStructures, stated: dict[int, Any], words: Any) -> Any:
    """The only value that is stated, or ``None``. stated: by index of a structure."""
    first: dict[Any, int] = {}
    for index, value in stated.items():
        first.setdefault(value, int(structures.frame_index[index]))
    said = [value for value in first if value is not None]
    if len(said) > 1 or (None in first and said and said[0] != 0):
        told = ", ".join(
            f"frame {frame} states {'nothing' if value is None else words(value)}" for value, frame in first.items()
        )
        raise DataError(
            f"{structures.source}: structures of several charges or spins: {told}. A model has no input for these: "
            "write the frames of one state to a file of their own, state it in each, and train on that file"
        )
    return said[0] if said else None


def _charge(charge: float) -> str:
    return f"total charge {charge:g}"


def _spin(excess: float) -> str:
    return f"a spin of {excess:g} more unpaired electrons than the lowest" if excess else "the lowest spin"


def _multiplicity(atoms: Atoms, charge: float | None) -> int | None:
    """2S + 1. Under ``SPIN_KEYS`` a fraction is S; of 2S and 2S + 1 only one fits the number of electrons."""
    multiplicity, spin = stated_number(atoms, MULTIPLICITY_KEYS), stated_number(atoms, SPIN_KEYS)
    if multiplicity is None and spin is not None:
        n_electrons = int(atoms.numbers.sum()) - round(charge or 0.0)
        multiplicity = 2 * spin + 1 if spin % 1 else spin + (spin % 2 == n_electrons % 2)
    possible = multiplicity is not None and multiplicity >= 1 and multiplicity.is_integer()
    return int(multiplicity) if multiplicity is not None and possible else None


def stated_number(atoms: Atoms, keys: Sequence[str]) -> float | None:
    """The number that ``info`` has under the first of these keys, in any case; ``None`` if there is none."""
    found = {str(name).lower(): _number(value) for name, value in atoms.info.items()}
    return next((value for key in keys if (value := found.get(key)) is not None), None)


def _number(value: Any) -> float | None:
    try:
        number = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return round(number.item(), 6) + 0.0 if number.size == 1 and math.isfinite(number.item()) else None
