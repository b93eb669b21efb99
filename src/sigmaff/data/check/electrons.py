"""Check charges and numbers of electrons, as far as frames state them in ``info``."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ase import Atoms

from sigmaff.data.check.finding import Finding, findings
from sigmaff.data.electrons import CHARGE_KEYS, MULTIPLICITY_KEYS, stated_number, stated_state
from sigmaff.data.structures import LabelledStructures


def check_electrons(data: LabelledStructures) -> Iterator[Finding]:
    """Find several charges or spins in one file, and odd numbers of electrons in molecules.

    Single atoms and periodic structures have odd numbers of electrons with good reason. So they do not count.
    """
    several = [index for index, atoms in enumerate(data.structures) if len(atoms) > 1]
    states = {index: stated_state(data.structures[index]) for index in several}
    yield from _mixed(data, {index: state.charge or 0.0 for index, state in states.items()}, "total charge")
    yield from _mixed(data, {index: state.excess_spin for index, state in states.items()}, "excess spin")
    molecules = [index for index in several if not data.structures[index].pbc.any()]
    odd = [index for index in molecules if _n_electrons(data.structures[index]) % 2]
    counts = sorted({_n_electrons(data.structures[index]) for index in odd})
    shown = ", ".join(map(str, counts[:3])) + (", …" if len(counts) > 3 else "")
    is_stated = bool(odd) and all(states[index].charge is not None for index in odd)
    guess = "a radical" if is_stated else "a cation, an anion or a radical? The frames state no charge"
    message = f"an odd number of electrons ({shown}): {guess}. A model learns one charge and one spin"
    yield from findings("warning", "odd_electrons", message, data, odd)
    impossible = [index for index in molecules if _is_impossible(data.structures[index])]
    message = "charge and multiplicity contradict each other: an even number of electrons has an odd multiplicity"
    yield from findings("warning", "impossible_multiplicity", message, data, impossible)


def _mixed(data: LabelledStructures, stated: Mapping[int, float | None], name: str) -> Iterator[Finding]:
    """Values that differ; stated: by index of a structure."""
    counts = Counter(value for value in stated.values() if value is not None)
    if len(counts) < 2:
        return
    common, *others = (value for value, _ in counts.most_common())
    shown = " and ".join(f"{value:g} ({counts[value]} frames)" for value in (common, *others[:2]))
    message = (
        f"several values of the {name}: {shown}; a model has no input for it. Train on the frames of one {name}, in a "
        "file of their own"
    )
    differing = [index for index, value in stated.items() if value is not None and value != common]
    yield from findings("error", f"mixed_{name.split()[-1]}", message, data, differing)


def _n_electrons(atoms: Atoms) -> int:
    return int(atoms.numbers.sum()) - round(stated_number(atoms, CHARGE_KEYS) or 0.0)


def _is_impossible(atoms: Atoms) -> bool:
    multiplicity = stated_number(atoms, MULTIPLICITY_KEYS)
    return multiplicity is not None and (_n_electrons(atoms) + round(multiplicity)) % 2 == 0
