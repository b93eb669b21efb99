"""Guarded molecular dynamics: the motion itself, and what ends it."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.data import covalent_radii
from ase.io import read
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from pydantic import ValidationError

from calculator_case import LNK_CONFIG, build_potential, ethanol, water_crystal
from md_case import SITES, WAYS, Wells, at_sites, changed, columns, final_state, name_of
from sigmaff.errors import ConfigError, DataError
from sigmaff.heads import DeterministicConfig
from sigmaff.models.std_range import Quantiles, StdRange
from sigmaff.progress import Collecting, Listener
from sigmaff.simulation import Calculator
from sigmaff.simulation.md import MDConfig, MDResult, run_md
from sigmaff.simulation.md.integrator import temperature_of

NVE = MDConfig(ensemble="nve", temperature=(), steps=12, every=4, check_every=4)


def moving(atoms: Atoms, seed: int = 0) -> Atoms:
    thermalize_momenta(atoms, temperature_K=500, rng=np.random.default_rng(seed))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(0))
    return atoms


def displaced(by: float) -> Atoms:
    """Two opposite atoms of the wells away from their sites, so that the centre stays."""
    atoms = at_sites()
    atoms.positions[0, 0] += by
    atoms.positions[1, 0] -= by
    return atoms


def still_run(atoms: list[Atoms], model: Wells, directory: Path, **changes: object) -> MDResult:
    """Hardly any temperature: oscillations follow from where the atoms start."""
    config = MDConfig(ensemble="nve", temperature=1e-3, timestep=2.0, every=1, check_every=1, hottest=1e9)
    return run_md(model, atoms, changed(config, **changes), directory)


def test_nve_is_the_velocity_verlet_of_ase_with_the_calculator(tmp_path: Path):
    potential = build_potential(LNK_CONFIG)
    start = moving(ethanol())
    result = run_md(potential, [start], NVE, tmp_path / "run")
    start.calc = Calculator(potential)
    VelocityVerlet(start, 0.5 * units.fs).run(12)
    state = final_state(tmp_path / "run")
    np.testing.assert_allclose(state["positions"], start.positions, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state["momenta"], start.get_momenta(), rtol=0, atol=1e-12)
    frames = read(result.trajectory(0), ":")
    assert [frame.info["step"] for frame in frames] == [0, 4, 8, 12]
    np.testing.assert_allclose(frames[-1].get_forces(), start.get_forces(), atol=1e-7)
    np.testing.assert_allclose(
        frames[-1].arrays["forces_uncertainty"], start.calc.results["forces_uncertainty"], atol=1e-7
    )
    assert columns(result)["total_energy"][-1] == pytest.approx(start.get_total_energy(), abs=1e-9)
    sizes = np.linalg.norm(start.calc.results["forces_uncertainty"], axis=1)
    assert columns(result)["forces_std_max"][-1] == pytest.approx(sizes.max(), rel=1e-9)
    assert columns(result)["forces_std_mean"][-1] == pytest.approx(sizes.mean(), rel=1e-9)


def test_different_systems_in_one_batch_move_as_alone(tmp_path: Path):
    potential = build_potential(LNK_CONFIG)
    starts = [moving(ethanol(), 1), moving(water_crystal(), 2), moving(molecule("H2O"), 3)]
    run_md(potential, starts, NVE, tmp_path / "together")
    for number, start in enumerate(starts):
        run_md(potential, [start], NVE, tmp_path / f"alone-{number}")
        together, alone = final_state(tmp_path / "together", number), final_state(tmp_path / f"alone-{number}")
        np.testing.assert_allclose(together["positions"], alone["positions"], rtol=0, atol=1e-11)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_replica_moves_as_alone_with_every_thermostat(way: MDConfig, tmp_path: Path):
    """The first of three, which differ; a replica's random numbers are its own."""
    potential, start = build_potential(LNK_CONFIG), water_crystal()
    config = changed(way, steps=5, forces_std="none")
    run_md(potential, [start], changed(config, replicas=3), tmp_path / "three")
    run_md(potential, [start], config, tmp_path / "one")
    three, one = final_state(tmp_path / "three"), final_state(tmp_path / "one")
    for name in ("positions", "momenta", "cell"):
        np.testing.assert_allclose(three[name], one[name], rtol=0, atol=1e-11)
    assert np.abs(final_state(tmp_path / "three", 1)["positions"] - one["positions"]).max() > 1e-4


@pytest.mark.parametrize(("thermostat", "is_ergodic"), [("langevin", True), ("bussi", True), ("nose-hoover", False)])
def test_equipartition(thermostat: str, is_ergodic: bool, tmp_path: Path):
    """Half k_B T in each of the 3n − 3 oscillators, of kinetic and of potential energy; n / (n − 1) is 1.33 here.

    Oscillators that start in phase stay so without random forces, which leaves Nosé and Hoover the kinetic energy.
    """
    config = MDConfig(
        thermostat=thermostat, temperature=300.0, timestep=5.0, steps=450, replicas=8, damping=40.0, every=5
    )
    result = run_md(Wells(), [at_sites()], changed(config, forces_std="none"), tmp_path)
    log = columns(result)
    settled = log[log["step"] > 100]
    half = 0.5 * units.kB * 300.0 * (3 * len(SITES) - 3)
    assert settled["kinetic_energy"].mean() == pytest.approx(half, rel=0.1)
    assert settled["temperature"].mean() == pytest.approx(300.0, rel=0.1)
    if is_ergodic:
        assert settled["potential_energy"].mean() == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize("cell", ["isotropic", "full"])
def test_pressure_moves_the_cell(cell: str, tmp_path: Path):
    potential, start = build_potential(LNK_CONFIG), water_crystal()
    cells = []
    for pressure in (-5.0, 5.0):
        config = MDConfig(ensemble="npt", temperature=300.0, pressure=pressure, cell=cell, pressure_damping=100.0)
        directory = tmp_path / f"{pressure}"
        run_md(potential, [start], changed(config, steps=15, forces_std="none"), directory)
        cells.append(final_state(directory)["cell"])
    assert np.linalg.det(cells[1]) < 0.99 * np.linalg.det(cells[0])
    keeps_shape = np.allclose(cells[1] / np.linalg.norm(cells[1]), start.cell / np.linalg.norm(start.cell), atol=1e-9)
    assert keeps_shape == (cell == "isotropic")


def test_each_start_runs_at_each_temperature(tmp_path: Path):
    config = MDConfig(temperature=(100.0, 3000.0), replicas=2, steps=0, forces_std="none")
    result = run_md(Wells(), [at_sites(), displaced(0.1)], config, tmp_path)
    assert [(o.number, o.start, o.temperature) for o in result.origins] == [
        (2 * k + copy, k // 2, (100.0, 3000.0)[k % 2]) for k in range(4) for copy in range(2)
    ]
    hot = columns(result)["temperature"].reshape(2, 2, 2)
    assert hot[:, 1].mean() > 10 * hot[:, 0].mean()


def test_a_crossing_stops_one_replica_and_not_the_other(tmp_path: Path):
    """The wells make |F| a cosine: an atom let go at 0.2 Å has σ = 0.2 k at once, one pushed from its site later."""
    pushed = at_sites()
    pushed.set_momenta([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3])
    resting = displaced(0.02)
    resting.set_momenta(-0.01 * pushed.get_momenta())
    config = MDConfig(ensemble="nve", temperature=(), steps=60, every=5, check_every=1, stop_above=0.5, hottest=1e9)
    result = run_md(Wells(), [pushed, resting], config, tmp_path)
    first, second = result.records
    assert (first.ending, second.ending, second.ended_at) == ("crossing", "finished", 60)
    assert (first.checks, first.above) == (first.ended_at + 1, 1)
    assert result.share_above == 1 / (first.ended_at + 1 + 61)
    (frame,) = result.crossings
    assert (frame.info["replica"], frame.info["step"], frame.info["reason"]) == (0, first.ended_at, "crossing")
    sizes = np.linalg.norm(frame.arrays["forces_uncertainty"], axis=1)
    assert 0.5 < sizes.max() < 0.6
    mass = pushed.get_masses()[0]
    frequency = np.sqrt(4.0 / mass)
    reached = np.arcsin(0.5 / 4.0 / (3.0 / mass / frequency)) / frequency / (0.5 * units.fs)
    assert first.ended_at == np.ceil(reached)
    assert read(result.trajectory(0), ":")[-1].info["step"] < first.ended_at


def test_atoms_that_come_too_close_stop_it(tmp_path: Path):
    """Two sites that coincide: atoms fall onto each other."""
    model = Wells(sites=((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (9.0, 0.0, 0.0)))
    start = Atoms("Ar3", positions=[[0.0, 0.0, -2.0], [0.0, 0.0, 2.0], [9.0, 0.0, 0.0]])
    record = still_run([start], model, tmp_path, steps=100).records[0]
    assert record.ending == "overlap"
    assert record.message.startswith("atoms 0 and 1 are ")
    frames = [read(tmp_path / name, -1) for name in ("trajectory-0.extxyz", "broken.extxyz")]
    before, after = (frame.get_distance(0, 1) for frame in frames)
    assert after < covalent_radii[18] < before  # half of the sum of two


def test_energies_that_are_no_numbers_stop_it(tmp_path: Path):
    model = Wells(stiffness=-0.5, edge=0.3)
    result = still_run([displaced(0.2), at_sites()], model, tmp_path, steps=50)
    assert [record.ending for record in result.records] == ["not finite", "finished"]
    assert "energy" in result.records[0].message
    last = read(result.trajectory(0), ":")[-1]
    assert last.info["step"] == result.records[0].ended_at - 1
    assert np.linalg.norm(last.positions - last.positions.mean(0) - SITES, axis=1).max() <= 0.3


def test_an_exploding_temperature_stops_it(tmp_path: Path):
    """Unstable wells push atoms away ever faster."""
    result = still_run([displaced(0.2)], Wells(stiffness=-2.0), tmp_path, steps=500, temperature=10.0, hottest=10.0)
    assert result.records[0].ending == "temperature"
    log = columns(result)["temperature"]
    assert 60.0 < log.max() <= 100.0
    assert temperature_of(read(tmp_path / "broken.extxyz")) > 100.0


@pytest.mark.parametrize("cell", ["isotropic", "full"])
def test_a_cell_that_runs_away_stops_it(cell: str, tmp_path: Path):
    """A barostat as light as this one is beyond its integrator, whose numbers overflow."""
    config = MDConfig(ensemble="npt", temperature=50.0, pressure=-90.0, cell=cell, pressure_damping=20.0, steps=200)
    result = run_md(build_potential(LNK_CONFIG), [water_crystal()], changed(config, forces_std="none"), tmp_path)
    assert result.records[0].ending in ("not finite", "temperature")
    assert result.records[0].ended_at < 200


def test_taken_back_a_replica_is_where_it_was(tmp_path: Path):
    config = changed(WAYS[1], temperature=800.0, timestep=4.0, steps=400, every=7, check_every=1, damping=20.0)
    guard = {"stop_above": 1.2, "on_crossing": "rollback", "rollback": 5, "max_rollbacks": 0}
    result = run_md(Wells(), [at_sites()], changed(config, **guard), tmp_path / "guarded")
    (frame,) = result.crossings
    back = frame.info["step"] - 5
    assert (result.records[0].ending, result.records[0].ended_at) == ("crossing", back)
    run_md(Wells(), [at_sites()], changed(config, steps=back), tmp_path / "short")
    for name, values in final_state(tmp_path / "short").items():
        np.testing.assert_array_equal(values, final_state(tmp_path / "guarded")[name])
    trajectory = (tmp_path / "short" / "trajectory-0.extxyz").read_bytes()
    assert (tmp_path / "guarded" / "trajectory-0.extxyz").read_bytes() == trajectory


@pytest.mark.parametrize("way", WAYS[:4], ids=name_of)
def test_taken_back_a_replica_goes_on_elsewhere(way: MDConfig, tmp_path: Path):
    """Each time by another way; its trajectory holds the frames below the limit, without a gap."""
    config = changed(way, temperature=1000.0, timestep=4.0, steps=150, every=5, check_every=1, stop_above=1.0)
    guard = {"on_crossing": "rollback", "rollback": 10, "max_rollbacks": 15}
    result = run_md(Wells(), [at_sites()], changed(config, **guard), tmp_path)
    record = result.records[0]
    assert record.crossings == record.above == len(result.crossings) > 0
    assert record.ending == ("finished" if record.crossings <= 15 else "crossing")
    assert len({frame.positions.tobytes() for frame in result.crossings}) == record.crossings
    frames = read(result.trajectory(0), ":")
    assert [frame.info["step"] for frame in frames] == list(range(0, record.ended_at + 1, 5))
    assert max(np.linalg.norm(frame.arrays["forces_uncertainty"], axis=1).max() for frame in frames) <= 1.0
    if way.ensemble == "nve":
        np.testing.assert_allclose(columns(result)["total_energy"], columns(result)["total_energy"][0], rtol=0.01)


def test_noted_crossings_are_entries(tmp_path: Path):
    """An oscillation of σ about the limit, which it is above for a part of each half period."""
    result = still_run([displaced(0.2)], Wells(), tmp_path, steps=300, stop_above=0.4, on_crossing="continue")
    sizes = columns(result)["forces_std_max"]
    above = sizes > 0.4
    assert result.records[0].ending == "finished"
    assert result.share_above == above.mean()
    entries = np.flatnonzero(above & ~np.concatenate([[False], above[:-1]]))
    assert [frame.info["step"] for frame in result.crossings] == entries.tolist()
    assert len(entries) > 3


@pytest.mark.parametrize(
    ("starts", "config", "message"),
    [
        ([], WAYS[1], "no structure"),
        ([ethanol(), Atoms("Ar2", [[0, 0, 0], [0, 0, 4]])], WAYS[1], "start 1: atom 0 is Ar, .* knows H, C, O"),
        ([ethanol(), Atoms("H")], WAYS[1], "start 1: 1 atoms"),
        ([ethanol()], WAYS[4], "start 0: npt needs a cell"),
        ([ethanol()], NVE, "start 0: it has no velocities"),
        ([Atoms("H2", [[0, 0, 0], [0, 0, 0.2]])], WAYS[1], "start 0: atoms 0 and 1 are 0.2 Å apart"),
        ([ethanol(), Atoms("H2", [[0, 0, 0], [0, 0, np.nan]])], WAYS[1], "start 1: a position"),
    ],
)
def test_starts_that_cannot_be(starts: list[Atoms], config: MDConfig, message: str, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        run_md(build_potential(LNK_CONFIG), starts, config, tmp_path / "run")


def test_a_limit_needs_a_model_with_force_std(tmp_path: Path):
    with pytest.raises(ConfigError, match="no σ of forces"):
        run_md(build_potential(DeterministicConfig()), [ethanol()], MDConfig(stop_above=0.5), tmp_path)


def test_auto_needs_calibration_structures(tmp_path: Path):
    with pytest.raises(ConfigError, match="calibration structures"):
        run_md(Wells(), [at_sites()], MDConfig(stop_above="auto", error_above=1.0), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ensemble": "npt", "thermostat": "bussi"}, "choose nose-hoover"),
        ({"ensemble": "nve", "thermostat": "langevin"}, "leave the thermostat out"),
        ({"temperature": ()}, "needs a temperature"),
        ({"temperature": -5.0}, "above 0 K"),
        ({"stop_above": "auto"}, "needs error_above"),
        ({"stop_above": -1.0}, "above 0 eV"),
        ({"stop_above": 1.0, "forces_std": "none"}, "does not compute it"),
        ({"on_crossing": "rollback"}, "nothing is crossed"),
        ({"timestep": float("nan")}, "finite"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        MDConfig.model_validate(settings)


@pytest.mark.parametrize(("largest", "stop_above", "n_warnings"), [(1e-6, None, 1), (1e6, None, 0), (1e-6, 1e6, 0)])
def test_a_run_without_a_limit_says_that_sigma_is_unusual(
    largest: float, stop_above: float | None, n_warnings: int, tmp_path: Path
):
    """Once, for σ above twice the largest of the calibration structures."""
    potential, listener = build_potential(LNK_CONFIG), Collecting()
    usual = Quantiles(median=largest, q90=largest, q99=largest, largest=largest)
    potential.std_range = StdRange(n_structures=30, forces=usual)
    run_md(potential, [moving(ethanol())], changed(NVE, stop_above=stop_above), tmp_path / "run", listener)
    assert len(listener.texts) == n_warnings
    assert all("2 times the largest of the 30 calibration structures" in text for text in listener.texts)


def test_progress_ends_where_the_run_ends(tmp_path: Path):
    """Not at the last step that was asked for."""
    listener = Notes()
    result = run_md(Wells(), [at_sites()], MDConfig(steps=200, stop_above=0.5), tmp_path / "run", listener)
    [record] = result.records
    assert record.ending == "crossing"
    assert listener.last[:2] == (record.ended_at, 200)
    assert listener.last[2].startswith("0/1 running, 1 stopped, force σ")
    run_md(Wells(), [at_sites()], MDConfig(steps=3), tmp_path / "whole", listener)
    assert listener.last[:2] == (3, 3)
    assert listener.last[2].startswith("0/1 running, force σ")


class Notes(Listener):
    """Keeps the last progress."""

    last = (0, 0, "")

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.last = (done, total, note)
