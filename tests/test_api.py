"""The Python front door: examples of its docstrings run, and its functions agree with the commands."""

import doctest
import inspect
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import ase.io
import pytest
import yaml

import sigmaff as sf
from campaign_case import SETTINGS
from cli_case import Workspace, succeed, write_config, write_files
from listeners import Remembering
from sigmaff import api
from sigmaff.backbones.hosts.trust import trust_file
from sigmaff.data import read_structures
from sigmaff.errors import ConfigError, DataError
from sigmaff.progress import Collecting

pytest_plugins = ["cli_fixtures"]

FUNCTIONS = (
    *("audit", "calibrate", "compare", "evaluate", "guard", "guarded"),
    *("learn", "relax", "run_md", "stability", "train"),
)


@pytest.fixture
def folder(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    shutil.copy(workspace.model, tmp_path / "model.sigmaff")
    write_config(tmp_path / "run.yaml", ("training.max_epochs", 2))
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(campaign()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    trust_file(tmp_path / "campaign.yaml")  # its engine is a program
    monkeypatch.chdir(tmp_path)
    return tmp_path


def campaign() -> dict[str, Any]:
    """One round against springs."""
    engine = {"calculator": "campaign_case:Counted", "arguments": {"log": "calls"}}
    return SETTINGS | {"engine": engine, "stop": {"max_rounds": 1}, "cluster": {"n_workers": 1}, "output": "campaign"}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("folder")
def test_the_example_of_a_docstring_runs(name: str) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(api, name)) or "")
    assert examples
    names: dict[str, object] = {"sf": sf}
    for example in examples:
        exec(compile(example.source, name, "exec"), names)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_lists_every_argument(name: str) -> None:
    text = (inspect.getdoc(getattr(api, name)) or "").partition("Arguments:")[2]
    missing = [argument for argument in inspect.signature(getattr(api, name)).parameters if f"{argument}:" not in text]
    assert missing == []


def test_all_names_of_the_front_door_exist() -> None:
    assert {name for name in sf.__all__ if getattr(sf, name, None) is None} == set()
    assert all(getattr(sf, name) is getattr(api, name) for name in sf.__all__ if name != "__version__")
    assert set(FUNCTIONS) <= set(sf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        _ = sf.predict


def test_functions_are_not_hidden_by_packages_of_their_name(folder: Path) -> None:
    """An import of a package, by a function or by a user, makes it an attribute of its parent."""
    for _ in range(2):
        assert sf.audit(sf.load("model.sigmaff"), "test.extxyz", quick=True, picoseconds=0.02).name == "Potential"
    import_module("sigmaff.audit")
    assert sf.audit is api.audit


def test_a_function_warns_of_training_structures(folder: Path) -> None:
    listener = Collecting()
    sf.evaluate(sf.load("model.sigmaff"), "data.extxyz", listener=listener)
    assert any("the model was trained on 30 of these 60 structures" in text for text in listener.texts)


def test_structures_as_file_as_frames_and_as_labelled_structures_are_the_same(folder: Path) -> None:
    succeed("evaluate", "model.sigmaff", "test.extxyz", "--ood", "other.extxyz", "--json", "metrics.json")
    expected = json.loads((folder / "metrics.json").read_text())
    model = sf.load("model.sigmaff")
    for given in ("test.extxyz", ase.io.read("test.extxyz", ":"), read_structures("test.extxyz")):
        found = sf.evaluate(model, given, ood="other.extxyz")
        assert found.keys() == expected.keys()
        for key in ("energy_mae", "forces_mae", "forces_calibration", "forces_nll", "forces_auroc", "ood_forces_mae"):
            assert found[key] == pytest.approx(expected[key], rel=1e-6), key


@pytest.mark.filterwarnings("ignore::sigmaff.errors.UndeterminedEnergyWarning")
def test_predictions_are_those_of_the_calculator(folder: Path) -> None:
    frames = ase.io.read("in.extxyz", ":3")
    model = sf.load("model.sigmaff")
    predictions = model.predict(frames)
    for atoms, prediction in zip(frames, predictions, strict=True):
        atoms.calc = sf.Calculator(model, warn_above=None)
        assert prediction.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
        assert prediction.forces == pytest.approx(atoms.get_forces(), abs=1e-5)
        assert prediction.energy_std == pytest.approx(atoms.calc.results["energy_uncertainty"], rel=1e-3, abs=1e-5)
        assert prediction.forces_std == pytest.approx(atoms.calc.results["forces_uncertainty"], rel=1e-3, abs=1e-6)
    alone = model.predict(frames[0])
    assert alone.energy == pytest.approx(predictions[0].energy, abs=1e-5)


def test_a_mapping_is_a_configuration_and_a_listener_hears(folder: Path) -> None:
    listener = Remembering()
    settings = yaml.safe_load((folder / "run.yaml").read_text())
    result = sf.train(settings, overrides=["output=mapped", "training.max_epochs=3"], listener=listener)
    assert result.model_path == Path("mapped/model.sigmaff")
    assert listener.advances
    assert settings["training"]["max_epochs"] == 2, "the caller's mapping is not changed"
    again = sf.train(settings, overrides=["output=mapped", "training.max_epochs=3"])
    assert again.already_done


@pytest.mark.usefixtures("folder")
def test_errors_are_for_people() -> None:
    model = sf.load("model.sigmaff")
    frames = ase.io.read("in.extxyz", ":2")
    for atoms in frames:
        atoms.calc = None
    with pytest.raises(DataError, match="structures, frame 0: no energy"):
        sf.evaluate(model, frames)
    with pytest.raises(ConfigError, match=r"settings: temprature: .*nearest: temperature"):
        sf.run_md(model, "start.extxyz", {"temprature": 300}, "md")
