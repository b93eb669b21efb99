"""Results under ASE's names, and in the structure itself, where files keep them.

ASE's writers save energy, forces and stress of a calculator and drop all that they do not know, such as σ. They do
save ``atoms.info`` (extxyz and traj) and ``atoms.arrays`` (extxyz alone).

``sigmaff_energy`` in ``atoms.info`` tells a prediction under ASE's names from a label (``sigmaff.data.predicted``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.stress import full_3x3_to_voigt_6_stress

from sigmaff.data import predicted
from sigmaff.data.structures import LABELS
from sigmaff.errors import DataError
from sigmaff.evaluation.evaluate import OPEN
from sigmaff.models.prediction import FloatArray, Prediction

Results = Mapping[str, Any]
"""Numbers and arrays by ASE's names, which σ are calibrated, and whether the energy is undetermined."""
PerAtom = Literal["arrays", "info"]
ASE_NAMES = {
    "energy": "energy",
    "forces": "forces",
    "node_energy": "energies",
    "stress": "stress",
    "stress_std": "stress_uncertainty",
    "energy_std": "energy_uncertainty",
    "composition_std": "composition_uncertainty",
    "node_energy_std": "energies_uncertainty",
    "forces_std": "forces_uncertainty",
    "energy_members": "energy_ensemble",
    "forces_members": "forces_ensemble",
}
"""Fields of a prediction, and their names in the results of a calculator."""
_PER_ATOM = {
    ASE_NAMES[item.name] for item in fields(Prediction) if item.metadata.get("per") == "atom" and item.name in ASE_NAMES
}
CALIBRATED = "calibrated_uncertainties"
"""Beside σ: the names of those that are calibrated, or "none". All other σ are raw."""
UNDETERMINED = "energy_undetermined"
"""True where the training set does not determine energies of this composition; missing elsewhere."""
PER_STRUCTURE_KEYS = (
    "energy_uncertainty",
    "composition_uncertainty",
    UNDETERMINED,
    "stress_uncertainty",
    CALIBRATED,
    "energy_ensemble",
)
PER_ATOM_KEYS = ("energies_uncertainty", "forces_uncertainty")
"""What is stored in a structure; the forces of all members are in a calculator's results alone."""
OWN_KEYS = {"energy": predicted.ENERGY, "stress": predicted.STRESS, "forces": predicted.FORCES}
"""Predictions that can stand beside labels, and their names."""


def bare_copy(atoms: Atoms) -> Atoms:
    """A copy of elements, positions and cell alone."""
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


@dataclass(frozen=True, kw_only=True)
class BatchResults:
    """Predictions of a batch as arrays under ASE's names; values that are not estimated are missing."""

    values: dict[str, FloatArray]  # (n_structures, ...), or (n_atoms, ...) for those in ``_PER_ATOM``
    first_atom: npt.NDArray[np.int64]  # (n_structures + 1,) of each structure, and the number of all atoms
    has_cell: npt.NDArray[np.bool_]  # (n_structures,) others have no stress
    calibrated: tuple[str, ...]  # names of σ
    undetermined: npt.NDArray[np.bool_] | None  # (n_structures,)

    @classmethod
    def of(
        cls, prediction: Prediction, first_atom: npt.NDArray[np.int64], has_cell: npt.NDArray[np.bool_]
    ) -> "BatchResults":
        values = {}
        for field, name in ASE_NAMES.items():
            tensor, is_stress = getattr(prediction, field), name.startswith("stress")
            if tensor is not None and (not is_stress or has_cell.any()):
                value = tensor.detach().cpu().numpy().astype(np.float64)
                values[name] = _voigt(value) if is_stress else value
        undetermined = prediction.undetermined
        return cls(
            values=values,
            first_atom=first_atom,
            has_cell=has_cell,
            calibrated=tuple(f"{quantity}_uncertainty" for quantity in prediction.provenance.calibrated),
            undetermined=None if undetermined is None else undetermined.cpu().numpy(),
        )

    def part(self, index: int) -> dict[str, Any]:
        """Results of one structure, as its calculator would have them."""
        atoms = slice(self.first_atom[index], self.first_atom[index + 1])
        results: dict[str, Any] = {}
        for name, values in self.values.items():
            if name.startswith("stress") and not self.has_cell[index]:
                continue
            value = values[atoms] if name in _PER_ATOM else values[index]
            if name != "composition_uncertainty" or not value <= OPEN:  # most structures have none
                results[name] = value if value.ndim else value.item()
        if any(name.endswith("_uncertainty") for name in results):
            results[CALIBRATED] = " ".join(name for name in self.calibrated if name in results) or "none"
        if self.undetermined is not None and self.undetermined[index]:
            results[UNDETERMINED] = True
        return results | {"free_energy": results["energy"]}

    def not_finite(self) -> npt.NDArray[np.int64]:
        """Structures with a value that is not a finite number."""
        found = np.zeros(len(self.has_cell), dtype=bool)
        for name, values in self.values.items():
            finite = np.isfinite(values)
            if not finite.all():
                lost = ~finite.reshape(len(values), -1).all(1)
                owner = np.searchsorted(self.first_atom, np.flatnonzero(lost), side="right") - 1
                rows = owner if name in _PER_ATOM else np.flatnonzero(lost)
                found[rows[self.has_cell[rows]] if name.startswith("stress") else rows] = True
        return np.flatnonzero(found)


def finite_results(prediction: Prediction, atoms: Atoms) -> dict[str, Any]:
    """The prediction of one structure under ASE's names; values that are not estimated are missing."""
    has_cell = np.array([atoms.pbc.any() and atoms.cell.rank == 3])
    batch = BatchResults.of(prediction, np.array([0, len(atoms)]), has_cell)
    results = batch.part(0)
    if len(batch.not_finite()):
        raise DataError(not_finite_message(results, str(atoms.symbols)))
    return results


def not_finite_message(results: Results, symbols: str) -> str:
    """Which value of a structure is not a finite number."""
    name = next(name for name in ASE_NAMES.values() if name in results and not np.isfinite(results[name]).all())
    value = np.asarray(results[name])
    where = f" of atom {np.argwhere(~np.isfinite(value))[0, 0]}" if name in _PER_ATOM else ""
    return (
        f"the model's {name}{where} in {symbols} is not a finite number; the structure is probably far from all that "
        "the model was trained on: look at its shortest distances"
    )


def store_results(atoms: Atoms, *, per_atom: PerAtom = "arrays") -> None:
    """Copy the σ of the structure as it is now into ``atoms.info`` and, where per atom, ``atoms.arrays``.

    Energy, forces and stress stay in the attached calculator, from which ASE's writers take them, brought up to date.
    σ stored earlier is replaced, or removed where there is none any more. ``per_atom="info"`` puts σ per atom into
    ``atoms.info`` instead, for .traj files, which drop ``atoms.arrays``.
    """
    atoms.get_potential_energy()
    _store(atoms, atoms.calc.results, per_atom)


def snapshot(atoms: Atoms, *, per_atom: PerAtom = "arrays") -> Atoms:
    """A copy that keeps its results when ``atoms`` or its calculator change: a frame to collect or write."""
    atoms.get_potential_energy()
    return with_results(atoms, atoms.calc.results, per_atom=per_atom)


def with_results(atoms: Atoms, results: Results, *, per_atom: PerAtom = "arrays") -> Atoms:
    """A copy with energy, forces and stress in a ``SinglePointCalculator``, and σ where ``store_results`` puts it."""
    frame = atoms.copy()
    known = {name: results[name] for name in all_properties if name in results}
    frame.calc = SinglePointCalculator(frame, **known)
    _store(frame, results, per_atom)
    return frame


def beside_labels(atoms: Atoms, results: Results, labels: Results, *, per_atom: PerAtom = "arrays") -> Atoms:
    """As ``with_results``, and with the predictions under names of their own; labels stay as they are.

    Arguments:
        labels: energy, forces and stress that the structure has. If there are any, also as ``REF_energy`` or
            ``REF_forces``, ASE's names are left to them.
    """
    frame = with_results(atoms, results, per_atom=per_atom)
    own = {key: np.array(results[name])[()] for name, key in OWN_KEYS.items() if name in results}
    forces = {key: own.pop(key) for key in (predicted.FORCES,) if key in own}
    frame.info.update(own)
    {"arrays": frame.arrays, "info": frame.info}[per_atom].update(forces)
    if labels or any(f"REF_{name}" in (atoms.info | atoms.arrays) for name in LABELS):
        known = {name: value if name != "stress" else _voigt(value) for name, value in labels.items()}
        frame.calc = SinglePointCalculator(frame, **known) if known else None
    return frame


def _voigt(stress: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(full_3x3_to_voigt_6_stress(stress))


def _store(atoms: Atoms, results: Results, per_atom: PerAtom) -> None:
    for key in (*PER_STRUCTURE_KEYS, *PER_ATOM_KEYS, *OWN_KEYS.values()):
        atoms.info.pop(key, None)
        atoms.arrays.pop(key, None)
    holder = {"arrays": atoms.arrays, "info": atoms.info}[per_atom]
    atoms.info.update({key: np.array(results[key])[()] for key in PER_STRUCTURE_KEYS if key in results})
    atoms.info.update({predicted.ENERGY: results["energy"]} if "energy" in results else {})
    holder.update({key: np.array(results[key]) for key in PER_ATOM_KEYS if key in results})
