"""Evaluate a subject on labelled structures: our models in batches, other calculators one structure at a time."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sigmaff.audit.subject import Subject, ask
from sigmaff.data import LabelledStructures
from sigmaff.errors import DataError
from sigmaff.evaluation.datasets import foreign_dataset
from sigmaff.evaluation.evaluate import Evaluation, evaluate
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.models import Model
from sigmaff.progress import Listener


def evaluate_subject(
    subject: Subject, structures: LabelledStructures | None, *, batch_size: int, listener: Listener
) -> Evaluation | None:
    """Errors and σ, raw and with the calibrations of our models; ``None`` without structures."""
    if structures is None:
        return None
    if subject.model is None:
        return _one_by_one(subject, structures, listener)
    return evaluate_in_batches(subject.model, structures, batch_size=batch_size, listener=listener)


def evaluate_in_batches(
    model: Model, structures: LabelledStructures, *, batch_size: int, listener: Listener
) -> Evaluation:
    """Errors are undefined if there are elements that the model does not know."""
    dataset, name = foreign_dataset(model, structures), Path(structures.source).stem
    return evaluate(model, dataset, name=name, batch_size=batch_size, listener=listener)


def _one_by_one(subject: Subject, structures: LabelledStructures, listener: Listener) -> Evaluation:
    answers, began = [], time.perf_counter()
    for index, atoms in enumerate(structures.structures):
        try:
            answers.append(ask(subject, atoms, with_forces_std=True))
        except DataError as error:
            raise DataError(f"{structures.frame_name(index)}: {error}") from error
        listener.advance(index + 1, len(structures))
    seconds = (time.perf_counter() - began) / len(structures)
    sizes = [len(atoms) for atoms in structures.structures]
    return Evaluation(
        name=Path(structures.source).stem,
        structure_index=np.repeat(np.arange(len(sizes)), sizes),
        atomic_numbers=np.concatenate([atoms.numbers for atoms in structures.structures]),
        positions=np.concatenate([atoms.positions for atoms in structures.structures]),
        energy=structures.energy,
        energy_predicted=np.array([answer.energy for answer in answers]),
        energy_std_raw=_stds([answer.energy_std for answer in answers]),
        forces=None if structures.forces is None else np.concatenate(structures.forces),
        forces_predicted=np.concatenate([answer.forces for answer in answers]),
        forces_std_raw=_stds([answer.forces_std for answer in answers]),
        provenance=answers[0].provenance,
        seconds_per_structure=seconds,
    )


def _stds(values: Sequence[float | FloatArray | None]) -> FloatArray | None:
    """All of them as one array; ``None`` if one is missing."""
    present = [np.atleast_1d(value) for value in values if value is not None]
    return np.concatenate(present) if len(present) == len(values) else None
