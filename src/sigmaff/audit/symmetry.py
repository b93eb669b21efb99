"""Desideratum 1: energies, forces and σ do not depend on how a structure is placed and how its atoms are numbered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy
from ase import Atoms

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, judged
from sigmaff.audit.subject import Subject, ask
from sigmaff.evaluation.metrics import FloatArray, rmse
from sigmaff.models.prediction import StructurePrediction

NAME = "Symmetry"
SHIFT = 5.0  # Å
TINY = 1e-12
QUANTITIES = {
    "energy": ("The energy", "eV/atom"),
    "forces": ("A force", "of the rms force"),
    "energy_std": ("The energy σ", "of itself"),
    "forces_std": ("A force σ", "of the rms σ"),
}


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


def _rotation(rng: np.random.Generator) -> FloatArray:
    rotation: FloatArray = scipy.stats.special_ortho_group.rvs(3, random_state=rng)
    return rotation


def _reflection(rng: np.random.Generator) -> FloatArray:
    normal = rng.normal(size=3)
    normal /= np.linalg.norm(normal)
    return np.eye(3) - 2.0 * np.outer(normal, normal)


OPERATIONS: dict[str, Callable[[int, np.random.Generator], Operation]] = {
    "rotation": lambda n, rng: Operation(order=np.arange(n), matrix=_rotation(rng)),
    "reflection": lambda n, rng: Operation(order=np.arange(n), matrix=_reflection(rng)),
    "translation": lambda n, rng: Operation(order=np.arange(n), shift=rng.normal(0.0, SHIFT, size=3)),
    "permutation": lambda n, rng: Operation(order=rng.permutation(n)),
}
"""Random operations on a number of atoms."""


def measure(subject: Subject, structures: Sequence[Atoms], rng: np.random.Generator, *, n_repeats: int) -> Finding:
    """The worst deviation of E, F, σ_E and σ_F over structures, kinds of operation and ``n_repeats`` random ones each.

    Force σ is compared by √trace σ² of each atom: single components of it do not turn with the structure.
    """
    by_operation: dict[str, dict[str, float]] = {name: {} for name in OPERATIONS}
    for atoms in structures:
        answer = ask(subject, atoms, with_forces_std=True)
        for name, make in OPERATIONS.items():
            worst = by_operation[name]
            for _ in range(n_repeats):
                operation = make(len(atoms), rng)
                moved = ask(subject, operation.apply(atoms), with_forces_std=True)
                found = deviations(answer, moved, operation)
                worst |= {quantity: max(value, worst.get(quantity, 0.0)) for quantity, value in found.items()}
    overall = {key: max(found[key] for found in by_operation.values()) for key in by_operation["rotation"]}
    details = {f"{key}, {name}": value for name, found in by_operation.items() for key, value in found.items()}
    quantity = max(overall, key=lambda key: overall[key] / tolerances.SYMMETRY[key].holds)
    operation_name = max(by_operation, key=lambda name: by_operation[name][quantity])
    label, unit = QUANTITIES[quantity]
    sentence = (
        f"{label} changes by {overall[quantity]:.2g} {unit} under {operation_name}; "
        "all other quantities change less, relative to their tolerances."
    )
    return judged(NAME, overall | details, tolerances.SYMMETRY, f"ΔF {overall['forces']:.1g}", sentence)


def deviations(answer: StructurePrediction, moved: StructurePrediction, operation: Operation) -> dict[str, float]:
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
