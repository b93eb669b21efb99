"""Check forces against mechanics: net force, net torque, and energies of neighbouring frames."""

from collections.abc import Iterator

import numpy as np
from ase import Atoms

from sigmaff.data.check.bonds import check_forces_against_bonds
from sigmaff.data.check.finding import Finding, Severity, findings
from sigmaff.data.check.stacks import Stack, spaced, stacks
from sigmaff.data.overlap import comparable
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures
from sigmaff.units import ENERGY_UNITS, LENGTH_UNITS

NET_FORCE = 0.1
"""|Σ F| / Σ |F| of an isolated structure: exactly 0 in theory, far below this in a converged calculation."""

SMALL_FORCE = 0.01
"""eV/Å per atom. A smaller net force is noise."""

NET_TORQUE = 0.02
"""|Σ r × F| / Σ |r||F|: exactly 0 in theory, below 0.001 in DFT data sets.

Permuted forces of n atoms have about 0.8/√n.
"""

MAX_STEP = 0.25
"""Å. If atoms move less between two frames, −½(F₁ + F₂)·(x₂ − x₁) is the energy difference to third order."""

MAX_APART = 0.5
"""Å. The same for nearest frames of a molecule, turned onto each other: good enough to judge sign and unit."""

MIN_STEPS = 10

MAX_FRAMES = 1000
"""Frames among which nearest ones are searched."""

N_DISTANCES = 64
"""Interatomic distances by which frames are compared."""

Pair = tuple[int, int]


def check_net_force(data: LabelledStructures) -> Iterator[Finding]:
    drifting: list[int] = []
    for stack in stacks(data):
        if stack.forces is not None and len(stack.numbers) > 1:
            net = np.linalg.norm(stack.forces.mean(1), axis=1)
            mean = np.linalg.norm(stack.forces, axis=2).mean(1)
            drifting += stack.indices[(net > SMALL_FORCE) & (net > NET_FORCE * mean)].tolist()
    message = "the sum of forces is not zero: atoms are missing, constrained, or in an external field"
    yield from findings("warning", "net_force", message, data, sorted(drifting))


def check_net_torque(data: LabelledStructures) -> Iterator[Finding]:
    """Find forces that turn a molecule. Energies that depend on distances alone have none."""
    turning: list[int] = []
    n_molecules = 0
    for stack in stacks(data):
        if stack.forces is not None and stack.is_molecule and len(stack.numbers) > 1:
            n_molecules += len(stack.indices)
            turning += stack.indices[_net_torque(stack, stack.forces) > NET_TORQUE].tolist()
    is_rule = len(turning) > n_molecules // 2
    severity: Severity = "error" if is_rule else "warning"
    message = (
        "the forces have a net torque: they belong to other atoms (another order) or to another orientation of the "
        "molecule, or there is an external field; write positions and forces from the same output"
    )
    yield from findings(severity, "net_torque", message, data, sorted(turning))


def _net_torque(stack: Stack, forces: FloatArray) -> FloatArray:
    """|Σ r × F| / Σ |r||F| of each structure, (m,); 0 where forces are noise. The net force has no share in it."""
    arms = stack.positions - stack.positions.mean(1, keepdims=True)
    free = forces - forces.mean(1, keepdims=True)
    size = np.linalg.norm(free, axis=2)
    possible = (np.linalg.norm(arms, axis=2) * size).sum(1)
    torque = np.linalg.norm(np.cross(arms, free).sum(1), axis=1)
    return np.where(size.mean(1) > SMALL_FORCE, torque / np.maximum(possible, 1e-12), 0.0)


def check_forces_against_energies(data: LabelledStructures) -> Iterator[Finding]:
    """Compare the work of the forces with the change of energy between neighbouring frames; else look at bonds."""
    work, change = _steps(data)
    if len(work) < MIN_STEPS:
        yield from check_forces_against_bonds(data)
        return
    if not work.any() or not change.any():
        return
    correlation = float(np.dot(work, change) / (np.linalg.norm(work) * np.linalg.norm(change)))
    slope = float(np.dot(work, change) / np.dot(work, work))
    where = f"between {len(work)} pairs of neighbouring frames"
    if correlation < -0.5:
        message = (
            f"energies increase along the forces (correlation {correlation:.2f} {where}): the sign of the forces is "
            "wrong; are they gradients? Multiply them by −1"
        )
        yield from findings("error", "force_sign", message, data)
    elif correlation > 0.9 and not 0.67 < slope < 1.5:
        message = f"energies change {slope:.3g} times as much as the forces predict ({where})"
        yield from findings("error", "force_unit", message + _explanation(slope), data)
    elif correlation < 0.5:
        message = (
            f"energies and forces are inconsistent (correlation {correlation:.2f} {where}): are they of the same "
            "structures and the same method?"
        )
        yield from findings("warning", "force_consistency", message, data)


def _steps(data: LabelledStructures) -> tuple[FloatArray, FloatArray]:
    """Work against the forces and change of energy, eV: between consecutive frames, or nearest ones of a molecule."""
    if data.energy is None or data.forces is None:
        return np.zeros(0), np.zeros(0)
    work, change = _consecutive_steps(data, data.energy, data.forces)
    return (work, change) if len(work) >= MIN_STEPS else _nearest_steps(data, data.energy, data.forces)


def _consecutive_steps(
    data: LabelledStructures, energy: FloatArray, forces: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    work, change = [], []
    order = np.arange(len(data)) if data.time_index is None else np.argsort(data.time_index)
    for place in spaced(np.arange(len(order) - 1), MAX_FRAMES).tolist():
        one, two = order[place], order[place + 1]
        step = _displacement(data.structures[one], data.structures[two])
        if step is not None and 0 < np.abs(step).max() < MAX_STEP:
            work.append(-0.5 * np.sum((forces[one] + forces[two]) * step))
            change.append(energy[two] - energy[one])
    return np.array(work), np.array(change)


def _displacement(one: Atoms, two: Atoms) -> FloatArray | None:
    """Shortest displacement of each atom, (n_atoms, 3) Å; ``None`` if the frames are not of one trajectory."""
    if not (np.array_equal(one.numbers, two.numbers) and np.array_equal(one.pbc, two.pbc)):
        return None
    step = two.positions - one.positions
    if not one.pbc.any():
        return step
    if not np.allclose(one.cell.array, two.cell.array) or one.cell.rank < 3:
        return None
    turns = np.round(one.cell.scaled_positions(step)) * one.pbc
    return step - turns @ one.cell.array


def _nearest_steps(
    data: LabelledStructures, energy: FloatArray, forces: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    """From each frame of a molecule to the nearest one with the same atoms, turned onto it: for frames in any order."""
    work, change = [], []
    groups = [spaced(group, MAX_FRAMES) for group in comparable(data.structures) if _is_pairable(data, group)]
    n_frames = 0
    for group in sorted(groups, key=len, reverse=True):
        if (n_frames := n_frames + len(group)) > 2 * MAX_FRAMES:
            break
        for one, two in _nearest(data, group):
            a, b = data.structures[one].positions, data.structures[two].positions
            rotation = _rotation(a, b)
            step = (b - b.mean(0)) @ rotation - (a - a.mean(0))
            if 0 < np.abs(step).max() < MAX_APART:
                work.append(-0.5 * np.sum((forces[one] + forces[two] @ rotation) * step))
                change.append(energy[two] - energy[one])
    return np.array(work), np.array(change)


def _is_pairable(data: LabelledStructures, group: IndexArray) -> bool:
    atoms = data.structures[group[0]]
    return len(group) > 1 and len(atoms) > 1 and not atoms.pbc.any()


def _nearest(data: LabelledStructures, group: IndexArray) -> set[Pair]:
    """Each frame and the nearest other one by interatomic distances, which need no common orientation."""
    positions = np.array([data.structures[index].positions for index in group])
    first, second = np.triu_indices(positions.shape[1], 1)
    if len(first) > N_DISTANCES:
        drawn = np.random.default_rng(0).choice(len(first), N_DISTANCES, replace=False)
        first, second = first[drawn], second[drawn]
    distances = np.linalg.norm(positions[:, first] - positions[:, second], axis=2)
    distances -= distances.mean(0)
    square = np.sum(distances**2, axis=1)
    apart = square[:, None] + square - 2 * distances @ distances.T
    np.fill_diagonal(apart, np.inf)
    ordered = np.sort(np.stack([group, group[apart.argmin(1)]], axis=1), axis=1)
    return {(one, two) for one, two in ordered.tolist()}


def _rotation(a: FloatArray, b: FloatArray) -> FloatArray:
    """R, (3, 3), a proper rotation, that minimises ‖(b − b̄) R − (a − ā)‖."""
    u, _, v = np.linalg.svd((b - b.mean(0)).T @ (a - a.mean(0)))
    turned: FloatArray = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ v))]) @ v
    return turned


def _explanation(slope: float) -> str:
    """Units that explain this slope if energies and forces were read as eV and eV/Å."""
    fitting = [
        f"energies in {energy} with forces in {force}/{length}"
        for energy, energy_value in ENERGY_UNITS.items()
        for force, force_value in ENERGY_UNITS.items()
        for length, length_value in LENGTH_UNITS.items()
        if abs(slope * energy_value * length_value / force_value - 1) < 0.05
    ]
    unit = f": {' or '.join(fitting[:3])}?" if fitting else ": is one of the units wrong?"
    return f"{unit} Set energy_unit and forces_unit"
