"""Every file format against the numbers that were written."""

import sqlite3
from pathlib import Path
from typing import get_args

import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms
from ase.db import connect
from ase.io import write
from pydantic import ValidationError

from data_files import calculated_frames, labelled_frames, md17_arrays, rmd17_arrays, save, water, write_qm7x
from sigmaff.data import DataSource, read_structures
from sigmaff.data.formats import ENDINGS, READERS
from sigmaff.data.source import Format
from sigmaff.errors import ConfigError, DataError

KCAL = 0.0433641  # eV, from 4184 J and the charge of the electron: 4184 / (6.02214076e23 * 1.602176634e-19)
HARTREE, BOHR = 27.211386, 0.52917721


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def assert_same(read, frames: list[Atoms], prefix: str = "") -> None:
    assert read.energy == pytest.approx([atoms.info[f"{prefix}energy"] for atoms in frames], abs=1e-6)
    for atoms, expected, forces in zip(read.structures, frames, read.forces, strict=True):
        np.testing.assert_allclose(atoms.positions, expected.positions, atol=1e-7)
        np.testing.assert_allclose(forces, expected.arrays[f"{prefix}forces"], atol=1e-7)
        assert atoms.calc is None


def test_registry_covers_every_format_name():
    assert set(READERS) == set(get_args(Format)) - {"auto"}
    assert set(ENDINGS.values()) - {"npz"} <= set(READERS)


@pytest.mark.parametrize("prefix", ["", "REF_"])
def test_extxyz_label_keys(tmp_path, rng, prefix):
    frames = labelled_frames(rng, prefix=prefix)
    write(tmp_path / "data.extxyz", frames)
    assert_same(read_structures(tmp_path / "data.extxyz"), frames, prefix)


def test_explicit_key_wins_over_others(tmp_path, rng):
    frames = labelled_frames(rng)
    for atoms in frames:
        atoms.info["dft_energy"] = -5.0
    write(tmp_path / "data.xyz", frames, format="extxyz")
    read = read_structures(DataSource(path=tmp_path / "data.xyz", energy_key="dft_energy"))
    np.testing.assert_array_equal(read.energy, -5.0)


@pytest.mark.parametrize("name", ["data.extxyz", "data.traj", "data.db"])
def test_calculator_results_survive_and_constraints_do_not_zero_forces(tmp_path, name):
    frames = calculated_frames()
    for atoms in frames:
        atoms.set_constraint(FixAtoms([0, 1]))
    write(tmp_path / name, frames)
    read = read_structures(DataSource(path=tmp_path / name, labels=("energy", "forces", "stress")))
    for k, atoms in enumerate(frames):
        assert read.energy[k] == pytest.approx(atoms.calc.results["energy"], abs=1e-6)
        np.testing.assert_allclose(read.forces[k], atoms.calc.results["forces"], atol=1e-6)
        xx, yy, zz, yz, xz, xy = atoms.calc.results["stress"]
        np.testing.assert_allclose(read.stress[k], [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]], atol=1e-6)
        np.testing.assert_array_equal(read.structures[k].cell.array, atoms.cell.array)


def test_db_labels_in_key_value_pairs_and_data(tmp_path, rng):
    forces = rng.normal(size=(3, 3))
    with connect(tmp_path / "data.db") as database:
        database.write(water(rng), key_value_pairs={"REF_energy": -3.5}, data={"REF_forces": forces})
    read = read_structures(tmp_path / "data.db")
    assert read.energy[0] == -3.5
    np.testing.assert_array_equal(read.forces[0], forces)


def test_db_units_in_the_metadata(tmp_path, rng):
    with connect(tmp_path / "data.db") as database:
        database.write(water(rng), data={"energy": np.array([-100.0]), "forces": np.ones((3, 3))})
        database.metadata = {"_property_unit_dict": {"energy": "kcal/mol"}, "_distance_unit": "Ang"}
    read = read_structures(tmp_path / "data.db")
    assert read.energy[0] == pytest.approx(-100 * KCAL, rel=1e-5)
    np.testing.assert_allclose(read.forces[0], KCAL, rtol=1e-5)
    with pytest.raises(DataError, match="eV is declared"):
        read_structures(DataSource(path=tmp_path / "data.db", energy_unit="eV"))


def test_foreign_database_is_refused_and_not_written_to(tmp_path):
    path = tmp_path / "data.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="not an ASE database"):
        read_structures(path)
    assert path.read_bytes() == before


def test_md17_units_are_the_files_own(tmp_path, rng):
    arrays = md17_arrays(rng)
    read = read_structures(save(tmp_path / "md17.npz", arrays))
    np.testing.assert_allclose(read.energy, arrays["E"][:, 0] * KCAL, rtol=1e-5)
    np.testing.assert_allclose(np.stack(read.forces), arrays["F"] * KCAL, rtol=1e-5)
    arrays |= {"r_unit": np.array(b"bohr"), "e_unit": np.array("Ha")}
    read = read_structures(save(tmp_path / "atomic.npz", arrays))
    np.testing.assert_allclose(read.structures[0].positions, arrays["R"][0] * BOHR, rtol=1e-6)
    np.testing.assert_allclose(read.forces[0], arrays["F"][0] * HARTREE / BOHR, rtol=1e-6)


def test_declared_unit_must_not_contradict_the_file(tmp_path, rng):
    path = save(tmp_path / "md17.npz", md17_arrays(rng))
    read_structures(DataSource(path=path, energy_unit="kcal/mol"))
    with pytest.raises(DataError, match="states the unit kcal/mol, but eV is declared"):
        read_structures(DataSource(path=path, energy_unit="eV"))


def test_unit_that_the_file_does_not_name_can_be_declared(tmp_path, rng):
    arrays = md17_arrays(rng)
    del arrays["r_unit"]
    path = save(tmp_path / "md17.npz", arrays)
    read = read_structures(DataSource(path=path, length_unit="Bohr"))
    np.testing.assert_allclose(read.structures[0].positions, arrays["R"][0] * BOHR, rtol=1e-6)


def test_rmd17_recomputed_and_original_labels(tmp_path, rng):
    arrays = rmd17_arrays(rng)
    path = save(tmp_path / "rmd17.npz", arrays)
    new = read_structures(path)
    old = read_structures(DataSource(path=path, format="rmd17_original"))
    np.testing.assert_allclose(new.energy - old.energy, KCAL, rtol=1e-5)
    np.testing.assert_array_equal(np.stack(new.forces), -np.stack(old.forces))
    np.testing.assert_array_equal(new.time_index, [4, 3, 2, 1, 0])
    assert new.official_splits is None


def test_rmd17_official_splits(tmp_path, rng):
    splits = {"split_train": np.array([[0, 1], [2, 3]]), "split_test": np.array([[2, 4], [0, 1]])}
    read = read_structures(save(tmp_path / "rmd17.npz", rmd17_arrays(rng) | splits))
    np.testing.assert_array_equal(read.official_splits["train"], splits["split_train"])
    np.testing.assert_array_equal(read.official_splits["test"], splits["split_test"])
    splits["split_test"] = np.array([[2, 5], [0, 1]])
    with pytest.raises(DataError, match="do not fit the 5 frames"):
        read_structures(save(tmp_path / "bad.npz", rmd17_arrays(rng) | splits))


@pytest.fixture
def qm7x_file(tmp_path, rng) -> Path:
    return write_qm7x(tmp_path / "1000.hdf5", rng)


def test_qm7x_equilibrium_by_name(qm7x_file):
    everything = read_structures(qm7x_file)
    assert len(everything) == 6
    rest = read_structures(DataSource(path=qm7x_file, structures="equilibrium"))
    np.testing.assert_allclose(rest.energy, [-2081.1, -2082.1])
    np.testing.assert_array_equal(np.stack(rest.forces), 0.0)
    moved = read_structures(DataSource(path=qm7x_file, structures="non_equilibrium"))
    np.testing.assert_allclose(moved.energy, [-2081, -2081, -2082, -2082])
    assert sorted([*rest.frame_index, *moved.frame_index]) == list(range(6))
    assert rest.structures[0].info["structure"] == "Geom-m1-i1-c1-opt"


def test_qm7x_without_its_label(qm7x_file):
    with h5py.File(qm7x_file, "a") as file:
        del file["2/Geom-m2-i1-c1-d2/ePBE0+MBD"]
    with pytest.raises(DataError, match=r"frame 4: no energy .*ePBE0\+MBD"):
        read_structures(qm7x_file)


def test_other_hdf5_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["energies"] = np.zeros(3)
    with pytest.raises(DataError, match="QM7-X layout"):
        read_structures(tmp_path / "a.h5")


def test_declared_units_convert_everything_once(tmp_path):
    frames = calculated_frames(1)
    write(tmp_path / "data.extxyz", frames)
    source = DataSource(
        path=tmp_path / "data.extxyz",
        energy_unit="Hartree",
        length_unit="Bohr",
        labels=("energy", "forces", "stress"),
    )
    read, raw = read_structures(source), frames[0].calc.results
    assert read.energy[0] == pytest.approx(raw["energy"] * HARTREE)
    np.testing.assert_allclose(read.forces[0], raw["forces"] * HARTREE / BOHR, atol=1e-5)
    np.testing.assert_allclose(read.stress[0, 0, 0], raw["stress"][0] * HARTREE / BOHR**3, atol=1e-5)
    np.testing.assert_allclose(read.structures[0].cell.array, frames[0].cell.array * BOHR, rtol=1e-6)
    np.testing.assert_allclose(read.structures[0].positions, frames[0].positions * BOHR, rtol=1e-6)


def test_forces_in_a_unit_of_their_own(tmp_path, rng):
    frames = labelled_frames(rng, 1)
    write(tmp_path / "data.extxyz", frames)
    source = DataSource(path=tmp_path / "data.extxyz", energy_unit="Hartree", forces_unit="Hartree/Bohr")
    read = read_structures(source)
    np.testing.assert_allclose(read.forces[0], frames[0].arrays["forces"] * HARTREE / BOHR, rtol=1e-6)
    np.testing.assert_allclose(read.structures[0].positions, frames[0].positions, atol=1e-7)


@pytest.mark.parametrize(
    ("field", "value"),
    [("energy_unit", "kcal"), ("length_unit", "m"), ("forces_unit", "eV"), ("colour", "red")],
)
def test_unknown_unit_or_option(field, value):
    with pytest.raises(ValidationError, match=field):
        DataSource.model_validate({"path": "data.extxyz", field: value})


def test_options_of_other_formats_are_refused(tmp_path, rng):
    path = save(tmp_path / "md17.npz", md17_arrays(rng))
    with pytest.raises(ConfigError, match="fixed names"):
        read_structures(DataSource(path=path, energy_key="energy"))
    with pytest.raises(ConfigError, match="QM7-X"):
        read_structures(DataSource(path=path, structures="equilibrium"))


def test_format_overrides_the_ending(tmp_path, rng):
    frames = labelled_frames(rng)
    write(tmp_path / "data.dat", frames, format="extxyz")
    assert_same(read_structures(DataSource(path=tmp_path / "data.dat", format="extxyz")), frames)
