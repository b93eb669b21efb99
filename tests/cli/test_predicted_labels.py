"""Predictions in files: beside the user's labels, never in their place, and never taken for labels."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
import yaml
from ase.calculators.morse import MorsePotential

from cli_case import Workspace, bare_frames, fail, morse_frames, succeed, write_config
from data_files import md17_arrays, save
from sigmaff.data import DataSource, read_structures
from sigmaff.errors import DataError
from sigmaff.models.file import load
from sigmaff.simulation import Calculator, snapshot

pytest_plugins = ["cli_fixtures"]


@pytest.fixture(scope="module")
def predicted(workspace: Workspace) -> Path:
    """A file of structures without labels, after ``sigmaff predict``."""
    bare = [frame for frame in morse_frames(24, seed=11) if setattr(frame, "calc", None) is None]
    ase.io.write(workspace / "unlabelled.extxyz", bare)
    succeed("predict", workspace.model, workspace / "unlabelled.extxyz", workspace / "predicted.extxyz")
    return workspace / "predicted.extxyz"


@pytest.mark.parametrize("command", ["predict", "select"])
def test_labels_survive(workspace: Workspace, command: str, tmp_path: Path) -> None:
    """Also where only some structures have one."""
    out, model, given = tmp_path / "out.extxyz", load(workspace.model), morse_frames(6, seed=3)
    given[4].calc = None
    for index, frame in enumerate(given):
        frame.info["number"] = index
    ase.io.write(tmp_path / "in.extxyz", given)
    succeed(command, workspace.model, tmp_path / "in.extxyz", *([out] if command == "predict" else ["-o", out]))
    written = sorted(ase.io.read(out, ":"), key=lambda frame: frame.info["number"])
    for before, frame, expected in zip(given, written, model.predict(given), strict=True):
        assert frame.info["sigmaff_energy"] == pytest.approx(
            expected.energy, rel=1e-5
        )  # the network computes in float32
        np.testing.assert_allclose(frame.arrays["sigmaff_forces"], expected.forces, atol=1e-5)
        if before.calc is None:
            assert frame.get_potential_energy() == frame.info["sigmaff_energy"]
        else:
            assert frame.get_potential_energy() == before.get_potential_energy()
            np.testing.assert_allclose(frame.get_forces(), before.get_forces(), atol=1e-8)
            assert set(frame.calc.results) == {"energy", "forces"}


def test_labels_under_other_names_keep_the_file_a_data_set(workspace: Workspace, tmp_path: Path) -> None:
    frames = morse_frames(3, seed=4)
    energies = [frame.get_potential_energy() for frame in frames]
    for frame in frames:
        frame.info["REF_energy"], frame.arrays["REF_forces"] = frame.get_potential_energy(), frame.get_forces()
        frame.calc = None
    ase.io.write(tmp_path / "in.extxyz", frames)
    succeed("predict", workspace.model, tmp_path / "in.extxyz", tmp_path / "out.extxyz")
    np.testing.assert_allclose(read_structures(tmp_path / "out.extxyz").energy, energies)


def test_no_command_learns_from_predictions(workspace: Workspace, predicted: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", ("data.source", str(predicted)), ("data.split.n_train", 3))
    start = {"source": str(predicted), "n_labels": 12, "use_labels": True, "molecules": []}
    campaign = {"engine": {"calculator": "gfn2-xtb"}, "start": start, "output": str(tmp_path / "campaign")}
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    for arguments in (
        ("train", config),
        ("evaluate", workspace.model, predicted),
        ("calibrate", workspace.model, predicted, "--output", tmp_path / "model.sigmaff"),
        ("learn", tmp_path / "campaign.yaml"),
    ):
        message = fail(*arguments)
        assert f"{predicted}, frame 0: energy is a prediction of a sigmaff model, not a label" in message
        assert "reference method" in message
    assert not (tmp_path / "model.sigmaff").exists()


def test_labels_of_the_same_structures_are_labels(predicted: Path, tmp_path: Path) -> None:
    """As after the usual loop over the structures of a file, which keeps what else the file says of them."""
    frames = ase.io.read(predicted, ":")
    for frame in frames:
        frame.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        frame.get_forces()
    ase.io.write(tmp_path / "labelled.extxyz", frames)
    found = read_structures(tmp_path / "labelled.extxyz")
    np.testing.assert_allclose(found.energy, [frame.get_potential_energy() for frame in frames])


def test_predictions_are_no_labels_of_another_set(workspace: Workspace, predicted: Path, tmp_path: Path) -> None:
    """Errors of a model against its own predictions would be 0."""
    again = tmp_path / "again.extxyz"
    succeed("predict", workspace.model, predicted, again, "--forces-std", "none")
    for path in (predicted, again):
        assert read_structures(DataSource(path=path, labels=())).labels == {}


@pytest.mark.parametrize("name", ["trajectory.extxyz", "trajectory.traj"])
def test_snapshots_are_predictions(workspace: Workspace, name: str, tmp_path: Path) -> None:
    calculator, frames = Calculator(load(workspace.model), forces_uncertainty="none"), []
    for atoms in bare_frames()[:2]:
        atoms.calc = calculator
        frames.append(snapshot(atoms, per_atom="info" if name.endswith("traj") else "arrays"))
    ase.io.write(tmp_path / name, frames)
    with pytest.raises(DataError, match="energy is a prediction"):
        read_structures(tmp_path / name)
    with pytest.raises(DataError, match="forces is a prediction"):
        read_structures(DataSource(path=tmp_path / name, labels=("forces",)))
    with pytest.raises(DataError, match="sigmaff_energy is a prediction"):
        read_structures(DataSource(path=tmp_path / name, energy_key="sigmaff_energy"))


def test_files_with_fixed_names_are_predicted(workspace: Workspace, tmp_path: Path) -> None:
    """Their labels become eV with the rest."""
    source = save(tmp_path / "water.npz", md17_arrays(np.random.default_rng(0)))
    succeed("predict", workspace.model, source, tmp_path / "out.extxyz", "--forces-std", "none")
    np.testing.assert_allclose(read_structures(tmp_path / "out.extxyz").energy, read_structures(source).energy)


def test_an_exact_energy_of_one_atom_is_a_label(tmp_path: Path) -> None:
    """Reference energies of single atoms are what many models predict for them."""
    frames = [*bare_frames()[:3]]
    for frame, energy in zip(frames, (-1.0, -2.0, -3.0), strict=True):
        frame.info |= {"energy": energy, "sigmaff_energy": -3.0}
    ase.io.write(tmp_path / "a.extxyz", frames)
    assert read_structures(DataSource(path=tmp_path / "a.extxyz", labels=("energy",))).energy.tolist() == [-1, -2, -3]
