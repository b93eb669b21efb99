"""The model of a round: train or keep the backbone, fit the head, calibrate σ on held-out structures."""

import time
from collections.abc import Sequence

from ase import Atoms

from sigmaff.evaluation.calibration import MIN_STRUCTURES
from sigmaff.evaluation.datasets import calibrate, dataset_for
from sigmaff.learning.directory import Context, Round, write_frames
from sigmaff.learning.labels import drawn_in
from sigmaff.learning.records import RoundSummary, read_file
from sigmaff.learning.train import RoundTraining, train_round
from sigmaff.models.file import save
from sigmaff.models.record import BackboneRecord
from sigmaff.runs.data import tell_compositions
from sigmaff.runs.record import record_of


def fit_round(context: Context, round_: Round, labelled: Sequence[Atoms]) -> None:
    """Write the round's data set and its model, unless the model exists. labelled: with ``info["held_out"]``."""
    if round_.model.exists():
        return
    config = context.config
    write_frames(round_.dataset, labelled)
    started = time.monotonic()
    held_out = [index for index, atoms in enumerate(labelled) if atoms.info["held_out"]]
    n_train = len(labelled) - len(held_out)
    last = read_file(round_.before.summary, RoundSummary).backbone if round_.number else None
    trained = None if last is None else Round(last.round, round_.folder).backbone
    is_due = config.trains and (last is None or config.retrain.due(round_.number - last.round, n_train, last.n_train))
    training = RoundTraining(
        run=config.run(round_.dataset, round_.path / "fit", None if is_due else trained),
        held_out=tuple(held_out),
        continues=trained if is_due and config.retrain.weights == "continue" else None,
    )
    data = training.data()
    model, record = train_round(training, data, context.workers, context.listener)
    if not round_.number:
        tell_compositions(model.potentials[0].statistics, data, context.listener, "reference_energies")
    if model.kind is not None:
        drawn = [index for index, held in enumerate(held_out) if drawn_in(labelled[held]) is not None]
        structures = data.validation.structures
        if len(drawn) >= MIN_STRUCTURES:  # of explorations, at random
            structures = structures.subset(drawn)
        _, reasons = calibrate(model, dataset_for(model, structures), config.calibration, context.listener)
        record = record.model_copy(update={"uncalibrated": reasons})
    backbone = BackboneRecord(round=round_.number, n_train=n_train) if is_due else last
    record = record.model_copy(update={"backbone": backbone, "seconds": time.monotonic() - started})
    model.record = record_of(training.run, data.split, record)
    save(model, round_.model)
