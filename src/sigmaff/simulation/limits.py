"""Limits on σ of a structure that moves, and which of them a prediction exceeds.

Three σ are looked at, because each misses something. Force σ has a promise behind it where a limit is found by risk
control, but it vanishes by symmetry for an isolated atom. Energy σ is taken per atom, so that a large structure does
not exceed its limit by its size alone; one strange molecule in a large box is then diluted. The σ of single atoms is
not, but not every model has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sigmaff.errors import ConfigError
from sigmaff.models import Model
from sigmaff.models.prediction import FloatArray, Predictor
from sigmaff.models.std_range import StdRange
from sigmaff.simulation.results import Results

FACTOR = 2.0
"""Times the largest σ known: the limit without a promise. A limit by risk control is at most once the largest."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest σ that is accepted; ``None``: no limit."""

    forces: float | None = None  # eV/Å, force σ of an atom, the norm of its components
    energy: float | None = None  # eV/atom, energy σ of the structure, without that of its composition
    atom: float | None = None  # eV, ``energies_uncertainty`` of an atom


Above = float | Limits | Literal["auto"] | None
"""A limit on σ: on force σ in eV/Å; on several σ; ``FACTOR`` times the largest σ that the model was calibrated on."""

Looked = Literal["forces", "energy", "atom"]
NAMES: dict[Looked, tuple[str, str]] = {
    "forces": ("force σ", "eV/Å"),
    "energy": ("energy σ", "eV/atom"),
    "atom": ("atomic σ", "eV"),
}
"""Names for people, and units."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One σ of a structure, and its limit."""

    of: Looked
    value: float
    atom: int | None  # that has it; None: the whole structure
    limit: float | None

    @property
    def name(self) -> str:
        return NAMES[self.of][0]

    @property
    def unit(self) -> str:
        return NAMES[self.of][1]

    @property
    def share(self) -> float:
        """Of the limit; 0 without a limit."""
        return 0.0 if self.limit is None else self.value / self.limit

    @property
    def is_above(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        where = "" if self.atom is None else f" at atom {self.atom}"
        return f"{self.name} of {self.value:.3g} {self.unit}{where}"


def known_range(model: Predictor) -> StdRange | None:
    """σ on the structures that the model was calibrated on, if its file records it."""
    return model.std_range if isinstance(model, Model) else None


def range_limits(model: Predictor) -> Limits:
    """Where σ leaves its range on the structures that the model was calibrated on."""
    if (known := known_range(model)) is None:
        has_none = isinstance(model, Model) and model.kind is None
        why = "gives no σ" if has_none else "does not record the range of its σ; sigmaff calibrate records it"
        raise ConfigError(f"the model {why}: there is no limit auto; give --stop-above (stop_above) in eV/Å, or none")
    largest = {name: getattr(known, name) for name in NAMES}
    return Limits(**{name: FACTOR * found.largest for name, found in largest.items() if found is not None})


def limits_of(name: str, above: Above, model: Predictor) -> Limits:
    """The limits that an argument of this name asks for."""
    if above is None:
        return Limits()
    if above == "auto":
        return range_limits(model)
    limits = above if isinstance(above, Limits) else Limits(forces=above)
    if not all(limit is None or (isinstance(limit, float | int) and limit > 0) for limit in vars(limits).values()):
        raise ConfigError(f'{name} is {above!r}; it must be a force σ above 0 in eV/Å, "auto", Limits, or None')
    return limits


def readings(results: Results, limits: Limits) -> list[Reading]:
    """The σ that results under ASE's names hold, each the largest of an atom, or of the structure per atom."""
    found = []
    if (forces := results.get("forces_uncertainty")) is not None:
        found.append(_largest("forces", np.linalg.norm(forces, axis=1), limits.forces))
    if "energy_uncertainty" in results:
        value = method_energy_std(results) / len(results["forces"])
        found.append(Reading(of="energy", value=value, atom=None, limit=limits.energy))
    if (atoms := results.get("energies_uncertainty")) is not None:
        found.append(_largest("atom", np.asarray(atoms), limits.atom))
    return found


def exceeded(found: Sequence[Reading]) -> Reading | None:
    """The reading that exceeds its limit by the largest factor; ``None``: none does."""
    above = [reading for reading in found if reading.is_above]
    return max(above, key=lambda reading: reading.share, default=None)


def nearest(found: Sequence[Reading]) -> Reading:
    """The reading nearest to its limit; without limits the largest of forces."""
    return max(found, key=lambda reading: (reading.share, reading.of == "forces", reading.value))


def method_energy_std(results: Results) -> float:
    """Energy σ without the part of the composition, eV: that part is the same for all structures of a run."""
    total, composition = float(results["energy_uncertainty"]), float(results.get("composition_uncertainty", 0.0))
    return float(np.sqrt(max(total**2 - composition**2, 0.0)))


def _largest(of: Literal["forces", "atom"], values: FloatArray, limit: float | None) -> Reading:
    atom = int(values.argmax())
    return Reading(of=of, value=float(values[atom]), atom=atom, limit=limit)
