"""One replica: where it comes from, its random numbers, and its outcome so far."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from ase import Atoms

from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.drift import DriftMonitor, DriftRule
from sigmaff.simulation.md.integrator import drawn_momenta, temperature_of
from sigmaff.simulation.md.output import trajectory_name
from sigmaff.simulation.md.state import State

Ending = Literal["finished", "crossing", "overlap", "not finite", "temperature", "isolated", "bond broken"]


@dataclass
class Record:
    """The outcome of a replica so far."""

    ending: Ending | None = None  # None: running
    message: str = ""
    ended_at: int | None = None  # step
    checks: int = 0  # of σ
    above: int = 0  # of these, with a σ above its limit
    crossings: int = 0
    outside: bool = False  # a σ was above its limit at the last check
    drift_step: int | None = None  # of the alarm of the drift monitor


@dataclass(frozen=True)
class Origin:
    """What a replica starts from."""

    number: int
    start: int  # index of its structure
    temperature: float | None  # K


class Replica:
    """What a replica has for itself. Where it is, is in the state of the batch that it moves in."""

    def __init__(self, origin: Origin, atoms: Atoms, config: MDConfig, drift: DriftRule | None) -> None:
        self.origin = origin
        self.monitor = None if drift is None else DriftMonitor(drift)
        self.trajectory = trajectory_name(origin.number)
        self.rng = np.random.default_rng([config.seed, origin.number])
        self.atoms = atoms.copy()  # the start
        if origin.temperature is not None:
            masses = self.atoms.get_masses()[:, None]
            self.atoms.set_momenta(drawn_momenta(masses, origin.temperature, self.rng))
        self.target = temperature_of(self.atoms) if origin.temperature is None else origin.temperature
        self.record = Record()
        self.history: State = {}  # states along the first axis when it was loaded or ended; the last is where it was

    @property
    def running(self) -> bool:
        return self.record.ending is None

    def start(self) -> State:
        return {
            "positions": self.atoms.get_positions(),
            "momenta": self.atoms.get_momenta(),
            "cell": self.atoms.cell.array.copy(),
            "step": np.array(0),
            "trajectory": np.array(0),
        }

    def end(self, ending: Ending, message: str, step: int) -> None:
        self.record.ending, self.record.message, self.record.ended_at = ending, message, step

    def look(self, step: int, forces_std: float) -> None:
        """Tell the drift monitor of the largest force σ of an atom, eV/Å, until it gives the alarm."""
        if self.monitor is not None and self.record.drift_step is None and self.monitor.update(forces_std):
            self.record.drift_step = step

    def memory(self) -> dict[str, Any]:
        """For a checkpoint, beside states."""
        return {
            "record": asdict(self.record),
            "rng": self.rng.bit_generator.state,
            "drift": [] if self.monitor is None else self.monitor.seen,
        }

    def load(self, memory: dict[str, Any], history: State) -> None:
        self.record, self.history = Record(**memory["record"]), history
        self.rng.bit_generator.state = memory["rng"]
        if self.monitor is not None:
            for score in memory["drift"]:
                self.monitor.update(score)

    def extend(self, steps: int) -> None:
        """Let a finished replica go on to this many steps."""
        if self.record.ending == "finished" and int(self.history["step"][-1]) < steps:
            self.record.ending = self.record.ended_at = None
