"""Energies along a path: the axis, what is compared with what, and what the figure and the report show of it."""

import re
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

import sigmaff as sf
from cli_case import Workspace, fail, succeed
from sigmaff.data import DataSource, read_structures
from sigmaff.report import follow_path, path_figure
from sigmaff.report.figures import new_figure
from sigmaff.report.path import Curve, EnergyPath, caption, draw_energy, energy_limits, path_axis, path_section

pytest_plugins = ["cli_fixtures"]

N = 21


def scan(**info: list[float]) -> list[Atoms]:
    """The first atom of water moves by 0.1 Å at a time."""
    frames = []
    for step in range(5):
        atoms = molecule("H2O")
        atoms.positions[0, 2] += 0.1 * step
        atoms.info = {key: values[step] for key, values in info.items()}
        frames.append(atoms)
    return frames


def energy_path(std: float = 0.1, *, offset: float = 0.0, has_own_zero: bool = False) -> EnergyPath:
    """A parabola of 4 eV and a model that is half of it, or off by a constant as well."""
    place = np.linspace(-2.0, 2.0, N)
    truth = -300.0 + place**2
    curve = Curve(
        name="model",
        energy=-300.0 + offset + 0.5 * place**2,
        energy_std=np.full(N, std),
        forces_std=np.full(N, std),
        forces_error=np.abs(place),
        has_own_zero=has_own_zero,
    )
    return EnergyPath(name="scan", label="place", place=place, energy=truth, curves=(curve,))


# --- the axis


def test_the_axis_is_the_one_number_that_rises_or_falls():
    rising, falling = [0.0, 0.5, 1.0, 2.0, 9.0], [4, 3, 2, 1, 0]
    label, place = path_axis(scan(bond_length=rising, charge=[0.0] * 5, kind=["a"] * 5, REF_energy=rising))
    assert (label, place.tolist()) == ("bond length", rising)
    label, place = path_axis(scan(angle=falling))
    assert (label, place.tolist()) == ("angle", falling)


@pytest.mark.parametrize("info", [{}, {"a": [1.0, 2, 3, 4, 5], "b": [1.0, 2, 3, 4, 5]}, {"a": [1.0, 2, 2, 3, 4]}])
def test_else_it_is_the_length_of_the_path(info: dict[str, list[float]]):
    """Water is moved by 0.1 Å in its plane: of |Δr|², the shift of the centre does not count."""
    label, place = path_axis(scan(**info))
    assert label == "path length (Å)"
    assert place[0] == 0.0
    assert np.diff(place) == pytest.approx(0.1 * np.sqrt(2 / 3))


def test_rotations_and_shifts_are_no_path_and_cells_are_closed():
    frames = scan()
    turned = [atoms.copy() for atoms in frames]
    for index, atoms in enumerate(turned):
        atoms.rotate(37.0 * index, (1.0, 2.0, 3.0))
        atoms.translate([index, 0.0, 0.0])
    assert path_axis(turned)[1] == pytest.approx(path_axis(frames)[1], abs=1e-7)
    crystal = [Atoms("ArAr", positions=[[0.0, 0, 0], [x, 2, 2]], cell=[4.0] * 3, pbc=True) for x in (3.8, 3.9, 0.1)]
    assert np.diff(path_axis(crystal)[1]) == pytest.approx([0.1, 0.2])


def test_structures_of_different_atoms_are_numbered():
    label, place = path_axis([molecule("H2O"), molecule("CH4")])
    assert (label, place.tolist()) == ("structure", [0.0, 1.0])


# --- what is compared


def test_errors_are_not_hidden_by_alignment():
    """A constant error stays, unless the training set leaves the zero of energies open."""
    wrong = energy_path(offset=3.0)
    assert wrong.relative(wrong.curves[0])[wrong.reference] == 3.0
    shifted = energy_path(offset=3.0, has_own_zero=True)
    assert shifted.relative(shifted.curves[0])[shifted.reference] == 0.0
    assert "shifted to agree" in caption(shifted, shifted.curves[0])
    unknown = replace(wrong, energy=None)
    assert unknown.relative(unknown.curves[0]).min() == 0.0
    assert unknown.truth is None
    assert "no energies" in path_section(unknown).remarks[0]


@pytest.mark.parametrize(("std", "is_cut"), [(0.015, False), (30.0, True)])
def test_a_wide_band_does_not_flatten_the_curve(std: float, is_cut: bool):
    path = energy_path(std)
    low, high = energy_limits(path)
    assert low < 0.0
    assert high > 4.0
    assert high - low < 2.2 * 4.0  # of the range of energies
    said = caption(path, path.curves[0])
    assert ("goes beyond the axis: σ is up to 30 eV" in said) == is_cut
    inside = int(np.sum(0.5 * path.place**2 <= 2 * std))
    assert f"within 2 σ for {inside} of 21 structures" in said


def test_the_figure_shows_the_numbers():
    path = energy_path(0.2)
    [axes] = new_figure(lambda axes: draw_energy(axes, path, path.curves[0], "b")).axes
    wide, narrow = (collection.get_paths()[0].vertices for collection in axes.collections)
    for vertices, factor in ((wide, 2.0), (narrow, 1.0)):
        assert vertices[:, 1].min() == pytest.approx(-0.2 * factor)
        assert vertices[:, 1].max() == pytest.approx(2.0 + 0.2 * factor)
    model, truth = axes.lines
    assert model.get_ydata() == pytest.approx(0.5 * path.place**2)
    assert truth.get_ydata() == pytest.approx(path.place**2)
    assert axes.get_ylabel() == "energy above the minimum (eV)"
    small = replace(path, energy=1e-2 * path.place**2, curves=(replace(path.curves[0], energy=1e-2 * path.place**2),))
    [axes] = new_figure(lambda axes: draw_energy(axes, small, small.curves[0], "b")).axes
    assert axes.get_ylabel() == "energy above the minimum (meV)"
    assert axes.lines[0].get_ydata().max() == pytest.approx(40.0)


def test_two_models_share_their_axes():
    one = energy_path(0.2)
    both = replace(one, curves=(one.curves[0], replace(one.curves[0], name="other", energy_std=np.full(N, 9.0))))
    figure = path_figure(("first", "second"), (both, both))
    limits = {axes.get_ylim() for axes in figure.axes}
    assert len(figure.axes) == 4
    assert len(limits) == 1
    section = path_section(both)
    assert len(section.cards) == 4  # two models, energies, forces
    assert "other, error" in section.cards[2].svg


# --- the command


@pytest.fixture(scope="module")
def folder(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path without labels, one of one structure, and a second model of the same file name."""
    folder = tmp_path_factory.mktemp("path")
    frames = ase.io.read(workspace / "scan.extxyz", ":")
    bare = [Atoms(frame.numbers, frame.positions) for frame in frames]
    ase.io.write(folder / "bare.extxyz", bare)
    ase.io.write(folder / "one.extxyz", frames[:1])
    (folder / "other").mkdir()
    (folder / "other" / "model.sigmaff").write_bytes(workspace.model.read_bytes())
    return folder


def test_the_report_shows_the_path(workspace: Workspace, folder: Path, tmp_path: Path):
    arguments = ("report", workspace.model, workspace / "test.extxyz", tmp_path / "report.html")
    succeed(*arguments, "--path", workspace / "scan.extxyz", "--beside", folder / "other" / "model.sigmaff")
    page = (tmp_path / "report.html").read_text()
    assert "Along a path" in page
    assert "6 structures of scan" in page
    for words in ("run/model", "other/model", "bond length", "Largest force σ of an atom"):
        assert words in page, words
    assert len(re.findall(r"<figure", page)) > 4


def test_a_path_without_labels_has_no_truth(workspace: Workspace, folder: Path):
    structures = read_structures(DataSource(path=folder / "bare.extxyz", labels=()))
    path = follow_path(structures, [("model", sf.load(workspace.model))])
    assert path.energy is None
    assert path.curves[0].forces_error is None
    assert path.label == "path length (Å)"
    section = path_section(path)
    assert section.remarks == ["The structures have no energies: the truth is not shown."]
    assert not any("truth" in card.svg for card in section.cards)


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--beside", "other/model.sigmaff"), "give --path"), (("--path", "one.extxyz"), "at least 2 structures")],
)
def test_commands_that_cannot_be(options: tuple[str, str], message: str, workspace: Workspace, folder: Path):
    arguments = ("report", workspace.model, workspace / "test.extxyz", folder / "never.html")
    assert message in fail(*arguments, options[0], folder / options[1])
    assert not (folder / "never.html").exists()
