"""Total charge and spin in ``info``: the names and conventions that programs write, and one state for a model."""

from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from sigmaff.data import ElectronicState, common_state, label_structures, other_state, require_state
from sigmaff.data.electrons import stated_state
from sigmaff.errors import DataError


def water(**info: Any) -> Atoms:
    return molecule("H2O", info=info)


@pytest.mark.parametrize("key", ["charge", "total_charge", "Charge", "molecular_charge"])
@pytest.mark.parametrize("value", [-1, -1.0, "-1", np.array([-1.0])])
def test_charge_under_its_names(key: str, value: Any) -> None:
    assert stated_state(water(**{key: value})) == ElectronicState(charge=-1.0)


@pytest.mark.parametrize("value", ["neutral", np.zeros(3), np.nan, None])
def test_what_is_no_total_charge(value: Any) -> None:
    atoms = water(charge=value)
    atoms.set_initial_charges([0.4, 0.4, -0.7])
    assert stated_state(atoms) == ElectronicState()


@pytest.mark.parametrize(
    ("name", "info", "excess"),
    [
        ("H2O", {"multiplicity": 1}, 0),
        ("H2O", {"spin_multiplicity": 3}, 2),
        ("H2O", {"spin": 1}, 0),  # 2S + 1: two electrons cannot leave one unpaired
        ("H2O", {"spin": 0}, 0),  # 2S, or S
        ("H2O", {"spin": 2}, 2),  # 2S
        ("H2O", {"total_spin": 3}, 2),  # 2S + 1
        ("H2O", {"spin": 2, "charge": 1}, 0),  # an odd number of electrons: 2S + 1
        ("OH", {"spin": 0.5}, 0),  # S
        ("OH", {"spin": 1}, 0),  # 2S
        ("OH", {"spin": 2}, 0),  # 2S + 1
        ("OH", {"multiplicity": 4}, 2),
        ("O", {"multiplicity": 3}, None),  # a free atom has the spin it has
    ],
)
def test_spin_under_its_names_and_conventions(name: str, info: dict[str, Any], excess: int | None) -> None:
    assert stated_state(molecule(name, info=info)).excess_spin == excess


def test_one_state_of_all_is_kept() -> None:
    atom = Atoms("O", info={"charge": 0, "multiplicity": 3})
    ions = [water(charge=1, multiplicity=2), water(total_charge=1, mult=2), atom]
    assert common_state(label_structures(ions, ())) == ElectronicState(charge=1.0, excess_spin=0)
    radicals = [water(charge=0, multiplicity=1), molecule("OH", info={"multiplicity": 2}), water()]
    assert common_state(label_structures(radicals, ())) == ElectronicState(charge=0.0, excess_spin=0)
    assert common_state(label_structures([water(), water()], ())) == ElectronicState()


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([water(charge=0), water(), water(charge=1)], "frame 0 states total charge 0, frame 1 states nothing, frame 2"),
        ([water(), water(charge=1)], "frame 0 states nothing, frame 1 states total charge 1"),
        ([water(multiplicity=1), water(multiplicity=3)], "lowest spin, frame 1 states a spin of 2 more unpaired"),
    ],
)
def test_several_states_are_an_error_that_names_frames(frames: list[Atoms], told: str) -> None:
    with pytest.raises(DataError, match=f"{told}.*train on that file"):
        common_state(label_structures(frames, ()))


def test_another_state_is_refused_by_name() -> None:
    known = ElectronicState(charge=0.0, excess_spin=0)
    silent = label_structures([water(), water(charge=0, spin=1)], ())
    require_state(silent, known)
    require_state(label_structures([water(charge=2)], ()), ElectronicState())  # a model of an earlier version
    with pytest.raises(DataError, match="structures, frame 1: info states total charge 1, but the model is for total"):
        require_state(label_structures([water(), water(charge=1)], ()), known)
    assert "a spin of 2 more" in str(other_state(water(multiplicity=3), known))
