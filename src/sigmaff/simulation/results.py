"""Results under ASE's names, and in the structure itself, where files keep them.

ASE's writers save energy, forces and stress of a calculator and drop all that they do not know, such as σ. They do
save ``atoms.info`` (extxyz and traj) and ``atoms.arrays`` (extxyz alone).

``sigmaff_energy`` in ``atoms.info`` tells a prediction under ASE's names from a label (``sigmaff.data.predicted``).
"""

from collections.abc import Mapping
from dataclasses import fields
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
from sigmaff.models.prediction import Prediction, is_undetermined

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


def finite_results(prediction: Prediction, atoms: Atoms) -> dict[str, Any]:
    """The prediction of one structure under ASE's names; values that are not estimated are missing."""
    has_cell = atoms.pbc.any() and atoms.cell.rank == 3
    per = {item.name: item.metadata.get("per") for item in fields(prediction)}
    results: dict[str, Any] = {}
    for field, name in ASE_NAMES.items():
        tensor, is_stress = getattr(prediction, field), field.startswith("stress")
        if tensor is None or (is_stress and not has_cell):
            continue
        value = (tensor[0] if per[field] == "structure" else tensor).detach().cpu().numpy().astype(np.float64)
        value = full_3x3_to_voigt_6_stress(value) if is_stress else value
        _require_finite(name, value, atoms)
        if field != "composition_std" or value > OPEN:  # a part of energy σ, which most structures do not have
            results[name] = value if value.ndim else value.item()
    calibrated = [f"{quantity}_uncertainty" for quantity in prediction.provenance.calibrated]
    if any(name.endswith("_uncertainty") for name in results):
        results[CALIBRATED] = " ".join(name for name in calibrated if name in results) or "none"
    if is_undetermined(prediction):
        results[UNDETERMINED] = True
    return results | {"free_energy": results["energy"]}


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


def _require_finite(name: str, value: npt.NDArray[np.float64], atoms: Atoms) -> None:
    finite = np.isfinite(value)
    if finite.all():
        return
    per_atom = finite.ndim > 0 and not name.startswith(("stress", "energy"))
    where = f" of atom {np.argwhere(~finite)[0, 0]}" if per_atom else ""
    raise DataError(
        f"the model's {name}{where} in {atoms.symbols} is not a finite number; the structure is probably far from "
        "all that the model was trained on: look at its shortest distances"
    )
