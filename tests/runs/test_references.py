"""Energies of compositions that a training set does not determine, and charges: what a user is told, and when."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.morse import MorsePotential
from ase.md.verlet import VelocityVerlet

import sigmaff as sf
from cli_case import Workspace, fail, labelled, morse_frames, succeed, write_config
from sigmaff.config import read_config
from sigmaff.data import ElectronicState
from sigmaff.errors import DataError, UndeterminedEnergyWarning
from sigmaff.learning import CampaignConfig
from sigmaff.models import Potential
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import RunData, load_data
from sigmaff.runs.demo import demo_config
from sigmaff.runs.run import produce
from sigmaff.runs.stages import Made

pytest_plugins = ["cli_fixtures"]


class Told(Listener):
    """Keeps what is told and warned of."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.warned: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def methane(**info: object) -> Atoms:
    atoms = molecule("CH4", info=info)
    atoms.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
    frame = labelled(atoms, atoms.get_potential_energy(), atoms.get_forces())
    frame.info = dict(info)
    return frame


def before_training(folder: Path, frames: list[Atoms], *changes: tuple[str, object]) -> Told:
    """What a run says before it trains."""
    ase.io.write(folder / "data.extxyz", frames)
    config = read_config(RunConfig, write_config(folder / "run.yaml", *changes))
    told = Told()

    def not_here(_: RunConfig, __: RunData, ___: Listener) -> Made | None:
        return None

    assert produce(config, load_data(config), told, not_here) is None
    return told


def charged(path: Path, charge: float, copy: Path) -> Path:
    """A model that was trained on one charge."""
    model = sf.load(path)
    for potential in model.potentials:
        potential.statistics = replace(potential.statistics, electrons=ElectronicState(charge=charge, excess_spin=0))
    sf.save(model, copy)
    return copy


def test_training_says_first_what_one_composition_leaves_open(tmp_path: Path) -> None:
    ethanol = morse_frames(104, seed=1)[1::2]
    (warning,) = before_training(tmp_path, ethanol).warned
    assert "one composition, or multiples of it: it does not determine the energies of H, C, O. " in warning
    assert "If you need these energies, add structures of other compositions, or set data.reference_energies" in warning
    given = {"H": -0.5, "C": -0.5, "O": -0.5}
    told = before_training(tmp_path, ethanol, ("data.reference_energies", given))
    assert not told.warned
    assert "rest on the reference energies that were given" in told.told[-1]


def test_training_says_which_elements_are_determined(tmp_path: Path) -> None:
    """CH4 and C2H4 tell C from H; N2O does not tell N from O."""
    mixed = []
    for index in range(60):
        atoms = molecule(("CH4", "C2H4", "N2O")[index % 3])
        atoms.rattle(0.03, seed=index)
        mixed.append(labelled(atoms, -1.0 * len(atoms), 0.1 * atoms.positions))
    (warning,) = before_training(tmp_path, mixed).warned
    assert "3 independent compositions: it does not determine the energies of N, O, only those of H, C" in warning


def test_a_file_that_names_its_method_is_told_how(tmp_path: Path) -> None:
    ethanol = morse_frames(104, seed=1)[1::2]
    for atoms in ethanol:
        atoms.info["labelled_by"] = "gfn2-xtb"
    assert "set data.reference_energies to gfn2-xtb, the method" in before_training(tmp_path, ethanol).warned[0]


def test_who_labels_by_gfn_uses_its_free_atoms(tmp_path: Path) -> None:
    start = {"molecules": ["CH3CH2OH"]}
    assert CampaignConfig(start=start).run(tmp_path, tmp_path, None).data.reference_energies == "gfn2-xtb"
    other = {"calculator": "ase.calculators.morse:MorsePotential"}
    assert CampaignConfig(start=start, engine=other).run(tmp_path, tmp_path, None).data.reference_energies == (
        "least_squares"
    )
    assert demo_config(tmp_path).data.reference_energies == "gfn2-xtb"


def test_predictions_of_other_compositions_are_marked(workspace: Workspace, tmp_path: Path) -> None:
    ase.io.write(tmp_path / "new.extxyz", [methane(), *morse_frames(2, seed=3)])
    out = succeed("predict", workspace.model, tmp_path / "new.extxyz", tmp_path / "out.extxyz")
    assert "warning: the training set does not determine energies of CH4: they may be wrong by a large constant" in out
    marks = [atoms.info.get("energy_undetermined") for atoms in ase.io.read(tmp_path / "out.extxyz", ":")]
    assert marks == [True, None, None]
    out = succeed("evaluate", workspace.model, tmp_path / "new.extxyz", "--json", tmp_path / "found.json")
    assert "new, 1 of 3 structures: the training set does not determine energies of CH4" in out
    assert json.loads((tmp_path / "found.json").read_text())["n_undetermined"] == 1
    assert "it does not determine the energies of H, C, O" in " ".join(succeed("info", workspace.model).split())


def test_the_calculator_warns_once_and_goes_on(workspace: Workspace, deterministic: Path) -> None:
    """Models without σ too."""
    for path in (workspace.model, deterministic):
        atoms = molecule("CH4")
        atoms.calc = sf.Calculator(path, forces_uncertainty="none", warn_above=None)
        with pytest.warns(UndeterminedEnergyWarning, match="energies of CH4") as found:
            VelocityVerlet(atoms, 0.1).run(3)
        assert len(found) == 1
        assert atoms.calc.results["energy_undetermined"] is True
        known = molecule("H2O")
        known.calc = atoms.calc
        known.get_potential_energy()
        assert "energy_undetermined" not in known.calc.results
    with pytest.warns(UndeterminedEnergyWarning):
        one, other = sf.load(deterministic).predict([molecule("CH4"), molecule("H2O")])
    assert (one.energy_undetermined, other.energy_undetermined) == (True, False)


def test_known_references_need_no_flag(workspace: Workspace, tmp_path: Path) -> None:
    model = sf.load(workspace.model)
    (potential,) = model.potentials
    potential.statistics = replace(potential.statistics, reference_source="given")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.predict(molecule("CH4"))
    assert not found.energy_undetermined
    potential.statistics = replace(potential.statistics, reference_std=500.0)  # they cannot be of these labels
    with pytest.warns(UndeterminedEnergyWarning):
        model.predict(molecule("CH4"))


def test_a_mix_of_charges_is_not_trained_on(tmp_path: Path) -> None:
    frames = morse_frames(60, seed=1)
    for index, atoms in enumerate(frames):
        atoms.info["charge"] = int(index >= 40)
    ase.io.write(tmp_path / "data.extxyz", frames)
    error = fail("train", write_config(tmp_path / "run.yaml"))
    assert "data.extxyz, frame 40: several values of the total charge: 0 (40 frames) and 1 (20 frames)" in error
    error = fail("train", tmp_path / "run.yaml", "--skip-checks")
    assert "data.extxyz: structures of several charges or spins: frame 0 states total charge 0, frame 40" in error
    assert "write the frames of one state to a file of their own" in error


def test_the_charge_of_the_training_set_is_recorded(tmp_path: Path) -> None:
    frames = morse_frames(60, seed=1)
    for atoms in frames:
        atoms.info |= {"total_charge": 1, "spin_multiplicity": 2}
    ase.io.write(tmp_path / "data.extxyz", frames)
    config = read_config(RunConfig, write_config(tmp_path / "run.yaml"))
    sf.save(Potential(config.model, load_data(config).statistics), tmp_path / "model.sigmaff")
    assert sf.load(tmp_path / "model.sigmaff").electrons == ElectronicState(charge=1.0, excess_spin=0)
    assert "total charge 1, the lowest spin" in succeed("info", tmp_path / "model.sigmaff")


def test_another_charge_is_refused_by_name(workspace: Workspace, tmp_path: Path) -> None:
    """In predict, evaluate, MD and the calculator; a structure that states none is predicted."""
    model = charged(workspace.model, 0.0, tmp_path / "model.sigmaff")
    frames = morse_frames(3, seed=3)
    frames[2].info["charge"] = -1
    ase.io.write(tmp_path / "in.extxyz", frames)
    told = "in.extxyz, frame 2: info states total charge -1, but the model is for total charge 0 alone"
    assert told in fail("predict", model, tmp_path / "in.extxyz", tmp_path / "out.extxyz")
    assert told in fail("evaluate", model, tmp_path / "in.extxyz", "--skip-checks")
    loaded = sf.load(model)
    with pytest.raises(DataError, match="start 2: info states total charge -1"):
        sf.run_md(loaded, frames, {"temperature": 300, "steps": 1}, tmp_path / "md")
    calculator = sf.Calculator(loaded, forces_uncertainty="none")
    for atoms in frames[:2]:
        atoms.calc = calculator
        atoms.get_potential_energy()
    frames[2].calc = calculator
    with pytest.raises(DataError, match="OH2: info states total charge -1"):
        frames[2].get_potential_energy()
    succeed("predict", workspace.model, tmp_path / "in.extxyz", tmp_path / "out.extxyz")  # its training set states none
