"""The stability test against its own trajectories, looked at by hand, and against dynamics with a closed form."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

import sigmaff as sf
from cli_case import Workspace, fail, succeed
from md_case import Wells, at_sites
from sigmaff.evaluation.stability import Stability, StabilityRun
from sigmaff.progress import Listener
from sigmaff.report.stability import stability_section
from sigmaff.simulation.limits import range_limits
from sigmaff.simulation.md.stability import StabilityConfig, stability

pytest_plugins = ["cli_fixtures"]


class Told(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, text: str) -> None:
        self.texts.append(text)

    warn = tell


def test_what_happens_is_what_the_trajectories_show(workspace: Workspace, tmp_path: Path) -> None:
    """Molecules that the labels pull apart, hot enough not to count as exploding."""
    model = sf.load(workspace.model)
    settings = StabilityConfig(temperature=20_000.0, picoseconds=0.006, starts=2, timestep=0.1, every=2)
    found = sf.stability(model, workspace / "test.extxyz", settings, directory=tmp_path / "runs")
    limits, starts = range_limits(model), ase.io.read(workspace / "test.extxyz", ":")
    assert [run.frame for run in found.runs] == [0, 10]
    assert found.length == pytest.approx(6.0)
    for number, run in enumerate(found.runs):
        frames = ase.io.read(tmp_path / "runs" / f"trajectory-{number}.extxyz", ":")
        np.testing.assert_allclose(frames[0].positions, starts[run.frame].positions, atol=1e-6)
        outside = [
            max(
                np.linalg.norm(std.forces_std, axis=1).max() / limits.forces,
                std.energy_std / len(frame) / limits.energy,
                std.node_energy_std.max() / limits.atom,
            )
            > 1.0
            for std, frame in zip(model.predict(frames), frames, strict=True)
        ]
        assert run.crossed_at == pytest.approx(0.2 * outside.index(True))
        longest = [max(frame.get_distances(0, [1, 2])) for frame in frames]  # O–H of water
        assert run.bonds_at == pytest.approx(0.2 * next(k for k, x in enumerate(longest) if x > 1.6 * (0.66 + 0.31)))
        assert run.bonds in ("O0–H1 broken", "O0–H2 broken")
        total = [frame.get_total_energy() / len(frame) for frame in frames]
        slope = np.polyfit([frame.info["time_fs"] / 1000 for frame in frames], total, 1)[0]
        assert run.drift == pytest.approx(slope, rel=1e-2, abs=1e-3)
        assert not run.is_whole
    assert found.n_within == found.n_whole == 0


def test_oscillators_are_stable_and_conserve_energy(tmp_path: Path) -> None:
    listener, start = Told(), at_sites()
    settings = {"picoseconds": 0.2, "starts": 1, "timestep": 1.0}  # a period of the oscillators
    found = stability(Wells(), [start], settings, directory=tmp_path / "runs", listener=listener)
    (run,) = found.runs
    assert run.is_whole
    assert found.temperature == 300.0
    drawn = np.genfromtxt(tmp_path / "runs" / "log.csv", delimiter=",", names=True)["temperature"][0]
    assert run.temperature == pytest.approx(0.5 * drawn, rel=0.1)  # the start has no potential energy
    assert run.drift == pytest.approx(0.0, abs=1e-5)
    assert "the data do not say" in listener.texts[0]
    assert "the stability test does not watch σ" in listener.texts[1]
    assert found.headline == "of 1 runs of 200 fs at 300 K, 1 stay whole; σ has no limit, so it is not watched"


def test_the_temperature_is_that_of_the_data(tmp_path: Path) -> None:
    settings = {"picoseconds": 0.001, "starts": 1}
    keyed, moving = at_sites(), at_sites()
    keyed.info["temperature"] = 450
    rng = np.random.default_rng(0)
    velocities = rng.normal(size=(4, 3))
    moving.set_velocities(0.01 * (velocities - velocities.mean(0)))
    expected = moving.get_kinetic_energy() / (1.5 * 3 * 8.617330e-5)  # 4 atoms have 9 degrees of freedom
    for name, atoms, value in (("keyed", keyed, 450.0), ("moving", moving, expected)):
        found = stability(Wells(), [atoms], settings, directory=tmp_path / name)
        assert found.temperature == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    ("atoms", "moved", "expected"),
    [
        (molecule("CH4"), ([0, 0, 0], 1.15), None),  # vibration
        (molecule("CH4"), ([0, 0, 0], 1.8), "broken"),
        (bulk("Si", cubic=True), ([0, 0, 0], 1.04), None),  # across the faces of the cell
    ],
)
def test_vibrations_are_no_changes_of_bonds(
    atoms: Atoms, moved: tuple[list[float], float], expected: str | None, tmp_path: Path
) -> None:
    from sigmaff.simulation.md.stability import _first_change

    frame = atoms.copy()
    frame.positions *= moved[1]
    frame.info["time_fs"] = 3.0
    ase.io.write(tmp_path / "t.extxyz", [frame])
    found = _first_change(atoms, tmp_path / "t.extxyz")
    assert found is None if expected is None else found is not None and found[1].endswith(expected)


def test_the_command_and_the_section_of_the_report(workspace: Workspace, tmp_path: Path) -> None:
    options = ("--md", tmp_path / "runs", "--temperature", "500", "--picoseconds", "0.002", "--starts", "2")
    data = (workspace.model, workspace / "start.extxyz")
    output = succeed("evaluate", *data, *options, "--json", tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())["stability"]
    assert len(found["runs"]) == 2
    assert found["temperature"] == 500.0
    assert "stability: of 2 runs of 2 fs at 500 K" in " ".join(output.split())
    assert "give --md" in fail("evaluate", *data, "--temperature", "300")

    before, settings = (tmp_path / "runs" / "log.csv").read_bytes(), {"picoseconds": 0.002, "starts": 2}
    again = sf.stability(
        sf.load(data[0]), data[1], settings | {"temperature": 500.0}, directory=tmp_path / "runs"
    )  # the same runs, which are not made again
    assert (tmp_path / "runs" / "log.csv").read_bytes() == before
    assert json.loads(json.dumps(again.to_dict())) == found
    section = stability_section(again)
    assert [row[0] for row in section.rows] == ["start", "frame 0", "frame 1"]
    assert section.remarks[0][1:] == f"{found['headline'][1:]}."
    assert "<svg" in section.cards[0].svg


def test_a_headline_says_when_it_begins_to_fail() -> None:
    runs = [
        StabilityRun(frame=0, length=2000.0),
        StabilityRun(frame=7, length=700.0, crossed_at=40.0, broke_at=700.0, broke="atoms overlap"),
        StabilityRun(frame=9, length=2000.0, crossed_at=1500.0, bonds_at=1600.0, bonds="O1–H2 broken"),
    ]
    found = Stability(
        name="test",
        temperature=300.0,
        temperature_from="as given",
        length=2000.0,
        timestep=0.5,
        limits="force σ 1 eV/Å",
        runs=runs,
    )
    assert found.headline == (
        "of 3 runs of 2 ps at 300 K, 1 stay whole (the first breaks after 700 fs) and 1 go to their end with σ within "
        "its range (the first leaves it after 40 fs)"
    )
    assert found.rows()[2] == ["frame 7", "40 fs: ", "–", "700 fs: atoms overlap", "–", "–"]
