"""Integrators of many replicas at once, against ASE's own, replica by replica and step by step."""

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.lj import LennardJones
from ase.constraints import FixCom
from ase.md.bussi import Bussi
from ase.md.langevin import Langevin
from ase.md.md import MolecularDynamics
from ase.md.nose_hoover_chain import MTKNPT, IsotropicMTKNPT, NoseHooverChainNVT, NoseHooverChainThermostat
from ase.md.verlet import VelocityVerlet

from md_case import WAYS, changed, name_of
from sigmaff.simulation.md import MDConfig
from sigmaff.simulation.md.ensembles import build_integrator
from sigmaff.simulation.md.integrator import drawn_momenta, redrawn_momenta, temperature_of
from sigmaff.simulation.md.state import State, System, joined

TEMPERATURES = (40.0, 90.0, 60.0)
STEPS = 25


def argon(seed: int) -> Atoms:
    """Crystals of 8, 12 and 18 atoms of argon and krypton, with forces of Lennard and Jones, in skewed cells."""
    atoms = bulk("Ar", "fcc", a=5.2) * [(2, 2, 2), (3, 2, 2), (3, 3, 2)][seed]
    atoms.numbers[::3] = 36
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.03 * np.arange(9).reshape(3, 3) / 9), scale_atoms=True)
    atoms.rattle(0.1, seed=seed)
    atoms.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=6.0, smooth=True)
    atoms.set_momenta(drawn_momenta(atoms.get_masses()[:, None], TEMPERATURES[seed], np.random.default_rng(seed)))
    return atoms


def of_ase(atoms: Atoms, config: MDConfig, temperature: float, rng: np.random.Generator) -> MolecularDynamics:
    """ASE's integrator, with a centre of mass at rest."""
    step, damping = config.timestep * units.fs, config.damping * units.fs
    if config.ensemble == "nve":
        return VelocityVerlet(atoms, step)
    if config.chosen_thermostat in ("bussi", "langevin"):
        atoms.set_constraint(FixCom())
        if config.chosen_thermostat == "bussi":
            return Bussi(atoms, step, temperature, damping, rng=rng)
        return Langevin(atoms, step, temperature_K=temperature, friction=1 / damping, fixcm=False, rng=rng)
    if config.ensemble == "nvt":
        dynamics = NoseHooverChainNVT(atoms, step, temperature, damping)
    else:
        kind = IsotropicMTKNPT if config.cell == "isotropic" else MTKNPT
        pressure = (config.pressure * units.GPa, damping, config.pressure_damping * units.fs)
        dynamics = kind(atoms, step, temperature, *pressure)
    dynamics._thermostat = NoseHooverChainThermostat(len(atoms) - 1, dynamics.masses, temperature, damping)
    dynamics._num_atoms_global = len(atoms) - 1
    return dynamics


def state_of(structures: list[Atoms]) -> State:
    return joined(
        [
            {
                "positions": atoms.get_positions(),
                "momenta": atoms.get_momenta(),
                "cell": atoms.cell.array.copy(),
                "forces": atoms.get_forces(md=True),
                "stress": atoms.get_stress(),
            }
            for atoms in structures
        ]
    )


def with_forces(system: System, state: State, structures: list[Atoms]) -> State:
    """As the calculator of each structure gives them."""
    for replica, atoms in enumerate(structures):
        atoms.set_cell(state["cell"][replica], scale_atoms=False)
        atoms.set_positions(state["positions"][system.atoms(replica)], apply_constraint=False)
    found = state_of(structures)
    return state | {name: found[name] for name in ("forces", "stress")}


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_every_step_is_that_of_ase(way: MDConfig):
    """Three replicas of other sizes and temperatures; random numbers are drawn in the same order."""
    config = changed(way, timestep=4.0, damping=100.0, pressure=0.1, pressure_damping=300.0)
    ours, theirs = [argon(seed) for seed in range(3)], [argon(seed) for seed in range(3)]
    system, generators = System.of(ours), [np.random.default_rng(seed) for seed in range(3)]
    integrator = build_integrator(system, config, np.array(TEMPERATURES), generators)
    state = state_of(ours) | integrator.start()
    dynamics = [
        of_ase(atoms, config, temperature, np.random.default_rng(seed))
        for seed, (atoms, temperature) in enumerate(zip(theirs, TEMPERATURES, strict=True))
    ]
    start = state
    for _ in range(STEPS):
        state = integrator.second_half(with_forces(system, integrator.first_half(state), ours))
        for one in dynamics:
            one.step()
        expected = state_of(theirs)
        for name in ("positions", "momenta", "cell"):
            np.testing.assert_allclose(state[name], expected[name], rtol=0, atol=1e-10)
    assert np.abs(state["positions"] - start["positions"]).max() > 0.1
    assert (np.abs(state["cell"] - start["cell"]).max() > 1e-4) == (config.ensemble == "npt")
    for generator, one in zip(generators, dynamics, strict=True):
        rng = getattr(one, "rng", None)
        assert rng is None or rng.bit_generator.state == generator.bit_generator.state


@pytest.mark.parametrize("way", WAYS[2:3] + WAYS[4:], ids=name_of)
def test_chains_move_as_those_of_ase(way: MDConfig):
    config = changed(way, timestep=4.0, pressure_damping=300.0)
    ours, theirs = argon(0), argon(0)
    system = System.of([ours])
    integrator = build_integrator(system, config, np.array([40.0]), [])
    state, dynamics = state_of([ours]) | integrator.start(), of_ase(theirs, config, 40.0, np.random.default_rng(0))
    for _ in range(STEPS):
        state = integrator.second_half(with_forces(system, integrator.first_half(state), [ours]))
        dynamics.step()
    pairs = {"thermostat": dynamics._thermostat._eta, "thermostat_momenta": dynamics._thermostat._p_eta}
    if config.ensemble == "npt":
        cell = dynamics._p_eps if config.cell == "isotropic" else dynamics._p_g
        pairs |= {"barostat": dynamics._barostat._xi, "barostat_momenta": dynamics._barostat._p_xi}
        pairs |= {"cell_momenta": cell}
    for name, expected in pairs.items():
        np.testing.assert_allclose(state[name][0], expected, rtol=1e-8, atol=1e-12)
        assert np.abs(expected).max() > 0


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_replica_that_is_lost_takes_no_other_with_it(way: MDConfig):
    """Infinite forces on one of three."""
    structures = [argon(seed) for seed in range(3)]
    system = System.of(structures)
    finals = []
    for is_lost in (False, True):
        generators = [np.random.default_rng(seed) for seed in range(3)]
        integrator = build_integrator(system, way, np.array(TEMPERATURES), generators)
        state = state_of(structures) | integrator.start()
        if is_lost:
            state["forces"][system.atoms(1)] = np.inf
            state["stress"][1] = np.nan
        with np.errstate(all="ignore"):
            for _ in range(3):
                state = integrator.second_half(integrator.first_half(state))
        finals.append(state)
    whole, lost = finals
    for name in ("positions", "momenta", "cell"):
        for replica in (0, 2):
            found, expected = (system.part(state, replica)[name] for state in (lost, whole))
            np.testing.assert_array_equal(found, expected)
    assert not np.isfinite(system.part(lost, 1)["momenta"]).all()


def test_redrawn_velocities_keep_the_energy():
    atoms = argon(0)
    masses = atoms.get_masses()[:, None]
    momenta = redrawn_momenta(masses, atoms.get_momenta(), np.random.default_rng(7))
    kinetic = 0.5 * (momenta**2 / masses).sum()
    assert kinetic == pytest.approx(atoms.get_kinetic_energy())
    assert np.abs(momenta.sum(0)).max() < 1e-12
    assert np.abs(momenta - atoms.get_momenta()).max() > 0.1


def test_temperatures_of_replicas_are_those_of_their_structures():
    structures = [argon(seed) for seed in range(3)]
    system = System.of(structures)
    found = system.temperature(np.concatenate([atoms.get_momenta() for atoms in structures]))
    assert found == pytest.approx([temperature_of(atoms) for atoms in structures])
