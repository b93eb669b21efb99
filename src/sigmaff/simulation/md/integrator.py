"""Integrators of many replicas at once: the equations of ASE's, step by step, on arrays.

A step has two halves, with the forces at the new positions between them. Thermostats with random numbers keep the
centre of mass where it is (``ase.constraints.FixCom``). In all the centre of mass stays at rest: n atoms have 3n − 3
degrees of freedom, and T = 2 E_kin / ((3n − 3) k_B).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from ase import Atoms, units

from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.config import MotionConfig
from sigmaff.simulation.md.state import State, System


class Integrator(ABC):
    """Moves the replicas of one system. All it remembers between steps is in their state."""

    def __init__(self, system: System, config: MotionConfig, temperature: FloatArray) -> None:
        """temperature: (n_replicas,) K; not used at constant energy."""
        self.system, self.masses = system, system.masses
        self.timestep = config.timestep * units.fs
        self.energy = units.kB * temperature  # k_B T, (n_replicas,) eV

    def start(self) -> State:
        """What it adds to the state, at the first step."""
        return {}

    @abstractmethod
    def first_half(self, state: State) -> State:
        """To the new positions and cells; forces and stress of the state are those of the old ones."""

    @abstractmethod
    def second_half(self, state: State) -> State:
        """To the new momenta, with forces and stress at the new positions."""


class VelocityVerlet(Integrator):
    """Constant energy."""

    def first_half(self, state: State) -> State:
        momenta = state["momenta"] + 0.5 * self.timestep * state["forces"]
        positions = state["positions"] + self.timestep * momenta / self.masses
        return state | {"positions": positions, "momenta": momenta}

    def second_half(self, state: State) -> State:
        return state | {"momenta": state["momenta"] + 0.5 * self.timestep * state["forces"]}


class Resting(Integrator):
    """With random numbers of each replica's own, and the centre of mass where it is."""

    def __init__(
        self,
        system: System,
        config: MotionConfig,
        temperature: FloatArray,
        generators: Sequence[np.random.Generator],
    ) -> None:
        super().__init__(system, config, temperature)
        self.generators = generators
        self.damping = config.damping * units.fs

    def centred(self, old: FloatArray, new: FloatArray) -> FloatArray:
        """New positions with the centre of the old ones."""
        shift = self.system.sum(self.masses * (old - new)) / self.system.total_mass
        return new + shift[self.system.replica]

    def at_rest(self, momenta: FloatArray) -> FloatArray:
        """Momenta without that of the centre."""
        velocity = self.system.sum(momenta) / self.system.total_mass
        return momenta - self.masses * velocity[self.system.replica]


class Langevin(Resting):
    """Constant temperature by friction and random forces (E. Vanden-Eijnden, G. Ciccotti, 2006)."""

    def __init__(
        self,
        system: System,
        config: MotionConfig,
        temperature: FloatArray,
        generators: Sequence[np.random.Generator],
    ) -> None:
        super().__init__(system, config, temperature, generators)
        step, friction = self.timestep, 1.0 / self.damping
        spread = np.sqrt(2.0 * self.energy[system.replica, None] * friction / self.masses)
        self.by_force = step / 2.0 - step * step * friction / 8.0
        self.by_velocity = step * friction / 2.0 - step * step * friction * friction / 8.0
        self.by_first = np.sqrt(step) * spread / 2.0 - step**1.5 * friction * spread / 8.0
        self.of_positions = step**1.5 * spread / (2.0 * np.sqrt(3.0))
        self.by_second = friction / 2.0 * self.of_positions
        self._numbers = np.zeros((2 * len(self.masses), 3))  # of each replica in turn, those of velocities first
        first, count = 2 * system.first_atom, system.n_atoms
        self._places = [self._numbers[start : start + 2 * n] for start, n in zip(first, count, strict=True)]
        self._rows = np.arange(len(self.masses)) + system.first_atom[system.replica]
        self._kick = np.zeros_like(self.masses)

    def first_half(self, state: State) -> State:
        for generator, place in zip(self.generators, self._places, strict=True):
            generator.standard_normal(out=place)
        first = self._numbers[self._rows]
        second = self._numbers[self._rows + self.system.n_atoms[self.system.replica]]
        jump = self.of_positions * second
        self._kick = self.by_first * first - self.by_second * second
        velocities = self._pushed(state["momenta"] / self.masses, state["forces"])
        old = state["positions"]
        new = self.centred(old, old + self.timestep * velocities + jump)
        velocities = (new - old - jump) / self.timestep
        return state | {"positions": new, "momenta": self.masses * velocities}

    def second_half(self, state: State) -> State:
        velocities = self._pushed(state["momenta"] / self.masses, state["forces"])
        return state | {"momenta": self.at_rest(velocities * self.masses)}

    def _pushed(self, velocities: FloatArray, forces: FloatArray) -> FloatArray:
        return velocities + self.by_force * forces / self.masses - self.by_velocity * velocities + self._kick


class Bussi(Resting):
    """Constant temperature by random scaling of velocities (G. Bussi, D. Donadio, M. Parrinello, 2007)."""

    def first_half(self, state: State) -> State:
        momenta = self.at_rest(self._scale(state["momenta"])[self.system.replica, None] * state["momenta"])
        momenta = momenta + 0.5 * self.timestep * state["forces"]
        old = state["positions"]
        new = self.centred(old, old + self.timestep * momenta / self.masses)
        return state | {"positions": new, "momenta": (new - old) * self.masses / self.timestep}

    def second_half(self, state: State) -> State:
        return state | {"momenta": self.at_rest(state["momenta"] + 0.5 * self.timestep * state["forces"])}

    def _scale(self, momenta: FloatArray) -> FloatArray:
        """Of the momenta of each replica, (n_replicas,)."""
        n_free = 3 * self.system.n_atoms - 3
        drawn = [
            (generator.standard_normal(), generator.standard_gamma(0.5 * (n - 1)))
            for generator, n in zip(self.generators, n_free.tolist(), strict=True)
        ]
        normal, gamma = np.array(drawn).T
        kept = np.exp(-self.timestep / self.damping)
        share = (1.0 - kept) * self.energy / self.system.doubled_kinetic(momenta)
        return np.sqrt(kept + share * (2.0 * gamma + normal**2) + 2.0 * normal * np.sqrt(kept * share))


def temperature_of(atoms: Atoms) -> float:
    """K, with the centre of mass at rest."""
    return 2.0 * float(atoms.get_kinetic_energy()) / ((3 * len(atoms) - 3) * units.kB)


def drawn_momenta(masses: FloatArray, temperature: float, rng: np.random.Generator) -> FloatArray:
    """Maxwell–Boltzmann, with the centre of mass at rest. masses: (n_atoms, 1) u."""
    momenta = rng.standard_normal((len(masses), 3)) * np.sqrt(masses * units.kB * temperature)
    return momenta - masses * momenta.sum(0) / masses.sum()


def redrawn_momenta(masses: FloatArray, momenta: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Random momenta of the same kinetic energy, so that the total energy does not change."""
    drawn = drawn_momenta(masses, 300.0, rng)
    return drawn * np.sqrt(np.sum(momenta**2 / masses) / np.sum(drawn**2 / masses))
