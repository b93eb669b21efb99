"""Conformers from SMILES, by RDKit."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.data import covalent_radii

from sigmaff.errors import DataError
from sigmaff.units import KCAL_PER_MOL

if TYPE_CHECKING:
    from rdkit.Chem import Mol

EMBEDDED_PER_WANTED = 6
"""Conformers to try for each wanted one: most relax to the same few minima."""

BONDED = 1.25
"""Atoms closer than this times the sum of their covalent radii are bonded."""

SAME_ENERGY, SAME_DISTANCES = 2e-3, 0.05
"""eV and Å: conformers closer than both are equal."""


def parse(smiles: str) -> "Mol":
    """Return the molecule with its hydrogen atoms."""
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() == 0:
        raise DataError("it is not the SMILES of a molecule")
    return Chem.AddHs(molecule)


def embed(molecule: "Mol", n: int, seed: int) -> list[Atoms]:
    """Return up to n different conformers, the lowest of a molecular-mechanics force field, from low to high.

    All stereoisomers are allowed if the SMILES does not specify one.
    """
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers
    from rdkit.rdBase import BlockLogs

    n_tried = EMBEDDED_PER_WANTED * n
    with BlockLogs():
        rdDistGeom.EmbedMultipleConfs(molecule, n_tried, randomSeed=seed, useSmallRingTorsions=True, ETversion=2)
        if molecule.GetNumConformers() == 0:
            raise DataError("RDKit found no place for its atoms")
        relaxed = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(molecule, maxIters=1000)
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    found = [Atoms(numbers, conformer.GetPositions()) for conformer in molecule.GetConformers()]
    energies = np.array([energy for _, energy in relaxed]) * KCAL_PER_MOL
    return [found[index] for index in distinct(found, energies)[:n]]


def distinct(structures: list[Atoms], energies: npt.NDArray[np.float64]) -> list[int]:
    """Return indices of distinct structures, from low to high energy; mirror images are equal."""
    kept: list[int] = []
    prints = [_sorted_distances(atoms) for atoms in structures]
    for index in np.argsort(energies, kind="stable"):
        if not any(_alike(prints, energies, index, other) for other in kept):
            kept.append(int(index))
    return kept


def has_bonds_of(atoms: Atoms, molecule: "Mol") -> bool:
    """Return whether the structure has exactly the bonds of the molecule."""
    from rdkit import Chem

    radii = covalent_radii[atoms.numbers]
    bonded = atoms.get_all_distances() < BONDED * (radii[:, None] + radii)
    np.fill_diagonal(bonded, False)
    return bool((bonded == Chem.GetAdjacencyMatrix(molecule).astype(bool)).all())


def _alike(prints: list[npt.NDArray[np.float64]], energies: npt.NDArray[np.float64], one: int, other: int) -> bool:
    deviation = np.sqrt(np.mean((prints[one] - prints[other]) ** 2)) if len(prints[one]) else 0.0
    return bool(abs(energies[one] - energies[other]) < SAME_ENERGY and deviation < SAME_DISTANCES)


def _sorted_distances(atoms: Atoms) -> npt.NDArray[np.float64]:
    """Distances of all pairs, sorted by elements, then by length: independent of the order of equal atoms."""
    first, second = np.triu_indices(len(atoms), 1)
    elements = np.sort(atoms.numbers[np.stack([first, second])], axis=0)
    distances = atoms.get_all_distances()[first, second]
    return distances[np.lexsort((distances, elements[1], elements[0]))]
