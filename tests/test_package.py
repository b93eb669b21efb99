"""What users install: wheel and sdist are built without a network, installed, and run outside the repository."""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from cli_case import write_config, write_files

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "constraints.txt")
PACKAGES = ("sigmaff", "sigmaff_paper")
LICENCES = runpy.run_path(str(ROOT / "tools" / "licences.py"))


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints, in an environment that knows nothing of this repository."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "XDG"))}
    environment = known | {"OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder / "settings")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(hook: str, source: Path, to: Path) -> Path:
    """Call the build backend that pyproject.toml names, as a frontend does: in the folder of the sources."""
    program = f"from setuptools import build_meta; print(build_meta.{hook}({str(to)!r}))"
    return to / run(sys.executable, "-c", program, folder=source).splitlines()[-1]


def tracked() -> list[str]:
    """Files of the packages, as they are in this tree."""
    files = [path for name in PACKAGES for path in (ROOT / "src" / name).rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist of a copy of the tree."""
    folder = tmp_path_factory.mktemp("package")
    copy, to = folder / "copy", folder / "dist"
    copy.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(path, copy / name)
    return build("build_wheel", copy, to), build("build_sdist", copy, to)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and all else from the environment of this test."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    install = ("--python", python, "install", "--no-deps", "--no-index", "--quiet", built[0])
    run(sys.executable, "-m", "pip", *install, folder=folder)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    shared = sysconfig.get_paths()
    (packages / "shared.pth").write_text("\n".join({shared["purelib"], shared["platlib"]}), encoding="utf-8")
    return python.parent


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(built: tuple[Path, Path]):
    own = [name for name in contents(built[0]) if ".dist-info/" not in name]
    assert sorted(own) == tracked()
    named = {name.partition(".dist-info/")[2] for name in contents(built[0])} - {""}
    assert named == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def test_the_sdist_holds_the_sources_and_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    files = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
    beside = [name for name in files if not name.startswith("src/")]
    assert beside == sorted([*SOURCES[1:], "PKG-INFO", "setup.cfg"])
    assert [name.removeprefix("src/") for name in files if name.startswith(tuple(f"src/{p}/" for p in PACKAGES))] == (
        tracked()
    )
    assert contents(build("build_wheel", unpacked, tmp_path / "dist")) == contents(wheel)


def test_the_wheel_runs_outside_the_repository(installed: Path, tmp_path: Path):
    """It is the installed package that runs: help, a training, a prediction, a report."""
    write_files(tmp_path)
    config = write_config(tmp_path / "run.yaml", ("training.max_epochs", 2))
    where = run(installed / "python", "-c", "import sigmaff; print(sigmaff.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    sigmaff = installed / "sigmaff"
    assert "train" in run(sigmaff, "--help", folder=tmp_path)
    run(sigmaff, "train", config, folder=tmp_path)
    model = tmp_path / "run" / "model.sigmaff"
    run(sigmaff, "predict", model, "held_out.extxyz", "out.extxyz", folder=tmp_path)
    assert "sigmaff_energy" in (tmp_path / "out.extxyz").read_text(encoding="utf-8")
    run(sigmaff, "report", model, "held_out.extxyz", "report.html", folder=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_requirements_of_the_wheel_are_met(installed: Path, tmp_path: Path):
    """Other packages of this environment may have problems of their own."""
    command = [sys.executable, "-m", "pip", "--python", str(installed / "python"), "check"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert not [line for line in told.stdout.splitlines() if line.startswith("sigmaff")]
    assert told.stdout


def test_the_table_of_licences_is_that_of_the_installed_packages():
    """Rows of packages that are not installed here cannot be compared; direct dependencies all have one."""
    written = LICENCES["written"]()
    for name, row in LICENCES["rows"]().items():
        assert written.get(name, (None, None))[0] == row[0], f"{name}: run tools/licences.py"
    direct = [requirement.name for names in LICENCES["direct_requirements"]().values() for requirement in names]
    assert set(direct) <= set(written)
