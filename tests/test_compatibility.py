"""Files of earlier versions load, and their interrupted runs resume and finish. See tests/data/v*/README.md.

What version 0.1.0 did otherwise is listed below. Files since then give every number that they gave.
"""

import csv
import hashlib
import json
import shlex
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from safetensors import safe_open
from safetensors.torch import save_file

import sigmaff
from cli_case import fail, succeed
from dask_case import running_scheduler

DATA = Path(__file__).parent / "data"
REDEFINED = {"energies_uncertainty"}
"""σ of the share of an atom: now of its deviation from the mean share of its element."""
SOLVED, SOLVED_AGAIN = {"energy_uncertainty", "forces_uncertainty"}, 0.1
"""What this version changes in a run in which it solves for the head: σ, and some of the mean of so few labels."""
DRAWN = {"forces_uncertainty"}
"""What this version samples from other draws in a run that it finishes; a finished model keeps its own."""
PREDICTED, MOVED, TRAINED = 3e-5, 1e-4, 1e-3
"""What may differ from machine to machine after one prediction, many steps of motion, many steps of training: shares of
the largest number of an array. The last digit of a bond's length in float32 is 1e-5 of its force."""

RESCALED = {"stress_uncertainty"}
"""What version 0.1.0 scaled by the calibration of another quantity; later versions do not."""
UNCALIBRATED = {"energy_uncertainty", "forces_uncertainty", *RESCALED}
"""What version 0.1.0 calibrated on fewer than 20 structures; later versions leave it raw."""


def is_first(path: Path) -> bool:
    """Whether a file is of version 0.1.0."""
    return path.relative_to(DATA).parts[0] == "v0.1.0"


def kept(pattern: str) -> list[Any]:
    """Artefacts of all versions, as parameters named by their paths."""
    paths = sorted(DATA.glob(f"v*/{pattern}"))
    assert paths, f"no version has left {pattern}"
    return [pytest.param(path, id=str(path.relative_to(DATA))) for path in paths]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """When each file was written, and what is in it."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def assert_same(after: dict[str, tuple[int, bytes]], before: dict[str, tuple[int, bytes]]) -> None:
    """No file of before was written again; new ones may be there."""
    assert not [name for name in before if after.get(name) != before[name]]


@pytest.fixture(scope="module", autouse=True)
def _artefacts_stay() -> Iterator[None]:
    """Tests work on copies."""
    folders = sorted(DATA.glob("v*"))
    before = [contents(folder) for folder in folders]
    yield
    for folder, files in zip(folders, before, strict=True):
        assert contents(folder) == files


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an artefact, to work in."""
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with one worker."""
    with running_scheduler(1) as client:
        yield client.scheduler.address


def go_on(folder: Path, *more: str) -> str:
    """What the command of an artefact prints."""
    _, *arguments = shlex.split((folder / "command.txt").read_text(encoding="utf-8"))
    return succeed(*arguments, *more)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Arrays of one shape that differ by little, measured by the largest number."""
    expected = np.array(expected)
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerance * np.abs(expected).max())


def assert_predicts(
    model: Path,
    structures: list[Atoms],
    expected: list[dict[str, Any]],
    tolerance: float,
    *,
    raw: set[str],
    redefined: set[str],
) -> None:
    """Every number that was expected, and no σ where there was none.

    Arguments:
        raw: σ that version 0.1.0 scaled by a calibration, and later ones leave as they are: equal up to one factor.
        redefined: σ that mean something else now, or come from another fit.
    """
    calculator, results = sigmaff.Calculator(model, stress_uncertainty=True, warn_above=None), []
    for atoms, wanted in zip(structures, expected, strict=True):
        calculator.calculate(atoms)
        found = calculator.results
        stds = [{key for key in keys if key.endswith("_uncertainty")} - redefined for keys in (found, wanted)]
        assert stds[0] == stds[1]
        results.append(found)
        for key in wanted.keys() - raw - redefined:
            assert_close(found[key], wanted[key], tolerance)
    for key in expected[0].keys() & (raw - redefined):
        one, other = (np.concatenate([np.ravel(values[key]) for values in side]) for side in (results, expected))
        assert_close(one * (one @ other) / (one @ one), other, tolerance)


# --- model files


@pytest.mark.parametrize("path", kept("models/*.sigmaff"))
def test_a_model_predicts_what_it_did(path: Path):
    expected = read_json(path.parent / "expected.json")[path.stem]
    structures = ase.io.read(path.parent / expected["structures"], ":")
    added = {"forces_uncertainty"} if path.stem == "mcd_lnk" else set()  # now with the σ of the head itself
    raw, redefined = (RESCALED, REDEFINED | added) if is_first(path) else (set(), set())
    assert_predicts(path, structures, expected["predictions"], PREDICTED, raw=raw, redefined=redefined)


@pytest.mark.parametrize("path", kept("models/crystal.sigmaff"))
def test_stress_std_of_a_model_without_a_calibration_of_stress_is_raw(path: Path):
    """Version 0.1.0 scaled it by the factor of forces."""
    expected = read_json(path.parent / "expected.json")[path.stem]
    factor = header(path)["forces_calibration"]["scale"]
    for atoms, wanted in zip(
        ase.io.read(path.parent / expected["structures"], ":"), expected["predictions"], strict=True
    ):
        atoms.calc = sigmaff.Calculator(path, stress_uncertainty=True)
        atoms.get_forces()
        assert_close(factor * atoms.calc.results["stress_uncertainty"], wanted["stress_uncertainty"], PREDICTED)
        assert atoms.calc.results["calibrated_uncertainties"] == "energy_uncertainty forces_uncertainty"


@pytest.mark.parametrize("path", kept("models/*.sigmaff"))
def test_a_model_tells_how_it_was_made(path: Path):
    written = header(path)
    version = written.pop("library_version")
    assert path.parts[-3].partition("-")[0] == f"v{version}"
    del written["format_version"]
    written.pop("sha256", None)  # of files since format 6, which loading compares
    assert_told(json.loads(succeed("info", path, "--json")), written)


@pytest.mark.parametrize("name", ["fixed_lnk", "llpr"])
def test_the_noise_of_labels_moves_from_the_record_into_the_head(name: str):
    """Of version 0.1.0. Noise and force weight of the record are relative to the scale of the kernel."""
    path = DATA / "v0.1.0" / "models" / f"{name}.sigmaff"
    fit, head = header(path)["record"]["fit"], sigmaff.load(path).head
    energy = fit["noise"] * np.exp(2.0 * head.kernel.log_scale.item())
    assert head.label_noise.energy == pytest.approx(energy)
    weight = fit["force_weight"]
    assert head.label_noise.forces == (pytest.approx(energy / weight) if weight > 0 else None)


def header(path: Path) -> dict[str, Any]:
    """What a model file says about itself, read without the library: a length, JSON of that length, numbers."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(json.loads(file.read(length))["__metadata__"]["sigmaff"])


def assert_told(told: Any, written: Any) -> None:
    """All that was written is told; there may be more."""
    if isinstance(written, dict):
        for key, value in written.items():
            assert_told(told[key], value)
    elif isinstance(written, list):
        assert len(told) == len(written)
        for one, other in zip(told, written, strict=True):
            assert_told(one, other)
    else:
        assert told == written


# --- runs that were killed


def drawn() -> str:
    """Of the random numbers of this machine, a digest."""
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:8]


@pytest.mark.skipif(drawn() != "43678415", reason="checkpoints know initial weights as processors with AVX2 draw them")
@pytest.mark.parametrize("folder", kept("train/*"))
def test_a_training_resumes(folder: Path, copied: Path):
    """In the middle of the epoch in which it was killed: those before keep the seconds that they took."""
    was_first = is_first(folder)
    before = {path: history(path) for path in copied.rglob("metrics.csv")}
    go_on(copied)
    expected = read_json(copied / "expected.json")
    for path, epochs in before.items():
        assert history(path)[: len(epochs)] == epochs
        assert len(history(path)) == expected["epochs"]
    metrics = read_json(copied / "run" / "metrics.json")
    model = copied / "run" / "model.sigmaff"
    solved = sigmaff.load(model).potentials[0].config.head.stages[-1] == "solve"
    tolerance, changed = (SOLVED_AGAIN, REDEFINED | SOLVED) if solved else (TRAINED, REDEFINED | DRAWN)
    changed, raw = (changed, UNCALIBRATED) if was_first else (set(), set())
    assert_close([metrics[name] for name in expected["metrics"]], list(expected["metrics"].values()), tolerance)
    structures = ase.io.read(copied / "structures.extxyz", ":")
    assert_predicts(model, structures, expected["predictions"], tolerance, raw=raw, redefined=changed)


def history(path: Path) -> list[dict[str, str]]:
    """The epochs of a training."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("folder", kept("md/*"))
def test_dynamics_resume(copied: Path):
    """Behind the frames that are there, one of which is marked here, to where it would have come without the kill."""
    trajectory = copied / "run" / "trajectory-0.extxyz"
    trajectory.write_bytes(trajectory.read_bytes().replace(b"time_fs=0.0", b"time_fs=9.9", 1))
    go_on(copied)
    assert ase.io.read(trajectory, 0).info["time_fs"] == 9.9
    expected = read_json(copied / "expected.json")
    for replica, wanted in zip(read_json(copied / "run" / "md.json")["replicas"], expected["replicas"], strict=True):
        assert replica | wanted == replica
    for number, wanted in enumerate(expected["trajectories"]):
        frames = ase.io.read(copied / "run" / f"trajectory-{number}.extxyz", ":")
        assert len(frames) == wanted["frames"]
        assert_close(frames[-1].positions, wanted["positions"], MOVED)
        assert_close(frames[-1].get_momenta(), wanted["momenta"], MOVED)
        assert_close(frames[-1].cell.array, wanted["cell"], MOVED)


@pytest.mark.parametrize("folder", kept("campaign"))
def test_a_campaign_resumes(copied: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch):
    """No label or model that is there is made again, and those that lack come out as they would have.

    Its engine is a program that its file names: since then the user has to say once that the file is trusted.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(copied / "settings"))
    rounds = copied / "campaign" / "rounds"
    before = contents(rounds)
    go_on(copied, "--scheduler", scheduler, "--trust")
    assert_same(contents(rounds), before)
    expected = read_json(copied / "expected.json")
    assert read_json(copied / "campaign" / "campaign.json")["ended"] == expected["ended"]
    for wanted, path in zip(expected["rounds"], sorted(rounds.glob("*/round.json")), strict=True):
        figures = read_json(path)
        assert figures | wanted == figures
    structures = ase.io.read(copied / "structures.extxyz", ":")
    for name, predictions in expected["predictions"].items():
        assert_predicts(
            copied / "campaign" / name, structures, predictions, SOLVED_AGAIN, raw=set(), redefined=REDEFINED | SOLVED
        )
    n_labels = expected["rounds"][-1]["n_labels"]
    assert_labels(copied / "campaign" / "dataset.extxyz", copied / "expected.extxyz", n_labels)


def assert_labels(found: Path, expected: Path, n_labels: int) -> None:
    """All that were selected before the kill; what is selected after it may differ from machine to machine."""
    labelled = ase.io.read(found, ":")
    assert len(labelled) == n_labels
    for atoms, wanted in zip(labelled, ase.io.read(expected, ":"), strict=False):
        assert atoms.info["label_id"] == wanted.info["label_id"]
        assert_close(atoms.positions, wanted.positions, PREDICTED)
        assert_close(atoms.get_potential_energy(), wanted.get_potential_energy(), PREDICTED)
        assert_close(atoms.get_forces(), wanted.get_forces(), PREDICTED)


@pytest.mark.parametrize("folder", kept("generate"))
def test_a_generation_resumes(copied: Path, scheduler: str):
    molecules = copied / "made" / "molecules"
    before = contents(molecules)
    go_on(copied, "--scheduler", scheduler)
    assert_same(contents(molecules), before)
    for kind, energies in read_json(copied / "expected.json").items():
        found = ase.io.read(copied / "made" / f"{kind}.extxyz", ":")
        assert len(found) == len(energies)
        if kind == "equilibrium":  # the others are displaced along modes, whose signs are of no meaning
            assert_close([atoms.get_potential_energy() for atoms in found], energies, PREDICTED)


@pytest.mark.parametrize("folder", kept("reproduce"))
def test_an_experiment_resumes(copied: Path, scheduler: str):
    """Results of other settings are kept, and not shown as those of today's."""
    cells = copied / "made" / "cells"
    before = contents(cells)
    go_on(copied, "--scheduler", scheduler)
    assert_same(contents(cells), before)
    expected = read_json(copied / "expected.json")
    told = {cell["name"]: cell for cell in read_json(copied / "made" / "parameters" / "results.json")["cells"]}
    changed = {name for name in expected if told[name]["status"] == "failed"}
    assert changed == {"parameters/dimenet++"}  # the paper's LNK is no longer that of 0.1.0
    assert "made with other settings" in told[changed.pop()]["reason"]
    for name, result in expected.items():
        assert read_json(cells / name / "cell.json")["result"] == result


@pytest.mark.parametrize("folder", kept("train/backbone"))
def test_a_checkpoint_of_a_newer_version_names_that_version(copied: Path):
    """And stays as it is."""
    path = copied / "run" / "backbone" / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["sigmaff_checkpoint"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    numbers |= {"version": 99, "library_version": "7.8.9"}
    save_file(tensors, path, metadata={"sigmaff_checkpoint": json.dumps(numbers)})
    before = path.read_bytes()
    told = fail("train", "run.yaml")
    assert "checkpoint format 99 by sigmaff 7.8.9" in told
    assert "install that version or a newer one" in told
    assert path.read_bytes() == before


# --- runs that are finished


@pytest.mark.parametrize("folder", kept("finished/train"))
def test_a_finished_training_is_not_done_again(copied: Path):
    before = contents(copied)
    assert "finished" in go_on(copied)
    assert_same(contents(copied), before)


@pytest.mark.parametrize("folder", kept("finished/compare"))
def test_finished_methods_are_not_trained_again(copied: Path):
    before = contents(copied)
    go_on(copied)
    assert_same(contents(copied), before)
    compared = read_json(copied / "methods" / "comparison.json")
    assert [cell["failed"] for cell in compared] == [None, None]
