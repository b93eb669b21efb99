"""Statistics of training data for a model: elements, reference energies, energy scale, number of neighbours."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy
from ase.data import atomic_numbers as number_of_symbol

from sigmaff.data.dataset import GraphDataset
from sigmaff.data.distances import Shortest, shortest_distances
from sigmaff.data.electrons import NOT_STATED, ElectronicState, common_state
from sigmaff.data.elements import symbols
from sigmaff.data.free_atoms import FREE_ATOM_METHODS, FreeAtomMethod, free_atoms, named_method
from sigmaff.data.structures import FloatArray, LabelledStructures
from sigmaff.errors import ConfigError, DataError

ReferenceEnergies = Literal["least_squares", "isolated_atoms"] | FreeAtomMethod | dict[str, float] | dict[int, float]
"""Energy of each element: fitted; from single atoms marked IsolatedAtom; free atoms of a named method, where the fit
leaves them open; or given in eV by symbol or number."""
ReferenceSource = Literal["least_squares", "isolated_atoms", "given"] | FreeAtomMethod
SOURCES: dict[ReferenceSource, str] = {
    "least_squares": "a fit",
    "isolated_atoms": "isolated atoms in the data",
    "given": "the reference energies that were given",
    **{method: f"free atoms of {method}" for method in FREE_ATOM_METHODS},
}
BoolArray = npt.NDArray[np.bool_]

STRONGEST_BINDING = 12.0
"""eV per atom. No atoms are bound more strongly: tungsten has 8.9. Energies farther from references have others."""
OFF = 1e-6
"""Atoms; a composition that is farther than this off those of the training set is another one."""


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

    reference_source: ReferenceSource | None = None
    """Where reference energies come from along these directions. ``None``: not recorded, taken as fitted."""
    electrons: ElectronicState = NOT_STATED
    """Total charge and spin of all training structures, as far as they state them."""

    @property
    def has_references(self) -> bool:
        """Whether the reference energies say something of compositions that the training set does not determine."""
        is_fitted = self.reference_source in (None, "least_squares")
        return not is_fitted and (self.reference_std or 0.0) <= STRONGEST_BINDING

    @property
    def compositions(self) -> str:
        """What the training set says about energies of other compositions, for people."""
        if self.reference_std is None:
            return "not known: no energies, or a model of an earlier version"
        if not self.open_compositions:
            return "the training set determines the energy of each element"
        is_open = np.abs(np.array(self.open_compositions)).max(0) > OFF
        open_elements = [number for number, it_is in zip(self.elements, is_open, strict=True) if it_is]
        closed = [number for number in self.elements if number not in open_elements]
        n_left = len(self.elements) - len(self.open_compositions)
        held = "one composition, or multiples of it" if n_left == 1 else f"{n_left} independent compositions"
        only = f", only those of {symbols(closed)}" if closed else ""
        source = None if self.reference_source is None or not self.has_references else SOURCES[self.reference_source]
        others = "are not determined, and have" if source is None else f"rest on {source}, and have"
        return (
            f"the training set holds {held}: it does not determine the energies of {symbols(open_elements)}{only}. "
            f"Energies of other compositions {others} a σ of about {self.reference_std:.3g} eV for each atom by which "
            "they differ. Forces do not depend on this"
        )

    def composition_std(self, counts: FloatArray) -> FloatArray:
        """σ of energies due to reference energies that no training structure determines, eV, (n_structures,).

        Arguments:
            counts: number of atoms by atomic number, (n_structures, n_numbers).
        """
        unseen = np.delete(counts, np.array(self.elements, dtype=np.int64), axis=1)
        return (self.reference_std or 0.0) * np.sqrt(np.square(self._off(counts)) + np.square(unseen).sum(1))

    def is_undetermined(self, counts: FloatArray) -> BoolArray:
        """Whether nothing says which constant to add to the energies of a composition, (n_structures,).

        Arguments:
            counts: as of ``composition_std``.
        """
        return (self._off(counts) > OFF) & (not self.has_references)

    def _off(self, counts: FloatArray) -> FloatArray:
        """Distance of compositions from those of the training set, in atoms."""
        known = np.array(self.elements, dtype=np.int64)
        directions = np.array(self.open_compositions).reshape(-1, known.size)
        distance: FloatArray = np.linalg.norm(counts[:, known] @ directions.T, axis=1)
        return distance


def undetermined_energies(formulas: Iterable[str]) -> str:
    """What users must know about energies of such compositions, for warnings."""
    names = list(dict.fromkeys(formulas))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} other compositions" if len(names) > 3 else "")
    return (
        f"the training set does not determine energies of {shown}: they may be wrong by a large constant. Forces, and "
        "differences of energies of one composition, do not depend on it. To determine them, train with this "
        "composition, or set data.reference_energies"
    )


def remedy(structures: LabelledStructures, key: str) -> str:
    """How to get reference energies that a training set does not determine. key: of them in the configuration."""
    if (method := named_method(structures)) is not None:
        return f"set {key} to {method}, the method that these structures name"
    if structures.energy is not None and set(structures.elements) <= _isolated_atoms(structures).keys():
        return f"set {key} to isolated_atoms: the file holds them"
    return (
        f"add structures of other compositions, or set {key}: {' or '.join(FREE_ATOM_METHODS)} if "
        "that is the method of the labels, else energies of free atoms in eV by symbol"
    )


def compute_statistics(
    dataset: GraphDataset,
    reference: ReferenceEnergies = "least_squares",
    *,
    atoms_in: LabelledStructures | None = None,
) -> DatasetStatistics:
    """Compute the statistics of a training set.

    Arguments:
        dataset: training structures, eV and Å.
        reference: how to obtain the energy of each element.
        atoms_in: structures with the isolated atoms, if these are not in the training set.
    """
    start, source = start_references(dataset.structures, reference, atoms_in)
    return statistics_from(dataset, start, source)


def statistics_from(dataset: GraphDataset, start: Mapping[int, float], source: ReferenceSource) -> DatasetStatistics:
    """As ``compute_statistics``, with what ``start_references`` returns."""
    structures = dataset.structures
    references = _references(structures, start, source)
    return DatasetStatistics(
        elements=structures.elements,
        reference_energies=references,
        scale=_scale(structures, references),
        mean_neighbors=dataset.mean_neighbors,
        n_structures=len(structures),
        open_compositions=open_compositions(structures),
        reference_std=_reference_std(structures, start, source),
        reference_source=source,
        electrons=common_state(structures),
        shortest_distances=shortest_distances(dataset),
    )


def open_compositions(structures: LabelledStructures) -> tuple[tuple[float, ...], ...]:
    """Directions in the space of compositions that the structures leave open, orthonormal: their null space.

    Isolated atoms do not count: they say nothing about atoms in bonds.
    """
    counts = composition(structures)
    bonded = counts[counts.sum(1) > 1]
    directions = scipy.linalg.null_space(np.unique(bonded if len(bonded) else counts, axis=0), rcond=1e-9)
    return tuple(tuple(direction) for direction in directions.T.tolist())


def _reference_std(structures: LabelledStructures, start: Mapping[int, float], source: ReferenceSource) -> float | None:
    if structures.energy is None:
        return None
    found = float(np.abs(energy_residual(structures, start)).mean())
    if source in FREE_ATOM_METHODS and found > STRONGEST_BINDING:
        raise DataError(
            f"{structures.source}: energies are {found:.3g} eV per atom from free atoms of {source}, more than "
            "bonds can be: they are of another method. Set data.reference_energies to least_squares, or to energies of "
            "free atoms of that method in eV by symbol"
        )
    return found


def reference_energies(structures: LabelledStructures, reference: ReferenceEnergies) -> dict[int, float]:
    """Energy of each element in the data, eV, by atomic number. A fit to data without energies gives zeros."""
    return _references(structures, *start_references(structures, reference))


def start_references(
    structures: LabelledStructures, reference: ReferenceEnergies, atoms_in: LabelledStructures | None = None
) -> tuple[dict[int, float], ReferenceSource]:
    """The energies of elements that a fit starts from, or that are given, eV by atomic number, and what they are."""
    if reference == "least_squares":
        return dict.fromkeys(structures.elements, 0.0), reference
    if reference in FREE_ATOM_METHODS:
        return free_atoms(reference, structures.elements), reference
    found = by_number(reference) if isinstance(reference, dict) else _isolated_atoms(atoms_in or structures)
    missing = [number for number in structures.elements if number not in found]
    if missing:
        where = "E0s" if isinstance(reference, dict) else "a structure of one atom marked config_type=IsolatedAtom"
        raise DataError(f"{structures.source}: no reference energy for {symbols(missing)}; give {where} for each")
    given = {number: found[number] for number in structures.elements}
    return given, "given" if isinstance(reference, dict) else "isolated_atoms"


def _references(
    structures: LabelledStructures, start: Mapping[int, float], source: ReferenceSource
) -> dict[int, float]:
    return dict(start) if source in ("isolated_atoms", "given") else _least_squares(structures, start)


def composition(structures: LabelledStructures) -> FloatArray:
    """Number of atoms of each element in ``structures.elements``, (n_structures, n_elements)."""
    elements = np.array(structures.elements)
    return np.array([(atoms.numbers[:, None] == elements).sum(0) for atoms in structures.structures], dtype=float)


def energy_residual(structures: LabelledStructures, references: Mapping[int, float]) -> FloatArray:
    """Energy minus that of its elements, per atom, (n_structures,) eV."""
    counts = composition(structures)
    expected = counts @ np.array([references[number] for number in structures.elements])
    return (structures.energy - expected) / counts.sum(1)


def _least_squares(structures: LabelledStructures, start: Mapping[int, float]) -> dict[int, float]:
    """Minimise ‖E − A x‖ with A the composition. Of all solutions take x = start + the same for each element + least.

    Solving for the deviation from the mean keeps the digits of large total energies. It also distributes what is left
    of the energy evenly over elements that the compositions cannot distinguish, as in a data set of one molecule.
    """
    if structures.energy is None:
        return dict(start)
    counts, first = composition(structures), np.array([start[number] for number in structures.elements])
    n_atoms, energy = counts.sum(1), structures.energy - counts @ first
    mean = energy.sum() / n_atoms.sum()
    deviation = np.linalg.lstsq(counts, energy - n_atoms * mean, rcond=None)[0]
    return dict(zip(structures.elements, (first + (mean + deviation)).tolist(), strict=True))


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
