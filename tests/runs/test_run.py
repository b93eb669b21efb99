"""Whole runs: what decides a model, what is left in its folder, and what an interruption costs (nothing)."""

import json
import os
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
import yaml
from ase import Atoms

from cli_case import Workspace, fail, labelled, morse_frames, sigmaff, succeed, write_config
from sigmaff import load
from sigmaff.config import read_config
from sigmaff.heads import LNK
from sigmaff.models.file import read_header
from sigmaff.models.prediction import NO_CALIBRATIONS
from sigmaff.runs import stages
from sigmaff.runs.config import RunConfig
from sigmaff.runs.run import run
from sigmaff.training import TrainingDivergedError

pytest_plugins = ["cli_fixtures"]

SHORT = ("--set", "training.max_epochs=3")


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return load(path).state_dict()


def same_tensors(a: Path, b: Path) -> bool:
    first, second = tensors(a), tensors(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def train(workspace: Workspace, output: Path, *options: str) -> Path:
    succeed("train", workspace / "run.yaml", "--output", output, *options)
    return output / "model.sigmaff"


# --- what a run leaves


@pytest.mark.parametrize("head", ["{name: deterministic}", "{name: svgp, n_inducing: 12}"])
def test_the_random_numbers_of_the_caller_stay_as_they_were(workspace: Workspace, tmp_path: Path, head: str) -> None:
    """And the weights follow from the seed of the run alone."""
    overrides = ("training.max_epochs=3", f"model.head={head}", "calibration=none")
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        config = read_config(RunConfig, workspace / "run.yaml", overrides, {"output": tmp_path / f"{seed}"})
        assert run(config) is not None
        assert torch.equal(torch.get_rng_state(), before)
        models.append(tmp_path / f"{seed}" / "model.sigmaff")
    assert same_tensors(*models)


def test_the_record_tells_how_the_model_was_made(workspace: Workspace) -> None:
    record = read_header(workspace.model).record
    assert record.config["training"]["max_epochs"] == 15
    assert record.training.n_epochs == 15
    split = record.split.model_dump()
    assert [len(split[part]) for part in ("train", "validation", "test")] == [30, 20, 10]
    assert sorted(split["train"] + split["validation"] + split["test"]) == list(range(60))
    tested = json.loads((workspace / "run" / "metrics.json").read_text())
    assert tested == {key: value for key, value in record.metrics.items() if key in tested}
    assert all(value is None for key, value in record.metrics.items() if key not in tested), "of no other set"


def test_test_figures_are_those_of_evaluate_on_the_test_structures(workspace: Workspace, tmp_path: Path) -> None:
    record = read_header(workspace.model).record
    frames = ase.io.read(workspace / "data.extxyz", ":")
    ase.io.write(tmp_path / "rest.extxyz", [frames[index] for index in record.split.test])
    succeed("evaluate", workspace.model, tmp_path / "rest.extxyz", "--json", tmp_path / "a.json")
    evaluated = json.loads((tmp_path / "a.json").read_text())
    for key in ("energy_mae", "forces_mae", "energy_calibration", "forces_calibration", "energy_spearman"):
        assert evaluated[key] == pytest.approx(record.metrics[key], rel=1e-3)


def test_force_std_may_stay_untested(workspace: Workspace, tmp_path: Path) -> None:
    """Its σ stays raw, and nothing else changes."""
    other = f"ood={{other: {{source: {workspace / 'data.extxyz'}, n_structures: 5}}}}"
    options = ("--set", "test_forces_std=false", "--set", other)
    short, whole = (train(workspace, tmp_path / name, *SHORT, *options[k:]) for k, name in ((0, "a"), (2, "b")))
    headers = [read_header(path) for path in (short, whole)]
    assert [header.forces_calibration is None for header in headers] == [True, False]
    assert headers[0].energy_calibration == headers[1].energy_calibration
    records = [header.record for header in headers]
    assert [record.metrics["forces_calibration"] is None for record in records] == [True, False]
    assert [record.ood["other"]["forces_auroc"] is None for record in records] == [True, False]
    assert records[0].ood["other"]["energy_auroc"] is not None
    for key in ("energy_mae", "forces_mae", "energy_calibration", "energy_spearman"):
        assert records[0].metrics[key] == pytest.approx(records[1].metrics[key], rel=1e-4)
    assert ["test_forces_std" in record.config for record in records] == [True, False]


def test_calibration_is_that_of_the_validation_structures(workspace: Workspace, tmp_path: Path) -> None:
    record = read_header(workspace.model).record
    frames = ase.io.read(workspace / "data.extxyz", ":")
    ase.io.write(tmp_path / "held_out.extxyz", [frames[index] for index in record.split.validation])
    model = workspace.copied_model(tmp_path)
    succeed("calibrate", model, tmp_path / "held_out.extxyz")
    before, after = read_header(workspace.model), read_header(model)
    assert before.energy_calibration is not None
    assert after.energy_calibration is not None
    assert after.energy_calibration.scale == pytest.approx(before.energy_calibration.scale, rel=1e-3)


def test_the_mean_is_the_readout_where_the_gaussian_process_is_told_to_keep_it(workspace: Workspace, tmp_path) -> None:
    """The closed form adds σ; with mean "backbone" all else is the backbone's."""
    model = train(workspace, tmp_path / "run", *SHORT, "--set", "model.head.mean=backbone")
    fitted, backbone = load(model), load(tmp_path / "run" / "backbone.sigmaff")
    assert all(
        torch.equal(value, fitted.state_dict()[name])
        for name, value in backbone.backbone.state_dict(prefix="backbone.").items()
    )
    out, plain = tmp_path / "a.extxyz", tmp_path / "b.extxyz"
    succeed("predict", model, workspace / "test.extxyz", out)
    succeed("predict", tmp_path / "run" / "backbone.sigmaff", workspace / "test.extxyz", plain)
    for a, b in zip(ase.io.read(out, ":"), ase.io.read(plain, ":"), strict=True):
        np.testing.assert_allclose(a.get_forces(), b.get_forces(), atol=1e-4)
        assert a.get_potential_energy() == pytest.approx(b.get_potential_energy(), abs=1e-4)


# --- the same command again, another one in its place


def test_the_same_seed_gives_the_same_bits(workspace: Workspace, tmp_path: Path) -> None:
    a = train(workspace, tmp_path / "a", *SHORT)
    b = train(workspace, tmp_path / "b", *SHORT)
    other = train(workspace, tmp_path / "c", *SHORT, "--seed", "1")
    assert same_tensors(a, b)
    assert read_header(a).energy_calibration == read_header(b).energy_calibration
    assert not same_tensors(a, other)
    assert read_header(other).record.config["seed"] == 1


def test_resume_of_a_finished_run_does_nothing(workspace: Workspace) -> None:
    before = {path: path.stat().st_mtime_ns for path in (workspace / "run").rglob("*") if path.is_file()}
    out = succeed("train", workspace / "run.yaml")
    assert "finished; nothing was done" in out
    assert "MAE" in out
    assert {path: path.stat().st_mtime_ns for path in (workspace / "run").rglob("*") if path.is_file()} == before


def test_a_calibrated_model_is_still_the_run_s(workspace: Workspace, tmp_path: Path) -> None:
    model = train(workspace, tmp_path / "run", *SHORT)
    succeed("calibrate", model, workspace / "held_out.extxyz")
    before = model.read_bytes()
    assert "nothing was done" in succeed("train", workspace / "run.yaml", "--output", tmp_path / "run", *SHORT)
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("training.learning_rate=0.001", "training.learning_rate: was 0.005, now 0.001"),
        ("training.max_epochs=10", "training.max_epochs: was 15, now 10"),
        ("model.backbone.n_hidden=18", "model.backbone.n_hidden: was 16, now 18"),
        ("data.split.seed=3", "data.split.seed: was 0, now 3"),
        ("calibration=scalar", "calibration: was auto, now scalar"),
        ("seed=4", "seed: was 0, now 4"),
    ],
)
def test_another_run_does_not_take_its_place(workspace: Workspace, option: str, words: str) -> None:
    before = workspace.model.read_bytes()
    message = fail("train", workspace / "run.yaml", "--set", option)
    assert f"belongs to another run ({words})" in message
    assert "--force" in message
    assert workspace.model.read_bytes() == before


def test_settings_of_speed_make_no_other_run(workspace: Workspace) -> None:
    options = ("--set", "training.validation_batch_size=7", "--device", "cpu", "--set", "training.checkpoint_minutes=1")
    assert "nothing was done" in succeed("train", workspace / "run.yaml", *options)


def test_force_trains_anew_or_on(workspace: Workspace, tmp_path: Path) -> None:
    model = train(workspace, tmp_path / "run", *SHORT)
    train(workspace, tmp_path / "run", "--set", "training.max_epochs=5", "--force")
    assert read_header(model).record.training.n_epochs == 5
    longer = train(workspace, tmp_path / "longer", "--set", "training.max_epochs=5")
    assert same_tensors(model, longer)
    train(workspace, tmp_path / "run", *SHORT, "--seed", "3", "--force")
    assert same_tensors(model, train(workspace, tmp_path / "other", *SHORT, "--seed", "3"))


def test_changed_data_make_another_run(tmp_path: Path) -> None:
    frames = morse_frames(60, seed=1)
    ase.io.write(tmp_path / "data.extxyz", frames)
    config = write_config(tmp_path / "run.yaml", ("training.max_epochs", 2))
    succeed("train", config)
    frames[0] = frames[2]
    ase.io.write(tmp_path / "data.extxyz", frames)
    assert f"{tmp_path / 'data.extxyz'} changed" in fail("train", config)
    (tmp_path / "data.extxyz").unlink()
    assert "nothing was done" in succeed("train", config)


def test_leakage_is_not_sought_in_a_file_that_shrank(tmp_path: Path, workspace: Workspace) -> None:
    ase.io.write(tmp_path / "data.extxyz", morse_frames(60, seed=1))
    config = write_config(tmp_path / "run.yaml", ("training.max_epochs", 2))
    succeed("train", config)
    ase.io.write(tmp_path / "data.extxyz", morse_frames(4, seed=1))
    assert sigmaff("evaluate", tmp_path / "run" / "model.sigmaff", workspace / "test.extxyz").err == ""


@pytest.mark.parametrize("name", ["metrics.json", "backbone.sigmaff", "model.sigmaff"])
def test_files_of_others_are_left_alone(workspace: Workspace, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    message = fail("train", workspace / "run.yaml", "--output", tmp_path)
    assert str(tmp_path / name) in message
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_resume_writes_metrics_lost_to_a_kill(workspace: Workspace, tmp_path: Path) -> None:
    train(workspace, tmp_path / "run", *SHORT)
    metrics = tmp_path / "run" / "metrics.json"
    before = metrics.read_bytes()
    metrics.unlink()
    train(workspace, tmp_path / "run", *SHORT)
    assert metrics.read_bytes() == before


# --- heads and labels


def test_without_std(deterministic: Path) -> None:
    header = read_header(deterministic)
    assert header.energy_calibration is None
    assert header.forces_calibration is None
    metrics = header.record.metrics
    assert metrics["energy_mae"] > 0
    assert [key for key in metrics if "calibration" in key and metrics[key] is not None] == []


def test_settings_for_a_head_that_is_not_trained_are_a_contradiction(workspace: Workspace, tmp_path: Path) -> None:
    options = (*SHORT, "--set", "head_training.batch_size=3", "--output", tmp_path / "run")
    assert "head_training is for a head that is trained on a trained backbone" in fail(
        "train", workspace / "run.yaml", *options
    )


def learning_rates(directory: Path) -> np.ndarray:
    """Of the backbone, at the end of each epoch."""
    return np.genfromtxt(directory / "metrics.csv", delimiter=",", names=True)["learning_rate"]


@pytest.mark.parametrize("freeze", [True, False])
def test_variational(workspace: Workspace, tmp_path: Path, freeze: bool) -> None:
    head = f"{{name: lnk, fit: variational, freeze_backbone: {freeze}, mean: constant, kernel: rbf, n_inducing: 12}}"
    options = (*SHORT, "--set", f"model.head={head}", "--set", "training.batch_size=12")
    model = train(workspace, tmp_path / "run", *options)
    potential = load(model)
    assert isinstance(potential.head, LNK)
    assert potential.head.weight_mean.abs().max() > 0
    assert potential.energy_calibration is not None
    assert potential.record.head_training is not None
    backbone, fitted = tensors(tmp_path / "run" / "backbone.sigmaff"), potential.state_dict()
    names = [name for name in backbone if name.startswith("backbone.")]
    assert all(torch.equal(backbone[name], fitted[name]) for name in names) == freeze
    if not freeze:  # the backbone learns on, at a tenth of its rate
        assert learning_rates(tmp_path / "run/head") == pytest.approx(0.1 * learning_rates(tmp_path / "run/backbone"))
    first = model.rename(tmp_path / "first.sigmaff")
    assert same_tensors(train(workspace, tmp_path / "run", *options), first)  # from its checkpoints
    assert same_tensors(train(workspace, tmp_path / "again", *options), first)
    succeed("predict", model, workspace / "in.extxyz", tmp_path / "out.extxyz")
    assert all(frame.info["energy_uncertainty"] > 0 for frame in ase.io.read(tmp_path / "out.extxyz", ":"))


ENSEMBLE = ("--set", "ensemble={size: 3}", "--set", "model.head={name: deterministic}")


def test_an_ensemble_is_its_members(workspace: Workspace, tmp_path: Path) -> None:
    """Each is what a run with its seed gives; a run that lost its last file goes on from the members it has."""
    model = train(workspace, tmp_path / "run", *SHORT, *ENSEMBLE)
    alone = train(workspace, tmp_path / "alone", *SHORT, *ENSEMBLE[2:], "--seed", "2")
    members = [tmp_path / "run" / f"member-{number}" / "model.sigmaff" for number in range(3)]
    assert same_tensors(members[2], alone)
    assert not same_tensors(members[0], members[1])
    header = read_header(model)
    assert len(header.parts) == len(header.record.members) == 3
    assert header.energy_calibration is not None
    assert header.record.metrics["forces_calibration"] is not None
    stored = load(model)
    for member, path in zip(stored.potentials, members, strict=True):
        assert all(torch.equal(value, tensors(path)[name]) for name, value in member.state_dict().items())
    before = [path.stat().st_mtime_ns for path in members]
    model.unlink()
    again = train(workspace, tmp_path / "run", *SHORT, *ENSEMBLE)
    assert [path.stat().st_mtime_ns for path in members] == before
    assert read_header(again).record.metrics["energy_mae"] == header.record.metrics["energy_mae"]


def test_members_may_be_joined_from_files(workspace: Workspace, deterministic: Path, tmp_path: Path) -> None:
    other = train(workspace, tmp_path / "other", "--set", "model.head={name: deterministic}", *SHORT, "--seed", "9")
    succeed("ensemble", deterministic, other, "-o", tmp_path / "joined.sigmaff")
    succeed("calibrate", tmp_path / "joined.sigmaff", workspace / "held_out.extxyz")
    text = succeed("info", tmp_path / "joined.sigmaff")
    assert "2 members" in text
    succeed("predict", tmp_path / "joined.sigmaff", workspace / "in.extxyz", tmp_path / "out.extxyz")
    frame = ase.io.read(tmp_path / "out.extxyz", 0)
    energies = frame.info["energy_ensemble"]
    scale = read_header(tmp_path / "joined.sigmaff").energy_calibration.scale
    assert frame.info["energy_uncertainty"] == pytest.approx(scale * np.std(energies, ddof=1), rel=1e-6)
    assert "exists already" in fail("ensemble", deterministic, other, "-o", tmp_path / "joined.sigmaff")
    assert "at least 2 members" in fail("ensemble", deterministic, "-o", tmp_path / "one.sigmaff")


def test_bootstrap_trains_on_draws_with_replacement(workspace: Workspace, tmp_path: Path) -> None:
    plain = train(workspace, tmp_path / "plain", *SHORT, *ENSEMBLE)
    drawn = train(workspace, tmp_path / "drawn", *SHORT, *ENSEMBLE, "--set", "ensemble.bootstrap=true")
    assert not same_tensors(plain, drawn)


def test_a_member_that_fails_is_told_of_and_left_out(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = stages.make_member

    def failing(config, number, *arguments, **options):
        if number == 1:
            raise TrainingDivergedError("the loss is not a finite number")
        return make(config, number, *arguments, **options)

    monkeypatch.setattr(stages, "make_member", failing)
    outcome = sigmaff("train", workspace / "run.yaml", "--output", tmp_path / "run", *SHORT, *ENSEMBLE)
    assert outcome.code == 0
    assert "member 1 was not trained and is left out: the loss is not a finite number" in outcome.out
    record = read_header(tmp_path / "run" / "model.sigmaff").record
    assert [(member.failed is not None) for member in record.members] == [False, True, False]
    assert len(load(tmp_path / "run" / "model.sigmaff").potentials) == 2


def test_an_ensemble_without_members_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    absurd = ("--set", "training.learning_rate=1e30", "--set", "training.gradient_clip=null")
    message = fail("train", workspace / "run.yaml", "--output", tmp_path / "run", *SHORT, *ENSEMBLE, *absurd)
    assert "only 0 of 3 members could be trained" in message


def test_dropout_at_prediction(workspace: Workspace, tmp_path: Path) -> None:
    options = ("--set", "model.head={name: deterministic}", "--set", "mc_dropout={n_samples: 4, seed: 3}", *SHORT)
    model = train(workspace, tmp_path / "run", *options, "--set", "model.backbone.dropout=0.1")
    header = read_header(model)
    assert header.mc_dropout.n_samples == 4
    assert header.forces_calibration is not None
    message = fail("train", workspace / "run.yaml", "--output", tmp_path / "none", *options)
    assert "set model.backbone.dropout above 0" in message
    late = ("--set", "model.backbone.dropout=0.1", "--set", "training.without_dropout=0.5")
    message = fail("train", workspace / "run.yaml", "--output", tmp_path / "none", *options, *late)
    assert "mc_dropout predicts with dropout on, so all epochs need it: leave out without_dropout" in message


def test_a_head_on_a_backbone_from_a_file(workspace: Workspace, deterministic: Path, tmp_path: Path) -> None:
    model = train(workspace, tmp_path / "run", *SHORT, "--set", f"backbone_from={deterministic}")
    before, after = tensors(deterministic), tensors(model)
    names = [name for name in before if name.startswith("backbone.")]
    assert names
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert not (tmp_path / "run" / "backbone").exists()
    for option, words in (
        ("model.backbone.n_hidden=8", "model.backbone of this run (n_hidden: was 16, now 8)"),
        ("model.backbone={name: nequip}", "model.backbone of this run (name: was schnet, now nequip)"),
        ("model.head={name: evidential}", "trained with its backbone from scratch"),
        (f"backbone_from={workspace.model}", "takes a model with a deterministic head"),
    ):
        given = ("--set", f"backbone_from={deterministic}", "--set", option)
        assert words in fail("train", workspace / "run.yaml", "--output", tmp_path / "other", *SHORT, *given)


def test_a_backbone_from_a_file_brings_its_settings(workspace: Workspace, deterministic: Path, tmp_path: Path) -> None:
    """All of them where model.backbone is left out; else those that it does not name."""
    written = yaml.safe_load((workspace / "run.yaml").read_text())
    for name, backbone in (("none", None), ("some", {"name": "schnet", "dropout": 0.1, "cutoff": 4.0})):
        model = {"head": written["model"]["head"]} | ({} if backbone is None else {"backbone": backbone})
        content = written | {"model": model, "backbone_from": str(deterministic), "output": str(tmp_path / name)}
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump(content))
        succeed("train", config)
        found = load(tmp_path / name / "model.sigmaff").config.backbone
        expected = load(deterministic).config.backbone
        assert found == expected.model_copy(update={} if backbone is None else {"dropout": 0.1})
        assert "nothing was done" in succeed("train", config)


def test_other_structures_are_tested_on(workspace: Workspace, tmp_path: Path) -> None:
    """The figures are those that ``evaluate --ood`` gives; the terminal, ``metrics.json`` and ``info`` show them."""
    other = f"ood={{ether: {{source: '{workspace / 'other.extxyz'}', n_structures: null}}}}"
    said = succeed("train", workspace / "run.yaml", "--output", tmp_path / "run", *SHORT, "--set", other)
    model = tmp_path / "run" / "model.sigmaff"
    record = read_header(model).record
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["ood"] == record.ood
    informed = re.sub(r"\s+", " ", succeed("info", model))
    assert "out of distribution, ether: 12 structures" in said
    for key in ("energy_auroc", "ood_energy_coverage_68", "ood_forces_coverage_95", "ood_energy_rms_z"):
        assert f"{record.ood['ether'][key]:.4f}" in said
    assert f"on ether 12 structures, energy MAE {record.ood['ether']['ood_energy_mae']:.5g} eV (68 % covers" in informed
    frames = ase.io.read(workspace / "data.extxyz", ":")
    ase.io.write(tmp_path / "rest.extxyz", [frames[index] for index in record.split.test])
    figures = ("--ood", workspace / "other.extxyz", "--json", tmp_path / "a.json")
    assert f"{record.ood['ether']['ood_forces_coverage_68']:.4f}" in succeed(
        "evaluate", model, tmp_path / "rest.extxyz", *figures
    )
    expected = json.loads((tmp_path / "a.json").read_text())
    for key in ("energy_auroc", "forces_auroc", "ood_energy_mae", "ood_forces_coverage_95"):
        assert record.ood["ether"][key] == pytest.approx(expected[key], rel=1e-3)


def test_closed_form_needs_a_readout(workspace: Workspace, tmp_path: Path) -> None:
    message = fail("train", workspace / "run.yaml", "--output", tmp_path / "run", "--set", "model.head.mean=constant")
    assert "model.head: mean 'constant' needs fit 'variational'" in message
    assert not (tmp_path / "run").exists(), "said before hours of training, not after"


def test_energies_alone(tmp_path: Path) -> None:
    frames = morse_frames(60, seed=1)
    for atoms in frames:
        del atoms.calc.results["forces"]
    ase.io.write(tmp_path / "data.extxyz", frames)
    config = write_config(tmp_path / "run.yaml", ("training.max_epochs", 3))
    assert "no forces" in fail("train", config)
    energies = ("--set", f"data.source={{path: {tmp_path / 'data.extxyz'}, labels: [energy]}}")
    assert "set forces_weight to 0" in fail("train", config, *energies)
    succeed("train", config, *energies, "--set", "training.forces_weight=0")
    header = read_header(tmp_path / "run" / "model.sigmaff")
    assert header.energy_calibration is not None
    assert header.forces_calibration is None
    assert header.record.metrics["energy_mae"] > 0
    assert header.record.metrics["forces_mae"] is None


# --- data that a run cannot use


def test_an_element_that_only_the_validation_structures_have(tmp_path: Path) -> None:
    frames = morse_frames(18, seed=1)
    frames[9].symbols[0] = "S"
    ase.io.write(tmp_path / "data.extxyz", frames)
    split = ("data.split", {"kind": "blocked", "n_train": 8, "n_validation": 10})
    message = fail("train", write_config(tmp_path / "run.yaml", split))
    assert f"{tmp_path / 'data.extxyz'}, frame 9: atom 0 is S, which no training structure of this split has" in message


def test_no_validation_structures(workspace: Workspace, tmp_path: Path) -> None:
    options = ("--output", tmp_path / "run", "--set", "data.split.n_validation=0")
    assert "data.split.n_validation is 0" in fail("train", workspace / "run.yaml", *options)
    options = ("--output", tmp_path / "run", "--set", "data.split.n_train=60")
    assert "the data has 60 structures, too few for n_train = 60" in fail("train", workspace / "run.yaml", *options)


def test_too_few_validation_structures_leave_std_raw_and_the_run_says_so(workspace: Workspace, tmp_path: Path) -> None:
    options = ("--output", tmp_path / "run", *SHORT, "--set", "data.split.n_validation=19")
    text = succeed("train", workspace / "run.yaml", *options)
    assert "n_validation is 19: σ will not be calibrated, which takes 20 structures" in text
    assert "σ of energy and forces is raw, not calibrated: calibration needs at least 20" in text
    header = read_header(tmp_path / "run" / "model.sigmaff")
    assert header.calibrations == NO_CALIBRATIONS
    assert header.record.uncalibrated.keys() == {"energy", "forces"}
    assert "raw, not calibrated" in succeed("info", tmp_path / "run" / "model.sigmaff")


def test_nothing_left_to_test(workspace: Workspace, tmp_path: Path) -> None:
    model = train(workspace, tmp_path / "run", *SHORT, "--set", "data.split.n_train=40")
    assert read_header(model).record.split.test == []
    assert read_header(model).record.metrics is None
    assert not (tmp_path / "run" / "metrics.json").exists()
    succeed("info", model)
    assert "nothing was done" in succeed(
        *("train", workspace / "run.yaml", "--output", tmp_path / "run"), *SHORT, "--set", "data.split.n_train=40"
    )


def test_isolated_atoms_as_references(tmp_path: Path) -> None:
    atoms = [
        labelled(Atoms(symbol), energy, np.zeros((1, 3))) for symbol, energy in (("H", -1.0), ("C", -2.0), ("O", -3.0))
    ]
    for frame in atoms:
        frame.info["config_type"] = "IsolatedAtom"
    ase.io.write(tmp_path / "data.extxyz", [*morse_frames(60, seed=1), *atoms])
    references = ("data.reference_energies", "isolated_atoms")
    succeed("train", write_config(tmp_path / "run.yaml", references, ("training.max_epochs", 2)))
    model = tmp_path / "run" / "model.sigmaff"
    assert read_header(model).statistics.reference_energies == {1: -1.0, 6: -2.0, 8: -3.0}


def test_an_accelerator_that_is_not_there(workspace: Workspace, tmp_path: Path) -> None:
    message = fail("train", workspace / "run.yaml", "--output", tmp_path / "run", "--device", "warp")
    assert "accelerator 'warp'" in message


# --- interruptions


def start(config: Path, *options: str) -> subprocess.Popen[str]:
    program = Path(sys.executable).with_name("sigmaff")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [program, "train", config, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_two_processes_train_backbone_and_head(workspace: Workspace, tmp_path: Path) -> None:
    """Helper processes stay until the last training is over; the model is that of one process but for rounding."""
    head = "model.head={name: lnk, fit: variational, n_inducing: 8}"
    options = ("--set", head, "--set", "training.max_epochs=2", "--set", "training.batch_size=12")
    alone = train(workspace, tmp_path / "alone", *options)
    pair = ("--set", "training.devices=2", "--set", "training.strategy=ddp", "--output", str(tmp_path / "pair"))
    process = start(workspace / "run.yaml", *options, *pair)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    expected, found = tensors(alone), tensors(tmp_path / "pair" / "model.sigmaff")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def wait_for_epochs(process: subprocess.Popen[str], metrics: Path, n: int) -> None:
    """Until a run under way has written n epochs more."""
    wanted = n + (len(metrics.read_text().splitlines()) if metrics.exists() else 1)
    while not metrics.exists() or len(metrics.read_text().splitlines()) < wanted:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def test_resume_after_interrupt_and_kill_gives_the_uninterrupted_result(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "data.extxyz", morse_frames(30, seed=1))
    changes = [
        ("data.split", {"n_train": 12, "n_validation": 12}),
        ("model.backbone.dropout", 0.1),
        ("training.max_epochs", 100),
        ("training.batch_size", 12),
        ("training.validate_every", 10),
    ]
    config = write_config(tmp_path / "run.yaml", *changes)
    metrics = tmp_path / "run" / "backbone" / "metrics.csv"
    process = start(config)
    wait_for_epochs(process, metrics, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 130, err
    assert "of 100; run the same command to resume from" in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "run" / "model.sigmaff").exists()
    process = start(config)
    wait_for_epochs(process, metrics, 3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "model.sigmaff").exists()
    assert "resuming from step" in succeed("train", config)
    unbroken = tmp_path / "unbroken"
    succeed("train", config, "--output", unbroken)
    assert same_tensors(tmp_path / "run" / "model.sigmaff", unbroken / "model.sigmaff")
    assert len(metrics.read_text().splitlines()) == 101
