"""Desideratum 2: forces are the slope of the energy; closed paths yield no work and the total energy is constant."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from ase.md.velocitydistribution import Stationary
from ase.md.verlet import VelocityVerlet

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, Series, judged, line
from sigmaff.audit.subject import Subject, ask
from sigmaff.errors import DataError
from sigmaff.evaluation.metrics import FloatArray, rmse
from sigmaff.progress import Listener

NAME = "Energy conservation"
LOOP_RADIUS = 0.03  # Å, rms over the coordinates
LOOP_POINTS = 24
TEMPERATURE = 300.0  # K
TIME_STEP = 0.5  # fs
N_BLOCKS = 10
PLOT_POINTS = 60
FIFTH_DERIVATIVE = 1e4  # eV/Å⁵, of a stiff bond: it decides the best step of differences
ROUNDING_SPAN, ROUNDING_POINTS = 1e-6, 12  # Å between points, and how many
STENCIL = np.array([1.0, -8.0, 8.0, -1.0]) / 12.0  # at −2h, −h, h, 2h
MIN_STEP, MAX_STEP = 1e-3, 2e-2  # Å


@dataclass(frozen=True, kw_only=True)
class Run:
    """An NVE run: total energy of each step, and why it ended early, if it did."""

    picoseconds: FloatArray  # (n_steps,)
    energy: FloatArray  # (n_steps,) eV/atom
    stopped: str | None

    @property
    def is_short(self) -> bool:
        """Too short to tell a drift from vibrations."""
        return self.energy.size < 2 * N_BLOCKS

    def means(self, n_blocks: int) -> tuple[FloatArray, FloatArray]:
        """Times and energies, averaged over at most so many blocks: vibrations hide a drift."""
        blocks = np.array_split(np.arange(self.energy.size), max(1, min(n_blocks, self.energy.size)))
        times, energies = ([values[block].mean() for block in blocks] for values in (self.picoseconds, self.energy))
        return np.array(times), np.array(energies)


def measure(
    subject: Subject,
    structures: Sequence[Atoms],
    rng: np.random.Generator,
    n_components: int,
    n_loops: int,
    nve_ps: float,
    listener: Listener,
) -> Finding:
    """Forces against differences and work around loops on every structure, a run from the first one."""
    rounding = energy_rounding(subject, structures[0], rng)
    deviation, of_rounding = _against_differences(subject, structures, rng, rounding, n_components)
    work = max(_random_loop(subject, atoms, rng) for atoms in structures for _ in range(n_loops))
    run = nve(subject, structures[0], rng, nve_ps, listener)
    numbers = {
        "forces_against_differences": max(0.0, deviation - 3.0 * of_rounding),
        "forces_against_differences, with rounding": deviation,
        "rounding of the differences": of_rounding,
        "rounding of the energy (eV)": rounding,
        "loop_work": work,
    }
    figure, outcome = f"loops yield {work:.0e}", "the run is too short to measure a drift."
    if not run.is_short:
        slope, error = drift(*run.means(N_BLOCKS))
        length, fluctuation = float(run.picoseconds[-1]), float(run.energy.std())
        numbers |= {
            "drift": max(0.0, abs(slope) - 2.0 * error),
            "drift, slope (eV/atom/ps)": slope,
            "drift, its standard error (eV/atom/ps)": error,
            "run (ps)": length,
            "fluctuation": fluctuation,
        }
        figure = f"{1e3 * slope:.2g} ± {1e3 * error:.1g} meV/atom/ps"
        outcome = (
            f"the total energy drifts by {figure} in {length:.2g} ps at {TIME_STEP} fs and fluctuates by "
            f"{1e3 * fluctuation:.2g} meV/atom."
        )
    sentence = (
        f"Forces differ from the slope of the energy by {deviation:.1e} of their rms (rounding alone: "
        f"{of_rounding:.1e}); closed paths yield up to {work:.1e} of the work done along them; "
        f"{outcome}" + ("" if run.stopped is None else f" The run ended early, {run.stopped}")
    )
    return judged(NAME, numbers, tolerances.CONSERVATION, figure, sentence, series=[_plotted(run)])


def _plotted(run: Run) -> Series:
    times, energies = run.means(PLOT_POINTS)
    return line("nve", times, 1e3 * (energies - run.energy.mean()))


# --- forces against differences of the energy


def energy_rounding(subject: Subject, atoms: Atoms, rng: np.random.Generator) -> float:
    """Rms rounding of the energy, eV: its scatter about a parabola on points that are very close to each other."""
    direction = _direction(len(atoms), rng)
    steps = np.arange(ROUNDING_POINTS) - 0.5 * (ROUNDING_POINTS - 1)
    energies = np.array([ask(subject, _moved(atoms, s * ROUNDING_SPAN * direction)).energy for s in steps])
    residual = energies - energies[0] - np.polyval(np.polyfit(steps, energies - energies[0], 2), steps)
    return float(np.sqrt(np.square(residual).sum() / (ROUNDING_POINTS - 3)))


def best_step(rounding: float) -> float:
    """h in Å that minimises rounding/h + h⁴ E⁽⁵⁾/30, the error of the four-point difference."""
    return float(np.clip((7.5 * rounding / FIFTH_DERIVATIVE) ** 0.2, MIN_STEP, MAX_STEP))


def numerical_force(subject: Subject, atoms: Atoms, atom: int, axis: int, step: float) -> float:
    """−∂E/∂x of one coordinate, eV/Å: (E(−2h) − 8 E(−h) + 8 E(h) − E(2h)) / 12 h."""
    unit = np.zeros((len(atoms), 3))
    unit[atom, axis] = step
    energies = np.array([ask(subject, _moved(atoms, k * unit)).energy for k in (-2, -1, 1, 2)])
    return -float(STENCIL @ (energies - energies.mean())) / step


def _against_differences(
    subject: Subject, structures: Sequence[Atoms], rng: np.random.Generator, rounding: float, n_components: int
) -> tuple[float, float]:
    """Rms deviation over random coordinates, and the part of it that rounding makes, both over the rms force."""
    step, errors, sizes = best_step(rounding), [], []
    for atoms in structures:
        forces = ask(subject, atoms).forces
        chosen = rng.choice(forces.size, min(n_components, forces.size), replace=False)
        for atom, axis in zip(*np.unravel_index(chosen, forces.shape), strict=True):
            errors.append(numerical_force(subject, atoms, int(atom), int(axis), step) - forces[atom, axis])
        sizes.append(forces.ravel())
    size = rmse(np.concatenate(sizes)) or 1.0
    return rmse(errors) / size, float(np.linalg.norm(STENCIL)) * rounding / step / size


# --- work around closed paths


def loop_work(subject: Subject, atoms: Atoms, first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """∮ F·dr and ∮ |F·dr| in eV around r + (cos t − 1) a + sin t b, with a, b (n_atoms, 3) in Å.

    Sums over evenly spaced t converge faster than any power of their number, as the integrand is periodic.
    """

    def work_at(angle: float) -> float:
        cosine, sine = np.cos(angle), np.sin(angle)
        moved = _moved(atoms, (cosine - 1.0) * first + sine * second)
        return float(np.vdot(ask(subject, moved).forces, cosine * second - sine * first))

    work = np.array([work_at(angle) for angle in 2.0 * np.pi * np.arange(LOOP_POINTS) / LOOP_POINTS])
    width = 2.0 * np.pi / LOOP_POINTS
    return float(work.sum()) * width, float(np.abs(work).sum()) * width


def _random_loop(subject: Subject, atoms: Atoms, rng: np.random.Generator) -> float:
    radius = LOOP_RADIUS * np.sqrt(3 * len(atoms))
    work, total = loop_work(subject, atoms, radius * _direction(len(atoms), rng), radius * _direction(len(atoms), rng))
    return abs(work) / total if total > 0 else 0.0


# --- simulation at constant energy


def nve(
    subject: Subject, atoms: Atoms, rng: np.random.Generator, picoseconds: float, listener: Listener | None = None
) -> Run:
    """Velocity Verlet from a thermal start. It ends early where the structure can no longer be predicted."""
    structure = atoms.copy()
    structure.set_constraint()
    structure.calc = subject.calculator
    thermal = np.sqrt(structure.get_masses() * units.kB * TEMPERATURE)
    structure.set_momenta(thermal[:, None] * rng.normal(size=(len(structure), 3)))
    Stationary(structure)
    n_steps = max(2 * N_BLOCKS, round(1e3 * picoseconds / TIME_STEP))
    dynamics = VelocityVerlet(structure, timestep=TIME_STEP * units.fs)
    energies: list[float] = []
    stopped = None
    for step in range(n_steps):
        try:
            dynamics.run(1)
            energy = structure.get_total_energy() / len(structure)
            if not np.isfinite(energy):
                raise DataError("the energy is not a finite number")
        except Exception as error:  # of the model, or of another program
            stopped = f"after {TIME_STEP * step:g} fs: {error}"
            break
        energies.append(energy)
        (listener or Listener()).advance(step + 1, n_steps)
    times = 1e-3 * TIME_STEP * np.arange(1, len(energies) + 1, dtype=np.float64)
    return Run(picoseconds=times, energy=np.array(energies), stopped=stopped)


def drift(times: FloatArray, energies: FloatArray) -> tuple[float, float]:
    """Slope of the energy over time and its standard error, by least squares; of averages over blocks."""
    centred = times - times.mean()
    slope = float(centred @ energies / (centred @ centred))
    residual = energies - energies.mean() - slope * centred
    error = np.sqrt(residual @ residual / (times.size - 2) / (centred @ centred))
    return slope, float(error)


def _direction(n_atoms: int, rng: np.random.Generator) -> FloatArray:
    """A random direction in the space of all coordinates, of length 1."""
    direction = rng.normal(size=(n_atoms, 3))
    return direction / np.linalg.norm(direction)


def _moved(atoms: Atoms, displacement: FloatArray) -> Atoms:
    moved = atoms.copy()
    moved.positions += displacement
    return moved
