"""ASE's integrators, with velocities, thermostats and states that agree on the degrees of freedom.

The centre of mass stays at rest: n atoms have 3n − 3 degrees of freedom, and T = 2 E_kin / ((3n − 3) k_B).
"""

from functools import reduce
from operator import attrgetter

import numpy as np
from ase import Atoms, units
from ase.constraints import FixCom
from ase.md.bussi import Bussi
from ase.md.langevin import Langevin
from ase.md.md import MolecularDynamics
from ase.md.nose_hoover_chain import MTKNPT, IsotropicMTKNPT, NoseHooverChainNVT, NoseHooverChainThermostat
from ase.md.verlet import VelocityVerlet

from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.stepper import FloatArray

_CHAIN = ("_q", "_p", "_thermostat._eta", "_thermostat._p_eta")
_BAROSTAT = ("_barostat._xi", "_barostat._p_xi")
INTERNALS: dict[type[MolecularDynamics], tuple[str, ...]] = {
    VelocityVerlet: (),
    Langevin: (),
    Bussi: ("transferred_energy",),
    NoseHooverChainNVT: _CHAIN,
    IsotropicMTKNPT: (*_CHAIN, *_BAROSTAT, "_eps", "_p_eps", "_cell0", "_volume0"),
    MTKNPT: (*_CHAIN, *_BAROSTAT, "_h", "_p_g"),
}
"""The state of an integrator, beside atoms and random numbers."""


class Integrator:
    """One replica's integrator, whose state can be saved and restored. It moves ``atoms``."""

    def __init__(self, atoms: Atoms, config: MDConfig, temperature: float | None, rng: np.random.Generator) -> None:
        self.atoms = atoms
        self.dynamics = _dynamics(atoms, config, temperature, rng)
        self._internals = INTERNALS[type(self.dynamics)]

    def step(self) -> None:
        """One time step; if numbers overflow, it leaves velocities of NaN."""
        try:
            with np.errstate(all="ignore"):
                self.dynamics.step()
        except (ArithmeticError, np.linalg.LinAlgError):
            self.atoms.set_momenta(np.full((len(self.atoms), 3), np.nan), apply_constraint=False)

    def state(self) -> dict[str, FloatArray]:
        own = {name: np.array(attrgetter(name)(self.dynamics), dtype=np.float64) for name in self._internals}
        return own | {
            "positions": self.atoms.get_positions(),
            "momenta": self.atoms.get_momenta(),
            "cell": self.atoms.cell.array.copy(),
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.atoms.set_cell(state["cell"], scale_atoms=False, apply_constraint=False)
        self.atoms.set_positions(state["positions"], apply_constraint=False)
        self.atoms.set_momenta(state["momenta"], apply_constraint=False)
        for name in self._internals:
            _set(self.dynamics, name, np.array(state[name])[()])

    def set_momenta(self, momenta: FloatArray) -> None:
        self.atoms.set_momenta(momenta, apply_constraint=False)
        if "_p" in self._internals:
            _set(self.dynamics, "_p", momenta.copy())


def temperature_of(atoms: Atoms) -> float:
    """K, with the centre of mass at rest."""
    return 2.0 * float(atoms.get_kinetic_energy()) / ((3 * len(atoms) - 3) * units.kB)


def drawn_momenta(atoms: Atoms, temperature: float, rng: np.random.Generator) -> FloatArray:
    """Maxwell–Boltzmann, with the centre of mass at rest."""
    masses = atoms.get_masses()[:, None]
    momenta = rng.standard_normal((len(atoms), 3)) * np.sqrt(masses * units.kB * temperature)
    return momenta - masses * momenta.sum(0) / masses.sum()


def redrawn_momenta(atoms: Atoms, rng: np.random.Generator) -> FloatArray:
    """Random momenta of the same kinetic energy, so that the total energy does not change."""
    momenta = drawn_momenta(atoms, 300.0, rng)
    kinetic = 0.5 * float(np.sum(momenta**2 / atoms.get_masses()[:, None]))
    return momenta * np.sqrt(atoms.get_kinetic_energy() / kinetic)


def _dynamics(atoms: Atoms, config: MDConfig, temperature: float | None, rng: np.random.Generator) -> MolecularDynamics:
    timestep, damping = config.timestep * units.fs, config.damping * units.fs
    if temperature is None or config.ensemble == "nve":
        return VelocityVerlet(atoms, timestep)
    if config.ensemble == "npt":
        kind = IsotropicMTKNPT if config.cell == "isotropic" else MTKNPT
        pressure, pressure_damping = config.pressure * units.GPa, config.pressure_damping * units.fs
        return _at_rest(kind(atoms, timestep, temperature, pressure, damping, pressure_damping), temperature, damping)
    if config.chosen_thermostat == "nose-hoover":
        return _at_rest(NoseHooverChainNVT(atoms, timestep, temperature, damping), temperature, damping)
    atoms.set_constraint(FixCom())
    if config.chosen_thermostat == "bussi":
        return Bussi(atoms, timestep, temperature, damping, rng=rng)
    return Langevin(atoms, timestep, temperature_K=temperature, friction=1.0 / damping, fixcm=False, rng=rng)


def _at_rest(dynamics: MolecularDynamics, temperature: float, damping: float) -> MolecularDynamics:
    """Replace ASE's chains, which count 3n degrees of freedom and heat by n / (n − 1) too much."""
    n_moving = len(dynamics.atoms) - 1
    dynamics._thermostat = NoseHooverChainThermostat(
        num_atoms_global=n_moving, masses=dynamics.masses, temperature_K=temperature, tdamp=damping
    )
    dynamics._num_atoms_global = n_moving  # of the barostat's equations of motion
    return dynamics


def _set(owner: object, name: str, value: float | FloatArray) -> None:
    *path, last = name.split(".")
    setattr(reduce(getattr, path, owner), last, value)
