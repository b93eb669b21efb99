"""Results of the calculator in files: what ASE's writers keep, read back."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.constraints import FixAtoms
from ase.db import connect
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet

from calculator_case import LNK_CONFIG, build_potential, ethanol, water_crystal
from sigmaff.graph import batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential
from sigmaff.models.prediction import split_prediction
from sigmaff.simulation import Calculator, snapshot, store_results
from sigmaff.simulation.results import finite_results, with_results

PRINTED_DIGITS = 1e-8  # of a column of an extxyz file


@pytest.fixture(scope="module")
def potential() -> Potential:
    return build_potential(LNK_CONFIG)


@pytest.fixture(scope="module")
def deterministic() -> Potential:
    return build_potential(DeterministicConfig())


def assert_same_results(frame: Atoms, expected: dict[str, Any], atol: float) -> None:
    for name, value in expected.items():
        holders = (frame.calc.results, frame.info, frame.arrays)
        found = [holder[name] for holder in holders if name in holder]
        assert len(found) == 1, name
        if isinstance(value, str):
            assert found[0] == value
            continue
        np.testing.assert_allclose(found[0], value, rtol=1e-12, atol=atol)


@pytest.mark.parametrize("structure", [ethanol, water_crystal])
@pytest.mark.parametrize(("suffix", "per_atom", "atol"), [("extxyz", "arrays", PRINTED_DIGITS), ("traj", "info", 0.0)])
def test_files_written_during_dynamics_keep_everything(
    potential: Potential, structure: Callable[[], Atoms], suffix: str, per_atom: str, atol: float, tmp_path: Path
) -> None:
    atoms = structure()
    atoms.calc = Calculator(potential)
    path = tmp_path / f"md.{suffix}"
    seen: list[dict[str, Any]] = []
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    dynamics.attach(store_results, 2, atoms, per_atom=per_atom)
    dynamics.attach(lambda: seen.append(copy.deepcopy(atoms.calc.results)), 2)
    if suffix == "traj":
        dynamics.attach(dynamics.closelater(Trajectory(path, "w", atoms)), 2)
    else:
        dynamics.attach(lambda: ase.io.write(path, atoms, append=True), 2)
    dynamics.run(4)
    dynamics.close()
    frames = ase.io.read(path, ":")
    assert len(frames) == len(seen) == 3
    for frame, expected in zip(frames, seen, strict=True):
        assert set(expected) >= {"forces", "energy_uncertainty", "forces_uncertainty", "energies_uncertainty"}
        assert_same_results(frame, expected, atol)


@pytest.mark.parametrize("name", ["out.extxyz", "out.traj", "out.json"])
def test_writers_accept_the_calculator_itself(potential: Potential, name: str, tmp_path: Path) -> None:
    atoms = water_crystal()
    atoms.calc = Calculator(potential)
    forces = atoms.get_forces()
    if name.endswith("json"):
        with connect(tmp_path / name) as database:
            database.write(atoms)
        frame = connect(tmp_path / name).get_atoms(1)
    else:
        ase.io.write(tmp_path / name, atoms)
        frame = ase.io.read(tmp_path / name)
    np.testing.assert_allclose(frame.get_forces(), forces, atol=PRINTED_DIGITS)
    assert frame.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-12)


def test_snapshots_of_structures_that_share_a_calculator_keep_their_own_results(
    potential: Potential, tmp_path: Path
) -> None:
    calculator = Calculator(potential)
    frames, expected = [], []
    for atoms in (ethanol(), water_crystal(), Atoms("H")):
        atoms.calc = calculator
        frames.append(snapshot(atoms))
        expected.append(copy.deepcopy(calculator.results))
        assert "energy_uncertainty" not in atoms.info
    ase.io.write(tmp_path / "all.extxyz", frames)
    for frame, values in zip(ase.io.read(tmp_path / "all.extxyz", ":"), expected, strict=True):
        assert_same_results(frame, values, PRINTED_DIGITS)


def test_a_batch_of_crystals_and_molecules_gives_each_its_results(potential: Potential) -> None:
    boxed = ethanol()
    boxed.set_cell([9.0, 9.0, 9.0])  # a cell, and no periodicity: no stress
    structures = [boxed, water_crystal()]
    graph = batch_graphs([build_graph(atoms, 5.0, torch.float64) for atoms in structures])
    for atoms, prediction in zip(structures, split_prediction(potential.predict(graph), graph), strict=True):
        frame = with_results(atoms, finite_results(prediction, atoms))
        alone = Calculator(potential)
        alone.get_forces(atoms)
        assert_same_results(frame, alone.results, atol=1e-9)
        assert ("stress" in frame.calc.results) == atoms.pbc.any()


def test_a_snapshot_does_not_follow_the_structure(potential: Potential) -> None:
    atoms = ethanol()
    atoms.set_constraint(FixAtoms([0]))
    atoms.calc = Calculator(potential)
    frame = snapshot(atoms)
    expected = copy.deepcopy(atoms.calc.results)
    atoms.positions[1:] += 0.3 * np.arange(24).reshape(8, 3) / 24
    store_results(atoms)
    assert_same_results(frame, expected, 0.0)
    assert np.abs(frame.calc.results["forces"][0]).max() > 0  # as the model gave it, not as the constraint leaves it


def test_stored_sigma_is_of_the_structure_as_it_is(potential: Potential, deterministic: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    store_results(atoms)
    before = atoms.info["energy_uncertainty"]
    atoms.positions[0] += 0.2
    store_results(atoms, per_atom="info")
    assert atoms.info["energy_uncertainty"] == atoms.calc.results["energy_uncertainty"] != before
    np.testing.assert_array_equal(atoms.info["forces_uncertainty"], atoms.calc.results["forces_uncertainty"])
    assert not [name for name in atoms.arrays if "uncertainty" in name]
    atoms.calc = Calculator(deterministic)
    store_results(atoms)
    assert not [name for name in (*atoms.info, *atoms.arrays) if "uncertaint" in name]
