"""What is audited: any ASE calculator, with or without σ."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator, PropertyNotImplementedError

from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.factory import calculator_from
from sigmaff.models import Model, StructurePrediction
from sigmaff.models.prediction import Provenance


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A calculator with a name and, for our own calculator, its model."""

    name: str
    calculator: BaseCalculator
    model: Model | None = None


def foreign_subject(reference: str) -> Subject:
    """The calculator that ``module:factory`` makes when called without arguments: a function, or a calculator class."""
    try:
        calculator = calculator_from(reference, {})
    except SigmaffError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{reference}: calling it without arguments failed ({type(error).__name__}: {error}); write a function "
            "that takes none and returns the calculator"
        ) from error
    missing = [name for name in ("energy", "forces") if name not in calculator.implemented_properties]
    if missing:
        raise ConfigError(
            f"{reference}: the calculator has no {' and no '.join(missing)}; an audit needs energies and forces"
        )
    return Subject(name=reference.partition(":")[2], calculator=calculator)


def _spread(members: FloatArray, n_atoms: int) -> FloatArray:
    """Unbiased, over an axis of members that is the last one, as in (n_atoms, 3, n_members), or else the first."""
    last = members.ndim == 1 or members.shape[:2] == (n_atoms, 3)
    return np.asarray(members.std(axis=-1 if last else 0, ddof=1))


READERS: dict[str, Callable[[FloatArray, int], FloatArray]] = {
    "uncertainty": lambda value, n_atoms: value,
    "std": lambda value, n_atoms: value,
    "var": lambda value, n_atoms: np.sqrt(value),
    "variance": lambda value, n_atoms: np.sqrt(value),
    "ensemble": _spread,
    "comm": _spread,
}
"""σ from an entry of a calculator's ``results`` and the number of atoms, by the end of its name; the first one found is
used. MACE's committees have ``energy_var`` and ``forces_comm``, NewtonNet ``energy_std`` and ``forces_std``."""


def ask(subject: Subject, atoms: Atoms, *, with_forces_std: bool = False) -> StructurePrediction:
    """Energy, forces and σ. An error of any calculator becomes a ``DataError`` that names the subject.

    Force σ may cost far more than all the rest: only ``with_forces_std`` requests it explicitly.
    """
    structure, calculator = atoms.copy(), subject.calculator
    try:
        energy = float(np.asarray(calculator.get_property("energy", structure)).item())
        forces = np.asarray(calculator.get_property("forces", structure), dtype=np.float64)
        results = dict(calculator.results)
        if with_forces_std and "forces_uncertainty" not in results:
            with suppress(PropertyNotImplementedError):
                results["forces_uncertainty"] = calculator.get_property("forces_uncertainty", structure)
        results.setdefault("energy_ensemble", results.get("energies_ensemble"))
        energy_std, forces_std = (_std(quantity, results, len(atoms)) for quantity in ("energy", "forces"))
    except SigmaffError:
        raise
    except Exception as error:  # another program's
        raise DataError(
            f"{subject.name} cannot predict {atoms.symbols} ({type(error).__name__}: {error}); "
            "leave such structures out, or fix the calculator"
        ) from error
    answer = StructurePrediction(
        energy=energy,
        forces=forces,
        energy_std=None if energy_std is None else float(energy_std.item()),
        forces_std=forces_std,
        provenance=Provenance(method=subject.name, kind=None if energy_std is None else "total"),
    )
    _check(answer, subject, atoms)
    return answer


def _std(quantity: str, results: Mapping[str, Any], n_atoms: int) -> FloatArray | None:
    names = (name for name in READERS if results.get(f"{quantity}_{name}") is not None)
    if (found := next(names, None)) is None:
        return None
    return READERS[found](np.asarray(results[f"{quantity}_{found}"], dtype=np.float64), n_atoms)


def _check(answer: StructurePrediction, subject: Subject, atoms: Atoms) -> None:
    for name, value in vars(answer).items():
        if isinstance(value, float | np.ndarray) and not np.isfinite(value).all():
            raise DataError(f"{subject.name}: {name} of {atoms.symbols} is not a finite number")
    for name, array in (("forces", answer.forces), ("force σ", answer.forces_std)):
        if array is not None and array.shape != (len(atoms), 3):
            raise DataError(
                f"{subject.name}: {name} of {len(atoms)} atoms have shape {array.shape}; ({len(atoms)}, 3) is needed"
            )
