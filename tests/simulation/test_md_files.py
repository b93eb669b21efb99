"""The files of an MD run: frames as ASE writes them, and text that waits in memory."""

import io
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from calculator_case import LNK_CONFIG, build_potential, ethanol, water_crystal
from sigmaff.heads import DeterministicConfig, HeadConfig
from sigmaff.simulation import Calculator
from sigmaff.simulation.md import output
from sigmaff.simulation.md.frame import frame_text
from sigmaff.simulation.md.output import LOG, Output
from sigmaff.simulation.results import UNDETERMINED, bare_copy, with_results


def by_ase(atoms: Atoms, results: dict, info: dict) -> str:
    bare = bare_copy(atoms)
    bare.set_momenta(atoms.get_momenta())
    bare.info.update(info)
    text = io.StringIO()
    ase.io.write(text, with_results(bare, results), format="extxyz")
    return text.getvalue()


def ours(atoms: Atoms, results: dict, info: dict) -> str:
    where = (atoms.numbers, atoms.positions, atoms.get_momenta(), atoms.cell.array, atoms.pbc)
    return frame_text(*where, results, info)


def slab() -> Atoms:
    atoms = water_crystal()
    atoms.pbc = (True, False, True)
    return atoms


@pytest.mark.parametrize("start", [ethanol, water_crystal, slab])
@pytest.mark.parametrize("head", [LNK_CONFIG, DeterministicConfig()], ids=["lnk", "deterministic"])
def test_a_frame_is_that_of_ase(head: HeadConfig, start):
    atoms = start()
    atoms.set_momenta(np.random.default_rng(0).normal(size=(len(atoms), 3)) * 1e3)
    calculator = Calculator(build_potential(head), stress_uncertainty=True)
    calculator.calculate(atoms)
    info = {"replica": 3, "step": 10, "time_fs": 10 * 0.1, "reason": "crossing", "crossed": "two words"}
    calibrated = calculator.results | {"calibrated_uncertainties": "energy_uncertainty forces_uncertainty"}
    members = {"energy_ensemble": np.array([-1.0, 2.5e-7]), UNDETERMINED: True, "composition_uncertainty": 0.1}
    for results in (calculator.results, calibrated, calculator.results | members, {}):
        assert ours(atoms, results, info) == by_ase(atoms, results, info)


def test_frames_of_extreme_numbers_are_those_of_ase():
    atoms = Atoms("XeXU", [[1e9, -1e-9, 0.0], [-1e8, 1e5, 123456789.123456789], [0.0, -0.0, 1e-12]])
    atoms.set_momenta([[1e-300, -1e12, 5.0], [0.1, 0.2, 0.3], [7.0, 8.0, 9.0]])
    results = {"energy": -1e-7, "free_energy": -1e-7, "forces": np.full((3, 3), 1e10), "energies": np.arange(3.0)}
    assert ours(atoms, results, {"step": 0}) == by_ase(atoms, results, {"step": 0})


# --- text that waits


def content(directory: Path, name: str) -> str:
    path = directory / name
    return path.read_text() if path.exists() else ""


def test_text_waits_for_a_checkpoint(tmp_path: Path):
    out = Output(tmp_path)
    out.append("trajectory-0.extxyz", "one ")
    out.append("trajectory-0.extxyz", "two ")
    assert (out.size("trajectory-0.extxyz"), content(tmp_path, "trajectory-0.extxyz")) == (8, "")
    assert out.write() == ({"trajectory-0.extxyz": 8}, [tmp_path / "trajectory-0.extxyz"])
    assert content(tmp_path, "trajectory-0.extxyz") == "one two "


def test_text_is_seen_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(output, "monotonic", lambda: now)
    out = Output(tmp_path)
    out.append("a", "text")
    out.write_sometimes()
    assert content(tmp_path, "a") == ""
    now = 2 * output.PATIENCE
    out.write_sometimes()
    assert content(tmp_path, "a") == "text"


def test_a_cut_in_text_that_waits_touches_no_file(tmp_path: Path):
    out = Output(tmp_path)
    out.append("a", "kept ")
    out.write()
    out.append("a", "also gone")
    out.cut("a", 9)
    assert (out.has_cuts, out.size("a")) == (False, 9)
    out.append("a", "!")
    out.write()
    assert content(tmp_path, "a") == "kept also!"


def test_a_cut_below_the_disk_waits_for_the_checkpoint(tmp_path: Path):
    """Until then the last checkpoint can be resumed: it needs the whole file."""
    out = Output(tmp_path)
    out.append("a", "kept gone")
    out.write()
    out.append("a", " and more")
    out.cut("a", 4)
    assert (out.has_cuts, out.size("a"), content(tmp_path, "a")) == (True, 4, "kept gone")
    assert out.write()[0] == {"a": 4}
    out.apply_cuts()
    assert content(tmp_path, "a") == "kept"
    out.append("a", "!")
    out.write()
    assert content(tmp_path, "a") == "kept!"


def test_a_resumed_log_has_one_header(tmp_path: Path):
    out = Output(tmp_path)
    out.append_rows([{"step": 0, "x": 0.5}, {"step": 1, "x": None}])
    sizes, _ = out.write()
    again = Output(tmp_path, sizes)
    again.append_rows([{"step": 2, "x": 1.5, "new": 3.0}])
    again.write()
    assert content(tmp_path, LOG) == "step,x\n0,0.5\n1,\n2,1.5\n"


def test_a_full_disk_names_the_file_of_the_run(tmp_path: Path) -> None:
    files = Output(tmp_path)
    (tmp_path / LOG).symlink_to("/dev/full")  # a device that is always full
    files.append(LOG, "step\n")
    with pytest.raises(OSError, match="No space left on device") as found:
        files.write()
    assert found.value.filename == str(tmp_path / LOG)
