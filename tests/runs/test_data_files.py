"""Several data files, and files of their own for validation and test."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest

from cli_case import morse_frames, succeed, write_config
from sigmaff.config import read_config
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation.datasets import recorded_structures
from sigmaff.files import file_digest
from sigmaff.models.file import load
from sigmaff.progress import Collecting
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data

SIZES = {"a": 12, "b": 9, "valid": 7, "test": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, n) in enumerate(SIZES.items()):
        ase.io.write(folder / f"{name}.extxyz", morse_frames(n, seed=20 + seed))
    return folder


def configured(folder: Path, output: Path, **data: object) -> RunConfig:
    source = data.pop("source", [str(folder / "a.extxyz"), str(folder / "b.extxyz")])
    files = {name: value if name == "split" else str(folder / f"{value}.extxyz") for name, value in data.items()}
    path = write_config(output / "run.yaml", ("data", {"source": source, **files}), ("output", str(output / "run")))
    return read_config(RunConfig, path)


def test_official_files_are_the_split(folder: Path, tmp_path: Path) -> None:
    data = load_data(configured(folder, tmp_path, validation="valid", test="test"))
    assert [len(data.train), len(data.validation), len(data.test)] == [12 + 9, 7, 5]
    for part, names in ((data.train, ("a", "b")), (data.validation, ("valid",)), (data.test, ("test",))):
        frames = [frame for name in names for frame in ase.io.read(folder / f"{name}.extxyz", ":")]
        np.testing.assert_allclose(part.structures.energy, [frame.get_potential_energy() for frame in frames])
    assert data.train.structures.frame_name(13) == f"{folder / 'b.extxyz'}, frame 1"
    assert data.test.structures.frame_name(2) == f"{folder / 'test.extxyz'}, frame 2"
    assert f"test: all 5 structures of {folder / 'test.extxyz'}" in data.split.reason


def test_what_files_of_their_own_leave_is_split(folder: Path, tmp_path: Path) -> None:
    sizes = lambda data: (len(data.train), len(data.validation), len(data.test or ()))  # noqa: E731
    cases = (
        ({"test": "test", "split": {"n_validation": 4}}, (17, 4, 5)),
        ({"test": "test", "split": {"n_train": 10, "n_validation": 4}}, (10, 4, 5)),
        ({"validation": "valid"}, (21, 7, 0)),
        ({"validation": "valid", "split": {"n_test": 3}}, (18, 7, 3)),
        ({"validation": "valid", "split": {"n_train": 10}}, (10, 7, 11)),
        ({"split": {"n_train": 10, "n_validation": 4}}, (10, 4, 7)),
    )
    for settings, expected in cases:
        config = configured(folder, tmp_path, **settings)
        assert sizes(load_data(config)) == expected
        again = RunConfig.model_validate(config.model_dump(mode="json"))
        assert again == config, "as the record of a model keeps it"


def test_a_number_that_a_file_decides_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.split.n_test has no effect: all structures of data.test"):
        configured(folder, tmp_path, test="test", split={"n_test": 3})


def test_the_record_names_each_file_and_finds_its_structures(folder: Path, tmp_path: Path) -> None:
    frames = morse_frames(5, seed=23)
    for index, frame in enumerate(frames):
        frame.info["kind"] = ("water", "ethanol")[index % 2]
    ase.io.write(tmp_path / "test.extxyz", frames)
    content = {
        "source": [str(folder / "a.extxyz"), str(folder / "b.extxyz")],
        "validation": str(folder / "valid.extxyz"),
    }
    config = write_config(
        tmp_path / "run.yaml",
        ("data", content | {"test": {"path": str(tmp_path / "test.extxyz"), "group_key": "kind"}}),
        ("training.max_epochs", 2),
        ("model.head", {"name": "deterministic"}),
    )
    said = succeed("train", config)
    assert "nothing was done" in succeed("train", config)
    model = load(tmp_path / "run" / "model.sigmaff")
    paths = [folder / "a.extxyz", folder / "b.extxyz", folder / "valid.extxyz", tmp_path / "test.extxyz"]
    assert model.record.data_digests == [file_digest(path) for path in paths]
    tested = recorded_structures(model, "test")
    energies = [frame.get_potential_energy() for frame in ase.io.read(tmp_path / "test.extxyz", ":")]
    np.testing.assert_allclose(tested.energy, energies)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["n_structures"] == 5
    assert {name: figures["n_structures"] for name, figures in metrics["groups"].items()} == {"water": 3, "ethanol": 2}
    for name, figures in metrics["groups"].items():
        assert f"{figures['energy_mae']:.3g} / {figures['forces_mae']:.3g}" in said
        assert f"test MAE, {name}" in succeed("info", tmp_path / "run" / "model.sigmaff")
    ase.io.write(tmp_path / "test.extxyz", morse_frames(5, seed=24))
    with pytest.raises(DataError, match="has changed"):
        recorded_structures(model, "train")


def test_overlap_between_files_is_told(folder: Path, tmp_path: Path) -> None:
    ase.io.write(tmp_path / "mixed.extxyz", [*morse_frames(3, seed=30), ase.io.read(folder / "b.extxyz", "4")])
    listener = Collecting()
    config = configured(folder, tmp_path, validation="valid", test=tmp_path / "mixed")
    load_data(config, listener)
    (text,) = listener.texts
    assert "1 of 4 test structures are training structures as well" in text
    assert f"{tmp_path / 'mixed.extxyz'}, frame 3 is {folder / 'b.extxyz'}, frame 4" in text
    with pytest.raises(DataError, match="5 of 5 validation structures are"):
        load_data(configured(folder, tmp_path, source=str(folder / "test.extxyz"), validation="test", test="valid"))


def test_files_of_one_run_have_the_same_labels(folder: Path, tmp_path: Path) -> None:
    frames = morse_frames(3, seed=31)
    for frame in frames:
        frame.calc.results.pop("forces")
    ase.io.write(tmp_path / "energies.extxyz", frames)
    source = [str(folder / "a.extxyz"), {"path": str(tmp_path / "energies.extxyz"), "labels": ["energy"]}]
    with pytest.raises(DataError, match=r"energies.extxyz has no forces, and .*a.extxyz has"):
        load_data(configured(folder, tmp_path, source=source))
