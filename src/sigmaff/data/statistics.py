"""Statistics of training data for a model: elements, reference energies, energy scale, number of neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ase.data import atomic_numbers as number_of_symbol
from ase.data import chemical_symbols
from scipy.linalg import null_space

from sigmaff.data.dataset import GraphDataset
from sigmaff.data.distances import Shortest, shortest_distances
from sigmaff.data.structures import FloatArray, LabelledStructures
from sigmaff.errors import ConfigError, DataError

ReferenceEnergies = Literal["least_squares", "isolated_atoms"] | dict[str, float] | dict[int, float]
"""Energy of each element: fitted, from single atoms marked IsolatedAtom, or given in eV by symbol or number."""


@dataclass(frozen=True, kw_only=True)
class DatasetStatistics:
    """Constants of a model that come from its training data. Its energy is Σ reference + scale · output."""

    elements: tuple[int, ...]  # atomic numbers, sorted
    reference_energies: dict[int, float]  # eV
    scale: float  # eV: larger of rms force component · 1 Å and std of energy per atom minus references
    mean_neighbors: float
    n_structures: int
    open_compositions: tuple[tuple[float, ...], ...] = ()
    """Orthonormal directions in the space of compositions, (n, n_elements), that the training set does not determine:
    its energies are the same for all reference energies along them."""
    reference_std: float | None = None
    """eV; σ of the reference energies along these directions, and of elements that are not in the training set. It is
    the energy per atom that had to be shared out among the elements without evidence: above given references, or all of
    it where references are fitted. ``None``: not known (a model of an earlier version, or no energies)."""
    shortest_distances: Shortest | None = None
    """Of pairs of elements in the training set, (z, z', Å) with z ≤ z'. ``None``: not known (an earlier version)."""

    @property
    def compositions(self) -> str:
        """What the training set says about energies of other compositions, for people."""
        if self.reference_std is None:
            return "not known: no energies, or a model of an earlier version"
        if not self.open_compositions:
            return "the training set determines the energy of each element"
        n_elements = len(self.elements)
        return (
            f"the training set determines {n_elements - len(self.open_compositions)} of {n_elements} reference "
            f"energies. Energies of other compositions get a σ of about {self.reference_std:.3g} eV for each atom by "
            "which they differ: the energy per atom, which had to be shared out among the elements"
        )

    def composition_std(self, counts: FloatArray) -> FloatArray:
        """σ of energies due to reference energies that no training structure determines, eV, (n_structures,).

        Arguments:
            counts: number of atoms by atomic number, (n_structures, n_numbers).
        """
        known = np.array(self.elements, dtype=np.int64)
        unseen = np.delete(counts, known, axis=1)
        directions = np.array(self.open_compositions).reshape(-1, known.size)
        across = counts[:, known] @ directions.T
        return (self.reference_std or 0.0) * np.sqrt(np.square(across).sum(1) + np.square(unseen).sum(1))


def compute_statistics(dataset: GraphDataset, reference: ReferenceEnergies = "least_squares") -> DatasetStatistics:
    """Compute the statistics of a training set.

    Arguments:
        dataset: training structures, eV and Å.
        reference: how to obtain the energy of each element.
    """
    structures = dataset.structures
    references = reference_energies(structures, reference)
    return DatasetStatistics(
        elements=structures.elements,
        reference_energies=references,
        scale=_scale(structures, references),
        mean_neighbors=dataset.mean_neighbors,
        n_structures=len(structures),
        open_compositions=open_compositions(structures),
        reference_std=_reference_std(structures, None if reference == "least_squares" else references),
        shortest_distances=shortest_distances(dataset),
    )


def open_compositions(structures: LabelledStructures) -> tuple[tuple[float, ...], ...]:
    """Directions in the space of compositions that the structures leave open, orthonormal: their null space.

    Isolated atoms do not count: they say nothing about atoms in bonds.
    """
    counts = composition(structures)
    bonded = counts[counts.sum(1) > 1]
    directions = null_space(np.unique(bonded if len(bonded) else counts, axis=0), rcond=1e-9)
    return tuple(tuple(direction) for direction in directions.T.tolist())


def _reference_std(structures: LabelledStructures, given: Mapping[int, float] | None) -> float | None:
    if structures.energy is None:
        return None
    return float(np.abs(energy_residual(structures, given or dict.fromkeys(structures.elements, 0.0))).mean())


def reference_energies(structures: LabelledStructures, reference: ReferenceEnergies) -> dict[int, float]:
    """Energy of each element in the data, eV, by atomic number. A fit to data without energies gives zeros."""
    if reference == "least_squares":
        return _least_squares(structures)
    given = _isolated_atoms(structures) if reference == "isolated_atoms" else by_number(reference)
    missing = [chemical_symbols[number] for number in structures.elements if number not in given]
    if missing:
        where = "a structure of one atom marked config_type=IsolatedAtom" if reference == "isolated_atoms" else "E0s"
        raise DataError(f"{structures.source}: no reference energy for {', '.join(missing)}; give {where} for each")
    return {number: given[number] for number in structures.elements}


def composition(structures: LabelledStructures) -> FloatArray:
    """Number of atoms of each element in ``structures.elements``, (n_structures, n_elements)."""
    elements = np.array(structures.elements)
    return np.array([(atoms.numbers[:, None] == elements).sum(0) for atoms in structures.structures], dtype=float)


def energy_residual(structures: LabelledStructures, references: Mapping[int, float]) -> FloatArray:
    """Energy minus that of its elements, per atom, (n_structures,) eV."""
    counts = composition(structures)
    expected = counts @ np.array([references[number] for number in structures.elements])
    return (structures.energy - expected) / counts.sum(1)


def _least_squares(structures: LabelledStructures) -> dict[int, float]:
    """Minimise ‖E − A x‖ with A the composition; of all solutions take the nearest to the mean energy per atom.

    Solving for the deviation from the mean keeps the digits of large total energies. It also distributes the energy
    evenly over elements that the compositions cannot distinguish, as in a data set of one molecule.
    """
    if structures.energy is None:
        return dict.fromkeys(structures.elements, 0.0)
    counts = composition(structures)
    n_atoms = counts.sum(1)
    mean = structures.energy.sum() / n_atoms.sum()
    deviation = np.linalg.lstsq(counts, structures.energy - n_atoms * mean, rcond=None)[0]
    return dict(zip(structures.elements, (mean + deviation).tolist(), strict=True))


def _isolated_atoms(structures: LabelledStructures) -> dict[int, float]:
    if structures.energy is None:
        raise DataError(f"{structures.source}: reference energies from isolated atoms need energy labels")
    return {
        int(atoms.numbers[0]): float(energy)
        for atoms, energy in zip(structures.structures, structures.energy, strict=True)
        if len(atoms) == 1 and "IsolatedAtom" in {value for value in atoms.info.values() if isinstance(value, str)}
    }


def by_number(given: dict[str, float] | dict[int, float]) -> dict[int, float]:
    """With atomic numbers as keys. The given ones are symbols, numbers, or (from JSON) numbers as text."""
    energies = {}
    for element, energy in given.items():
        name = str(element)
        if not name.isdigit() and name not in number_of_symbol:
            raise ConfigError(f"reference energy for {element!r}, which is not an element")
        energies[int(name) if name.isdigit() else number_of_symbol[name]] = float(energy)
    return energies


def _scale(structures: LabelledStructures, references: Mapping[int, float]) -> float:
    """Energy scale in eV; 1 if the data has no spread."""
    spreads = [0.0]
    if structures.forces is not None:
        spreads.append(float(np.sqrt(np.mean(np.concatenate(structures.forces) ** 2))))
    if structures.energy is not None:
        spreads.append(float(np.std(energy_residual(structures, references))))
    return scale if (scale := max(spreads)) > 1e-9 else 1.0
