"""What is audited: any ASE calculator, with or without σ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator, PropertyNotImplementedError

from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.models import Model

Reader = Callable[[Any, int], FloatArray]
"""σ from an entry of a calculator's results and the number of atoms."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A calculator with a name and, for our own calculator, its model."""

    name: str
    calculator: BaseCalculator
    model: Model | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The prediction of a subject for one structure. eV, Å; ``None``: no σ."""

    energy: float
    forces: FloatArray  # (n_atoms, 3)
    energy_std: float | None
    forces_std: FloatArray | None  # (n_atoms, 3)


def _as_std(value: Any, n_atoms: int) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def _root(value: Any, n_atoms: int) -> FloatArray:
    return np.sqrt(np.asarray(value, dtype=np.float64))


def _spread(value: Any, n_atoms: int) -> FloatArray:
    """Unbiased, over an axis of members that is the last one, as in (n_atoms, 3, n_members), or else the first."""
    members = np.asarray(value, dtype=np.float64)
    last = members.ndim == 1 or members.shape[:2] == (n_atoms, 3)
    return members.std(axis=-1 if last else 0, ddof=1)


ENERGY_READERS: dict[str, Reader] = {
    "energy_uncertainty": _as_std,
    "energy_std": _as_std,
    "energy_var": _root,
    "energy_variance": _root,
    "energy_ensemble": _spread,
    "energies_ensemble": _spread,
    "energy_comm": _spread,
}
FORCES_READERS: dict[str, Reader] = {
    "forces_uncertainty": _as_std,
    "forces_std": _as_std,
    "forces_var": _root,
    "forces_variance": _root,
    "forces_ensemble": _spread,
    "forces_comm": _spread,
}
"""Where calculators keep their σ, by name in ``results``; the first one found is used. MACE's committees have
``energy_var`` and ``forces_comm``, NewtonNet ``energy_std`` and ``forces_std``."""


def ask(subject: Subject, atoms: Atoms, *, with_forces_std: bool = False) -> Answer:
    """Energy, forces and σ. An error of any calculator becomes a ``DataError`` that names the subject.

    Force σ may cost far more than all the rest: only ``with_forces_std`` requests it explicitly.
    """
    structure, calculator = atoms.copy(), subject.calculator
    try:
        energy = float(np.asarray(calculator.get_property("energy", structure)).item())
        forces = np.asarray(calculator.get_property("forces", structure), dtype=np.float64)
        results = dict(calculator.results)
        if with_forces_std and "forces_uncertainty" not in results:
            results |= _on_demand(calculator, structure, "forces_uncertainty")
        energy_std = _read(ENERGY_READERS, results, len(atoms))
        forces_std = _read(FORCES_READERS, results, len(atoms))
    except SigmaffError:
        raise
    except Exception as error:  # another program's
        raise DataError(
            f"{subject.name} cannot predict {atoms.symbols} ({type(error).__name__}: {error}); "
            "leave such structures out, or fix the calculator"
        ) from error
    answer = Answer(
        energy=energy,
        forces=forces,
        energy_std=None if energy_std is None else float(energy_std.item()),
        forces_std=forces_std,
    )
    _check(answer, subject, atoms)
    return answer


def _on_demand(calculator: BaseCalculator, atoms: Atoms, name: str) -> dict[str, Any]:
    try:
        return {name: calculator.get_property(name, atoms)}
    except PropertyNotImplementedError:
        return {}


def _read(readers: Mapping[str, Reader], results: Mapping[str, Any], n_atoms: int) -> FloatArray | None:
    found = next((name for name in readers if results.get(name) is not None), None)
    return None if found is None else readers[found](results[found], n_atoms)


def _check(answer: Answer, subject: Subject, atoms: Atoms) -> None:
    for name, value in vars(answer).items():
        if value is not None and not np.isfinite(value).all():
            raise DataError(f"{subject.name}: {name} of {atoms.symbols} is not a finite number")
    for name, array in (("forces", answer.forces), ("force σ", answer.forces_std)):
        if array is not None and array.shape != (len(atoms), 3):
            raise DataError(
                f"{subject.name}: {name} of {len(atoms)} atoms have shape {array.shape}; ({len(atoms)}, 3) is needed"
            )
