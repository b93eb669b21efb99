"""Labels from a quantum-chemistry engine: tight binding, DFT, or any ASE calculator."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import covalent_radii
from pydantic import Field, model_validator

from sigmaff.config import Settings
from sigmaff.data.electrons import NOT_STATED, ElectronicState, excess_spin
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.extras import require
from sigmaff.factory import calculator_from

BASIS, FUNCTIONAL = "def2-svp", "pbe"

CLOSEST = 0.5
"""Atoms closer than this fraction of the sum of their covalent radii are not labelled."""


class LabelError(SigmaffError):
    """The engine has no valid label for a structure."""


class EngineConfig(Settings):
    """Engine that computes labels, and limits for valid labels."""

    calculator: str = Field(
        default="gfn2-xtb",
        description="gfn2-xtb, gfn1-xtb (tblite), pyscf-pbe (PBE/def2-SVP), or module:factory of an ASE calculator",
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="arguments of the calculator or its factory")
    charge: int = Field(default=0, description="total charge, e; for a factory, set it in arguments")
    multiplicity: int | None = Field(
        default=None, ge=1, description="spin multiplicity 2S + 1; null: the lowest possible, 1 or 2"
    )
    time_limit: float | None = Field(default=600.0, gt=0, description="time limit of one label, s; null: no limit")
    max_force: float = Field(default=100.0, gt=0, description="largest valid force of a label, eV/Å")

    @model_validator(mode="after")
    def _engine_is_known(self) -> Self:
        if self.calculator in ENGINES:
            return self
        module, _, factory = self.calculator.partition(":")
        if not (module and factory):
            known = ", ".join(ENGINES)
            raise ValueError(f"no engine {self.calculator!r}; known: {known}, or module:factory of a calculator")
        if self.charge != 0 or self.multiplicity is not None:
            raise ValueError(f"charge and multiplicity are not passed to {self.calculator}; put them in arguments")
        return self

    @property
    def is_factory(self) -> bool:
        """Whether the calculator is somebody's program, by name."""
        return self.calculator not in ENGINES


def origin_of(engine: EngineConfig) -> dict[str, Any]:
    """What labels of an engine are, for ``info``: method, total charge (e) and, if it is set, spin multiplicity."""
    if engine.is_factory:
        return {"labelled_by": engine.calculator}
    spin = {} if engine.multiplicity is None else {"multiplicity": engine.multiplicity}
    return {"labelled_by": engine.calculator, "charge": engine.charge, **spin}


def engine_state(engine: EngineConfig) -> ElectronicState:
    """Charge and spin that an engine computes; only the program behind a factory knows its own."""
    if engine.is_factory:
        return NOT_STATED
    return ElectronicState(charge=float(engine.charge), excess_spin=excess_spin(engine.multiplicity or 1))


def label(atoms: Atoms, engine: EngineConfig) -> Atoms:
    """Compute the label of one structure.

    Returns a copy with energy (eV), forces (eV/Å) and, for a crystal, stress (eV/Å³) if the engine provides it.
    Raises ``LabelError`` if the structure or the label is invalid.
    """
    labelled = atoms.copy()
    _check_geometry(labelled)
    labelled.calc = make_calculator(labelled, engine)
    with engine_failures(engine):
        results = _results(labelled)
    _check_results(results, engine.max_force)
    labelled.calc = SinglePointCalculator(labelled, **results)
    return labelled


@contextmanager
def engine_failures(engine: EngineConfig) -> Iterator[None]:
    """Convert any exception of the engine's calculator to a ``LabelError``."""
    try:
        yield
    except Exception as error:  # engines raise many different exceptions
        reason = str(error) or type(error).__name__
        if "not converged" in reason:
            reason = "its self-consistent field did not converge"
        raise LabelError(f"{engine.calculator} gave no label: {reason}") from error


def require_engine(engine: EngineConfig) -> None:
    """Raise ``ConfigError`` if the package of an engine is missing."""
    if engine.calculator in ENGINES:
        package = "pyscf" if engine.calculator == "pyscf-pbe" else "tblite"
        require(f"labelling by {engine.calculator}", package)


def make_calculator(atoms: Atoms, engine: EngineConfig) -> BaseCalculator:
    """Make the ASE calculator of an engine for one structure; the default spin depends on its elements."""
    return ENGINES.get(engine.calculator, _from_factory)(atoms, engine)


def _results(atoms: Atoms) -> dict[str, Any]:
    forces = atoms.get_forces(apply_constraint=False)
    results = {"energy": float(atoms.get_potential_energy()), "forces": np.array(forces, dtype=np.float64)}
    if atoms.pbc.all() and "stress" in atoms.calc.implemented_properties:
        results["stress"] = atoms.get_stress(apply_constraint=False)
    return results


def _check_geometry(atoms: Atoms) -> None:
    lost = np.flatnonzero(~np.isfinite(atoms.positions).all(axis=1))
    if lost.size:
        raise LabelError(f"atom {lost[0]} has a position that is not a finite number")
    if (atoms.pbc & ~atoms.cell.array.any(axis=1)).any():
        raise LabelError("the structure is periodic along an axis without a lattice vector")
    from ase.neighborlist import neighbor_list

    first, second, distance = neighbor_list("ijd", atoms, CLOSEST * covalent_radii[atoms.numbers])
    if first.size:
        raise LabelError(f"atoms {first[0]} and {second[0]} are on top of each other, {distance[0]:.2f} Å apart")


def _check_results(results: Mapping[str, Any], max_force: float) -> None:
    if not np.isfinite(results["energy"]):
        raise LabelError("the energy is not a finite number")
    size = np.linalg.norm(results["forces"], axis=1)
    if not np.isfinite(size).all():
        raise LabelError(f"the force on atom {np.flatnonzero(~np.isfinite(size))[0]} is not a finite number")
    if not np.isfinite(results.get("stress", 0.0)).all():
        raise LabelError("the stress is not finite")
    if size.max(initial=0.0) > max_force:
        atom = int(size.argmax())
        raise LabelError(f"the force on atom {atom} is {size[atom]:.1f} eV/Å, more than max_force = {max_force:g}")


def _tblite(method: str, atoms: Atoms, engine: EngineConfig) -> BaseCalculator:
    require_engine(engine)
    with _one_openmp_thread():
        from tblite.ase import TBLite
    settings = {"verbosity": 0, "charge": engine.charge, "multiplicity": _multiplicity(atoms, engine)}
    return TBLite(method=method, **(settings | engine.arguments))


def _pyscf(atoms: Atoms, engine: EngineConfig) -> BaseCalculator:
    """PBE/def2-SVP with density fitting. Arguments are attributes of the mean field: xc, conv_tol, max_cycle, ..."""
    require_engine(engine)
    from pyscf import dft, gto, lib
    from pyscf.pbc.tools.pyscf_ase import PySCF
    from pyscf.scf import hf

    if atoms.pbc.any():
        raise LabelError("pyscf-pbe can only label molecules, and this structure is periodic")
    lib.num_threads(1)
    hf.MUTE_CHKFILE = True  # write no orbital file for each label
    spin = _multiplicity(atoms, engine) - 1
    geometry = list(zip(atoms.symbols, atoms.positions, strict=True))
    molecule = gto.M(atom=geometry, basis=BASIS, charge=engine.charge, spin=spin, verbose=0)
    field = (dft.UKS if spin else dft.RKS)(molecule).set(xc=FUNCTIONAL).density_fit()
    if unknown := [name for name in engine.arguments if not hasattr(field, name)]:
        raise ConfigError(
            f"PySCF's mean field has no {', '.join(unknown)}; among others it has xc, conv_tol, max_cycle"
        )
    return PySCF(method=field.set(**engine.arguments))


def _from_factory(atoms: Atoms, engine: EngineConfig) -> BaseCalculator:
    try:
        return calculator_from(engine.calculator, engine.arguments)
    except TypeError as error:
        raise ConfigError(f"the engine {engine.calculator} does not accept these arguments: {error}") from error


def _multiplicity(atoms: Atoms, engine: EngineConfig) -> int:
    """The configured multiplicity, or singlet and doublet for even and odd numbers of electrons."""
    if engine.multiplicity is not None:
        return engine.multiplicity
    return 1 + (int(atoms.numbers.sum()) - engine.charge) % 2


@contextmanager
def _one_openmp_thread() -> Iterator[None]:
    """Import a library with one OpenMP thread, which is fastest for small molecules. It reads the number on import."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


ENGINES: dict[str, Callable[[Atoms, EngineConfig], BaseCalculator]] = {
    "gfn2-xtb": partial(_tblite, "GFN2-xTB"),
    "gfn1-xtb": partial(_tblite, "GFN1-xTB"),
    "pyscf-pbe": _pyscf,
}
