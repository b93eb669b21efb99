"""Models and data sets brought together: evaluation, calibration, and structures that a model can and cannot take."""

from typing import Literal

import numpy as np
from ase.data import chemical_symbols

from sigmaff.data import DataSource, GraphDataset, LabelledStructures, find_overlap, read_structures
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation import CalibrationMethod, Evaluation, calibrate_evaluation, evaluate_calibrated
from sigmaff.files import file_digest
from sigmaff.models import Model
from sigmaff.models.prediction import ForcesStd
from sigmaff.progress import Listener

Part = Literal["train", "validation", "test"]


def calibrate(
    model: Model, dataset: GraphDataset, method: CalibrationMethod, listener: Listener | None = None
) -> Evaluation:
    """Fit the model's calibrations on held-out structures and keep them in it."""
    listener = listener or Listener()
    listener.stage("calibrating σ")
    evaluation = evaluate_on(model, dataset, name="held out", listener=listener)
    model.energy_calibration, model.forces_calibration = calibrate_evaluation(evaluation, method)
    return evaluation


def evaluate_on(
    model: Model,
    dataset: GraphDataset,
    *,
    name: str,
    listener: Listener | None = None,
    forces_std: ForcesStd = "auto",
    batch_size: int = 32,
) -> Evaluation:
    """Errors and σ on a data set, raw and with the model's calibrations; without errors if it holds unseen elements."""
    return evaluate_calibrated(
        model,
        dataset,
        name=name,
        batch_size=batch_size,
        forces_std=forces_std,
        progress=(listener or Listener()).advance,
    )


def dataset_for(model: Model, structures: LabelledStructures) -> GraphDataset:
    """Structures as a model takes them. One with an element that it cannot know is an error that names the frame."""
    known = ", ".join(chemical_symbols[number] for number in model.elements)
    remedy = (
        f"an element this model was not trained on (it knows {known}); leave the structure out, or train on such ones"
    )
    require_elements(structures, model.elements, remedy)
    return GraphDataset(structures, model.cutoff, model.dtype)


def foreign_dataset(model: Model, structures: LabelledStructures) -> GraphDataset:
    """Structures of another kind, of which σ is asked: those with an element that the model cannot know have no labels.

    Such an element has no reference energy, so nothing can be said of errors.
    """
    if set(structures.elements) <= set(model.elements):
        return GraphDataset(structures, model.cutoff, model.dtype)
    return GraphDataset(structures.without_labels(), model.cutoff, model.dtype)


def require_elements(structures: LabelledStructures, elements: tuple[int, ...], otherwise: str) -> None:
    for index, atoms in enumerate(structures.structures):
        unknown = np.flatnonzero(~np.isin(atoms.numbers, elements))
        if unknown.size:
            symbol = chemical_symbols[atoms.numbers[unknown[0]]]
            raise DataError(f"{structures.frame_name(index)}: atom {unknown[0]} is {symbol}, {otherwise}")


def recorded_structures(model: Model, part: Part, *, labelled: bool = True) -> LabelledStructures:
    """Structures that the model's own record names, if their file is still there and the same."""
    try:
        record = model.record
        if record.config is None or record.split is None:
            raise DataError("its record names none")
        source = DataSource.model_validate(record.config["data"]["source"])
        if file_digest(source.path) != record.data_sha256:
            raise DataError(f"{source.path} has changed since the model was trained")
        structures = read_structures(source if labelled else source.model_copy(update={"labels": ()}))
        chosen = structures.subset(getattr(record.split, part))
    except (LookupError, TypeError, ValueError, OSError, SigmaffError) as error:  # an old, foreign or altered record
        raise DataError(f"the model's own {part} structures cannot be had ({error})") from None
    if not len(chosen):
        raise DataError(f"the model's own record names no {part} structures")
    return chosen


def leaked_structures(model: Model, structures: LabelledStructures) -> int:
    """How many of these structures the model was trained on; 0 where its training file cannot be read any more."""
    try:
        return len(find_overlap(recorded_structures(model, "train", labelled=False), structures))
    except DataError:
        return 0
