"""The model of a round before its σ is calibrated: trained here, its members on workers, or on several devices."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sigmaff.data import Split, read_structures
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.files import folder_lock
from sigmaff.learning.subprocess_training import on_devices
from sigmaff.models import Model, Potential
from sigmaff.models.file import load_potential, save
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import RunData, split_data
from sigmaff.runs.stages import make_ensemble, make_member, make_model, member_file
from sigmaff.tasks import run_tasks
from sigmaff.training import TrainingDivergedError

if TYPE_CHECKING:
    from distributed import Client

Made = tuple[Model, dict[str, Any]]
"""A model, and how it came to be."""


def hold_out(n: int, every: int) -> Split:
    """Of n labels in their order, every so many-th validates; the same ones whatever n comes to be."""
    held = np.arange(n) % every == every - 1
    return Split(train=np.flatnonzero(~held), validation=np.flatnonzero(held), test=np.zeros(0, dtype=np.int64))


class Making(BaseModel):
    """All that a model of a round follows from, wherever it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunConfig = Field(description="the round as a run of its own")
    hold_out_every: int = Field(description="every so many labels one is held out")
    continues: Path | None = Field(default=None, description="a backbone that is trained further, not from scratch")

    def data(self) -> RunData:
        structures = read_structures(self.run.data.source)
        return split_data(structures, hold_out(len(structures), self.hold_out_every), self.run)

    def anywhere(self) -> "Making":
        """The same for a process that works in another folder."""
        source = self.run.data.source.model_copy(update={"path": self.run.data.source.path.resolve()})
        data = self.run.data.model_copy(update={"source": source})
        run = self.run.model_copy(update={"data": data, "output": self.run.output.resolve()})
        return self.model_copy(update={"run": run})

    @property
    def trains(self) -> bool:
        """Whether any steps are taken; else a closed form is fitted to a backbone that is there."""
        return self.run.backbone_from is None or "solve" not in self.run.model.head.stages


def make(making: Making, data: RunData, workers: Callable[[], "Client"], listener: Listener) -> Made:
    run = making.run
    if run.ensemble is not None:
        members = _on_workers(making, run.ensemble.size, workers, listener)
        return make_ensemble(run.ensemble, members, listener)
    if run.training.devices > 1 and making.trains:
        return on_devices(making.model_dump_json(), run.output, listener)
    made = make_here(making, data, listener)
    assert made is not None, "this process has no helpers"
    return made


def make_here(making: Making, data: RunData, listener: Listener) -> Made | None:
    """In this process; ``None`` in a helper."""
    run = making.run
    if making.continues is not None:
        run = run.model_copy(update={"backbone_from": _trained_further(making, making.continues, data, listener)})
    return make_model(run, data, listener, force=False)


def _trained_further(making: Making, backbone: Path, data: RunData, listener: Listener) -> Path | None:
    """The backbone trained on the data of this round; ``None`` where it lacks elements, to begin at random."""
    from sigmaff.training.loop import train

    potential, run = load_potential(backbone).requires_grad_(True), making.run
    if not set(data.statistics.elements) <= set(potential.elements):
        return None
    listener.stage("training the backbone further")
    folder = run.output / "backbone"
    train(potential, data.train, data.validation, run.training, folder, seed=run.seed, listener=listener)
    path = run.output / "backbone.sigmaff"
    save(potential, path, force=True)
    return path


def _on_workers(
    making: Making, size: int, workers: Callable[[], "Client"], listener: Listener
) -> Iterator[Potential | TrainingDivergedError]:
    """The members, side by side; those that are there are not trained again."""
    listener.stage(f"training {size} members")
    failures: dict[int, str] = {}
    missing = [number for number in range(size) if not member_file(making.run, number).exists()]
    listener.advance(size - len(missing), size)
    outcomes = run_tasks(partial(_keep_member, making.anywhere()), missing, workers()) if missing else ()
    for done, outcome in enumerate(outcomes, size - len(missing) + 1):
        number = missing[outcome.index]
        if outcome.error is not None:
            raise SigmaffError(f"member {number} of the ensemble could not be trained: {outcome.error}")
        if outcome.value is not None:
            failures[number] = outcome.value
        elif not (path := member_file(making.run, number)).exists():
            raise ConfigError(f"a worker wrote {path}, and it is not here; workers must see this folder")
        listener.advance(done, size)
    for number in range(size):
        diverged = number in failures
        yield TrainingDivergedError(failures[number]) if diverged else load_potential(member_file(making.run, number))


def _keep_member(making: Making, number: int) -> str | None:
    """On a worker: a member goes into its file. Why there is none, if its training diverged."""
    with folder_lock(member_file(making.run, number).parent):
        try:
            make_member(making.run, number, making.data(), Listener(), force=False)
        except TrainingDivergedError as error:
            return str(error)
    return None
