"""One number for each structure that says how new it is: from σ of its energy, or from σ of its atoms.

A shift of all atoms (a higher temperature) and a local event (one broken bond) call for different numbers. The mean of
logarithms sees a small change of every atom and hardly a large one of a single atom; the largest value sees that one.
All are intensive: a larger structure of the same kind has no larger score, but for the largest of more atoms, and for
the energy σ of the whole and the trace of the force covariance, which papers use.
"""

from collections.abc import Callable

import numpy as np

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import FloatArray

Score = Callable[[Evaluation], FloatArray | None]


def energy_std_per_atom(evaluation: Evaluation) -> FloatArray | None:
    """Raw energy σ over the number of atoms, eV, (n_structures,)."""
    return evaluation.per_atom(evaluation.energy_std_raw)


def energy_std_total(evaluation: Evaluation) -> FloatArray | None:
    """Raw energy σ, eV, (n_structures,): not intensive."""
    return evaluation.energy_std_raw


def largest_atom_energy_std(evaluation: Evaluation) -> FloatArray | None:
    """Largest ``node_energy_std`` of an atom, eV, (n_structures,)."""
    std = evaluation.node_energy_std
    return None if std is None else largest_of_atoms(evaluation, std)


def forces_std_rms(evaluation: Evaluation) -> FloatArray | None:
    """Root mean square of force σ, eV/Å, (n_structures,)."""
    return evaluation.structure_rms(evaluation.forces_std)


def forces_variance_trace(evaluation: Evaluation) -> FloatArray | None:
    """Trace of the force covariance, Σ σ² over atoms and components, (eV/Å)², (n_structures,): not intensive.

    Of the raw σ, so without the growth of a calibration.
    """
    rms = evaluation.structure_rms(evaluation.forces_std_raw)
    return None if rms is None else rms * rms * (3.0 * evaluation.atoms_per_structure)


def forces_std_geometric_mean(evaluation: Evaluation) -> FloatArray | None:
    """Geometric mean over atoms of the norm of force σ, eV/Å, (n_structures,).

    Atoms with σ = 0 are left out: their force vanishes by symmetry, which says nothing of the others. 0 if all have it.
    """
    std = evaluation.forces_std
    if std is None:
        return None
    sizes = np.linalg.norm(std, axis=1)
    counted, structure = sizes > 0, evaluation.structure_index
    n = np.bincount(structure[counted], minlength=evaluation.n_structures)
    logs = np.bincount(structure[counted], np.log(sizes[counted]), minlength=evaluation.n_structures)
    return np.where(n > 0, np.exp(logs / np.maximum(n, 1)), 0.0)


def largest_atom_forces_std(evaluation: Evaluation) -> FloatArray | None:
    """Largest norm of force σ of an atom, eV/Å, (n_structures,)."""
    std = evaluation.forces_std
    return None if std is None else largest_of_atoms(evaluation, np.linalg.norm(std, axis=1))


def largest_of_atoms(evaluation: Evaluation, values: FloatArray) -> FloatArray:
    """The largest value of an atom of each structure: (n_atoms,) -> (n_structures,)."""
    first = np.flatnonzero(np.diff(evaluation.structure_index, prepend=-1))
    return np.maximum.reduceat(values, first)


SCORES: dict[str, Score] = {
    "energy_auroc": energy_std_per_atom,
    "energy_auroc_total": energy_std_total,
    "energy_auroc_largest_atom": largest_atom_energy_std,
    "forces_auroc": forces_std_rms,
    "forces_auroc_trace": forces_variance_trace,
    "forces_auroc_geometric_mean": forces_std_geometric_mean,
    "forces_auroc_largest_atom": largest_atom_forces_std,
}
"""By the key that their AUROC has in a summary."""
