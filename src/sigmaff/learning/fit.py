"""The model of a round: backbone trained or kept, head fitted, σ calibrated on labels that were held out."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms

from sigmaff.data import GraphDataset
from sigmaff.evaluation import evaluate, fit_calibration
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.learning.config import CampaignConfig
from sigmaff.learning.directory import Directory, Round, read_json, write_frames
from sigmaff.learning.train import Making, hold_out, make
from sigmaff.models import Model
from sigmaff.models.file import read_header, save
from sigmaff.progress import Listener
from sigmaff.runs.record import record_of

if TYPE_CHECKING:
    from distributed import Client


def fit_round(
    place: Round,
    directory: Directory,
    config: CampaignConfig,
    labelled: Sequence[Atoms],
    workers: Callable[[], "Client"],
    listener: Listener,
) -> None:
    """Write the round's data set and its model, unless the model is there."""
    if place.model.exists():
        return
    write_frames(place.dataset, labelled)
    started = time.monotonic()
    kept = _backbone_to_keep(place, directory, config, len(hold_out(len(labelled), config.hold_out_every).train))
    making = Making(
        run=config.run(place.dataset, place.path / "fit", kept),
        hold_out_every=config.hold_out_every,
        continues=None if kept is not None else _backbone_to_continue(place, directory, config),
    )
    data = making.data()
    model, record = make(making, data, workers, listener)
    _calibrate(model, data.validation, config, listener)
    record["backbone"] = _trained(place, directory, kept, len(data.train))
    record["seconds"] = time.monotonic() - started
    model.record = record_of(making.run, data.split, record)
    save(model, place.model)


def validation_structures(place: Round) -> np.ndarray:
    """Indices in the round's data set of the structures that its model was calibrated on."""
    return np.array(read_header(place.model).record["split"]["validation"], dtype=np.int64)


def _backbone_to_keep(place: Round, directory: Directory, config: CampaignConfig, n_train: int) -> Path | None:
    """The backbone file of an earlier round, if no training is due and all elements are known to it."""
    if place.number == 0:
        return None
    before = read_json(directory.round(place.number - 1).summary)["backbone"]
    if config.retrain.due(place.number - before["round"], n_train, before["n_train"]):
        return None
    return _backbone_file(directory, before["round"])


def _backbone_to_continue(place: Round, directory: Directory, config: CampaignConfig) -> Path | None:
    """The backbone of the last training, where trainings build on each other."""
    if place.number == 0 or config.retrain.weights == "scratch":
        return None
    return _backbone_file(directory, read_json(directory.round(place.number - 1).summary)["backbone"]["round"])


def _backbone_file(directory: Directory, number: int) -> Path:
    return directory.round(number).path / "fit" / "backbone.sigmaff"


def _trained(place: Round, directory: Directory, kept: Path | None, n_train: int) -> dict[str, Any]:
    """When the backbone was trained last, and on how many structures."""
    if kept is None:
        return {"round": place.number, "n_train": n_train}
    return read_json(directory.round(place.number - 1).summary)["backbone"]


def _calibrate(model: Model, held_out: GraphDataset, config: CampaignConfig, listener: Listener) -> None:
    """Of energies only where enough structures are held out; force components are enough almost at once."""
    if model.kind is None:
        return
    listener.stage("calibrating σ")
    evaluation = evaluate(model, held_out, name="held out", listener=listener)
    if evaluation.energy_error is not None and evaluation.energy_std_raw is not None and len(held_out) >= MIN_SAMPLES:
        model.energy_calibration = fit_calibration(
            evaluation.energy_error, evaluation.energy_std_raw, config.calibration
        )
    if evaluation.forces_error is not None and evaluation.forces_std_raw is not None:
        model.forces_calibration = fit_calibration(
            evaluation.forces_error, evaluation.forces_std_raw, config.calibration
        )
