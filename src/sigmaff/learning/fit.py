"""The model of a round: train or keep the backbone, fit the head, calibrate σ on held-out labels."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ase import Atoms

from sigmaff.data import GraphDataset
from sigmaff.evaluation import calibrate_evaluation, evaluate
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.learning.config import CampaignConfig
from sigmaff.learning.directory import Directory, Round, write_frames
from sigmaff.learning.records import RoundSummary, read_file
from sigmaff.learning.train import RoundTraining, hold_out, train_round
from sigmaff.models import Model
from sigmaff.models.file import save
from sigmaff.models.record import BackboneRecord
from sigmaff.progress import Listener
from sigmaff.runs.record import record_of

if TYPE_CHECKING:
    from distributed import Client


def fit_round(
    round_: Round,
    directory: Directory,
    config: CampaignConfig,
    labelled: Sequence[Atoms],
    workers: Callable[[], "Client"],
    listener: Listener,
) -> None:
    """Write the round's data set and its model, unless the model exists."""
    if round_.model.exists():
        return
    write_frames(round_.dataset, labelled)
    started = time.monotonic()
    kept = _backbone_to_keep(round_, directory, config, len(hold_out(len(labelled), config.hold_out_every).train))
    training = RoundTraining(
        run=config.run(round_.dataset, round_.path / "fit", kept),
        hold_out_every=config.hold_out_every,
        continues=None if kept is not None else _backbone_to_continue(round_, directory, config),
    )
    data = training.data()
    model, record = train_round(training, data, workers, listener)
    if model.kind is not None:
        _calibrate(model, data.validation, config, listener)
    new = BackboneRecord(round=round_.number, n_train=len(data.train))
    backbone = new if kept is None else _last_backbone(round_, directory)
    record = record.model_copy(update={"backbone": backbone, "seconds": time.monotonic() - started})
    model.record = record_of(training.run, data.split, record)
    save(model, round_.model)


def _backbone_to_keep(round_: Round, directory: Directory, config: CampaignConfig, n_train: int) -> Path | None:
    """The backbone file of an earlier round, if no training is due and all elements are known to it."""
    if round_.number == 0:
        return None
    before = _last_backbone(round_, directory)
    if config.retrain.due(round_.number - before.round, n_train, before.n_train):
        return None
    return _backbone_file(directory, before.round)


def _backbone_to_continue(round_: Round, directory: Directory, config: CampaignConfig) -> Path | None:
    """The backbone of the last training, where trainings build on each other."""
    if round_.number == 0 or config.retrain.weights == "scratch":
        return None
    return _backbone_file(directory, _last_backbone(round_, directory).round)


def _backbone_file(directory: Directory, number: int) -> Path:
    return directory.round(number).path / "fit" / "backbone.sigmaff"


def _last_backbone(round_: Round, directory: Directory) -> BackboneRecord:
    """The backbone of the round before."""
    return read_file(directory.round(round_.number - 1).summary, RoundSummary).backbone


def _calibrate(model: Model, held_out: GraphDataset, config: CampaignConfig, listener: Listener) -> None:
    """Calibrate σ. Energies need enough held-out structures; force components are enough almost at once."""
    listener.stage("calibrating σ")
    evaluation = evaluate(model, held_out, name="held out", listener=listener)
    if len(held_out) < MIN_SAMPLES:
        evaluation = replace(evaluation, energy=None)
    if evaluation.energy is not None or evaluation.forces_std_raw is not None:
        model.energy_calibration, model.forces_calibration = calibrate_evaluation(evaluation, config.calibration)
