"""Train the model of a round: in this process, its members on workers, or on several devices."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from sigmaff.backbones import AdoptConfig
from sigmaff.config import Settings
from sigmaff.data import Split, read_structures
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.files import folder_lock, write_json
from sigmaff.models import Model, Potential
from sigmaff.models.file import load, load_potential, save
from sigmaff.models.record import RunRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import RunData, split_data
from sigmaff.runs.stages import make_ensemble, make_member, make_model, member_file
from sigmaff.tasks import run_tasks
from sigmaff.training import TrainingDivergedError

if TYPE_CHECKING:
    from distributed import Client

JOB, MADE, LOG = "devices.json", "made.sigmaff", "devices.log"


class RoundTraining(Settings):
    """All inputs of the training of one round, for any process."""

    run: RunConfig = Field(description="the round as a run of its own")
    held_out: tuple[int, ...] = Field(description="indices of the structures that are never trained on")
    continues: Path | None = Field(default=None, description="backbone file to train further; null: from scratch")

    def data(self) -> RunData:
        (source,) = self.run.data.sources
        structures = read_structures(source)
        held_out = np.array(self.held_out, dtype=np.int64)
        train = np.setdiff1d(np.arange(len(structures)), held_out)
        return split_data(structures, Split(train=train, validation=held_out, test=held_out[:0]), self.run)

    def anywhere(self) -> "RoundTraining":
        """The same with absolute paths."""
        data = self.run.data.changed(lambda source: source.model_copy(update={"path": source.path.resolve()}))
        run = self.run.model_copy(update={"data": data, "output": self.run.output.resolve()})
        return self.model_copy(update={"run": run})


def train_round(
    training: RoundTraining, data: RunData, workers: Callable[[], "Client"], listener: Listener
) -> tuple[Model, RunRecord]:
    run = training.run
    if run.ensemble is not None:
        members = _on_workers(training, run.ensemble.size, workers, listener)
        return make_ensemble(run.ensemble, members, listener)
    is_given = run.backbone_from is not None or isinstance(run.model.backbone, AdoptConfig)
    only_solves = is_given and "solve" in run.model.head.stages
    if run.training.devices > 1 and not only_solves:
        return _on_devices(training, listener)
    made = train_here(training, data, listener)
    assert made is not None, "this process has no helpers"
    return made


def train_here(training: RoundTraining, data: RunData, listener: Listener) -> tuple[Model, RunRecord] | None:
    """Train in this process; ``None`` in a helper process."""
    run = training.run
    if training.continues is not None:
        run = run.model_copy(update={"backbone_from": _trained_further(training, training.continues, data, listener)})
    return make_model(run, data, listener, force=False)


def _trained_further(training: RoundTraining, backbone: Path, data: RunData, listener: Listener) -> Path | None:
    """The file of the backbone trained further on this round's data; ``None`` if it does not know all elements."""
    from sigmaff.training.loop import train

    potential, run = load_potential(backbone).requires_grad_(True), training.run
    if not set(data.statistics.elements) <= set(potential.elements):
        return None
    listener.stage("training the backbone further")
    folder = run.output / "backbone"
    train(potential, data.train, data.validation, run.training, folder, seed=run.seed, listener=listener)
    path = run.output / "backbone.sigmaff"
    save(potential, path, force=True)
    return path


def _on_devices(training: RoundTraining, listener: Listener) -> tuple[Model, RunRecord]:
    """Train by a command of its own: see ``__main__``."""
    folder = training.run.output
    if not (folder / MADE).exists():
        write_json(folder / JOB, training.model_dump(mode="json"), force=True)
        _run_command(folder, listener)
    model = load(folder / MADE)
    return model, model.record


def _run_command(folder: Path, listener: Listener) -> None:
    command = [sys.executable, "-m", "sigmaff.learning", str(folder / JOB)]
    pipe, error = subprocess.PIPE, None
    with (
        (folder / LOG).open("w", encoding="utf-8") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, encoding="utf-8") as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            call, arguments = _callback(line)
            if call == "error":
                (error,) = arguments
            elif call is not None:
                getattr(listener, call)(*arguments)
    if error is not None:
        raise SigmaffError(error)
    if process.returncode or not (folder / MADE).exists():
        raise SigmaffError(f"the training on several devices ended without a model; {folder / LOG} may say why")


def _callback(line: str) -> tuple[str | None, list[Any]]:
    """The callback of a line; ``None`` for lines that libraries print."""
    try:
        content = json.loads(line)
        return content["call"], content["arguments"]
    except (ValueError, LookupError, TypeError):
        return None, []


def _on_workers(
    training: RoundTraining, size: int, workers: Callable[[], "Client"], listener: Listener
) -> Iterator[Potential | TrainingDivergedError]:
    """Train the missing members side by side; all members in order."""
    listener.stage(f"training {size} members")
    failures: dict[int, str] = {}
    missing = [number for number in range(size) if not member_file(training.run, number).exists()]
    listener.advance(size - len(missing), size)
    outcomes = run_tasks(partial(_keep_member, training.anywhere()), missing, workers()) if missing else ()
    for done, outcome in enumerate(outcomes, size - len(missing) + 1):
        number = missing[outcome.index]
        if outcome.error is not None:
            raise SigmaffError(f"member {number} of the ensemble could not be trained: {outcome.error}")
        if outcome.value is not None:
            failures[number] = outcome.value
        elif not (path := member_file(training.run, number)).exists():
            raise ConfigError(f"a worker wrote {path}, and it is not here; workers must see this folder")
        listener.advance(done, size)
    for number in range(size):
        diverged = number in failures
        yield TrainingDivergedError(failures[number]) if diverged else load_potential(member_file(training.run, number))


def _keep_member(training: RoundTraining, number: int) -> str | None:
    """Train a member on a worker and save it; the error message if the training diverged."""
    with folder_lock(member_file(training.run, number).parent):
        try:
            make_member(training.run, number, training.data(), Listener(), force=False)
        except TrainingDivergedError as error:
            return str(error)
    return None
