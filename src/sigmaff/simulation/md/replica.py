"""One replica and its state."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from ase import Atoms

from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.drift import DriftMonitor, DriftRule
from sigmaff.simulation.md.integrator import Integrator, drawn_momenta, redrawn_momenta, temperature_of
from sigmaff.simulation.md.output import Output, trajectory_name
from sigmaff.simulation.md.stepper import AskingCalculator, Results, Stepper

State = dict[str, npt.NDArray[Any]]
"""State of a replica: that of its integrator, results, step, and size of the trajectory file."""
KEPT_RESULTS = ("energy", "forces", "stress")
Ending = Literal["finished", "crossing", "overlap", "not finite", "temperature"]


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
    """A structure, its integrator, and its history as far back as it may be rolled back."""

    def __init__(self, origin: Origin, atoms: Atoms, config: MDConfig, drift: DriftRule | None, output: Output) -> None:
        self.origin, self.config, self.output = origin, config, output
        self.monitor = None if drift is None else DriftMonitor(drift)
        self.trajectory = trajectory_name(origin.number)
        self.rng = np.random.default_rng([config.seed, origin.number])
        self.atoms = atoms.copy()
        if origin.temperature is not None:
            self.atoms.set_momenta(drawn_momenta(self.atoms, origin.temperature, self.rng))
        self.target = temperature_of(self.atoms) if origin.temperature is None else origin.temperature
        self.stepper = Stepper()
        self.calculator = AskingCalculator(self.stepper.ask)
        self.atoms.calc = self.calculator
        self.integrator = Integrator(self.atoms, config, origin.temperature, self.rng)
        self.step = 0
        self.record = Record()
        self.history: deque[State] = deque(maxlen=config.rollback if config.on_crossing == "rollback" else 1)

    @property
    def running(self) -> bool:
        return self.record.ending is None

    @property
    def results(self) -> Results:
        """Of the structure as it is."""
        return self.calculator.results

    def first_question(self) -> Atoms | None:
        return self.stepper.proceed(lambda: self.atoms.get_forces(md=True))

    def next_question(self) -> Atoms | None:
        self.step += 1
        return self.stepper.proceed(self.integrator.step)

    def end(self, ending: Ending, message: str) -> None:
        self.record.ending, self.record.message, self.record.ended_at = ending, message, self.step

    def remember(self) -> None:
        """Add the current state to the history."""
        self.history.append(self.state())

    def state(self) -> State:
        kept = {name: np.array(self.results[name]) for name in KEPT_RESULTS if name in self.results}
        place = {"step": np.array(self.step), "trajectory": np.array(self.output.size(self.trajectory))}
        return {**self.integrator.state(), **kept, **place}

    def put(self, state: State) -> None:
        self.integrator.restore(state)
        self.calculator.remember(self.atoms, {name: state[name] for name in KEPT_RESULTS if name in state})
        self.step = int(state["step"])

    def take_back(self) -> None:
        """Roll back to the oldest state of the history, and cut the trajectory there."""
        oldest = self.history[0]
        self.put(oldest)
        self.output.cut(self.trajectory, int(oldest["trajectory"]))
        self.history.clear()
        self.remember()

    def redraw_velocities(self) -> None:
        """Draw new velocities: at the temperature, or of the same kinetic energy for nve."""
        if self.config.ensemble == "nve" or self.origin.temperature is None:
            momenta = redrawn_momenta(self.atoms, self.rng)
        else:
            momenta = drawn_momenta(self.atoms, self.origin.temperature, self.rng)
        self.integrator.set_momenta(momenta)
        self.history[-1] = self.state()

    def observation(self) -> dict[str, float | None]:
        """A line of the log."""
        potential, kinetic = float(self.results["energy"]), float(self.atoms.get_kinetic_energy())
        sizes, atom_stds = self.forces_std(), self.results.get("energies_uncertainty")
        energy_std = self.results.get("energy_uncertainty")
        return {
            "step": self.step,
            "replica": self.origin.number,
            "time_fs": self.step * self.config.timestep,
            "potential_energy": potential,
            "kinetic_energy": kinetic,
            "total_energy": potential + kinetic,
            "temperature": temperature_of(self.atoms),
            "volume": float(self.atoms.get_volume()) if self.atoms.pbc.all() else None,
            "forces_std_max": None if sizes is None else float(sizes.max()),
            "forces_std_mean": None if sizes is None else float(sizes.mean()),
            "energy_std_per_atom": None if energy_std is None else float(energy_std) / len(self.atoms),
            "atom_std_max": None if atom_stds is None else float(np.max(atom_stds)),
        }

    def forces_std(self) -> npt.NDArray[np.float64] | None:
        """Norm of the force σ of each atom, eV/Å, (n_atoms,); ``None`` where it was not computed."""
        std = self.results.get("forces_uncertainty")
        return None if std is None else np.linalg.norm(std, axis=1)

    def drift_alarm(self, forces_std: float) -> int | None:
        """Tell the drift monitor of a look; the step if it gives the alarm. forces_std: largest of an atom, eV/Å."""
        return self.step if self.monitor is not None and self.monitor.update(forces_std) else None

    def frame_info(self, **more: float | str) -> dict[str, float | str]:
        time = self.step * self.config.timestep
        return {"replica": self.origin.number, "step": self.step, "time_fs": time, **more}

    def saved(self) -> tuple[dict[str, Any], State]:
        """For a checkpoint: JSON content, and arrays with the history along the first axis."""
        memory = {
            "record": asdict(self.record),
            "rng": self.rng.bit_generator.state,
            "drift": [] if self.monitor is None else self.monitor.seen,
        }
        return memory, {name: np.stack([state[name] for state in self.history]) for name in self.history[0]}

    def load(self, memory: dict[str, Any], history: State) -> None:
        self.record = Record(**memory["record"])
        self.rng.bit_generator.state = memory["rng"]
        if self.monitor is not None:
            for score in memory["drift"]:
                self.monitor.update(score)
        self.history.extend(
            {name: values[index] for name, values in history.items()} for index in range(len(history["step"]))
        )
        self.put(self.history[-1])
