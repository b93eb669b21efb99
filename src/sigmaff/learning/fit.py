"""The model of a round: train or keep the backbone, fit the head, calibrate σ on held-out structures."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ase import Atoms

from sigmaff.data import LabelledStructures
from sigmaff.evaluation import calibrate_evaluation, evaluate
from sigmaff.evaluation.calibration import MIN_SAMPLES
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.learning.directory import Context, Round, write_frames
from sigmaff.learning.labels import drawn_in
from sigmaff.learning.records import RoundSummary, read_file
from sigmaff.learning.train import RoundTraining, train_round
from sigmaff.models import Model
from sigmaff.models.file import save
from sigmaff.models.record import BackboneRecord
from sigmaff.runs.record import record_of


def fit_round(context: Context, round_: Round, labelled: Sequence[Atoms]) -> None:
    """Write the round's data set and its model, unless the model exists. labelled: with ``info["held_out"]``."""
    if round_.model.exists():
        return
    write_frames(round_.dataset, labelled)
    started = time.monotonic()
    config = context.config
    held_out = [index for index, atoms in enumerate(labelled) if atoms.info["held_out"]]
    n_train = len(labelled) - len(held_out)
    last = read_file(round_.before.summary, RoundSummary).backbone if round_.number else None
    trained = None if last is None else Round(last.round, round_.folder).backbone
    is_due = last is None or config.retrain.due(round_.number - last.round, n_train, last.n_train)
    training = RoundTraining(
        run=config.run(round_.dataset, round_.path / "fit", None if is_due else trained),
        held_out=tuple(held_out),
        continues=trained if is_due and config.retrain.weights == "continue" else None,
    )
    data = training.data()
    model, record = train_round(training, data, context.workers, context.listener)
    if model.kind is not None:
        drawn = [index for index, held in enumerate(held_out) if drawn_in(labelled[held]) is not None]
        structures = data.validation.structures
        _calibrate(context, model, structures.subset(drawn) if len(drawn) >= MIN_SAMPLES else structures)
    backbone = BackboneRecord(round=round_.number, n_train=n_train) if last is None or is_due else last
    record = record.model_copy(update={"backbone": backbone, "seconds": time.monotonic() - started})
    model.record = record_of(training.run, data.split, record)
    save(model, round_.model)


def _calibrate(context: Context, model: Model, held_out: LabelledStructures) -> None:
    """Calibrate σ. Energies need enough held-out structures; force components are enough almost at once.

    Arguments:
        held_out: frames drawn at random from explorations; with too few of them, all held-out structures.
    """
    context.listener.stage(f"calibrating σ on {len(held_out)} held-out structures")
    dataset = dataset_for(model, held_out)
    evaluation = evaluate(model, dataset, name="held out", listener=context.listener)
    if len(held_out) < MIN_SAMPLES:
        evaluation = replace(evaluation, energy=None)
    if evaluation.energy is not None or evaluation.forces_std_raw is not None:
        calibrations = calibrate_evaluation(evaluation, context.config.calibration)
        model.energy_calibration, model.forces_calibration = calibrations
