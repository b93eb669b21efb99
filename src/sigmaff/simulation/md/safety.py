"""Safety stops beside the limit on force σ: on energy σ per atom, and on the σ of single atoms.

They are for what force σ does not see, such as an isolated atom, whose force σ is 0 by symmetry. They carry no promise
of their own, and take none away: a run that they also stop is stopped no later, so no further error passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.limits import FACTOR
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.pilots import PilotRun
from sigmaff.simulation.md.threshold import Scores


@dataclass(frozen=True, kw_only=True)
class KnownStd:
    """The largest σ of structures that are known; ``None``: the model has none, or it is 0."""

    energy: float | None  # eV/atom, of a structure, without that of its composition
    atom: float | None  # eV, of an atom's share of the energy
    origin: str  # which structures, in words

    @classmethod
    def of_structures(cls, scores: Scores, origin: str) -> "KnownStd":
        """Of labelled structures that the model was not trained on."""
        return cls(energy=_largest(scores.energy_std), atom=_largest(scores.atom_std), origin=origin)

    @classmethod
    def of_runs(cls, runs: Sequence[PilotRun]) -> "KnownStd":
        """Of the checks of pilot runs before their first error."""
        energy = [run.energy_std[run.is_right] for run in runs if run.energy_std is not None]
        atom = [run.atom_std[run.is_right] for run in runs if run.atom_std is not None]
        largest = [_largest(np.concatenate(values) if values else None) for values in (energy, atom)]
        origin = f"the checks of the {len(runs)} pilot runs before their first error"
        return cls(energy=largest[0], atom=largest[1], origin=origin)


@dataclass(frozen=True, kw_only=True)
class Safety:
    """Limits of the safety stops; ``None``: there is none."""

    energy: float | None  # eV/atom
    atom: float | None  # eV
    statement: str


def choose_safety(config: MDConfig, known: KnownStd | None, *, factor: float = FACTOR) -> Safety | None:
    """The safety stops that the settings ask for; ``None`` without any.

    Arguments:
        known: for "auto", which is off without it.
        factor: of "auto", times the largest σ known.
    """
    limits: dict[str, float | None] = {}
    words = []
    for key, name, unit, setting, largest in (
        ("energy", "energy σ", "eV/atom", config.stop_above_energy, None if known is None else known.energy),
        ("atom", "atomic σ", "eV", config.stop_above_atom, None if known is None else known.atom),
    ):
        limits[key], origin = None, ""
        if isinstance(setting, float):
            limits[key], origin = setting, "as given"
        elif setting == "auto" and known is not None and largest is not None:
            limits[key], origin = factor * largest, f"{factor:g} times the largest of {known.origin}"
        if origin:
            words.append(f"{name} above {limits[key]:.4g} {unit} ({origin})")
    if not words:
        return None
    statement = f"safety stops: {' or '.join(words)}. They promise nothing by themselves; they only stop more"
    return Safety(energy=limits["energy"], atom=limits["atom"], statement=statement)


def _largest(values: FloatArray | None) -> float | None:
    largest = 0.0 if values is None or not values.size else float(values.max())
    return largest if largest > 0 else None
