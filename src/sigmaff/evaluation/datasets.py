"""Which structures a model may see: data sets for it, its own training and test structures, calibration on them."""

from pathlib import Path
from typing import Literal, NamedTuple

from sigmaff.data import (
    DataFiles,
    DataSource,
    GraphDataset,
    LabelledStructures,
    find_overlap,
    join_structures,
    read_parts,
    require_elements,
    require_state,
)
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.calibrate import calibrate_evaluation, energy_force_std
from sigmaff.evaluation.calibration import CalibrationMethod
from sigmaff.evaluation.evaluate import Evaluation, evaluate
from sigmaff.evaluation.std_range import std_range
from sigmaff.files import file_digest
from sigmaff.models import Model
from sigmaff.models.prediction import ForceStdMethod, Quantity
from sigmaff.progress import Listener

Part = Literal["train", "validation", "test"]


class Calibrated(NamedTuple):
    """What a calibration saw and found."""

    evaluation: Evaluation  # of the held-out structures, with the model's new calibrations
    reasons: dict[Quantity, str]  # why the σ of a quantity stays raw


def calibrate(
    model: Model,
    dataset: GraphDataset,
    method: CalibrationMethod,
    listener: Listener | None = None,
    *,
    force_growth: bool = True,
    forces_std: ForceStdMethod = "auto",
) -> Calibrated:
    """Fit the model's calibrations on held-out structures and keep them in it.

    The σ of a quantity that cannot be calibrated stays raw, with a warning. With ``forces_std`` none, that of forces
    stays raw without one.
    """
    listener = listener or Listener()
    listener.stage("calibrating σ")
    evaluation = evaluate(model, dataset, name="held out", forces_std=forces_std, listener=listener)
    model.calibrations, reasons = calibrate_evaluation(evaluation, method, force_growth=force_growth)
    model.energy_force_std = energy_force_std(evaluation)
    for reason in dict.fromkeys(reasons.values()):
        quantities = " and ".join(quantity for quantity, other in reasons.items() if other == reason)
        listener.warn(f"σ of {quantities} is raw, not calibrated: {reason}")
    evaluation = evaluation.with_calibrations(model.calibrations)
    model.std_range = std_range(evaluation)
    return Calibrated(evaluation, reasons)


def dataset_for(model: Model, structures: LabelledStructures) -> GraphDataset:
    """Structures as graphs for a model. An unknown element, or another charge, is an error that names the frame."""
    require_elements(structures, model.elements)
    require_state(structures, model.electrons)
    return GraphDataset(structures, model.cutoff, model.dtype)


def foreign_dataset(model: Model, structures: LabelledStructures) -> GraphDataset:
    """As ``dataset_for``, but structures of unknown elements lose their labels instead of raising an error.

    An unknown element has no reference energy: the model has a σ for it, but its errors are undefined.
    """
    require_state(structures, model.electrons)
    known = set(structures.elements) <= set(model.elements)
    return GraphDataset(structures if known else structures.without_labels(), model.cutoff, model.dtype)


def recorded_structures(model: Model, part: Part, *, labelled: bool = True) -> LabelledStructures:
    """Structures that the model's own record names, if their file exists and is unchanged."""
    try:
        record = model.record
        if record.config is None or record.split is None:
            raise DataError("its record names none")
        data = record.config["data"]
        files = DataFiles.model_validate({name: data[name] for name in DataFiles.model_fields if name in data})
        digests = iter(record.data_digests)
        files = files.changed(lambda source: _found(source, next(digests), model.file, labelled=labelled))
        chosen = join_structures(list(read_parts(files).values())).subset(getattr(record.split, part))
    except (LookupError, TypeError, ValueError, OSError, SigmaffError) as error:  # an old, foreign or altered record
        raise DataError(f"the model's own {part} structures are not available ({error})") from None
    if not len(chosen):
        raise DataError(f"the model's own record names no {part} structures")
    return chosen


def _found(source: DataSource, sha256: str | None, model_file: Path | None, *, labelled: bool) -> DataSource:
    """The file where it is now, and with its labels or without."""
    changed = {"path": _same_file(source.path, sha256, model_file)} | ({} if labelled else {"labels": ()})
    return source.model_copy(update=changed)


def _same_file(path: Path, sha256: str | None, model_file: Path | None) -> Path:
    """The file with this content: where it was, or under its name here, beside the model, or in a folder above it."""
    folders = [] if model_file is None else model_file.resolve().parents[:3]
    places = [path, Path(path.name), *(folder / name for folder in folders for name in (path, path.name))]
    for place in places:
        if place.is_file() and file_digest(place) == sha256:
            return place
    if path.is_file():
        raise DataError(f"{path} has changed since the model was trained")
    raise DataError(f"{path} is missing; put it here or beside the model")


def leaked_structures(model: Model, structures: LabelledStructures) -> int:
    """Number of structures that the model was trained on; 0 if its training file cannot be read any more."""
    try:
        return len(find_overlap(recorded_structures(model, "train", labelled=False), structures))
    except DataError:
        return 0
