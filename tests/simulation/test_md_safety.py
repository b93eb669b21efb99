"""Safety stops: what force σ cannot see ends a run, size alone does not, and no promise is lost."""

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms

import sigmaff as sf
from calculator_case import LNK_CONFIG, build_potential, ethanol, rattled
from cli_case import Workspace, fail, succeed
from md_case import Wells, at_sites, changed, columns
from sigmaff.graph import AtomicGraph
from sigmaff.models.prediction import Prediction
from sigmaff.simulation import Calculator
from sigmaff.simulation.limits import Limits, exceeded, nearest, readings
from sigmaff.simulation.md import KnownStd, MDConfig, PilotRun, Scores, choose_safety, risk_threshold, run_md
from sigmaff.simulation.md.status import StatusNote

pytest_plugins = ["cli_fixtures"]

AUTO = {"stop_above": "auto", "error_above": 50.0, "risk": 0.2}


@dataclass(frozen=True)
class Symmetric(Wells):
    """Wells whose force σ is 0 everywhere. σ of an atom's share is its displacement times 1 eV/Å."""

    relative_std: float = 0.1

    def predict(self, graph: AtomicGraph, **options: Any) -> Prediction:
        predicted = super().predict(graph, **options)
        if predicted.forces_std is None:
            return predicted
        away = predicted.forces.norm(dim=-1) / self.stiffness
        return replace(predicted, forces_std=torch.zeros_like(predicted.forces_std), node_energy_std=away)


def scores(n: int = 40, energy: float = 0.002, atom: float | None = None) -> Scores:
    """Force σ of calibration structures up to 2 eV/Å, without any error; the others up to the values given."""
    rising = np.linspace(0.01, 1.0, n)
    atom_std = None if atom is None else atom * rising[::-1]
    return Scores(forces_std=2.0 * rising, forces_error=np.zeros(n), energy_std=energy * rising, atom_std=atom_std)


# --- which limit does a prediction exceed?


def test_readings_are_the_largest_of_an_atom_and_energy_per_atom():
    results = {
        "forces": np.zeros((3, 3)),
        "forces_uncertainty": np.array([[0.1, 0.0, 0.0], [0.3, 0.4, 0.0], [0.0, 0.0, 0.2]]),
        "energy_uncertainty": 5.0,
        "composition_uncertainty": 4.0,
        "energies_uncertainty": np.array([0.1, 0.2, 0.7]),
    }
    found = readings(results, Limits(forces=0.5, energy=1.1, atom=0.5))
    assert [(item.of, item.value, item.atom) for item in found] == [
        ("forces", pytest.approx(0.5), 1),
        ("energy", pytest.approx(1.0), None),  # √(5² − 4²) of three atoms: a composition is no event
        ("atom", 0.7, 2),
    ]
    assert str(exceeded(found)) == "atomic σ of 0.7 eV at atom 2"
    assert nearest(found).of == "atom"
    assert exceeded(readings(results, Limits(forces=0.6, energy=1.1, atom=0.8))) is None
    assert readings({"forces": np.zeros((3, 3))}, Limits(forces=1.0)) == []


def test_the_smallest_excess_counts():
    """A limit by risk control is the number just below the σ of a harmful structure."""
    value = 0.3
    results = {"forces": np.zeros((1, 3)), "forces_uncertainty": np.array([[value, 0.0, 0.0]])}
    assert exceeded(readings(results, Limits(forces=np.nextafter(value, 0.0)))) is not None
    assert exceeded(readings(results, Limits(forces=value))) is None


def test_a_large_system_does_not_exceed_a_limit_by_its_size():
    """Far copies of one molecule have n times its energy σ with full covariance, and the same readings."""
    calculator, one = Calculator(build_potential(LNK_CONFIG), forces_uncertainty="exact"), ethanol()
    copies = one.copy()
    for index in range(1, 4):
        shifted = one.copy()
        shifted.positions += [50.0 * index, 0.0, 0.0]
        copies += shifted
    values = []
    for atoms in (one, copies):
        atoms.calc = calculator
        atoms.get_potential_energy()
        values.append([item.value for item in readings(calculator.results, Limits())])
    assert values[1] == pytest.approx(values[0], rel=1e-6)


def test_a_status_names_the_std_that_is_nearest_to_its_limit():
    note, results = StatusNote(), {"forces": np.zeros((2, 3)), "energy_uncertainty": 0.06}
    results["forces_uncertainty"] = np.full((2, 3), 0.1)
    [_, energy] = readings(results, Limits(forces=1.0, energy=0.04))
    assert nearest(readings(results, Limits(forces=1.0, energy=0.04))) == energy
    assert note.text(1, 2, 0, energy) == "1/2 running, energy σ ▆ 0.03 eV/atom"
    assert nearest(readings(results, Limits())).of == "forces"


# --- limits


def test_limits_are_twice_the_largest_known():
    known = KnownStd.of_structures(scores(energy=0.002, atom=0.1), "the 40 calibration structures")
    safety = choose_safety(MDConfig(), known)
    assert safety is not None
    assert (safety.energy, safety.atom) == (pytest.approx(0.004), pytest.approx(0.2))
    for part in ("energy σ above 0.004 eV/atom (2 times the largest of the 40 calibration", "promise nothing"):
        assert part in safety.statement
    mixed = choose_safety(MDConfig(stop_above_energy="off", stop_above_atom=0.7), known)
    assert mixed is not None
    assert (mixed.energy, mixed.atom) == (None, 0.7)
    assert "atomic σ above 0.7 eV (as given)" in mixed.statement
    assert choose_safety(MDConfig(), None) is None
    assert choose_safety(MDConfig(), KnownStd(energy=None, atom=None, origin="")) is None


def test_pilot_runs_count_up_to_their_first_error():
    rising = np.arange(1.0, 6.0)
    wrong = PilotRun(
        steps=np.arange(5), forces_std=rising, wrong_at=3, ended_at=4, energy_std=rising, atom_std=10.0 * rising
    )
    never = replace(wrong, wrong_at=None, energy_std=0.7 * rising, atom_std=None)
    at_once = replace(wrong, wrong_at=0, energy_std=100.0 * rising)
    assert KnownStd.of_runs([wrong, never, at_once]).energy == 3.5
    assert KnownStd.of_runs([wrong, never, at_once]).atom == 30.0
    assert KnownStd.of_runs([at_once]).energy is None


# --- runs


def test_a_molecule_in_pieces_ends_a_run_although_its_forces_are_zero(workspace: Workspace, tmp_path: Path):
    """All atoms farther apart than the cutoff: forces vanish by symmetry, not their σ. The network is a trained one."""
    pieces = ase.io.read(workspace / "start.extxyz", 1)
    pieces.positions *= 20.0
    model = sf.load(workspace.model)
    settings = AUTO | {"steps": 4, "check_every": 1}
    held_out = workspace / "held_out.extxyz"
    result = sf.run_md(model, pieces, settings, tmp_path / "guarded", calibration=held_out)
    [record] = result.records
    assert (record.ending, record.ended_at) == ("crossing", 0)
    assert record.message.startswith(("energy σ of ", "atomic σ of "))
    assert not result.crossings[0].get_forces().any()
    assert (result.crossings[0].arrays["forces_uncertainty"] > 0.1).all()
    off = settings | {"stop_above": 50.0, "error_above": None, "stop_above_energy": "off", "stop_above_atom": "off"}
    [blind] = sf.run_md(model, pieces, off, tmp_path / "blind", calibration=held_out).records
    assert blind.ending == "finished"  # it was in pieces from the start: connectivity does not change


def test_the_limit_on_forces_keeps_its_promise(tmp_path: Path):
    """Its value and statement are those without safety stops, and a run ends no later."""
    config = MDConfig(temperature=900.0, timestep=4.0, steps=300, check_every=1, **AUTO)
    wide, narrow = scores(energy=1e9), scores(energy=1e-4)
    ends = []
    for name, known in (("wide", wide), ("narrow", narrow)):
        result = run_md(Wells(), [at_sites()] * 4, config, tmp_path / name, calibration=known)
        assert result.threshold == risk_threshold(known, 50.0, 0.2)
        ends.append([record.ended_at for record in result.records])
    assert all(late >= early for late, early in zip(*ends, strict=True))
    assert ends[0] != ends[1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"stop_above_energy": 0.01}, "energy σ of 0.01"),
        ({"stop_above_atom": 0.2}, "atomic σ of 0.2"),
    ],
)
def test_limits_as_given_stop_a_run_and_are_named(setting: dict[str, float], message: str, tmp_path: Path):
    config = MDConfig(temperature=900.0, timestep=4.0, steps=400, check_every=1, every=1, **setting)
    result = run_md(Symmetric(), [at_sites()], config, tmp_path)
    [record], [name] = result.records, setting
    assert record.ending == "crossing"
    assert record.message.startswith(message)
    assert result.crossings[0].info["crossed"] == name.removeprefix("stop_above_")
    assert result.safety is not None
    assert json.loads((tmp_path / "md.json").read_text())["safety"]["statement"] == result.safety.statement
    assert result.share_above == 1 / record.checks
    if name == "stop_above_atom":
        crossing = result.crossings[0]
        atom = int(crossing.arrays["energies_uncertainty"].argmax())
        assert f"at atom {atom} at step {record.ended_at}, above 0.2" in record.message
        assert columns(result)["atom_std_max"][-1] == pytest.approx(crossing.arrays["energies_uncertainty"].max())
        assert (columns(result)["atom_std_max"][:-1] <= 0.2).all()


def test_energies_guard_a_run_without_the_cost_of_force_std(tmp_path: Path):
    config = MDConfig(
        temperature=900.0, timestep=4.0, steps=400, check_every=5, forces_std="none", stop_above_energy=0.01
    )
    [record] = run_md(Symmetric(), [at_sites()], config, tmp_path).records
    assert record.ending == "crossing"
    assert record.ended_at is not None
    assert record.ended_at % 5 == 0
    assert record.checks == record.ended_at // 5 + 1


def test_a_number_for_forces_switches_nothing_else_on(tmp_path: Path):
    config = MDConfig(temperature=300.0, steps=3, stop_above=100.0)
    assert run_md(Wells(), [at_sites()], config, tmp_path, calibration=scores(energy=1e-9)).safety is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop-above-atom", "1.0"], "the model gives no σ of single atoms"),
        (["--stop-above-energy", "-1"], "--stop-above-energy must be above 0"),
        (["--stop-above-energy", "some"], "--stop-above-energy: got"),
        (["--stop-above-atom", "1.0", "--forces-std", "none"], "does not compute it"),
    ],
)
def test_commands_that_cannot_be(options: list[str], message: str, deterministic: Path, workspace: Workspace):
    assert message in fail("md", deterministic, workspace / "start.extxyz", "-o", workspace / "never", *options)


def test_the_command_says_which_std_stopped(workspace: Workspace, tmp_path: Path):
    limits = ("--stop-above-energy", "1e-9", "--stop-above-atom", "off")
    said = succeed("md", workspace.model, workspace / "start.extxyz", "-o", tmp_path / "md", "--steps", "2", *limits)
    assert "safety stops: energy σ above 1e-09 eV/atom (as given)" in said
    assert "crossing at step 0: energy σ of" in said
    assert "σ above a limit in 100.00% of the checks" in said


# --- folders of earlier versions


def test_a_run_of_an_earlier_version_resumes_without_safety_stops(tmp_path: Path):
    """Its file knows neither the settings nor the limits, and its log lacks a column: it goes on as it began."""
    config = MDConfig(temperature=300.0, timestep=2.0, steps=10, every=2, **AUTO)
    known = replace(scores(), energy_std=None, atom_std=None)
    run_md(Wells(), [at_sites()], config, tmp_path / "old", calibration=known)
    run_md(Wells(), [at_sites()], changed(config, steps=20), tmp_path / "new", calibration=known)
    forget(tmp_path / "old")
    strict = scores(energy=1e-9)
    result = run_md(Wells(), [at_sites()], changed(config, steps=20), tmp_path / "old", calibration=strict)
    assert result.safety is None
    assert result.records[0].ending == "finished"
    with (tmp_path / "old" / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    assert all(None not in row and None not in row.values() for row in rows)  # as many values as names
    assert [float(row["total_energy"]) for row in rows] == columns_of(tmp_path / "new")["total_energy"].tolist()


def forget(directory: Path) -> None:
    """What a version without safety stops would have written."""
    file = directory / "md.json"
    content = json.loads(file.read_text())
    del content["safety"]
    for name in ("stop_above_energy", "stop_above_atom"):
        del content["settings"]["config"][name]
    file.write_text(json.dumps(content))
    log, checkpoint = directory / "log.csv", directory / "checkpoint.npz"
    rows = [line.rsplit(",", 1)[0] for line in log.read_text().splitlines()]
    log.write_text("\n".join(rows) + "\n")
    with np.load(checkpoint) as saved:
        arrays = dict(saved)
    text = json.loads(arrays["text"].tobytes())
    text["sizes"]["log.csv"] = log.stat().st_size
    np.savez(checkpoint, **(arrays | {"text": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)}))


def columns_of(directory: Path) -> np.ndarray:
    return np.genfromtxt(directory / "log.csv", delimiter=",", names=True)


@pytest.mark.filterwarnings("ignore::sigmaff.errors.UndeterminedEnergyWarning")
def test_composition_is_named_where_energy_std_has_such_a_part(workspace: Workspace):
    """Water and ethanol determine no energy of methane; water they do."""
    calculator = Calculator(sf.load(workspace.model), forces_uncertainty="none", warn_above=None)
    water, methane = (rattled(Atoms(formula, positions=positions)) for formula, positions in MOLECULES.items())
    for atoms in (water, methane):
        atoms.calc = calculator
        atoms.get_potential_energy()
        part = calculator.results.get("composition_uncertainty", 0.0)
        assert (part > 0.0) == (atoms is methane)
        assert part <= calculator.results["energy_uncertainty"]


MOLECULES = {
    "OH2": [[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]],
    "CH4": [[0.0, 0.0, 0.0], [0.63, 0.63, 0.63], [-0.63, -0.63, 0.63], [-0.63, 0.63, -0.63], [0.63, -0.63, -0.63]],
}
