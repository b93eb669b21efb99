"""Errors and σ of each group of structures: a mean over all hides the group that a model fails on."""

from typing import Any

import numpy as np

from sigmaff.evaluation import metrics
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.summary import Summary, std_measures, summarize

MEASURES = ("coverage_68", "coverage_95", "rms_z")


def group_summaries(evaluation: Evaluation) -> dict[str, Summary]:
    """Errors, coverage and rms error over σ of each group, largest group first; empty if structures name none."""
    if evaluation.groups is None:
        return {}
    names, member, counts = np.unique(evaluation.groups, return_inverse=True, return_counts=True)
    order = sorted(range(len(names)), key=lambda number: (-counts[number], names[number]))
    return {str(names[number]): _summary(evaluation, np.flatnonzero(member == number)) for number in order}


def full_summary(evaluation: Evaluation, ood: Evaluation | None = None) -> dict[str, Any]:
    """``summarize`` and, if structures name groups, ``groups``: those of each group."""
    groups = group_summaries(evaluation)
    return {**summarize(evaluation, ood), **({"groups": groups} if groups else {})}


def _summary(evaluation: Evaluation, structures: np.ndarray) -> Summary:
    atoms = np.isin(evaluation.structure_index, structures)
    energy, forces, per_atom = (
        evaluation.energy_error,
        evaluation.forces_error,
        evaluation.per_atom(evaluation.energy_error),
    )
    parts = {
        name: sample.part(chosen)
        for name, sample in evaluation.samples.items()
        if (chosen := np.flatnonzero(np.isin(sample.structure, structures))).size
    }
    return {
        "n_structures": len(structures),
        "energy_mae": None if energy is None else metrics.mae(energy[structures]),
        "energy_rmse": None if energy is None else metrics.rmse(energy[structures]),
        "energy_mae_per_atom": None if per_atom is None else metrics.mae(per_atom[structures]),
        "forces_mae": None if forces is None else metrics.mae(forces[atoms]),
        "forces_rmse": None if forces is None else metrics.rmse(forces[atoms]),
        **{key: value for key, value in std_measures(parts, *MEASURES).items() if not key.startswith("stress")},
    }
