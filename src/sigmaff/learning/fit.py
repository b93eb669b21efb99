"""The model of a round: backbone trained or kept, head fitted, σ calibrated on labels that were held out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from sigmaff.data import GraphDataset, Split, read_structures
from sigmaff.evaluation import fit_calibration
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.experiments.datasets import RunData, split_data
from sigmaff.experiments.evaluate import evaluate_on
from sigmaff.experiments.make import Listener, make_model
from sigmaff.experiments.record import record_of
from sigmaff.experiments.settings import RunConfig
from sigmaff.learning.config import CampaignConfig
from sigmaff.learning.directory import Directory, Round, read_json, write_frames
from sigmaff.model_file import load_potential, read_header, save
from sigmaff.potential import Model


def hold_out(n: int, every: int) -> Split:
    """Of n labels in their order, every so many-th validates; the same ones whatever n comes to be."""
    held = np.arange(n) % every == every - 1
    return Split(train=np.flatnonzero(~held), validation=np.flatnonzero(held), test=np.zeros(0, dtype=np.int64))


def fit_round(
    place: Round, directory: Directory, config: CampaignConfig, labelled: Sequence[Atoms], listener: Listener
) -> None:
    """Write the round's data set and its model, unless the model is there."""
    if place.model.exists():
        return
    write_frames(place.dataset, labelled)
    started = time.monotonic()
    kept = _backbone_to_keep(place, directory, config, len(hold_out(len(labelled), config.hold_out_every).train))
    output = place.path / "fit"
    data = _data(config.run(place.dataset, output, None), config.hold_out_every)
    continued = None if kept is not None else _continued(place, directory, config, data, listener)
    run = config.run(place.dataset, output, kept or continued)
    made = make_model(run, data, listener, force=False)
    assert made is not None, "a campaign trains in one process"
    model, record = made
    _calibrate(model, data.validation, config, listener)
    record["backbone"] = _trained(place, directory, kept, len(data.train))
    record["seconds"] = time.monotonic() - started
    model.record = record_of(run, data.split, record)
    save(model, place.model)


def validation_structures(place: Round) -> np.ndarray:
    """Indices in the round's data set of the structures that its model was calibrated on."""
    return np.array(read_header(place.model).record["split"]["validation"], dtype=np.int64)


def _data(run: RunConfig, every: int) -> RunData:
    structures = read_structures(run.data.source)
    return split_data(structures, hold_out(len(structures), every), run)


def _backbone_to_keep(place: Round, directory: Directory, config: CampaignConfig, n_train: int) -> Path | None:
    """The backbone file of an earlier round, if no training is due and all elements are known to it."""
    if place.number == 0:
        return None
    before = read_json(directory.round(place.number - 1).summary)["backbone"]
    if config.retrain.due(place.number - before["round"], n_train, before["n_train"]):
        return None
    return _backbone_file(directory, before["round"])


def _continued(
    place: Round, directory: Directory, config: CampaignConfig, data: RunData, listener: Listener
) -> Path | None:
    """The backbone of the last training, trained further on the data of this round; ``None`` to begin at random."""
    if place.number == 0 or config.retrain.weights == "scratch":
        return None
    from sigmaff.training.loop import train

    path = place.path / "fit" / "backbone.sigmaff"
    before = read_json(directory.round(place.number - 1).summary)["backbone"]["round"]
    potential = load_potential(_backbone_file(directory, before)).requires_grad_(True)
    if not set(data.statistics.elements) <= set(potential.elements):
        return None
    listener.stage(f"round {place.number}: training the backbone further")
    train(
        potential,
        data.train,
        data.validation,
        config.training,
        place.path / "fit" / "backbone",
        seed=config.seed,
        progress=listener,
    )
    save(potential, path, force=True)
    return path


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
    evaluation = evaluate_on(model, held_out, name="held out", listener=listener)
    if evaluation.energy_error is not None and evaluation.energy_std_raw is not None and len(held_out) >= MIN_SAMPLES:
        model.energy_calibration = fit_calibration(
            evaluation.energy_error, evaluation.energy_std_raw, config.calibration
        )
    if evaluation.forces_error is not None and evaluation.forces_std_raw is not None:
        model.forces_calibration = fit_calibration(
            evaluation.forces_error, evaluation.forces_std_raw, config.calibration
        )
