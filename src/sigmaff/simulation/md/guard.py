"""Make a guard: pilot runs without a limit, their labels, and the limit on σ that they allow (``pilots``).

Starts are drawn at random from those given, as the pilot runs must be drawn like later ones. Checks of a run are
labelled in turn until the first error: what comes after it cannot change the limit.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import ase.io
import numpy as np
from ase import Atoms

from sigmaff.data.labelling import EngineConfig, label, require_engine
from sigmaff.errors import ConfigError, DataError
from sigmaff.extras import require
from sigmaff.files import RunFolder, atomic_write, write_json
from sigmaff.models.prediction import Predictor
from sigmaff.progress import Listener
from sigmaff.simulation.limits import method_energy_std
from sigmaff.simulation.md.checkpoint import model_digest, starts_digest
from sigmaff.simulation.md.config import GuardConfig, MDConfig
from sigmaff.simulation.md.evaluation import evaluate_once
from sigmaff.simulation.md.guard_file import GuardFile, Kind
from sigmaff.simulation.md.output import LOG
from sigmaff.simulation.md.pilots import PilotRun, Promise, promise
from sigmaff.simulation.md.run import MDResult, run_md, start_problem
from sigmaff.simulation.md.safety import KnownStd
from sigmaff.simulation.results import bare_copy
from sigmaff.tasks import run_tasks, workers

if TYPE_CHECKING:
    from distributed import Client

ATTEMPTS = 2
"""At a label, before its structure counts as an error."""
GUARD = "guard.json"


@dataclass(frozen=True, kw_only=True)
class GuardResult:
    """A finished guard."""

    path: Path  # of guard.json, for ``stop_above``
    promise: Promise
    statement: str
    runs: tuple[PilotRun, ...]


def guard(
    model: Predictor,
    structures: Sequence[Atoms],
    config: GuardConfig,
    directory: Path,
    listener: Listener | None = None,
) -> GuardResult:
    """Find the limit on σ that bounds the share of runs with a large error. Repeat the call to resume.

    Another ``error_above``, ``risk`` or ``confidence`` makes use of the pilot runs and labels that are there.

    Arguments:
        structures: from which the start of each run is drawn.
        directory: gets ``guard.json``, pilot runs and labels.
        listener: progress callbacks; ``None`` is silent.
    """
    listener = listener or Listener()
    if not structures:
        raise DataError("there is no structure to start from")
    require("a guard", "distributed")
    if config.cluster.scheduler is None:  # else the engine runs where that scheduler's workers are
        require_engine(config.engine)
    kind = Kind.of(config, structures, model=model_digest(model), starts=starts_digest(structures))
    decisive = config.model_dump(mode="json", include={"seed", "pilots"})
    engine = config.engine.model_dump(mode="json", exclude={"time_limit"})
    folder = RunFolder(directory, GUARD, "choose another directory, or remove it")
    with folder.lock():
        file = folder.claim(GuardFile(kind=kind, settings={**decisive, "engine": engine}))
        folder.write(file.model_copy(update={"promise": None, "statement": ""}))
        runs = pilot_runs(model, structures, config, directory, listener)
        found = promise(runs, config.steps, config.error_above, config.risk, config.confidence)
        statement = found.statement(f"{kind}, errors against {config.engine.calculator}")
        known = KnownStd.of_runs(runs)
        folder.write(file.model_copy(update={"promise": found, "statement": statement, "known": known}))
    return GuardResult(path=folder.file, promise=found, statement=statement, runs=tuple(runs))


def pilot_runs(
    model: Predictor, structures: Sequence[Atoms], config: GuardConfig, directory: Path, listener: Listener
) -> list[PilotRun]:
    """Make the pilot runs and label their checks."""
    generator = np.random.default_rng([config.seed, 1])  # later runs with the same seed get other velocities
    drawn = generator.integers(len(structures), size=config.pilots).tolist()
    _check_starts(model, {index: structures[index] for index in drawn}, config)
    moves = MDConfig.model_validate(
        config.motion() | {"every": config.check_every, "seed": int(generator.integers(2**31))}
    )
    listener.stage(f"{config.pilots} pilot runs")
    result = run_md(model, [structures[index] for index in drawn], moves, directory / "pilots", listener)
    courses = [_Course(result, number, stds) for number, stds in enumerate(_checked_std(result, config))]
    listener.stage(f"labels by {config.engine.calculator}")
    _label(courses, config, directory / "labels", listener)
    return [course.run(config.error_above) for course in courses]


def _check_starts(model: Predictor, starts: dict[int, Atoms], config: GuardConfig) -> None:
    """Raise an error if no run can start from one of them, by its index in the file, or if the model has no σ."""
    for index, atoms in starts.items():
        if problem := start_problem(atoms, model, config):
            raise DataError(f"start {index}: {problem}")
    found = evaluate_once(model, list(starts.values()), config.forces_std)
    for place, refused in found.problems.items():
        raise DataError(f"start {list(starts)[place]}: {refused.message}")
    if "forces_uncertainty" not in found.results(0):
        raise ConfigError("the model gives no σ of forces, so no limit on it can guard a run")


class _Course:
    """A pilot run with its frames at checks, and the errors of those that are labelled, in turn from the first."""

    def __init__(self, result: MDResult, number: int, forces_std: dict[int, float]) -> None:
        """forces_std: eV/Å, by step."""
        self.number, self.record, self.forces_std = number, result.records[number], forces_std
        frames = ase.io.read(result.trajectory(number), ":", format="extxyz")
        self.frames = {int(frame.info["step"]): frame for frame in frames}
        self.errors: dict[int, float] = {}  # eV/Å, by step

    def run(self, error_above: float) -> PilotRun:
        assert self.record.ended_at is not None
        end = None if self.record.ending == "finished" else self.record.ended_at
        known = [self.frames[step] for step in self.forces_std]
        atom_stds = [frame.arrays["energies_uncertainty"] for frame in known if "energies_uncertainty" in frame.arrays]
        return PilotRun(
            steps=np.array(list(self.forces_std)),
            forces_std=np.array(list(self.forces_std.values())),
            wrong_at=next((step for step in self.forces_std if self.errors.get(step, 0.0) > error_above), end),
            ended_at=self.record.ended_at,
            energy_std=np.array([method_energy_std(frame.info) / len(frame) for frame in known]),
            atom_std=np.array([std.max() for std in atom_stds]) if atom_stds else None,
        )

    def missing(self, error_above: float, at_most: int) -> list[int]:
        """The next checks to label, unless an error is known before them."""
        wanted: list[int] = []
        for step in self.forces_std:
            if self.errors.get(step, 0.0) > error_above or len(wanted) == at_most:
                break
            wanted += [] if step in self.errors else [step]
        return wanted


def _checked_std(result: MDResult, config: GuardConfig) -> list[dict[int, float]]:
    """Of each pilot run: the largest force σ at each check, eV/Å, by step."""
    found: list[dict[int, float]] = [{} for _ in result.records]
    with (result.directory / LOG).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if int(row["step"]) % config.check_every == 0:
                found[int(row["replica"])][int(row["step"])] = float(row["forces_std_max"])
    return found


class _Labels:
    """The labels of pilot runs: a file each, or the messages of its failed attempts."""

    def __init__(self, courses: Sequence[_Course], folder: Path) -> None:
        self.courses, self.folder = courses, folder
        for course in courses:
            for step in course.frames:
                self._read(course, step)

    @property
    def n_checks(self) -> int:
        return sum(len(course.forces_std) for course in self.courses)

    @property
    def n_done(self) -> int:
        return sum(len(course.errors) for course in self.courses)

    @property
    def n_failed(self) -> int:
        return sum(error == np.inf for course in self.courses for error in course.errors.values())

    def path(self, course: _Course, step: int) -> Path:
        return self.folder / f"{course.number:04d}-{step:07d}.extxyz"

    def keep(self, course: _Course, step: int, labelled: Atoms) -> None:
        labelled.info = {"pilot": course.number, "step": step}
        with atomic_write(self.path(course, step), force=True) as temporary:
            ase.io.write(temporary, labelled, format="extxyz")
        self._read(course, step)

    def fail(self, course: _Course, step: int, message: str) -> None:
        write_json(self._failures(course, step), [*self._messages(course, step), message], force=True)
        self._read(course, step)

    def _read(self, course: _Course, step: int) -> None:
        if (path := self.path(course, step)).exists():
            truth = ase.io.read(path, format="extxyz").get_forces()
            course.errors[step] = float(np.linalg.norm(course.frames[step].get_forces() - truth, axis=1).max())
        elif len(self._messages(course, step)) >= ATTEMPTS:
            course.errors[step] = np.inf

    def _failures(self, course: _Course, step: int) -> Path:
        return self.path(course, step).with_suffix(".json")

    def _messages(self, course: _Course, step: int) -> list[str]:
        path = self._failures(course, step)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _label(courses: Sequence[_Course], config: GuardConfig, folder: Path, listener: Listener) -> None:
    """Label the checks of all runs in turn, each until its first error."""
    labels = _Labels(courses, folder)

    def missing(at_most: int) -> list[tuple[_Course, int]]:
        return [(course, step) for course in courses for step in course.missing(config.error_above, at_most)]

    if missing(1):
        with workers(config.cluster) as client:
            while n_open := len(missing(1)):
                n_workers = max(1, len(client.ncores()))
                _label_pieces(missing(ceil(n_workers / n_open)), labels, config.engine, client, listener)
    if labels.n_failed:
        listener.warn(f"{labels.n_failed} checks have no label and count as errors; {folder} has the messages")


def _label_pieces(
    pieces: Sequence[tuple[_Course, int]], labels: _Labels, engine: EngineConfig, client: "Client", listener: Listener
) -> None:
    """Compute labels. Failures count only if the engine labels anything at all."""
    frames, failed = [bare_copy(course.frames[step]) for course, step in pieces], []
    for outcome in run_tasks(partial(label, engine=engine), frames, client, time_limit=engine.time_limit):
        course, step = pieces[outcome.index]
        if outcome.value is not None:
            labels.keep(course, step, outcome.value)
            listener.advance(labels.n_done, labels.n_checks)
        else:
            failed.append((course, step, outcome.error or ""))
    if failed and labels.n_done == labels.n_failed:
        raise DataError(f"no pilot run could be labelled at its start: {failed[0][2]}")
    for course, step, message in failed:
        labels.fail(course, step, message)
