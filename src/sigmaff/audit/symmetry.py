"""Desideratum 1: energies, forces and σ do not depend on how a structure is placed and how its atoms are numbered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from ase import Atoms
from scipy.stats import special_ortho_group

from sigmaff.audit import tolerances, words
from sigmaff.audit.finding import Finding, judged
from sigmaff.audit.subject import Answer, Subject, ask
from sigmaff.evaluation.metrics import FloatArray, rmse

NAME = "Symmetry"
SHIFT = 5.0  # Å
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Operation:
    """x ↦ R x + t, and the atom at each place of the new order."""

    order: npt.NDArray[np.int64]  # (n_atoms,)
    matrix: FloatArray = field(default_factory=lambda: np.eye(3))  # (3, 3) orthogonal
    shift: FloatArray = field(default_factory=lambda: np.zeros(3))  # (3,) Å

    def apply(self, atoms: Atoms) -> Atoms:
        moved = atoms[self.order]
        moved.set_cell(atoms.cell[:] @ self.matrix.T)
        moved.positions = moved.positions @ self.matrix.T + self.shift
        return moved

    def forces_back(self, forces: FloatArray) -> FloatArray:
        """Forces on the moved structure, as they should be on the original one."""
        return forces[np.argsort(self.order)] @ self.matrix


Maker = Callable[[int, np.random.Generator], Operation]


def _rotation(n_atoms: int, rng: np.random.Generator) -> Operation:
    return Operation(order=np.arange(n_atoms), matrix=special_ortho_group.rvs(3, random_state=rng))


def _reflection(n_atoms: int, rng: np.random.Generator) -> Operation:
    normal = rng.normal(size=3)
    normal /= np.linalg.norm(normal)
    return Operation(order=np.arange(n_atoms), matrix=np.eye(3) - 2.0 * np.outer(normal, normal))


def _translation(n_atoms: int, rng: np.random.Generator) -> Operation:
    return Operation(order=np.arange(n_atoms), shift=rng.normal(0.0, SHIFT, size=3))


def _permutation(n_atoms: int, rng: np.random.Generator) -> Operation:
    return Operation(order=rng.permutation(n_atoms))


OPERATIONS: dict[str, Maker] = {
    "rotation": _rotation,
    "reflection": _reflection,
    "translation": _translation,
    "permutation": _permutation,
}


def measure(subject: Subject, structures: Sequence[Atoms], rng: np.random.Generator, *, n_repeats: int) -> Finding:
    """The worst deviation of E, F, σ_E and σ_F over structures, kinds of operation and ``n_repeats`` random ones each.

    Force σ is compared by √trace σ² of each atom: single components of it do not turn with the structure.
    """
    by_operation: dict[str, dict[str, float]] = {name: {} for name in OPERATIONS}
    for atoms in structures:
        answer = ask(subject, atoms, with_forces_std=True)
        for name, make in OPERATIONS.items():
            for _ in range(n_repeats):
                operation = make(len(atoms), rng)
                moved = ask(subject, operation.apply(atoms), with_forces_std=True)
                _keep_worst(by_operation[name], deviations(answer, moved, operation))
    quantities = by_operation["rotation"].keys()
    overall = {quantity: max(found[quantity] for found in by_operation.values()) for quantity in quantities}
    details = {f"{quantity}, {name}": found[quantity] for name, found in by_operation.items() for quantity in found}
    relative = {quantity: value / tolerances.SYMMETRY[quantity].holds for quantity, value in overall.items()}
    quantity = max(relative, key=relative.__getitem__)
    operation_name = max(by_operation, key=lambda name: by_operation[name][quantity])
    return judged(NAME, overall | details, tolerances.SYMMETRY, words.symmetry(overall, quantity, operation_name))


def deviations(answer: Answer, moved: Answer, operation: Operation) -> dict[str, float]:
    """Largest differences between a structure and the same one moved, without units but for the energy, eV/atom."""
    difference = operation.forces_back(moved.forces) - answer.forces
    found = {
        "energy": abs(moved.energy - answer.energy) / len(answer.forces),
        "forces": float(np.abs(difference).max()) / max(rmse(answer.forces), TINY),
    }
    if answer.energy_std is not None and moved.energy_std is not None:
        found["energy_std"] = abs(moved.energy_std - answer.energy_std) / max(answer.energy_std, TINY)
    if answer.forces_std is not None and moved.forces_std is not None:
        traces = np.linalg.norm(answer.forces_std, axis=1)
        moved_traces = np.linalg.norm(moved.forces_std, axis=1)[np.argsort(operation.order)]
        found["forces_std"] = float(np.abs(moved_traces - traces).max()) / max(rmse(traces), TINY)
    return found


def _keep_worst(worst: dict[str, float], found: dict[str, float]) -> None:
    for name, value in found.items():
        worst[name] = max(value, worst.get(name, 0.0))
