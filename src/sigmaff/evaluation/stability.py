"""What a stability test finds: how long runs at constant energy stay where the model is known, and whole."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StabilityRun:
    """One run. fs, eV, K; ``None``: it did not happen."""

    frame: int  # of the start, in its file
    length: float  # fs, until it ended
    crossed_at: float | None = None  # fs, first σ above its limit
    crossed: str = ""  # which σ
    bonds_at: float | None = None  # fs, first other bond than at the start
    bonds: str = ""  # which bond
    broke_at: float | None = None  # fs, at which it could not go on
    broke: str = ""  # why
    drift: float | None = None  # eV/atom/ps, slope of the total energy; None: too short
    temperature: float | None = None  # K, mean; None: too short

    @property
    def is_whole(self) -> bool:
        """Neither broken, nor with other bonds than at the start."""
        return self.broke_at is None and self.bonds_at is None


@dataclass(frozen=True, kw_only=True)
class Stability:
    """Runs at constant energy from several structures, with velocities of one temperature."""

    name: str  # of the structures
    temperature: float  # K
    temperature_from: str  # where it comes from, in words
    length: float  # fs, of a run that goes to its end
    timestep: float  # fs
    limits: str  # on σ, in words; empty: there are none
    runs: Sequence[StabilityRun]

    @property
    def n_within(self) -> int:
        """Runs that went to their end with every σ below its limit."""
        return sum(run.crossed_at is None and run.broke_at is None for run in self.runs)

    @property
    def n_whole(self) -> int:
        return sum(run.is_whole for run in self.runs)

    @property
    def headline(self) -> str:
        """What was found, in one sentence or two."""
        n, span = len(self.runs), _time(self.length)
        words = f"of {n} runs of {span} at {self.temperature:.0f} K, {self.n_whole} stay whole"
        ends = [run.broke_at for run in self.runs if run.broke_at is not None]
        words += f" (the first breaks after {_time(min(ends))})" if ends else ""
        if not self.limits:
            return f"{words}; σ has no limit, so it is not watched"
        words += f" and {self.n_within} go to their end with σ within its range"
        crossed = [run.crossed_at for run in self.runs if run.crossed_at is not None]
        return words + (f" (the first leaves it after {_time(min(crossed))})" if crossed else "")

    def rows(self) -> list[list[str]]:
        """A table for people, its header first."""
        table = [["start", "σ too large", "bond", "breaks", "drift, meV/atom/ps", "mean T, K"]]
        for run in self.runs:
            events = ((run.crossed_at, run.crossed), (run.bonds_at, run.bonds), (run.broke_at, run.broke))
            cells = ["–" if at is None else f"{_time(at)}: {what}" for at, what in events]
            numbers = (None if run.drift is None else 1e3 * run.drift, run.temperature)
            table.append([f"frame {run.frame}", *cells, *("–" if x is None else f"{x:.3g}" for x in numbers)])
        return table

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self) | {"headline": self.headline, "n_within": self.n_within, "n_whole": self.n_whole}


def _time(femtoseconds: float) -> str:
    return f"{femtoseconds / 1000:.3g} ps" if femtoseconds >= 1000 else f"{femtoseconds:.4g} fs"
