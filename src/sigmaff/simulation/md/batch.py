"""The replicas that move: one state for all, and as many former states as they may be rolled back to."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sigmaff.evaluation.evaluate import OPEN
from sigmaff.models.prediction import FloatArray, Predictor
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.connectivity import Connectivity
from sigmaff.simulation.md.ensembles import build_integrator
from sigmaff.simulation.md.evaluation import Evaluation, Evaluator
from sigmaff.simulation.md.integrator import drawn_momenta, redrawn_momenta
from sigmaff.simulation.md.replica import Replica
from sigmaff.simulation.md.state import FORMER_NAMES, BoolArray, IndexArray, State, System, joined

PLACE = ("positions", "momenta", "cell", "step", "trajectory")


class Batch:
    """Replicas with their integrator, their neighbours, and their states."""

    def __init__(self, replicas: Sequence[Replica], model: Predictor, config: MDConfig) -> None:
        self.config = config
        self.history: deque[State] = deque(maxlen=config.rollback if config.on_crossing == "rollback" else 1)
        self.state: State = {}
        self.moved: State = {}  # after the first half of the last step
        self.depth: IndexArray = np.zeros(len(replicas), dtype=np.int64)  # states of the history that are a replica's
        self.replicas: list[Replica] = []
        if replicas:
            starts = [replica.atoms for replica in replicas]
            watched = config.connectivity
            connectivity = None if watched == "off" else Connectivity.of(starts, model.cutoff, watched)
            self._assemble(replicas, Evaluator(model, System.of(starts), connectivity))

    def _assemble(self, replicas: Sequence[Replica], evaluator: Evaluator) -> None:
        self.replicas, self.evaluator, self.system = list(replicas), evaluator, evaluator.system
        temperature = np.array([replica.origin.temperature or np.nan for replica in replicas])
        generators = [replica.rng for replica in replicas]
        self.integrator = build_integrator(self.system, self.config, temperature, generators)
        self.hottest: FloatArray = self.config.hottest * np.array([replica.target for replica in replicas])  # K
        kept = ("energy", "forces", "stress") if self.config.ensemble == "npt" else ("energy", "forces")
        self.kept, self.names = kept, (*PLACE, *kept, *self.integrator.start())

    def begin(self) -> Evaluation:
        """At the starts."""
        self.state = joined([replica.start() for replica in self.replicas]) | self.integrator.start()
        self.moved = self.state
        return self._evaluate()

    def resume(self, histories: Sequence[State]) -> None:
        """histories: of each replica, states along the first axis; of this version or a former one."""
        known = [{FORMER_NAMES.get(name, name): values for name, values in history.items()} for history in histories]
        self.depth = np.array([len(history["step"]) for history in known])
        for age in reversed(range(self.depth.max())):
            rows = [max(0, n - 1 - age) for n in self.depth.tolist()]  # a short history is filled up with its oldest
            parts = [{name: past[name][row] for name in self.names} for past, row in zip(known, rows, strict=True)]
            self.history.append(joined(parts))
        self.depth = np.minimum(self.depth, len(self.history))
        self.state = self.history[-1]

    def advance(self) -> Evaluation:
        """One step of all replicas. Where numbers overflow, it leaves some that are not finite."""
        with np.errstate(all="ignore"):
            moved = self.integrator.first_half(self.state)
            self.state = self.moved = moved | {"step": moved["step"] + 1}
            found = self._evaluate()
            self.state = self.integrator.second_half(self.state)
        return found

    def _evaluate(self) -> Evaluation:
        with_std = self.config.is_looked_at(self.state["step"]) & (self.config.forces_std != "none")
        found = self.evaluator.evaluate(self.state, self.config.forces_std, with_std)
        self.state = self.state | {name: found.kept[name] for name in self.kept if name in found.kept}
        return found

    def take_back(self, index: int) -> None:
        """Put a replica where it was in the oldest state of its history."""
        oldest = self.system.part(self.history[-int(self.depth[index])], index)
        self.state = self.system.replaced(self.state, index, oldest)
        self.depth[index] = 0

    def redraw_velocities(self, index: int) -> None:
        """Draw new velocities: at the temperature, or of the same kinetic energy for nve."""
        atoms, replica = self.system.atoms(index), self.replicas[index]
        masses, temperature = self.system.masses[atoms], replica.origin.temperature
        if self.config.ensemble == "nve" or temperature is None:
            momenta = redrawn_momenta(masses, self.state["momenta"][atoms], replica.rng)
        else:
            momenta = drawn_momenta(masses, temperature, replica.rng)
        self.state = self.system.replaced(self.state, index, {"momenta": momenta})

    def remember(self) -> None:
        """Add the current state to the history."""
        self.history.append({name: self.state[name] for name in self.names})
        self.depth = np.minimum(self.depth + 1, len(self.history))

    def past(self, index: int) -> State:
        """The states of one replica, along the first axis, the last is where it is."""
        chosen = list(self.history)[len(self.history) - int(self.depth[index]) :]
        parts = [self.system.part(state, index) for state in chosen]
        return {name: np.stack([part[name] for part in parts]) for name in self.names}

    def keep(self, chosen: BoolArray) -> None:
        """Leave out the replicas that have ended. chosen: (n_replicas,) the others."""
        self.state = self.system.selected(self.state, chosen)
        self.history = deque((self.system.selected(past, chosen) for past in self.history), self.history.maxlen)
        self.depth = self.depth[chosen]
        replicas = [replica for replica, is_kept in zip(self.replicas, chosen.tolist(), strict=True) if is_kept]
        self.replicas = []
        if replicas:
            self._assemble(replicas, self.evaluator.select(chosen))


class Stds(NamedTuple):
    """The σ of each replica, (n_replicas,); NaN where it was not computed."""

    forces_max: FloatArray  # eV/Å, largest of an atom, the norm of its components
    forces_mean: FloatArray  # eV/Å
    energy: FloatArray  # eV, of the structure
    energy_per_atom: FloatArray  # eV, without that of the composition
    atom_max: FloatArray  # eV, largest of an atom's share of the energy

    @classmethod
    def of(cls, found: Evaluation, system: System) -> "Stds":
        stds = cls(*np.full((5, system.n_replicas), np.nan))
        for group in found.groups:
            values, chosen = group.results.values, group.replicas
            first, n_atoms = group.results.first_atom[:-1], system.n_atoms[chosen]
            if (forces := values.get("forces_uncertainty")) is not None:
                sizes = np.linalg.norm(forces, axis=1)
                stds.forces_max[chosen] = np.maximum.reduceat(sizes, first)
                stds.forces_mean[chosen] = np.add.reduceat(sizes, first) / n_atoms
            if (energy := values.get("energy_uncertainty")) is not None:
                part = values.get("composition_uncertainty", np.zeros(len(energy)))
                stds.energy[chosen] = energy
                own = np.sqrt(np.maximum(np.square(energy) - np.square(np.where(part > OPEN, part, 0.0)), 0.0))
                stds.energy_per_atom[chosen] = own / n_atoms
            if (atoms := values.get("energies_uncertainty")) is not None:
                stds.atom_max[chosen] = np.maximum.reduceat(atoms, first)
        return stds
