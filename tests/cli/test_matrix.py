"""The method × command matrix: every command, and the calculator, on a model of every method, and on an adopted one."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import pytest
from distributed import LocalCluster
from matplotlib.figure import Figure

import toy_host
from cli_case import COMPARED, Workspace, fail, morse_frames, scan_frames, succeed
from sigmaff import Calculator, load
from sigmaff.audit import DESIDERATA
from sigmaff.models.adopt import host_potential
from sigmaff.models.file import read_header
from sigmaff.runs.methods import METHODS, Method

pytest_plugins = ["cli_fixtures"]

N_STRUCTURES = 20  # the least that calibration by one factor accepts
ADOPTED = "adopted"

on_adopted = pytest.mark.parametrize("cell", [ADOPTED], indirect=True)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method with its model, and a folder with data to run a command in."""

    method: Method
    model: Path
    data: Path
    start: Path
    folder: Path

    def output(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    ase.io.write(folder / "data.extxyz", morse_frames(N_STRUCTURES, seed=5))
    ase.io.write(folder / "start.extxyz", morse_frames(1, seed=7))
    return folder


@pytest.fixture(scope="module")
def adopted(compared: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of another program with a head that was solved on the same split."""
    path = tmp_path_factory.mktemp("adopted") / "adopted.sigmaff"
    succeed("adopt", "toy:a", compared / "data.extxyz", "-o", path, "--trust", "--set", f"data.split={COMPARED}")
    return path


def quick(*names: str) -> pytest.MarkDecorator:
    """All methods; the others than these with ``-m slow`` alone."""
    return pytest.mark.parametrize(
        "cell",
        [pytest.param(name, marks=[] if name in names else [pytest.mark.slow]) for name in (*METHODS, ADOPTED)],
        indirect=True,
    )


@pytest.fixture(params=[*METHODS, ADOPTED])
def cell(request: pytest.FixtureRequest, compared: Workspace, adopted: Path, files: Path, tmp_path: Path) -> Cell:
    name = request.param
    return Cell(
        method=METHODS["fixed_lnk" if name == ADOPTED else name],
        model=adopted if name == ADOPTED else compared / f"run/{name}/model.sigmaff",
        data=files / "data.extxyz",
        start=files / "start.extxyz",
        folder=tmp_path,
    )


def test_info(cell: Cell) -> None:
    text = succeed("info", cell.model)
    assert cell.method.head.name in text
    assert f"{COMPARED['n_train']} structures" in text
    assert bool(re.search("forces σ +raw, not calibrated", text)) == ("forces" not in cell.method.std_of)


def test_evaluate(cell: Cell) -> None:
    succeed("evaluate", cell.model, cell.data, "--json", cell.output("a.json"))
    summary = json.loads(cell.output("a.json").read_text())
    assert summary["n_structures"] == N_STRUCTURES
    assert math.isfinite(summary["energy_mae"])
    assert math.isfinite(summary["forces_mae"])
    assert (summary["energy_nll"] is not None) == ("energy" in cell.method.std_of)
    assert (summary["forces_nll"] is not None) == ("forces" in cell.method.std_of)


def test_calibrate(cell: Cell) -> None:
    arguments = ("calibrate", cell.model, cell.data, "--method", "scalar", "--output", cell.output("new.sigmaff"))
    if "energy" not in cell.method.std_of:
        assert "nothing" in fail(*arguments)
        return
    succeed(*arguments)
    header = read_header(cell.output("new.sigmaff"))
    assert header.energy_calibration is not None
    assert header.energy_calibration.n_samples == N_STRUCTURES
    assert (header.forces_calibration is not None) == ("forces" in cell.method.std_of)


def test_predict(cell: Cell) -> None:
    succeed("predict", cell.model, cell.data, cell.output("out.extxyz"))
    frames = ase.io.read(cell.output("out.extxyz"), ":")
    assert len(frames) == N_STRUCTURES
    for frame in frames:
        assert np.isfinite(frame.arrays["sigmaff_forces"]).all()
        assert ("energy_uncertainty" in frame.info) == ("energy" in cell.method.std_of)
        assert ("forces_uncertainty" in frame.arrays) == ("forces" in cell.method.std_of)
        assert ("energies_uncertainty" in frame.arrays) == ("atom" in cell.method.std_of)


def test_report(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, and not rendered: that takes longest, and is the same for all."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: file.write("<svg></svg>"))
    succeed("report", cell.model, cell.data, cell.output("report.html"))
    assert cell.output("report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")


@quick("backbone", "fixed_lnk", "lnk", "ensemble", "gp", "evidential", ADOPTED)
def test_audit(cell: Cell) -> None:
    options = ("--quick", "--picoseconds", "0.01", "--json", cell.output("audit.json"))
    succeed("audit", cell.model, "--data", cell.data, *options)
    [content] = json.loads(cell.output("audit.json").read_text())
    assert [finding["desideratum"] for finding in content["findings"]] == list(DESIDERATA)


def test_md(cell: Cell) -> None:
    """Small steps and no limit on the temperature: forces of a model that was hardly trained are far from right."""
    options = ("--steps", "5", "--every", "1", "--timestep", "0.1", "--hottest", "1e6", "--output", cell.output("md"))
    succeed("md", cell.model, cell.start, *options)
    [replica] = json.loads((cell.output("md") / "md.json").read_text())["replicas"]
    assert replica["ending"] == "finished"
    frames = ase.io.read(cell.output("md") / "trajectory-0.extxyz", ":")
    assert len(frames) == 6
    assert ("forces_uncertainty" in frames[-1].arrays) == ("forces" in cell.method.std_of)


def test_select(cell: Cell) -> None:
    arguments = ("select", cell.model, cell.data, "-n", "2", "-o", cell.output("picked.extxyz"))
    if "forces" not in cell.method.std_of:
        assert "σ" in fail(*arguments)
        arguments += ("--method", "random")
    succeed(*arguments)
    assert len(ase.io.read(cell.output("picked.extxyz"), ":")) == 2


def test_calculator(cell: Cell) -> None:
    """It predicts what ``sigmaff predict`` writes."""
    succeed("predict", cell.model, cell.start, cell.output("out.extxyz"))
    written = ase.io.read(cell.output("out.extxyz"))
    atoms = ase.io.read(cell.start)
    atoms.calc = Calculator(load(cell.model), warn_above=None)
    assert atoms.get_potential_energy() == pytest.approx(written.info["sigmaff_energy"], abs=1e-4)
    assert atoms.get_forces() == pytest.approx(written.arrays["sigmaff_forces"], abs=1e-4)
    assert ("energy_uncertainty" in atoms.calc.results) == ("energy" in cell.method.std_of)
    if "energy" in cell.method.std_of:
        assert atoms.calc.results["energy_uncertainty"] == pytest.approx(written.info["energy_uncertainty"], rel=1e-3)


# --- what an adopted model does as any model does


@on_adopted
def test_adopted_report_along_a_path(cell: Cell) -> None:
    ase.io.write(cell.output("scan.extxyz"), scan_frames(4))
    succeed("report", cell.model, cell.data, cell.output("report.html"), "--path", cell.output("scan.extxyz"))
    assert "scan" in cell.output("report.html").read_text(encoding="utf-8")


@on_adopted
def test_adopted_md_with_a_limit(cell: Cell) -> None:
    options = ("--steps", "4", "--check-every", "2", "--timestep", "0.1", "--hottest", "1e6")
    limit = ("--stop-above", "auto", "--error-above", "5", "--risk", "0.2", "--calibration", cell.data)
    text = succeed("md", cell.model, cell.start, *options, *limit, "--output", cell.output("md"))
    assert "limit on force σ of an atom" in text


@on_adopted
def test_adopted_guard(cell: Cell) -> None:
    """Workers label; the model moves in this process."""
    motion = ("--steps", "2", "--check-every", "2", "--timestep", "0.1", "--hottest", "1e6", "--pilots", "3")
    promise = ("--error-above", "100", "--risk", "0.5", "--engine", "ase.calculators.morse:MorsePotential")
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0", silence_logs="CRITICAL") as cluster:
        where = ("--scheduler", cluster.scheduler_address, "--output", cell.output("guard"))
        text = succeed("guard", cell.model, cell.start, *motion, *promise, *where)
    assert "3 pilot runs" in text


@on_adopted
def test_adopted_models_as_an_ensemble(cell: Cell) -> None:
    other, joined = cell.output("other.sigmaff"), cell.output("joined.sigmaff")
    succeed("adopt", "toy:b", cell.data, "-o", other, "--trust")
    succeed("ensemble", cell.model, other, "-o", joined)
    energies = [load(path).predict(ase.io.read(cell.start)).energy for path in (cell.model, other, joined)]
    assert energies[2] == pytest.approx(np.mean(energies[:2]), abs=1e-9)


@on_adopted
def test_adopted_audit_compares_with_the_network_alone(cell: Cell) -> None:
    """Forces against those of the toy itself, on every structure."""
    succeed("audit", cell.model, "--data", cell.data, "--quick", "--picoseconds", "0.01", "--json", cell.output("a"))
    [content] = json.loads(cell.output("a").read_text())
    findings = {finding["desideratum"]: finding for finding in content["findings"]}
    assert not [name for name, finding in findings.items() if finding["verdict"] == "not applicable"]
    frames = ase.io.read(cell.data, ":")
    labels, errors = np.concatenate([atoms.get_forces() for atoms in frames]), []
    for model in (load(cell.model), host_potential(toy_host.reading("a"))):
        forces = np.concatenate([prediction.forces for prediction in model.predict(frames)])
        errors.append(np.abs(forces - labels).mean())
    assert findings["Accuracy"]["numbers"]["forces_mae_ratio"] == pytest.approx(errors[0] / errors[1], rel=1e-6)


@on_adopted
@pytest.mark.parametrize("method", ["k_centre", "variance_reduction", "sigma"])
def test_adopted_selects_by_every_method(cell: Cell, method: str) -> None:
    succeed("select", cell.model, cell.data, "-n", "2", "--method", method, "-o", cell.output("picked.extxyz"))
    assert len(ase.io.read(cell.output("picked.extxyz"), ":")) == 2
