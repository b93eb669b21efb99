"""Dynamics stop where a molecule falls apart: atoms that lose their neighbours, bonds that break."""

from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.data import covalent_radii

from cli_case import Workspace, succeed
from md_case import Wells, files
from sigmaff.simulation.md import MDConfig, run_md

pytest_plugins = ["cli_fixtures"]

NEAR = ((0.0, 0.0, 0.0), (0.0, 0.0, 2.0), (30.0, 0.0, 0.0))
"""Two sites within the cutoff of the model, 3 Å, and one that is alone from the start."""
BOND = 2 * covalent_radii[18]


def start(distance: float = 2.0) -> Atoms:
    atoms = Atoms("Ar3", positions=NEAR)
    atoms.positions[1, 2] = distance
    return atoms


def leaving(speed: float = 30.0) -> Atoms:
    """The second atom moves away, the first the other way; the third stays."""
    atoms = start()
    atoms.set_momenta([[0.0, 0.0, -speed], [0.0, 0.0, speed], [0.0] * 3])
    return atoms


def run(structures: list[Atoms], directory: Path, **settings: object):
    shared = {"ensemble": "nve", "temperature": (), "steps": 400, "every": 1, "hottest": 1e9}
    return run_md(Wells(stiffness=0.0, sites=NEAR), structures, MDConfig(**(shared | settings)), directory)


def test_an_atom_that_loses_its_neighbours_ends_the_run(tmp_path: Path):
    """In the step in which the distance of the two exceeds the cutoff. An atom that had none loses none."""
    resting = leaving(0.01)
    result = run([leaving(), resting], tmp_path)
    record, other = result.records
    assert (record.ending, other.ending) == ("isolated", "finished")
    assert "atom Ar0 has no neighbour left within 3 Å" in record.message
    last, broken = ase.io.read(result.trajectory(0), -1), ase.io.read(tmp_path / "broken.extxyz")
    assert last.get_distance(0, 1) <= 3.0 < broken.get_distance(0, 1)
    assert broken.info["reason"] == "isolated"
    assert record.ended_at == last.info["step"] + 1


def test_a_bond_that_breaks_ends_the_run_if_asked(tmp_path: Path):
    """At 1.6 sums of covalent radii, which is beyond the cutoff of the model here."""
    assert 2.0 < 1.25 * BOND < 3.0 < 1.6 * BOND
    result = run([leaving()], tmp_path / "bonds", connectivity="bonds")
    assert result.records[0].ending == "isolated"  # before the bond counts as broken
    wide = Wells(stiffness=0.0, sites=NEAR, cutoff=9.0)
    settings = {"ensemble": "nve", "temperature": (), "steps": 400, "every": 1, "hottest": 1e9}
    found = run_md(wide, [leaving()], MDConfig(**settings, connectivity="bonds"), tmp_path / "wide")
    assert found.records[0].ending == "bond broken"
    assert "the bond Ar0–Ar1 is broken" in found.records[0].message
    distances = [frame.get_distance(0, 1) for frame in ase.io.read(found.trajectory(0), ":")]
    broken = ase.io.read(tmp_path / "wide" / "broken.extxyz").get_distance(0, 1)
    assert max(distances) <= 1.6 * BOND < broken
    assert run_md(wide, [leaving()], MDConfig(**settings | {"steps": 40}), tmp_path / "default").records[0].ending == (
        "finished"
    )


def test_a_bond_across_the_cell_is_a_bond(tmp_path: Path):
    """Atoms on both sides of a periodic cell, which go apart across it."""
    atoms = Atoms("Ar2", positions=[[1, 5, 5], [9, 5, 5]], cell=[10, 10, 10], pbc=True)
    atoms.set_momenta([[30.0, 0.0, 0.0], [-30.0, 0.0, 0.0]])
    settings = {"ensemble": "nve", "temperature": (), "steps": 100, "every": 1, "hottest": 1e9}
    model = Wells(stiffness=0.0, sites=((0.0,) * 3,) * 2, cutoff=4.0)
    found = run_md(model, [atoms], MDConfig(**settings, connectivity="bonds"), tmp_path)
    [record] = found.records
    assert record.ending == "bond broken"
    last = ase.io.read(found.trajectory(0), -1)
    assert last.get_distance(0, 1, mic=True) <= 1.6 * BOND


def test_off_lets_it_fall_apart(tmp_path: Path):
    assert run([leaving()], tmp_path, connectivity="off").records[0].ending == "finished"


@pytest.mark.parametrize("steps", [3, 11])
def test_a_run_that_falls_apart_resumes_to_the_same_end(steps: int, tmp_path: Path):
    """Connectivity is that of the start, also after a stop in the middle."""
    whole = run([leaving(), leaving(0.01)], tmp_path / "whole", steps=60, connectivity="bonds")
    run([leaving(), leaving(0.01)], tmp_path / "parts", steps=steps, connectivity="bonds")
    again = run([leaving(), leaving(0.01)], tmp_path / "parts", steps=60, connectivity="bonds")
    assert again.records == whole.records
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_hot_run_with_absurd_steps_is_not_called_finished(workspace: Workspace, tmp_path: Path):
    """Ethanol that flies apart: no limit on σ was given."""
    hot = ("--temperature", 5000, "--timestep", 20, "--steps", 200, "--connectivity", "isolated")
    told = succeed("md", workspace.model, workspace / "start.extxyz", *hot, "--output", tmp_path / "hot")
    lines = [line for line in told.splitlines() if line.startswith("replica ")]
    assert lines
    assert not any(": finished" in line for line in lines)
