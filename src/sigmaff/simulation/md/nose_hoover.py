"""Nosé–Hoover chains, and the barostats of Martyna, Tobias and Klein with them, of many replicas at once.

The equations are those of ASE's ``NoseHooverChainNVT``, ``IsotropicMTKNPT`` and ``MTKNPT``, with chains of three
and n − 1 in place of n atoms where degrees of freedom are counted: the centre of mass is at rest.

| symbol | name in the state |
|---|---|
| η, p_η | ``thermostat``, ``thermostat_momenta`` |
| ξ, p_ξ | ``barostat``, ``barostat_momenta`` |
| p_ε or p_g | ``cell_momenta`` |
"""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from ase import units
from scipy.special import exprel

from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.md.config import MotionConfig
from sigmaff.simulation.md.integrator import Integrator
from sigmaff.simulation.md.state import State, System

LENGTH = 3
"""Of a chain."""
WEIGHTS = (1 / (2 - 2 ** (1 / 3)), -(2 ** (1 / 3)) / (2 - 2 ** (1 / 3)), 1 / (2 - 2 ** (1 / 3)))
"""Of the parts of a step, for the fourth order (H. Yoshida, 1990)."""
VOIGT = np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]])


class Chain(NamedTuple):
    """A Nosé–Hoover chain of each replica."""

    energy: FloatArray  # (n_replicas,) k_B T, eV
    target: FloatArray  # (n_replicas,) Σp²/m of what it is coupled to, on average, eV
    masses: FloatArray  # (LENGTH, n_replicas)

    def advance(
        self, doubled: FloatArray, places: FloatArray, momenta: FloatArray, delta: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Integrate exp(i L_chain δ).

        Arguments:
            doubled: (n_replicas,) Σp²/m of what it is coupled to, eV.
            places, momenta: (n_replicas, LENGTH) of the chain.
            delta: δ.

        Returns the factor by which the momenta that it is coupled to change, (n_replicas,), and the chain's own.
        """
        eta, p = places.T.copy(), momenta.T.copy()
        scale = np.ones_like(doubled)
        for weight in WEIGHTS:
            part = weight * delta
            for link in reversed(range(LENGTH)):
                self._push(p, link, doubled * scale**2, part)
            eta += part * p / self.masses
            scale = scale * np.exp(-part * p[0] / self.masses[0])
            for link in range(LENGTH):
                self._push(p, link, doubled * scale**2, part)
        return scale, eta.T, p.T

    def _push(self, p: FloatArray, link: int, doubled: FloatArray, delta: float) -> None:
        force = doubled - self.target if link == 0 else p[link - 1] ** 2 / self.masses[link - 1] - self.energy
        if link == LENGTH - 1:
            p[link] += 0.5 * delta * force
        else:
            drag = np.exp(-0.25 * delta * p[link + 1] / self.masses[link + 1])
            p[link] = (p[link] * drag + 0.5 * delta * force) * drag


def chain(energy: FloatArray, n_free: FloatArray, n_weight: FloatArray, damping: float) -> Chain:
    """n_free: degrees of freedom that it is coupled to; n_weight: those that its first mass counts."""
    mass = energy * damping**2
    return Chain(energy, n_free * energy, np.stack([n_weight * mass, *[mass] * (LENGTH - 1)]))


class NoseHoover(Integrator):
    """Constant temperature by a chain."""

    def __init__(self, system: System, config: MotionConfig, temperature: FloatArray) -> None:
        super().__init__(system, config, temperature)
        n_free = np.asarray(3.0 * (system.n_atoms - 1), dtype=np.float64)
        self.thermostat = chain(self.energy, n_free, n_free, config.damping * units.fs)

    def start(self) -> State:
        zeros = np.zeros((self.system.n_replicas, LENGTH))
        return {"thermostat": zeros, "thermostat_momenta": zeros}

    def first_half(self, state: State) -> State:
        state = self.thermalized(state)
        momenta = state["momenta"] + 0.5 * self.timestep * state["forces"]
        positions = state["positions"] + self.timestep * momenta / self.masses
        return state | {"positions": positions, "momenta": momenta}

    def second_half(self, state: State) -> State:
        return self.thermalized(state | {"momenta": state["momenta"] + 0.5 * self.timestep * state["forces"]})

    def thermalized(self, state: State) -> State:
        """After half a step of the thermostat alone."""
        doubled = self.system.doubled_kinetic(state["momenta"])
        places, momenta = state["thermostat"], state["thermostat_momenta"]
        scale, places, momenta = self.thermostat.advance(doubled, places, momenta, 0.5 * self.timestep)
        moved = state["momenta"] * scale[self.system.replica, None]
        return state | {"momenta": moved, "thermostat": places, "thermostat_momenta": momenta}


class Barostat(NoseHoover):
    """Constant temperature and pressure, each by a chain."""

    n_cell: int  # degrees of freedom of the cell
    n_weight = 9.0  # that the first mass of its chain counts

    def __init__(self, system: System, config: MotionConfig, temperature: FloatArray) -> None:
        super().__init__(system, config, temperature)
        damping = config.pressure_damping * units.fs
        self.pressure, self.n_moving = config.pressure * units.GPa, system.n_atoms - 1.0
        ones = np.ones(system.n_replicas)
        self.barostat = chain(self.energy, self.n_cell * ones, self.n_weight * ones, damping)
        self.cell_mass = self.mass_factor() * self.energy * damping**2

    @abstractmethod
    def mass_factor(self) -> FloatArray:
        """Of the mass of the cell, (n_replicas,)."""

    @abstractmethod
    def cell_kicked(self, state: State) -> State:
        """After half a step of the pressure on the momenta of the cell."""

    @abstractmethod
    def kicked(self, state: State) -> State:
        """After half a step of the forces on the momenta."""

    @abstractmethod
    def moved(self, state: State) -> State:
        """After a step of positions and cells."""

    def start(self) -> State:
        zeros, n_replicas = np.zeros((self.system.n_replicas, LENGTH)), self.system.n_replicas
        momenta = np.zeros(n_replicas if self.n_cell == 1 else (n_replicas, 3, 3))
        return super().start() | {"barostat": zeros, "barostat_momenta": zeros, "cell_momenta": momenta}

    def first_half(self, state: State) -> State:
        state = self.thermalized(self.cell_thermalized(state))
        return self.moved(self.kicked(self.cell_kicked(state)))

    def second_half(self, state: State) -> State:
        return self.cell_thermalized(self.thermalized(self.cell_kicked(self.kicked(state))))

    def cell_thermalized(self, state: State) -> State:
        """After half a step of the chain of the cell alone."""
        momenta = state["cell_momenta"]
        flat = momenta.reshape(len(momenta), -1)
        doubled = np.square(flat).sum(1) / self.cell_mass
        places, own = state["barostat"], state["barostat_momenta"]
        scale, places, own = self.barostat.advance(doubled, places, own, 0.5 * self.timestep)
        return state | {
            "cell_momenta": (flat * scale[:, None]).reshape(momenta.shape),
            "barostat": places,
            "barostat_momenta": own,
        }


class IsotropicBarostat(Barostat):
    """The cell keeps its shape."""

    n_cell = 1

    def mass_factor(self) -> FloatArray:
        return np.asarray(3.0 * self.system.n_atoms + 3.0)

    def cell_kicked(self, state: State) -> State:
        volume, doubled = _volume(state["cell"]), self.system.doubled_kinetic(state["momenta"])
        trace = state["stress"][:, :3].sum(1)
        force = doubled - volume * (trace + 3.0 * self.pressure) + doubled / self.n_moving
        return state | {"cell_momenta": state["cell_momenta"] + 0.5 * self.timestep * force}

    def kicked(self, state: State) -> State:
        delta = 0.5 * self.timestep
        x = -(1.0 + 1.0 / self.n_moving) * state["cell_momenta"] * delta / self.cell_mass
        kept, pushed = (values[self.system.replica, None] for values in (np.exp(x), delta * exprel(x)))
        return state | {"momenta": state["momenta"] * kept + pushed * state["forces"]}

    def moved(self, state: State) -> State:
        x = self.timestep * state["cell_momenta"] / self.cell_mass
        growth = np.exp(x)
        kept, pushed = (values[self.system.replica, None] for values in (growth, self.timestep * exprel(x)))
        positions = state["positions"] * kept + state["momenta"] / self.masses * pushed
        return state | {"positions": positions, "cell": state["cell"] * growth[:, None, None]}


class FullBarostat(Barostat):
    """The cell changes its shape too."""

    n_cell = 9

    def mass_factor(self) -> FloatArray:
        return np.asarray(self.system.n_atoms + 1.0)

    def cell_kicked(self, state: State) -> State:
        momenta, volume = state["momenta"], _volume(state["cell"])[:, None, None]
        kinetic = self.system.sum(momenta[:, :, None] * (momenta / self.masses)[:, None, :])
        doubled = self.system.doubled_kinetic(momenta) / (3.0 * self.n_moving)
        force = kinetic - volume * (state["stress"][:, VOIGT] + self.pressure * np.eye(3))
        force = force + doubled[:, None, None] * np.eye(3)
        return state | {"cell_momenta": state["cell_momenta"] + 0.5 * self.timestep * force}

    def kicked(self, state: State) -> State:
        delta, (values, axes) = 0.5 * self.timestep, _axes(state["cell_momenta"])
        drag = values + values.sum(1, keepdims=True) / (3.0 * self.n_moving)[:, None]
        x = -drag * delta / self.cell_mass[:, None]
        kept, pushed, axes = (array[self.system.replica] for array in (np.exp(x), delta * exprel(x), axes))
        turned = _turned(state["momenta"], axes) * kept + _turned(state["forces"], axes) * pushed
        return state | {"momenta": _turned(turned, axes.swapaxes(1, 2))}

    def moved(self, state: State) -> State:
        values, axes = _axes(state["cell_momenta"])
        x = values * self.timestep / self.cell_mass[:, None]
        growth = np.exp(x)
        cell = (state["cell"] @ axes * growth[:, None, :]) @ axes.swapaxes(1, 2)
        kept, pushed, axes = (array[self.system.replica] for array in (growth, self.timestep * exprel(x), axes))
        turned = _turned(state["positions"], axes) * kept + _turned(state["momenta"] / self.masses, axes) * pushed
        return state | {"positions": _turned(turned, axes.swapaxes(1, 2)), "cell": cell}


def _volume(cell: FloatArray) -> FloatArray:
    """(n_replicas,) Å³."""
    return np.abs(np.linalg.det(cell))


def _axes(matrices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (n, 3) and eigenvectors (n, 3, 3) of symmetric matrices; NaN where these are not finite."""
    is_finite = np.asarray(np.isfinite(matrices).all((1, 2), keepdims=True))
    values, axes = np.linalg.eigh(np.where(is_finite, matrices, 0.0))
    return np.where(is_finite[:, 0], values, np.nan), axes


def _turned(vectors: FloatArray, axes: FloatArray) -> FloatArray:
    """Each vector (n_atoms, 3) by the matrix of its atom (n_atoms, 3, 3)."""
    return np.einsum("ai,aij->aj", vectors, axes)
