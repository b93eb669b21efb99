"""Labels from engines, against the engines themselves and closed forms; labels that must not be trusted."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from pydantic import ValidationError
from tblite.ase import TBLite

from sigmaff.data.labelling import EngineConfig, LabelError, label
from sigmaff.errors import ConfigError
from sigmaff.tasks import ClusterConfig, run_tasks, workers


class Faulty(Calculator):
    """Return a given energy and force; raise a given error."""

    implemented_properties = ("energy", "forces")

    def __init__(self, energy: float = 0.0, force: float = 0.0, error: str = "") -> None:
        super().__init__()
        self.given = energy, force, error

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
        super().calculate(atoms, properties, system_changes)
        energy, force, error = self.given
        if error:
            raise ArithmeticError(error)
        forces = np.zeros((len(self.atoms), 3))
        forces[-1, 0] = force
        self.results = {"energy": energy, "forces": forces}


def faulty(**arguments: Any) -> EngineConfig:
    return EngineConfig(calculator=f"{__name__}:Faulty", arguments=arguments)


@pytest.mark.parametrize(("name", "method"), [("gfn2-xtb", "GFN2-xTB"), ("gfn1-xtb", "GFN1-xTB")])
def test_tight_binding_labels_are_those_of_tblite_and_it_says_nothing(
    name: str, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    water = molecule("H2O", info={"origin": "G2"})
    labelled = label(water, EngineConfig(calculator=name))
    assert capfd.readouterr() == ("", "")
    assert water.calc is None
    assert labelled.info == {"origin": "G2"}
    water.calc = TBLite(method=method, verbosity=0)
    assert labelled.get_potential_energy() == water.get_potential_energy()
    np.testing.assert_array_equal(labelled.get_forces(), water.get_forces())
    assert set(labelled.calc.results) == {"energy", "forces"}


def test_charge_and_spin() -> None:
    """The lowest multiplicity that the electrons allow, unless another is asked for."""
    for charge, given, multiplicity in [(0, None, 1), (1, None, 2), (-1, None, 2), (2, None, 1), (0, 3, 3)]:
        water = molecule("H2O")
        labelled = label(water, EngineConfig(charge=charge, multiplicity=given))
        water.calc = TBLite(method="GFN2-xTB", verbosity=0, charge=charge, multiplicity=multiplicity)
        assert labelled.get_potential_energy() == water.get_potential_energy()


def test_any_calculator_with_arguments() -> None:
    epsilon, sigma, distance = 0.3, 2.5, 3.1
    engine = EngineConfig(
        calculator="ase.calculators.lj:LennardJones", arguments={"epsilon": epsilon, "sigma": sigma, "rc": 20.0}
    )
    labelled = label(Atoms("Ar2", [[0, 0, 0], [0, 0, distance]]), engine)
    ratio = (sigma / distance) ** 6
    force = 24 * epsilon * (2 * ratio**2 - ratio) / distance
    np.testing.assert_allclose(labelled.get_forces(), [[0, 0, -force], [0, 0, force]], rtol=1e-10)


def test_crystals_have_stress_and_constraints_hide_nothing() -> None:
    copper = bulk("Cu", cubic=True)
    copper.set_cell(0.97 * copper.cell, scale_atoms=True)
    copper.rattle(0.05, seed=1)
    copper.set_constraint(FixAtoms([0]))
    labelled = label(copper, EngineConfig(calculator="ase.calculators.emt:EMT"))
    copper.calc = EMT()
    np.testing.assert_allclose(labelled.get_stress(), copper.get_stress())
    np.testing.assert_allclose(labelled.get_forces(apply_constraint=False), copper.get_forces(apply_constraint=False))


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (EngineConfig(arguments={"max_iterations": 1}), "gfn2-xtb gave no label: its self-consistent field did not"),
        (EngineConfig(max_force=0.5), r"the force on atom 0 is 0\.7 eV/Å, more than max_force = 0\.5"),
        (faulty(energy=np.inf), "the energy is not a finite number"),
        (faulty(force=np.nan), "the force on atom 2 is not a finite number"),
        (faulty(force=-101.0), r"the force on atom 2 is 101\.0 eV/Å"),
        (faulty(error="out of luck"), "gave no label: out of luck"),
    ],
    ids=["not converged", "large force", "energy", "force", "large faulty force", "raises"],
)
def test_absurd_labels_are_refused(engine: EngineConfig, reason: str) -> None:
    with pytest.raises(LabelError, match=reason):
        label(molecule("H2O"), engine)


@pytest.mark.parametrize(
    ("atoms", "reason"),
    [
        (Atoms("CO", [[0, 0, 0], [0, 0, 0]]), r"atoms 0 and 1 are on top of each other, 0\.00 Å apart"),
        (Atoms("CO", [[0, 0, 0], [0, 0, 0.4]]), r"atoms 0 and 1 are on top of each other, 0\.40 Å apart"),
        (Atoms("CO", [[0, 0, 0], [0, 0, 3.7]], cell=[5, 5, 4], pbc=True), r"on top of each other, 0\.30 Å apart"),
        (Atoms("CO", [[0, 0, 0], [0, np.nan, 1.1]]), "atom 1 has a position that is not a finite number"),
        (Atoms("CO", [[0, 0, 0], [0, 0, 1.1]], pbc=True), "periodic along an axis without a lattice vector"),
    ],
    ids=["one place", "too close", "too close to an image", "not finite", "no cell"],
)
def test_impossible_structures_are_not_computed(atoms: Atoms, reason: str) -> None:
    with pytest.raises(LabelError, match=reason):
        label(atoms, EngineConfig())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"calculator": "gfn3-xtb"}, "no engine 'gfn3-xtb'; known: gfn2-xtb, gfn1-xtb, pyscf-pbe, or module:factory"),
        ({"calculator": "some:factory", "charge": 1}, "not passed to some:factory; put them in arguments"),
    ],
)
def test_engines_that_are_not_known(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    ("calculator", "reason"),
    [
        ("no_such_module:factory", "no_such_module:factory: cannot import the module 'no_such_module' .*; install it"),
        ("ase.calculators.emt:NoSuchThing", "'ase.calculators.emt' has no 'NoSuchThing'"),
        ("ase.build:molecule", "does not accept these arguments"),
        ("builtins:dict", "builtins:dict is a class, but none of ASE calculators; it was not called"),
        ("os:system", "os:system is a builtin_function_or_method, no factory of ASE calculators; it was not called"),
        ("os:sep", "os:sep is a str, no factory of ASE calculators"),
        ("os:getcwdb", "no factory of ASE calculators"),
        ("os:get_exec_path", "returned a list, not an ASE calculator"),
    ],
)
def test_factories_that_are_none(calculator: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        label(molecule("H2O"), EngineConfig(calculator=calculator))


def test_a_module_in_the_working_directory_is_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_beside_the_data.py").write_text("from ase.calculators.emt import EMT as Engine\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    labelled = label(bulk("Cu"), EngineConfig(calculator="engine_beside_the_data:Engine"))
    assert labelled.get_potential_energy() == pytest.approx(EMT().get_potential_energy(bulk("Cu")))


def test_a_module_that_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_engine.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"broken_engine:Engine: cannot import .*ZeroDivisionError: division by zero"):
        label(bulk("Cu"), EngineConfig(calculator="broken_engine:Engine"))


@pytest.mark.parametrize("name", ["H2O", "OH"], ids=["singlet", "doublet"])
def test_pyscf_forces_are_slopes_of_its_energies(name: str) -> None:
    """To the error of PySCF's integration grid, which moves with the atoms and is left out of its forces."""
    engine, atoms, step = EngineConfig(calculator="pyscf-pbe"), molecule(name), 1e-3
    atoms.rattle(0.05, seed=1)
    energies = []
    for sign in (1, -1):
        moved = atoms.copy()
        moved.positions[0, 2] += sign * step
        energies.append(label(moved, engine).get_potential_energy())
    slope = (energies[0] - energies[1]) / (2 * step)
    assert label(atoms, engine).get_forces()[0, 2] == pytest.approx(-slope, abs=1e-3)


def test_pyscf_energies_are_in_electronvolts() -> None:
    """Hartree-Fock of helium: a finite basis is a little above the limit of -2.86168 Hartree, and never below."""
    engine = EngineConfig(calculator="pyscf-pbe", arguments={"xc": "hf"})
    energy = label(Atoms("He"), engine).get_potential_energy() / units.Hartree
    assert -2.86168 < energy < -2.85


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"max_cycle": 1}, LabelError, "did not converge"),
        ({"functional": "pbe0"}, ConfigError, "mean field has no functional; among others it has xc"),
    ],
)
def test_what_pyscf_cannot_do(arguments: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        label(molecule("H2O"), EngineConfig(calculator="pyscf-pbe", arguments=arguments))


def test_pyscf_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(ConfigError, match=r"pip install 'sigmaff\[pyscf\]'"):
        label(molecule("H2O"), EngineConfig(calculator="pyscf-pbe"))


def test_workers_label_with_an_engine_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each structure has its outcome; the error of a rejected one says why."""
    (tmp_path / "engine_of_workers.py").write_text("from tblite.ase import TBLite as Engine\n")
    monkeypatch.chdir(tmp_path)
    engine = EngineConfig(calculator="engine_of_workers:Engine", arguments={"method": "GFN2-xTB", "verbosity": 0})
    structures = [molecule("H2O"), Atoms("CO", [[0, 0, 0], [0, 0, 0.4]]), molecule("NH3")]
    with workers(ClusterConfig(n_workers=1)) as client:
        outcomes = {outcome.index: outcome for outcome in run_tasks(partial(label, engine=engine), structures, client)}
    assert outcomes[1].error == "LabelError: atoms 0 and 1 are on top of each other, 0.40 Å apart"
    for index in (0, 2):
        expected = label(structures[index], EngineConfig())
        found = outcomes[index].value
        assert found is not None, outcomes[index].error
        np.testing.assert_allclose(found.get_forces(), expected.get_forces(), atol=1e-9)
        assert found.get_potential_energy() == pytest.approx(expected.get_potential_energy(), abs=1e-9)
