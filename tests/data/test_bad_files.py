"""Files that are damaged, foreign or ambiguous: each gives an error that says where and what to do."""

import shutil
import zipfile
from itertools import permutations
from pathlib import Path

import h5py
import numpy as np
import pytest
from ase.io import write

from data_files import calculated_frames, labelled_frames, md17_arrays, save, write_qm7x
from sigmaff.data import DataSource, read_structures
from sigmaff.data.formats import ENDINGS
from sigmaff.errors import DataError


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# Labels that are absent, ambiguous or no numbers


def test_absent_label_names_frame_and_keys_found(tmp_path, rng):
    frames = labelled_frames(rng)
    frames[2].info["E_dft"] = frames[2].info.pop("energy")
    write(tmp_path / "data.extxyz", frames)
    with pytest.raises(DataError, match=r"data\.extxyz, frame 2: no energy .*REF_energy; found E_dft, forces.* 1 of 4"):
        read_structures(tmp_path / "data.extxyz")


def test_explicit_key_absent_does_not_fall_back(tmp_path, rng):
    write(tmp_path / "data.extxyz", labelled_frames(rng))
    with pytest.raises(DataError, match=r"frame 0: no energy .*looked for dft"):
        read_structures(DataSource(path=tmp_path / "data.extxyz", energy_key="dft"))


def test_energies_without_forces(tmp_path, rng):
    frames = labelled_frames(rng)
    for atoms in frames:
        del atoms.arrays["forces"]
    write(tmp_path / "data.extxyz", frames)
    with pytest.raises(DataError, match="frame 0: no forces"):
        read_structures(tmp_path / "data.extxyz")
    read = read_structures(DataSource(path=tmp_path / "data.extxyz", labels=("energy",)))
    assert read.forces is None
    assert read.energy is not None


def test_label_that_some_frames_lack_is_absent_never_zero(tmp_path, rng):
    frames = labelled_frames(rng)
    del frames[1].arrays["forces"]
    write(tmp_path / "data.extxyz", frames)
    read = read_structures(DataSource(path=tmp_path / "data.extxyz", labels=("energy",)))
    assert read.forces is None
    assert read.incomplete_labels == {"forces": (1,)}
    assert read.subset([0, 2]).incomplete_labels == {"forces": ()}


def test_mixed_keys_need_an_explicit_one(tmp_path, rng):
    frames = labelled_frames(rng)
    frames[3].info["REF_energy"] = frames[3].info.pop("energy")
    write(tmp_path / "data.extxyz", frames)
    with pytest.raises(DataError, match="frame 0 has energy but frame 3 has REF_energy"):
        read_structures(tmp_path / "data.extxyz")


def test_two_different_energies_in_a_frame_are_ambiguous(tmp_path, rng):
    frames = labelled_frames(rng)
    for atoms in frames:
        atoms.info["REF_energy"] = atoms.info["energy"] + 0.5
    write(tmp_path / "data.extxyz", frames)
    with pytest.raises(DataError, match="energy and REF_energy are both present and differ"):
        read_structures(tmp_path / "data.extxyz")
    chosen = read_structures(DataSource(path=tmp_path / "data.extxyz", energy_key="REF_energy"))
    assert chosen.energy == pytest.approx([atoms.info["REF_energy"] for atoms in frames])


@pytest.mark.parametrize("energy", ["None", "[1.0, 2.0]"])
def test_energy_that_is_no_number(tmp_path, energy):
    text = f'1\nenergy="{energy}" Properties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 0 0 0\n'
    (tmp_path / "data.extxyz").write_text(text)
    with pytest.raises(DataError, match=r"frame 0: energy = .* is not a valid energy"):
        read_structures(tmp_path / "data.extxyz")


def test_forces_of_another_shape(tmp_path):
    text = "1\nenergy=1.0 Properties=species:S:1:pos:R:3:forces:R:2\nH 0 0 0 0 0\n"
    (tmp_path / "data.extxyz").write_text(text)
    with pytest.raises(DataError, match=r"frame 0: forces of shape \(1, 2\) for 1 atoms"):
        read_structures(tmp_path / "data.extxyz")


# Files that are damaged, foreign or not there


@pytest.mark.parametrize("name", [f"data{ending}" for ending in ENDINGS])
def test_missing_and_empty_files(tmp_path, name):
    with pytest.raises(DataError, match="does not exist"):
        read_structures(tmp_path / name)
    (tmp_path / name).touch()
    with pytest.raises(DataError, match="is empty"):
        read_structures(tmp_path / name)
    assert (tmp_path / name).stat().st_size == 0


def test_folder_and_unknown_ending(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        read_structures(tmp_path)
    (tmp_path / "data.csv").write_text("1,2,3")
    with pytest.raises(DataError, match=r"ending '.csv' is unknown .*set `format`"):
        read_structures(tmp_path / "data.csv")


@pytest.fixture(scope="module")
def good_files(tmp_path_factory) -> dict[str, Path]:
    rng = np.random.default_rng(7)
    files = {ending: tmp_path_factory.mktemp("good") / f"good{ending}" for ending in (".extxyz", ".traj", ".db")}
    write(files[".extxyz"], labelled_frames(rng, 20))
    write(files[".traj"], calculated_frames(4))
    write(files[".db"], calculated_frames(4))
    folder = files[".db"].parent
    npz = save(folder / "good.npz", md17_arrays(rng, 50))
    return files | {".npz": npz, ".hdf5": write_qm7x(folder / "good.hdf5", rng)}


@pytest.mark.parametrize("ending", [".extxyz", ".traj", ".db", ".npz", ".hdf5"])
@pytest.mark.parametrize("fraction", [0.01, 0.51, 0.98])
def test_truncated_files(tmp_path, good_files, ending, fraction):
    content = good_files[ending].read_bytes()
    path = tmp_path / f"short{ending}"
    path.write_bytes(content[: max(int(len(content) * fraction), 3)])
    with pytest.raises(DataError, match="short"):
        read_structures(path)


@pytest.mark.parametrize(("ending", "content"), list(permutations((".extxyz", ".traj", ".db", ".npz", ".hdf5"), 2)))
def test_wrong_ending(tmp_path, good_files, ending, content):
    assert len(read_structures(good_files[content])) > 0
    path = tmp_path / f"wrong{ending}"
    shutil.copy(good_files[content], path)
    with pytest.raises(DataError, match="wrong"):
        read_structures(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.zeros(3)},
        {"z": np.array(1), "R": np.array(2.0)},
        {"z": np.array([1]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "lattice": np.zeros(2)},
        {"z": np.array([1]), "R": np.zeros((2, 1, 3)), "E": np.zeros(3), "F": np.zeros((2, 1, 3))},
        {"z": np.array([1]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "F": np.zeros((2, 3))},
        {"z": np.array([1, 1]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "F": np.zeros((2, 1, 3))},
        {"z": np.array(["H"]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "F": np.zeros((2, 1, 3))},
        {"z": np.array([200]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "F": np.zeros((2, 1, 3))},
        {"z": np.array([1]), "R": np.zeros((0, 1, 3)), "E": np.zeros(0), "F": np.zeros((0, 1, 3))},
        {"z": np.array([1]), "R": np.zeros((2, 1, 3)), "F": np.zeros((2, 1, 3))},
        {"z": np.array([1]), "R": np.zeros((2, 1, 3)), "E": np.zeros(2), "e_unit": np.array("furlong")},
        {"nuclear_charges": np.array([1]), "coords": np.zeros((2, 1, 3)), "energies": np.zeros(2)},
    ],
)
def test_foreign_npz(tmp_path, arrays):
    with pytest.raises(DataError, match="foreign"):
        read_structures(save(tmp_path / "foreign.npz", arrays))


def test_pickles_are_never_loaded(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    save(tmp_path / "hostile.npz", {"z": np.array([1]), "R": np.array([Hostile()], dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        read_structures(tmp_path / "hostile.npz")
    assert not (tmp_path / "executed").exists()


def test_empty_line_between_frames_loses_nothing(tmp_path):
    frame = "1\nenergy=-1.0 Properties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 0 0 0\n"
    (tmp_path / "data.extxyz").write_text(f"{frame}\n{frame}\n\n")
    assert len(read_structures(tmp_path / "data.extxyz")) == 2


def test_wrong_number_of_atoms(tmp_path):
    frame = "1\nenergy=-1.0 Properties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 0 0 0\nH 0 0 1 0 0 0\n"
    (tmp_path / "data.extxyz").write_text(frame)
    with pytest.raises(DataError, match="frame 1: expected the number of atoms"):
        read_structures(tmp_path / "data.extxyz")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("0\nenergy=-1.0\n", "frame 0: the structure has no atoms"),
        ("1\nenergy=1\nX 0 0 0\n", "atom 0 is not an element"),
    ],
)
def test_structures_without_real_atoms(tmp_path, frame, message):
    (tmp_path / "data.extxyz").write_text(frame)
    with pytest.raises(DataError, match=message):
        read_structures(DataSource(path=tmp_path / "data.extxyz", labels=()))


# Values that would be cut or take all memory


def test_fractional_atomic_numbers_are_refused(tmp_path, rng):
    arrays = md17_arrays(rng)
    arrays["z"] = np.array([8, 1, 1.6])
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=r"atom 2 has the atomic number 1\.6"):
        read_structures(tmp_path / "data.npz")
    write_qm7x(tmp_path / "data.hdf5", rng)
    with h5py.File(tmp_path / "data.hdf5", "a") as file:
        structure = next(iter(next(iter(file.values())).values()))
        numbers = structure["atNUM"][:] + 0.5
        del structure["atNUM"]
        structure["atNUM"] = numbers
    with pytest.raises(DataError, match=r"Geom-.*atom 0 has the atomic number .*\.5"):
        read_structures(tmp_path / "data.hdf5")


def test_imaginary_parts_are_refused(tmp_path, rng):
    arrays = md17_arrays(rng)
    arrays["E"] = arrays["E"] + 1j
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match="array E contains complex128 values, not real numbers"):
        read_structures(tmp_path / "data.npz")


def test_small_files_that_would_take_gigabytes_are_refused(tmp_path, rng):
    (tmp_path / "data.extxyz").write_text("1\nProperties=species:S:99999999:pos:R:3\nH 0 0 0\n")
    with pytest.raises(DataError, match=r"frame 0: Properties names 100000002 columns, .* first atom has 4"):
        read_structures(tmp_path / "data.extxyz")
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("R.npy", bytes(205 * 2**20))
    arrays = md17_arrays(rng)
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        for name in ("z", "E", "F"):
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, arrays[name])
    with pytest.raises(DataError, match=r"its arrays take 0\.215 GB of memory"):
        read_structures(tmp_path / "data.npz")
