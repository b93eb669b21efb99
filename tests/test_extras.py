"""Extras: a core install runs models; a package that is missing is named with the command that installs it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.morse import MorsePotential

from sigmaff.extras import PACKAGES

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "tests" / "data" / "v0.1.0" / "models"
MODEL = MODELS / "nequip.sigmaff"
"""Of the backbone that needs Wigner 3j symbols."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

WORKS = (
    f"info {MODEL}",
    f"info {MODELS / 'dimenet++.sigmaff'}",
    "check data.extxyz",
    f"predict {MODEL} data.extxyz out.extxyz",
    f"evaluate {MODEL} data.extxyz",
    f"audit {MODEL} --data data.extxyz --quick --picoseconds 0.01",
    f"md {MODEL} data.extxyz --steps 3",
    f"select {MODEL} data.extxyz -n 2 -o picked.extxyz",
    "methods",
    "train --print-defaults",
    "reproduce --help",
)
FAILS = {
    "train run.yaml": "training needs lightning-fabric, tensorboard: pip install 'sigmaff[train]'",
    "train run.yaml --set training.tensorboard=false": "training needs lightning-fabric: pip install 'sigmaff[train]'",
    "train run.yaml --set training.wandb=true --set training.mlflow=true": "training needs lightning-fabric, "
    "tensorboard, wandb, mlflow: pip install 'sigmaff[train,wandb,mlflow]'",
    "check some.hdf5": "reading some.hdf5 (QM7-X HDF5) needs h5py: pip install 'sigmaff[formats]'",
    f"report {MODEL} data.extxyz a.html": "a page or figure needs jinja2, matplotlib: pip install 'sigmaff[report]'",
    f"audit {MODEL} --html a.html": "--html needs jinja2, matplotlib: pip install 'sigmaff[report]'",
    "compare run.yaml": "a comparison needs jinja2, matplotlib: pip install 'sigmaff[report]'",
    f"guard {MODEL} data.extxyz --error-above 0.5": "a guard needs distributed: pip install 'sigmaff[label]'",
    "learn campaign.yaml": "a campaign needs lightning-fabric, tensorboard, distributed, jinja2, matplotlib: "
    "pip install 'sigmaff[train,label,report]'",
    "demo": "the demonstration needs tblite, lightning-fabric, tensorboard, jinja2, matplotlib: "
    "pip install 'sigmaff[label,train,report]'",
    "generate qm7x-like -o out": "making molecules from SMILES needs rdkit, distributed: "
    "pip install 'sigmaff[generate,label]'",
    "reproduce list": "an experiment of the paper needs lightning-fabric, tensorboard, distributed, jinja2, "
    "matplotlib: pip install 'sigmaff[train,label,report]'",
}

PROGRAM = """
import json, shlex, sys

for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # its import raises ModuleNotFoundError, as if it were not installed

import ase.io
import sigmaff as sf
from typer.testing import CliRunner
from sigmaff.cli.main import app

frame = ase.io.read("data.extxyz", 0)
frame.calc = sf.Calculator(sys.argv[2])
assert abs(sf.load(sys.argv[2]).predict([frame])[0].energy - frame.get_potential_energy()) < 1e-4
outcomes = {}
for command in sys.argv[3:]:
    result = CliRunner().invoke(app, shlex.split(command))
    outcomes[command] = (result.exit_code, result.output, repr(result.exception))
print(json.dumps(outcomes))
"""


def labelled_water(seed: int) -> Atoms:
    atoms = molecule("H2O")
    atoms.rattle(0.05, seed=seed)
    atoms.calc = MorsePotential()
    atoms.get_forces()
    return atoms


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, text and exception of each command where no package of an extra is installed."""
    folder = tmp_path_factory.mktemp("core")
    ase.io.write(folder / "data.extxyz", [labelled_water(seed) for seed in range(8)])
    (folder / "some.hdf5").write_text("data")
    (folder / "run.yaml").write_text("data: {source: data.extxyz, split: {n_train: 4, n_validation: 2}}\noutput: run\n")
    (folder / "campaign.yaml").write_text("start: {molecules: [H2O]}\nexplore: {error_above: 0.5}\noutput: campaign\n")
    missing = [*PACKAGES, "dask", "markupsafe", "e3nn"]
    command = [sys.executable, "-c", PROGRAM, json.dumps(missing), str(MODEL), *WORKS, *FAILS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", WORKS, ids=lambda command: command.split()[0])
def test_a_core_install_runs_models(command: str, core: dict[str, tuple[int, str, str]]) -> None:
    code, text, exception = core[command]
    assert code == 0, text + exception


@pytest.mark.parametrize("command", FAILS, ids=lambda command: command.split()[0])
def test_a_missing_package_is_named_with_its_extra(command: str, core: dict[str, tuple[int, str, str]]) -> None:
    code, text, exception = core[command]
    assert (code, exception) == (1, "SystemExit(1)"), text + exception
    assert f"error: {FAILS[command]}" in text


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements} - {"sigmaff"}


def test_extras_are_those_that_the_messages_name() -> None:
    for package, extra in PACKAGES.values():
        assert package in names(EXTRAS[extra])
        assert package not in names(PROJECT["dependencies"])
    named = {extra: {package for package, of in PACKAGES.values() if of == extra} for _, extra in PACKAGES.values()}
    assert named == {extra: names(EXTRAS[extra]) for extra in named}
    assert names(EXTRAS["all"]) == set()
    assert EXTRAS["all"] == ["sigmaff[train,label,formats,report]"]
