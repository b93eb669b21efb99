"""The commands, run as a user runs them."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from scipy.special import stdtrit
from sklearn.metrics import roc_auc_score

from cli_case import Workspace, bare_frames, fail, morse_frames, sigmaff, succeed
from sigmaff import load
from sigmaff.files import output_lock
from sigmaff.graph import build_graph
from sigmaff.models.file import read_header

pytest_plugins = ["cli_fixtures"]

PRINTED_DIGITS = 1e-8  # of a column of an extxyz file

PROMISED = [
    "n_structures",
    "energy_mae",
    "forces_mae",
    "energy_rmse",
    "forces_rmse",
    "energy_calibration",
    "forces_calibration",
    "energy_calibration_raw",
    "forces_calibration_raw",
    "energy_nll",
    "energy_crps",
    "energy_spearman",
    "forces_spearman",
    "energy_auroc",
    "forces_auroc",
]

SIGMAS = ("energy_uncertainty", "energies_uncertainty", "forces_uncertainty")


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(), parse_constant=refuse_constant)


def predicted(model: Path, data: Path, output: Path, *options: str) -> list[Atoms]:
    succeed("predict", model, data, output, *options)
    return ase.io.read(output, ":")


# --- evaluate


@pytest.fixture(scope="module")
def summary(workspace: Workspace) -> dict:
    succeed(
        *("evaluate", workspace.model, workspace / "test.extxyz"),
        *("--ood", workspace / "other.extxyz", "--json", workspace / "out" / "figures.json"),
    )
    return read_json(workspace / "out" / "figures.json")


def test_evaluate_says_all_that_is_promised(summary: dict) -> None:
    assert {key for key in PROMISED if not math.isfinite(summary[key])} == set()
    assert summary["n_structures"] == 20
    assert summary["ood_n_structures"] == 12


def test_errors_are_those_of_the_predicted_file(workspace: Workspace, summary: dict, tmp_path: Path) -> None:
    truth = ase.io.read(workspace / "test.extxyz", ":")
    frames = predicted(workspace.model, workspace / "test.extxyz", tmp_path / "out.extxyz")
    energy = np.array([f.info["sigmaff_energy"] - t.get_potential_energy() for f, t in zip(frames, truth, strict=True)])
    forces = np.concatenate([f.arrays["sigmaff_forces"] - t.get_forces() for f, t in zip(frames, truth, strict=True)])
    assert summary["energy_mae"] == pytest.approx(np.abs(energy).mean(), rel=1e-5)
    assert summary["energy_rmse"] == pytest.approx(np.sqrt((energy**2).mean()), rel=1e-5)
    assert summary["forces_mae"] == pytest.approx(np.abs(forces).mean(), rel=1e-5)
    assert summary["forces_rmse"] == pytest.approx(np.sqrt((forces**2).mean()), rel=1e-5)
    z = np.abs(energy) / np.array([frame.info["energy_uncertainty"] for frame in frames])
    levels = np.arange(1, 10) / 10
    dof = read_header(workspace.model).energy_calibration.dof  # fewer than 50 structures
    observed = (z[:, None] <= stdtrit(dof, 0.5 + levels / 2)).mean(0)
    assert summary["energy_calibration"] == pytest.approx(np.sqrt(((levels - observed) ** 2).sum()), abs=1e-6)


def test_auroc_ranks_the_predicted_files(workspace: Workspace, summary: dict, tmp_path: Path) -> None:
    inside = predicted(workspace.model, workspace / "test.extxyz", tmp_path / "in.extxyz")
    outside = predicted(workspace.model, workspace / "other.extxyz", tmp_path / "out.extxyz")
    is_other = [False] * len(inside) + [True] * len(outside)
    per_atom = [frame.info["energy_uncertainty"] / len(frame) for frame in inside + outside]
    rms = [np.sqrt((frame.arrays["forces_uncertainty"] ** 2).mean()) for frame in inside + outside]
    assert summary["energy_auroc"] == pytest.approx(roc_auc_score(is_other, per_atom))
    assert summary["forces_auroc"] == pytest.approx(roc_auc_score(is_other, rms))


def test_batch_size_changes_nothing(workspace: Workspace, summary: dict, tmp_path: Path) -> None:
    succeed("evaluate", workspace.model, workspace / "test.extxyz", "--json", tmp_path / "a.json", "--batch-size", "3")
    again = read_json(tmp_path / "a.json")
    for key in ("energy_mae", "forces_mae", "energy_nll", "forces_nll"):
        assert again[key] == pytest.approx(summary[key], rel=1e-3)


def test_training_structures_are_noticed(workspace: Workspace) -> None:
    outcome = sigmaff("evaluate", workspace.model, workspace / "data.extxyz")
    assert f"warning: {workspace / 'data.extxyz'}: the model was trained on 30 of these 60 structures" in outcome.out
    assert "warning" not in sigmaff("evaluate", workspace.model, workspace / "test.extxyz").out


def test_other_structures_need_no_labels(workspace: Workspace, tmp_path: Path) -> None:
    ase.io.write(tmp_path / "bare.extxyz", bare_frames())
    for command, output in (("evaluate", ("--json", tmp_path / "a.json")), ("report", (tmp_path / "a.html",))):
        succeed(command, workspace.model, workspace / "test.extxyz", *output, "--ood", tmp_path / "bare.extxyz")
    result = read_json(tmp_path / "a.json")
    assert result["energy_auroc"] is not None
    assert result["ood_energy_mae"] is None


# --- predict


@pytest.mark.parametrize("name", ["out.extxyz", "out.xyz", "out.traj"])
def test_predict_writes_what_the_model_predicts(workspace: Workspace, name: str, tmp_path: Path) -> None:
    potential = load(workspace.model)
    structures = bare_frames()
    frames = predicted(workspace.model, workspace / "in.extxyz", tmp_path / name, "--batch-size", "1")
    assert len(frames) == len(structures)
    per_atom = "info" if name.endswith("traj") else "arrays"
    for frame, atoms in zip(frames, structures, strict=True):
        expected = potential.predict(build_graph(atoms, potential.cutoff))
        close = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(frame.positions, atoms.positions, atol=PRINTED_DIGITS)
        np.testing.assert_allclose(frame.get_potential_energy(), expected.energy[0], **close)
        np.testing.assert_allclose(frame.get_forces(), expected.forces, **close)
        np.testing.assert_allclose(frame.info["energy_uncertainty"], expected.energy_std[0], **close)
        np.testing.assert_allclose(getattr(frame, per_atom)["energies_uncertainty"], expected.node_energy_std, **close)
        np.testing.assert_allclose(getattr(frame, per_atom)["forces_uncertainty"], expected.forces_std, **close)
        assert frame.info["name"] == atoms.info["name"]
        assert frame.pbc.tolist() == atoms.pbc.tolist()
        assert ("stress" in frame.calc.results) == bool(atoms.pbc.any())


def test_predict_keeps_remarks_and_reference_labels(workspace: Workspace, tmp_path: Path) -> None:
    """Two sets of labels that differ are nothing to predict from, and something to compare with; both stay."""
    frames = bare_frames()
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, energy=1.0, forces=np.ones((len(atoms), 3)))
        atoms.info |= {"REF_energy": 2.0, "config_type": "md"}
        atoms.set_array("REF_forces", np.full((len(atoms), 3), 2.0))
        atoms.set_tags(np.arange(len(atoms)))
    ase.io.write(tmp_path / "both.extxyz", frames)
    written = predicted(workspace.model, tmp_path / "both.extxyz", tmp_path / "out.extxyz")
    plain = predicted(workspace.model, workspace / "in.extxyz", tmp_path / "plain.extxyz")
    for frame, same in zip(written, plain, strict=True):
        assert frame.info["sigmaff_energy"] == pytest.approx(same.get_potential_energy())
        assert frame.get_potential_energy() == 1.0
        assert (frame.get_forces() == 1.0).all()
        assert (frame.info["REF_energy"], frame.info["config_type"]) == (2.0, "md")
        assert (frame.arrays["REF_forces"] == 2.0).all()
        assert frame.get_tags().tolist() == list(range(len(frame)))


def test_what_is_not_estimated_is_absent(workspace: Workspace, deterministic: Path, tmp_path: Path) -> None:
    """Also from a file that held σ of another model."""
    stale = tmp_path / "stale.extxyz"
    first = predicted(workspace.model, workspace / "in.extxyz", stale)
    without_forces = predicted(workspace.model, stale, tmp_path / "a.extxyz", "--forces-std", "none")
    without_any = predicted(deterministic, stale, tmp_path / "b.extxyz")
    for old, some, none in zip(first, without_forces, without_any, strict=True):
        assert some.info["energy_uncertainty"] == pytest.approx(old.info["energy_uncertainty"], rel=1e-4)
        assert "forces_uncertainty" not in some.arrays
        assert not set(SIGMAS) & (set(none.info) | set(none.arrays))
        assert none.get_potential_energy() != old.get_potential_energy()


def test_labels_of_the_input_do_not_pass_for_predictions(workspace: Workspace, tmp_path: Path) -> None:
    wrong = morse_frames(2, seed=5)
    for atoms in wrong:
        atoms.info["energy"] = 1e6
        atoms.calc = None
    ase.io.write(tmp_path / "in.extxyz", wrong)
    frames = predicted(workspace.model, tmp_path / "in.extxyz", tmp_path / "out.extxyz")
    right = predicted(workspace.model, workspace / "test.extxyz", tmp_path / "right.extxyz")
    for frame, expected in zip(frames, right, strict=False):
        assert frame.info["sigmaff_energy"] == pytest.approx(expected.info["sigmaff_energy"], abs=1e-5)
        assert frame.get_potential_energy() == 1e6


def test_raw_is_before_calibration(workspace: Workspace, tmp_path: Path) -> None:
    potential = load(workspace.model)
    assert potential.energy_calibration is not None
    assert potential.forces_calibration is not None
    reported = predicted(workspace.model, workspace / "in.extxyz", tmp_path / "a.extxyz")
    raw = predicted(workspace.model, workspace / "in.extxyz", tmp_path / "b.extxyz", "--raw")
    for after, before in zip(reported, raw, strict=True):
        counts = np.bincount(after.numbers, minlength=119)[None]
        (fixed,) = potential.statistics.composition_std(counts)  # is in both
        for frame in (after, before):
            frame.info[SIGMAS[0]] = np.sqrt(frame.info[SIGMAS[0]] ** 2 - fixed**2)
        assert after.info["calibrated_uncertainties"] == "energy_uncertainty forces_uncertainty"
        assert before.info["calibrated_uncertainties"] == "none"
        energy_std, forces_std = before.info[SIGMAS[0]], before.arrays[SIGMAS[2]]
        component_std = np.full(len(before), energy_std / len(before))
        expected = (
            energy_std * potential.energy_calibration.scale,
            before.arrays[SIGMAS[1]],
            potential.forces_calibration.std(forces_std, component_std),
        )
        for key, std in zip(SIGMAS, expected, strict=True):
            reported_std = (after.info if key == SIGMAS[0] else after.arrays)[key]
            np.testing.assert_allclose(reported_std, std, rtol=1e-4, atol=1e-7)


# --- calibrate


def scales(model: Path) -> tuple[float, float]:
    header = read_header(model)
    assert header.energy_calibration is not None
    assert header.forces_calibration is not None
    return header.energy_calibration.scale, header.forces_calibration.scale


def test_scalar_calibration_is_the_rms_of_standardised_errors(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.copied_model(tmp_path)
    before = load(model)
    out = succeed("calibrate", model, workspace / "held_out.extxyz", "--method", "scalar", "--no-force-growth")
    assert "growth" not in out
    truth = ase.io.read(workspace / "held_out.extxyz", ":")
    raw = predicted(model, workspace / "held_out.extxyz", tmp_path / "raw.extxyz", "--raw")
    z_energy = [
        (f.info["sigmaff_energy"] - t.get_potential_energy()) / f.info["energy_uncertainty"]
        for f, t in zip(raw, truth, strict=True)
    ]
    misses = [f.arrays["sigmaff_forces"] - t.get_forces() for f, t in zip(raw, truth, strict=True)]
    z_forces = np.concatenate([miss / f.arrays["forces_uncertainty"] for f, miss in zip(raw, misses, strict=True)])
    expected = np.sqrt(np.mean(np.square(z_energy))), np.sqrt(np.mean(np.square(z_forces)))
    np.testing.assert_allclose(scales(model), expected, rtol=1e-4)
    error = read_header(model).energy_calibration.scale_error
    assert f"energy: raw σ × {expected[0]:.4g} ± {error:.2g} (scalar, 20 structures)" in out
    assert "stress: σ is raw, not calibrated" in out
    after = load(model)
    assert all(torch.equal(value, after.state_dict()[name]) for name, value in before.state_dict().items())
    assert before.record == after.record


def test_calibrating_again_replaces(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.copied_model(tmp_path)
    succeed("calibrate", model, workspace / "held_out.extxyz")
    once = scales(model)
    succeed("calibrate", model, workspace / "test.extxyz", "--method", "conformal")
    assert scales(model) != once
    succeed("calibrate", model, workspace / "held_out.extxyz")
    assert scales(model) == once


def test_calibrate_to_another_file(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.copied_model(tmp_path)
    before = model.read_bytes()
    succeed("calibrate", model, workspace / "held_out.extxyz", "--output", tmp_path / "new" / "other.sigmaff")
    assert model.read_bytes() == before
    succeed("calibrate", model, workspace / "held_out.extxyz")
    assert scales(tmp_path / "new" / "other.sigmaff") == scales(model)


def test_a_linked_model_is_calibrated_where_it_is(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.copied_model(tmp_path)
    link = tmp_path / "link.sigmaff"
    link.symlink_to(model)
    before = scales(model)
    succeed("calibrate", link, workspace / "held_out.extxyz")
    assert link.is_symlink()
    assert scales(model) != before


def test_nothing_to_calibrate(workspace: Workspace, deterministic: Path) -> None:
    before = deterministic.read_bytes()
    assert "'deterministic': nothing" in fail("calibrate", deterministic, workspace / "held_out.extxyz")
    assert deterministic.read_bytes() == before


def test_too_few_structures_are_refused_and_the_model_stays(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.copied_model(tmp_path)
    before = model.read_bytes()
    ase.io.write(tmp_path / "few.extxyz", ase.io.read(workspace / "held_out.extxyz", ":19"))
    message = fail("calibrate", model, tmp_path / "few.extxyz")
    assert "calibration needs at least 20 held-out structures with σ > 0, got 19; give more" in message
    assert model.read_bytes() == before
    succeed("calibrate", model, tmp_path / "few.extxyz", "--method", "conformal")
    assert read_header(model).forces_calibration.n_structures == 19


# --- models without σ, and data without forces


def test_evaluation_without_std(workspace: Workspace, deterministic: Path, tmp_path: Path) -> None:
    table = succeed(
        *("evaluate", deterministic, workspace / "test.extxyz", "--ood", workspace / "other.extxyz"),
        *("--json", tmp_path / "a.json"),
    )
    result = read_json(tmp_path / "a.json")
    errors = {"energy_mae", "energy_rmse", "forces_mae", "forces_rmse", "n_structures"}
    assert {key for key in PROMISED if result[key] is not None} == errors
    assert "calibration" not in table
    succeed("report", deterministic, workspace / "test.extxyz", tmp_path / "a.html")
    assert "raw, not calibrated" in succeed("info", deterministic)


def test_energies_only_has_to_be_said(workspace: Workspace, tmp_path: Path) -> None:
    frames = morse_frames(20, seed=5)
    for atoms in frames:
        del atoms.calc.results["forces"]
    ase.io.write(tmp_path / "energies.extxyz", frames)
    model = workspace.copied_model(tmp_path)
    for arguments in (("evaluate", model), ("calibrate", model), ("report", model)):
        output = (tmp_path / "a.html",) if arguments[0] == "report" else ()
        message = fail(*arguments, tmp_path / "energies.extxyz", *output)
        assert "frame 0: no forces" in message
        assert message.endswith("Add it, name it with --forces-key, or use --energies-only")
        succeed(*arguments, tmp_path / "energies.extxyz", *output, "--energies-only")
    assert read_header(model).forces_calibration is None


# --- info, report, check


def test_info(workspace: Workspace) -> None:
    text = succeed("info", workspace.model)
    potential = load(workspace.model)
    assert f"{sum(weight.numel() for weight in potential.parameters()):,}" in text
    assert "H C O" in text
    assert "30 structures" in text
    assert potential.energy_calibration is not None
    assert f"calibrated: {potential.energy_calibration}" in " ".join(text.split())
    assert re.search(r"stress σ +raw, not calibrated", text)
    content = json.loads(succeed("info", workspace.model, "--json"), parse_constant=refuse_constant)
    assert content["config"] == potential.config.model_dump(mode="json")
    assert content["record"]["split"] == potential.record.split.model_dump()


def test_report_is_one_page(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "pages" / "report.html"
    succeed("report", workspace.model, workspace / "test.extxyz", path, "--ood", workspace / "other.extxyz")
    page = path.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "AUROC" in page
    assert 'src="http' not in page


def test_check(workspace: Workspace, tmp_path: Path) -> None:
    assert "60 structures of 3 to 9 atoms" in succeed("check", workspace / "data.extxyz", "--json", tmp_path / "a.json")
    assert {finding["severity"] for finding in json.loads((tmp_path / "a.json").read_text())} == {"info"}
    frames = morse_frames(3, seed=5)
    frames[1].calc.results["energy"] = float("nan")
    ase.io.write(tmp_path / "bad.extxyz", frames)
    outcome = sigmaff("check", tmp_path / "bad.extxyz")
    assert outcome.code == 1
    assert "error" in outcome.out
    assert not outcome.err


# --- bad input


def unseen_element(frames: list[Atoms]) -> None:
    frames[2].symbols[1] = "S"


def overlapping(frames: list[Atoms]) -> None:
    frames[2].positions[1] = frames[2].positions[0]


def not_a_number(frames: list[Atoms]) -> None:
    frames[2].positions[1, 0] = np.nan


@pytest.mark.parametrize("damage", [unseen_element, overlapping, not_a_number])
@pytest.mark.parametrize("command", ["predict", "evaluate", "calibrate", "report"])
def test_a_bad_frame_is_named(workspace: Workspace, tmp_path: Path, command: str, damage) -> None:
    frames = morse_frames(4, seed=5)
    damage(frames)
    path = tmp_path / "bad [mol].extxyz"
    ase.io.write(path, frames)
    model = workspace.copied_model(tmp_path)
    before = model.read_bytes()
    output = {"predict": tmp_path / "out.extxyz", "report": tmp_path / "out.html"}.get(command)
    message = fail(command, model, path, *([] if output is None else [output]))
    assert f"{path}, frame 2" in message
    assert ("atom 1 is S" in message) == (damage is unseen_element)
    assert output is None or not output.exists()
    assert model.read_bytes() == before


def test_another_set_may_hold_unseen_elements(workspace: Workspace, tmp_path: Path) -> None:
    """They have no reference energy, so no error; but a σ, by which they are told apart."""
    frames = morse_frames(8, seed=5)
    for atoms in frames:
        atoms.symbols[1] = "S"
    ase.io.write(tmp_path / "other.extxyz", frames)
    succeed(
        "evaluate",
        workspace.model,
        workspace / "test.extxyz",
        "--ood",
        tmp_path / "other.extxyz",
        "--json",
        tmp_path / "out.json",
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ood_n_structures"] == 8
    assert found["ood_energy_mae"] is None
    assert found["energy_auroc"] > 0.5
    assert found["forces_auroc"] > 0.5


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "does not exist"), ("", "is empty"), ("no structure\nat all\n", "extxyz"), ("3\n\nH 0 0 0\n", "extxyz")],
)
@pytest.mark.parametrize("command", ["check", "evaluate", "predict"])
def test_files_without_structures(workspace: Workspace, tmp_path: Path, command: str, content, words: str) -> None:
    path = tmp_path / "in.extxyz"
    if content is not None:
        path.write_text(content)
    arguments = {
        "check": [path],
        "evaluate": [workspace.model, path],
        "predict": [workspace.model, path, tmp_path / "o.xyz"],
    }
    message = fail(command, *arguments[command])
    assert str(path) in message
    assert words in message


def test_missing_labels_are_named(workspace: Workspace) -> None:
    message = fail("evaluate", workspace.model, workspace / "in.extxyz")
    assert "in.extxyz, frame 0: no energy" in message
    assert "name it with --energy-key" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--energy-unit", "kcal"], " --energy-unit: got 'kcal'; unknown energy unit"),
        (["--format", "extxzy"], " --format: got 'extxzy'; expected"),
        (["--energy-key", "energie"], "looked for energie"),
        (["--device", "warp"], "the device 'warp' cannot be used"),
    ],
)
def test_wrong_options_are_named(workspace: Workspace, options: list[str], words: str) -> None:
    assert words in fail("evaluate", workspace.model, workspace / "test.extxyz", *options)


@pytest.mark.parametrize("name", ["missing.sigmaff", "test.extxyz", "."])
@pytest.mark.parametrize("command", ["evaluate", "calibrate", "info", "predict"])
def test_not_a_model(workspace: Workspace, command: str, name: str, tmp_path: Path) -> None:
    data = [] if command == "info" else [workspace / "test.extxyz"]
    output = [tmp_path / "out.extxyz"] if command == "predict" else []
    assert str(workspace / name) in fail(command, workspace / name, *data, *output)


# --- files that are there already


@pytest.mark.parametrize("command", ["check", "evaluate", "predict", "calibrate", "report"])
def test_nothing_is_replaced_unless_forced(workspace: Workspace, command: str, tmp_path: Path) -> None:
    precious = tmp_path / {"predict": "a.extxyz", "calibrate": "a.sigmaff", "report": "a.html"}.get(command, "a.json")
    precious.write_bytes(b"precious")
    model, data = workspace.model, workspace / "test.extxyz"
    arguments = {
        "check": [data, "--json", precious],
        "evaluate": [model, data, "--json", precious],
        "predict": [model, data, precious],
        "calibrate": [model, data, "--output", precious],
        "report": [model, data, precious],
    }[command]
    assert f"{precious} exists already; use --force to replace it" in fail(command, *arguments)
    assert precious.read_bytes() == b"precious"
    succeed(command, *arguments, "--force")
    assert precious.read_bytes() != b"precious"
    assert list(tmp_path.iterdir()) == [precious]


def test_refusal_comes_before_the_work(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    assert "exists already" in fail(
        "evaluate", tmp_path / "no model", tmp_path / "no data", "--json", tmp_path / "a.json"
    )
    assert "choose one of these endings" in fail(
        "predict", tmp_path / "no model", tmp_path / "no data", tmp_path / "a.pdb"
    )
    assert "it is a folder" in fail("predict", workspace.model, workspace / "in.extxyz", tmp_path, "--force")


def test_impossible_folder(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = fail("predict", workspace.model, workspace / "in.extxyz", tmp_path / "file" / "out.extxyz")
    assert "a file is in its way" in message


def test_a_second_command_for_one_file_is_refused_before_its_work(workspace: Workspace, tmp_path: Path) -> None:
    """Also under the name of a link."""
    model = workspace.copied_model(tmp_path)
    (tmp_path / "link.sigmaff").symlink_to(model)
    with output_lock(model):
        for name in ("model.sigmaff", "link.sigmaff"):
            message = fail("calibrate", tmp_path / name, workspace / "held_out.extxyz")
            assert "another process is at work on this file" in message
        assert "at work" in fail("predict", workspace.model, tmp_path / "no data", model, "--force")
    succeed("calibrate", model, workspace / "held_out.extxyz")


# --- the program


FULL = """
import errno, os, sys
from pathlib import Path
from sigmaff.cli.main import main
def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
Path.write_text = full
sys.argv = ["sigmaff", *sys.argv[1:]]
main()
"""


def test_a_full_disk_is_one_line_that_names_the_file(workspace: Workspace, tmp_path: Path) -> None:
    arguments = ["check", str(workspace / "test.extxyz"), "--json", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, "-c", FULL, *arguments], capture_output=True, text=True, check=False)
    expected = "No space left on device; make room, and run the same command again"
    assert done.stderr == f"error: {tmp_path / 'found.json'}: {expected}\n"
    assert done.returncode == 1


STRUCK = """
import signal, sys, time
import sigmaff
from sigmaff.cli.main import main
{}
sigmaff.load = load
sys.argv = ["sigmaff", "calibrate", "model.sigmaff", "data.extxyz"]
main()
"""
TURNED_INTO_AN_ERROR = """
def load(*_, **__):
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        raise ValueError("could not determine the shape of object") from None
"""
IN_A_DESTRUCTOR = """
class Engine:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
def load(*_, **__):
    Engine()
    time.sleep(10.0)
    sys.exit("it goes on")
"""


@pytest.mark.parametrize("load", [TURNED_INTO_AN_ERROR, IN_A_DESTRUCTOR], ids=["error", "destructor"])
def test_a_signal_that_does_not_arrive_as_an_exception_is_an_interruption(load: str) -> None:
    """Reading a tensor turns it into another error. Python ignores exceptions in destructors; tblite has some."""
    done = subprocess.run([sys.executable, "-c", STRUCK.format(load)], capture_output=True, text=True, check=False)
    assert done.stderr == "interrupted; run the same command again\n"
    assert done.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_one_line(workspace: Workspace, tmp_path: Path, number: signal.Signals) -> None:
    """And its lock is gone."""
    program, run = Path(sys.executable).with_name("sigmaff"), tmp_path / "md"
    endless = ("--steps", "1000000", "--timestep", "0.000001")  # nothing moves, so nothing else ends it
    command = [program, "md", workspace.model, workspace / "start.extxyz", *endless, "--output", run]
    before = signal.signal(number, signal.SIG_DFL)  # tests in the background ignore SIGINT, and so would this
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    signal.signal(number, before)
    with process:
        while not (run / "log.csv").exists():
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "interrupted; run the same command again\n"
    assert not list(run.glob(".*"))


def test_the_installed_program(workspace: Workspace) -> None:
    """One process for an error, whose message is all that a person sees of it."""
    program = Path(sys.executable).with_name("sigmaff")
    done = subprocess.run([program, "info", workspace / "test.extxyz"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {workspace / 'test.extxyz'}: not a sigmaff model")
    assert done.stderr.count("\n") == 1


def test_version_and_help() -> None:
    assert succeed("--version").startswith("sigmaff 0.")
    listed = succeed("--help")
    for command in ("check", "train", "evaluate", "calibrate", "predict", "info", "report", "demo"):
        assert command in listed
        assert "Usage" in succeed(command, "--help")


def test_a_misused_command() -> None:
    outcome = sigmaff("evaluate")
    assert outcome.code == 2
    assert "Missing argument" in outcome.err
