"""Free atoms of GFN-xTB against published energies and dissociated molecules; what they add to a training set."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.units import Hartree

from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.data.free_atoms import FREE_ATOM_METHODS, FreeAtomMethod, free_atoms
from sigmaff.data.statistics import energy_residual, remedy
from sigmaff.errors import DataError

PUBLISHED = {1: -0.393482763936, 6: -1.793296371365, 7: -2.605824161279, 8: -3.767606950376, 9: -4.619339964238}
"""Hartree; of the program xtb, GFN2."""


def gfn(atoms: Atoms, method: FreeAtomMethod, multiplicity: int = 1) -> float:
    from tblite.ase import TBLite

    name = {"gfn2-xtb": "GFN2-xTB", "gfn1-xtb": "GFN1-xTB"}[method]
    atoms.calc = TBLite(method=name, multiplicity=multiplicity, verbosity=0)
    return float(atoms.get_potential_energy())


@pytest.fixture
def ethanol(xtb_structures: LabelledStructures) -> LabelledStructures:
    return xtb_structures.subset(range(0, 40, 2))


def test_they_are_those_of_xtb() -> None:
    found = free_atoms("gfn2-xtb", PUBLISHED)
    assert {number: energy / Hartree for number, energy in found.items()} == pytest.approx(PUBLISHED, abs=1e-6)


@pytest.mark.parametrize("method", FREE_ATOM_METHODS)
@pytest.mark.parametrize(("formula", "multiplicity"), [("H2", 3), ("N2", 7), ("O2", 5)])
def test_they_are_what_a_bond_breaks_into(method: FreeAtomMethod, formula: str, multiplicity: int) -> None:
    apart = Atoms(formula, positions=[[0, 0, 0], [0, 0, 60.0]])
    atoms = free_atoms(method, apart.numbers.tolist())
    assert gfn(apart, method, multiplicity) == pytest.approx(sum(atoms[z] for z in apart.numbers), abs=0.01)


def test_lanthanides_vary_smoothly() -> None:
    """As the parameters of the method do."""
    energies = list(free_atoms("gfn2-xtb", range(58, 72)).values())
    assert np.abs(np.diff(energies)).max() < 0.5


def test_they_decide_only_what_the_training_set_leaves_open(ethanol: LabelledStructures) -> None:
    """Energies less references, which a network learns, and their scale are those of least squares."""
    data = GraphDataset(ethanol, 4.0, torch.float64)
    fitted, free = compute_statistics(data), compute_statistics(data, "gfn2-xtb")
    residuals = [energy_residual(ethanol, found.reference_energies) for found in (fitted, free)]
    np.testing.assert_allclose(*residuals, atol=1e-10)
    assert free.scale == pytest.approx(fitted.scale, rel=1e-12)
    for name in ("CH4", "C2H6", "CH3COCH3", "H2O"):
        atoms = molecule(name)
        true = gfn(atoms, "gfn2-xtb")
        off, off_fitted = (
            abs(sum(found.reference_energies[z] for z in atoms.numbers) - true) / len(atoms) for found in (free, fitted)
        )
        assert off < 1.5, "eV per atom"
        assert off_fitted > 4 * off


def test_full_rank_leaves_nothing_to_them(ethanol: LabelledStructures, xtb_structures: LabelledStructures) -> None:
    methane = molecule("CH4")
    energies = np.array([*xtb_structures.energy[:2], gfn(methane, "gfn2-xtb")])
    structures = (*xtb_structures.structures[:2], methane.copy())
    three = replace(xtb_structures.subset(range(3)), structures=structures, energy=energies, forces=None)
    data = GraphDataset(three, 4.0, torch.float64)
    fitted, free = compute_statistics(data), compute_statistics(data, "gfn2-xtb")
    assert not free.open_compositions
    assert free.reference_energies == pytest.approx(fitted.reference_energies, abs=1e-8)


def test_labels_of_another_method_are_refused(ethanol: LabelledStructures) -> None:
    other = GraphDataset(replace(ethanol, energy=ethanol.energy - 4000.0), 4.0)
    with pytest.raises(DataError, match=r"xtb: energies are 4\d\d eV per atom from free atoms of gfn2-xtb"):
        compute_statistics(other, "gfn2-xtb")


def test_what_to_do_is_said(ethanol: LabelledStructures) -> None:
    assert "gfn2-xtb or gfn1-xtb if that is the method" in remedy(ethanol, "data.reference_energies")
    marked = [atoms.copy() for atoms in ethanol.structures]
    for atoms in marked:
        atoms.info["level"] = "GFN1-xTB, tblite 0.4"
    assert "to gfn1-xtb, the method that these structures name" in remedy(
        replace(ethanol, structures=tuple(marked)), "key"
    )
    free = [Atoms(symbol, info={"config_type": "IsolatedAtom"}) for symbol in "HCO"]
    held = replace(
        ethanol, structures=(*ethanol.structures, *free), energy=np.array([*ethanol.energy, -10.0, -48.0, -102.0])
    )
    assert "isolated_atoms" in remedy(held, "key")
