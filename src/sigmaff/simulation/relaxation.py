"""Relaxation of structures with a model, each stopped where a σ leaves its range."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import ase.io
from ase import Atoms
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS, FIRE, LBFGS, BFGSLineSearch
from ase.optimize.optimize import Optimizer
from pydantic import ConfigDict, Field, model_validator

from sigmaff.config import Settings
from sigmaff.data import unknown_element
from sigmaff.data.statistics import undetermined_energies
from sigmaff.errors import DataError, UndeterminedEnergyWarning
from sigmaff.inputs import settings_of
from sigmaff.models import Model
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.progress import Listener
from sigmaff.simulation.calculator import Calculator
from sigmaff.simulation.guarded import GuardedOptimizer, Outcome
from sigmaff.simulation.limits import Above, Limits, Looked, range_limits
from sigmaff.simulation.results import UNDETERMINED, PerAtom, bare_copy, with_results
from sigmaff.simulation.watch import Watch

RelaxLimit = float | Literal["auto", "off"]
OPTIMIZERS: dict[str, type[Optimizer]] = {"bfgs": BFGS, "lbfgs": LBFGS, "fire": FIRE, "bfgs-linesearch": BFGSLineSearch}


class RelaxConfig(Settings):
    """Settings of a relaxation. eV, Å."""

    model_config = ConfigDict(allow_inf_nan=False)

    optimizer: Literal["bfgs", "lbfgs", "fire", "bfgs-linesearch"] = Field(
        default="bfgs", description="optimizer of ASE; lbfgs or fire for large structures"
    )
    fmax: float = Field(default=0.05, gt=0, description="eV/Å; largest force of an atom at the end")
    steps: int = Field(default=500, ge=0, description="steps of each structure, at most")
    cell: bool = Field(default=False, description="relax the cell as well")
    stop_above: RelaxLimit = Field(
        default="auto",
        description="eV/Å; stop a structure at its last good step when the force σ of an atom (norm of its components) "
        "exceeds this; auto: twice the largest of the structures that the model was calibrated on; off: no limit",
    )
    stop_above_energy: RelaxLimit = Field(
        default="auto", description="eV/atom; the same for energy σ per atom; auto: where stop_above is auto, else off"
    )
    stop_above_atom: RelaxLimit = Field(
        default="auto",
        description="eV; the same for the σ of an atom's share of the energy; auto: where stop_above is auto, else off",
    )
    warn_above: RelaxLimit = Field(default="off", description="eV/Å; as stop_above, but go on, with a warning")
    forces_std: ForceStdMethod = Field(default="auto", description="how force σ is computed")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name in ("stop_above", "stop_above_energy", "stop_above_atom", "warn_above"):
            if isinstance(value := getattr(self, name), float) and value <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.forces_std == "none" and isinstance(self.stop_above, float):
            raise ValueError("stop_above is a limit on σ of forces; forces_std none does not compute it")
        return self


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """A structure at the end of its relaxation, and how that ended."""

    atoms: Atoms  # with energy, forces and σ, as of ``snapshot``
    outcome: Outcome


def relax(
    model: Model,
    structures: Path | str | Atoms | Sequence[Atoms],
    config: RelaxConfig | Mapping[str, Any] | Path | str | None = None,
    *,
    trajectory: list[Atoms] | None = None,
    per_atom: PerAtom = "arrays",
    listener: Listener | None = None,
) -> list[Relaxed]:
    """Relax structures, and stop each where a σ leaves its range on the structures that the model was calibrated on.

    Arguments:
        model: a loaded model.
        structures: ASE structures, or a file that ASE reads; constraints, such as fixed atoms, are kept.
        config: ``optimizer``, ``fmax`` (eV/Å), ``steps``, ``stop_above`` (eV/Å, auto or off), ..., as of ``sigmaff
            relax``.
        trajectory: gets every good step.
        per_atom: where frames keep σ of atoms; see ``snapshot``.
        listener: callbacks for progress; the default is silent.

    Returns each structure as it was left, and how its relaxation ended: ``outcome.ending`` is converged, steps,
    crossing or unphysical. One that is stopped is left at its last good step.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> for relaxed in sf.relax(model, "start.extxyz", {"fmax": 0.5, "steps": 3}):
        ...     print(relaxed.outcome.ending, relaxed.atoms.get_potential_energy())
    """
    settings = settings_of(RelaxConfig, {} if config is None else config)
    listener = listener or Listener()
    starts = _starts(structures)
    for index, atoms in enumerate(starts):
        if problem := _problem(atoms, model, settings):
            raise DataError(f"structure {index}: {problem}")
    listener.stage("relaxing")
    job = _Job(model, settings, listener, len(starts), per_atom, trajectory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndeterminedEnergyWarning)  # told once, below
        relaxed = [job.relax(index, atoms) for index, atoms in enumerate(starts)]
    if formulas := [each.atoms.get_chemical_formula() for each in relaxed if UNDETERMINED in each.atoms.info]:
        listener.warn(undetermined_energies(formulas))
    return relaxed


@dataclass(frozen=True)
class _Job:
    model: Model
    config: RelaxConfig
    listener: Listener
    n_structures: int
    per_atom: PerAtom
    trajectory: list[Atoms] | None

    def relax(self, index: int, start: Atoms) -> Relaxed:
        config = self.config
        atoms = bare_copy(start)
        atoms.set_constraint(start.constraints)
        atoms.calc = Calculator(self.model, forces_uncertainty=config.forces_std, warn_above=None)
        optimizer = OPTIMIZERS[config.optimizer](FrechetCellFilter(atoms) if config.cell else atoms, logfile=None)
        guarded = GuardedOptimizer(optimizer, [atoms], self._watch(index))
        self.listener.advance(index, self.n_structures)

        def each(step: int) -> None:
            self.listener.advance(index, self.n_structures, f"structure {index}, step {step}")
            if self.trajectory is not None:
                self.trajectory.append(self._frame(index, atoms, step))

        outcome = guarded.run(fmax=config.fmax, steps=config.steps, each=each)
        if outcome.step == 0 and outcome.ending == "unphysical":
            raise DataError(f"structure {index}: {outcome.message}")
        self.listener.advance(index + 1, self.n_structures)
        return Relaxed(atoms=self._frame(index, atoms, outcome.step, relaxation=outcome.ending), outcome=outcome)

    def _watch(self, index: int) -> Watch:
        return Watch(
            self.model,
            warn_above=None if self.config.warn_above == "off" else self.config.warn_above,
            stop_above=relax_limits(self.config, self.model),
            warn=lambda text: self.listener.warn(f"structure {index}: {text}"),
        )

    def _frame(self, index: int, atoms: Atoms, step: int, **more: str) -> Atoms:
        atoms.get_potential_energy()
        frame = with_results(atoms, atoms.calc.results, per_atom=self.per_atom)
        frame.info |= {"structure": index, "step": step, **more}
        return frame


def relax_limits(config: RelaxConfig, model: Model) -> Above:
    """The limits to stop at."""
    asked: dict[Looked, RelaxLimit] = {
        "forces": config.stop_above,
        "energy": config.stop_above_energy,
        "atom": config.stop_above_atom,
    }
    if set(asked.values()) == {"auto"}:
        return "auto"
    known = range_limits(model) if config.stop_above == "auto" else Limits()
    auto: dict[Looked, float | None] = {"forces": known.forces, "energy": known.energy, "atom": known.atom}

    def limit(name: Looked) -> float | None:
        given = asked[name]
        return given if isinstance(given, float) else auto[name] if given == "auto" else None

    return Limits(forces=limit("forces"), energy=limit("energy"), atom=limit("atom"))


def _starts(structures: Path | str | Atoms | Sequence[Atoms]) -> list[Atoms]:
    if isinstance(structures, Atoms):
        return [structures]
    if not isinstance(structures, Path | str):
        found = list(structures)
    else:
        try:
            found = ase.io.read(structures, ":")
        except FileNotFoundError:
            raise DataError(f"{structures}: no such file") from None
        except Exception as error:  # of any of ASE's readers
            raise DataError(f"{structures}: ASE cannot read it ({error})") from None
    if not found:
        raise DataError("there is no structure to relax")
    return found


def _problem(atoms: Atoms, model: Model, config: RelaxConfig) -> str | None:
    """Why a structure cannot be relaxed."""
    if config.cell and not (atoms.pbc.all() and atoms.cell.rank == 3):
        return "--cell (cell) needs a cell that is periodic along all three axes"
    return unknown_element(atoms.numbers, model.elements)
