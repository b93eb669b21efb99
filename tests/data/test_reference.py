"""Every reference file can be read, has what its description says, and no fault that is an error."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sigmaff.data import (
    DataSource,
    GraphDataset,
    SplitConfig,
    check_structures,
    compute_statistics,
    find_overlap,
    read_structures,
    reference_energies,
    split_structures,
)
from sigmaff.data.check.consistency import check_forces_against_energies

pytestmark = pytest.mark.reference_data

FILES = {
    **{f"3bpa/{name}.extxyz": n for name, n in (("train_300K", 500), ("hot_600K", 167), ("hot_1200K", 166))},
    "md17/md17_ethanol.npz": 9633,
    **{
        f"rmd17/rmd17_{name}.npz": 9633
        for name in (
            "aspirin",
            "benzene",
            "ethanol",
            "malonaldehyde",
            "naphthalene",
            "salicylic",
            "toluene",
            "uracil",
        )
    },
    **{
        f"mlearn/{name}.extxyz": None
        for name in (f"{element}_{part}" for element in ("Ge", "Li", "Mo", "Si") for part in ("test", "training"))
    },
    "qm7x/qm7x_250x10.extxyz": 2500,
    "qm7x/qm7x_C6H12_100.extxyz": 100,
    "solvents_xtb/solvent_xtb_test.extxyz": 1000,
    "solvents_xtb/solvent_xtb_train_200.extxyz": 203,
    "solvents_xtb/solvent_xtb_train_50.extxyz": 53,
    "water/deepmd_water_192.extxyz": 400,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    if "SIGMAFF_DATA" not in os.environ:
        pytest.skip("SIGMAFF_DATA is not set: no reference data")
    return Path(os.environ["SIGMAFF_DATA"])


@pytest.mark.parametrize("name", FILES)
def test_file_reads_and_is_sound(folder, name):
    data = read_structures(folder / name)
    assert len(data) == FILES[name] or FILES[name] is None
    some = data.subset(range(0, len(data), max(len(data) // 500, 1)))
    assert [found for found in check_structures(some) if found.severity == "error"] == []
    statistics = compute_statistics(GraphDataset(some.subset(range(0, len(some), 10)), 4.0))
    assert 0.1 < statistics.scale < 10  # eV/Å: what molecules and solids at room temperature have


def test_original_labels_are_those_of_md17(folder):
    original = read_structures(DataSource(path=folder / "rmd17/rmd17_ethanol.npz", format="rmd17_original"))
    md17 = read_structures(folder / "md17/md17_ethanol.npz")
    np.testing.assert_array_equal(original.energy, md17.energy)
    np.testing.assert_array_equal(np.stack(original.forces), np.stack(md17.forces))


def test_official_split_has_no_leak(folder):
    data = read_structures(folder / "rmd17/rmd17_ethanol.npz")
    for fold in range(5):
        split = split_structures(SplitConfig(kind="official", n_train=950, n_validation=50, fold=fold), data)
        assert len(find_overlap(data.subset(split.train), data.subset(split.test))) == 0


def test_force_sign_is_found_in_a_real_trajectory(folder):
    data = read_structures(folder / "rmd17/rmd17_ethanol.npz").subset(range(1000))
    flipped = type(data)(
        structures=data.structures,
        energy=data.energy,
        forces=tuple(-forces for forces in data.forces),
        source=data.source,
        frame_index=data.frame_index,
    )
    assert "force_sign" in {found.code for found in check_structures(flipped)}


@pytest.mark.parametrize("name", ["mlearn/Si_test", "mlearn/Li_training", "water/deepmd_water_192"])
def test_wrong_forces_are_found_in_periodic_frames_without_an_order(folder, name):
    data = read_structures(folder / f"{name}.extxyz")
    for code, change in {"force_sign": np.negative, "force_order": lambda forces: np.roll(forces, 1, axis=0)}.items():
        faulty = replace(data, forces=tuple(change(forces) for forces in data.forces))
        assert [found.code for found in check_forces_against_energies(faulty)] == [code]
    assert list(check_forces_against_energies(data)) == []


def test_isolated_atoms_of_solvents(folder):
    data = read_structures(folder / "solvents_xtb/solvent_xtb_train_50.extxyz")
    single = {int(a.numbers[0]): e for a, e in zip(data.structures, data.energy, strict=True) if len(a) == 1}
    assert reference_energies(data, "isolated_atoms") == single
