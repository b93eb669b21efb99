"""Guarded molecular dynamics: many replicas in one batch, each stopped when a σ of it exceeds its limit."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read

from sigmaff.data import other_state, unknown_element
from sigmaff.data.statistics import undetermined_energies
from sigmaff.errors import ConfigError, DataError
from sigmaff.models import Model
from sigmaff.models.prediction import Predictor
from sigmaff.progress import Listener
from sigmaff.simulation.limits import FACTOR, Limits, Reading, known_range, readings
from sigmaff.simulation.md.batch import Batch
from sigmaff.simulation.md.checkpoint import Checkpoint, Summary, open_run, read_checkpoint, run_folder
from sigmaff.simulation.md.checks import Checks
from sigmaff.simulation.md.config import MDConfig, MotionConfig
from sigmaff.simulation.md.drift import DriftRule, drift_rule
from sigmaff.simulation.md.output import CROSSINGS, Output, make_safe, trajectory_name
from sigmaff.simulation.md.replica import Origin, Record, Replica
from sigmaff.simulation.md.safety import Safety
from sigmaff.simulation.md.status import StatusNote
from sigmaff.simulation.md.threshold import Scores, Threshold
from sigmaff.simulation.results import UNDETERMINED


@dataclass(frozen=True, kw_only=True)
class MDResult:
    """The results of a run."""

    directory: Path
    threshold: Threshold | None
    safety: Safety | None  # limits on energy σ and on the σ of atoms
    drift: DriftRule | None  # None: not monitored
    origins: tuple[Origin, ...]
    records: tuple[Record, ...]  # of each replica
    crossings: tuple[Atoms, ...]  # frames with a σ above its limit, with replica and step in ``info``

    @property
    def share_above(self) -> float | None:
        """Share of checks with a σ above its limit."""
        checks, has_limit = sum(record.checks for record in self.records), self.threshold or self.safety
        return sum(record.above for record in self.records) / checks if has_limit and checks else None

    def trajectory(self, replica: int) -> Path:
        return self.directory / trajectory_name(replica)


def run_md(
    model: Predictor,
    structures: Sequence[Atoms],
    config: MDConfig,
    directory: Path,
    listener: Listener | None = None,
    *,
    calibration: Scores | None = None,
) -> MDResult:
    """Run molecular dynamics of each structure at each temperature, ``config.replicas`` times, all in one batch.

    Repeat the call to resume the same trajectories; with more steps it continues beyond the end.

    Arguments:
        structures: starts; their velocities are used if ``config.temperature`` is empty.
        directory: gets trajectories, ``log.csv``, ``md.json`` and the checkpoint.
        listener: progress callbacks; ``None`` is silent.
        calibration: scores of labelled structures unseen by the model (``structure_scores``), for ``stop_above="auto"``
            and for the drift monitor, which is off without them.
    """
    if not structures:
        raise DataError("there is no structure to start from")
    for index, atoms in enumerate(structures):
        if problem := start_problem(atoms, model, config):
            raise DataError(f"start {index}: {problem}")
    with run_folder(directory).lock():
        drift = None if calibration is None else drift_rule(calibration.forces_std, config.false_alarm)
        summary = open_run(directory, model, structures, config, calibration, drift)
        with ThreadPoolExecutor(max_workers=1) as writer:
            run = _Run(model, structures, config, summary, directory, drift, writer)
            run.go(listener or Listener())
    crossings = directory / CROSSINGS
    frames = read(crossings, ":", format="extxyz") if crossings.exists() and crossings.stat().st_size else []
    return MDResult(
        directory=directory,
        threshold=summary.threshold,
        safety=summary.safety,
        drift=drift,
        origins=tuple(replica.origin for replica in run.replicas),
        records=tuple(replica.record for replica in run.replicas),
        crossings=tuple(frames),
    )


class _Run:
    """A running simulation."""

    def __init__(
        self,
        model: Predictor,
        structures: Sequence[Atoms],
        config: MDConfig,
        summary: Summary,
        directory: Path,
        drift: DriftRule | None,
        writer: Executor,
    ) -> None:
        """writer: of checkpoints, one after the other."""
        self.writer, self.saving = writer, writer.submit(lambda: None)
        self.config, self.summary, self.directory = config, summary, directory
        self.limits = Limits(
            forces=None if summary.threshold is None else summary.threshold.value,
            energy=None if summary.safety is None else summary.safety.energy,
            atom=None if summary.safety is None else summary.safety.atom,
        )
        saved = read_checkpoint(directory)
        self.output = Output(directory, None if saved is None else saved.sizes)
        each = product(range(len(structures)), config.temperature or (None,), range(config.replicas))
        self.replicas = [
            Replica(Origin(number, start, temperature), structures[start], config, drift)
            for number, (start, temperature, _) in enumerate(each)
        ]
        if saved is not None:
            for replica, memory, history in zip(self.replicas, saved.memories, saved.histories, strict=True):
                replica.load(memory, history)
                replica.extend(config.steps)
        self.is_new = saved is None
        self.batch = Batch([replica for replica in self.replicas if replica.running], model, config)
        self.checks = Checks(self.batch, self.output, self.limits, config)
        self.note, self.n_running, self.n_stopped = StatusNote(), -1, 0
        self.usual = None if self.limits.forces is not None else known_range(model)

    def go(self, listener: Listener) -> None:
        if self.is_new:
            self._begin(listener)
            self._save()
        elif self.batch.replicas:
            self.batch.resume([replica.history for replica in self.batch.replicas])
            step, steps = int(self.batch.state["step"].min()), self.config.steps
            listener.advance(step, steps, f"resuming from step {step} of {steps}")
        n_done = 0
        while self.batch.replicas:
            self.checks.settle(self.batch.advance())
            n_done += 1
            if n_done % self.config.checkpoint_every == 0 or self.output.has_cuts:
                self._save()
            self.output.write_sometimes()
            self._report(listener)
        if n_done or self.is_new:
            self._save()
        ends = tuple(asdict(replica.origin) | asdict(replica.record) for replica in self.replicas)
        summary = self.summary.model_copy(update={"finished": True, "steps": self.config.steps, "replicas": ends})
        run_folder(self.directory).write(summary)

    def _begin(self, listener: Listener) -> None:
        """Compute the starts; raise an error if one of them is invalid."""
        found, replicas = self.batch.begin(), self.batch.replicas
        for index, problem in found.problems.items():
            raise DataError(f"start {replicas[index].origin.start}: {problem.message}")
        results = found.results(0)
        has = {reading.of for reading in readings(results, self.limits)}
        for name, limit, words, remedy in (
            ("forces", self.limits.forces, "σ of forces", "leave stop_above out"),
            ("energy", self.limits.energy, "σ of energies", "set stop_above_energy to off"),
            ("atom", self.limits.atom, "σ of single atoms", "set stop_above_atom to off"),
        ):
            if limit is not None and name not in has:
                raise ConfigError(f"the model gives no {words}, so there is nothing to stop at: {remedy}")
        if self.config.ensemble == "npt" and "stress" not in results:
            raise ConfigError("the model gives no stress, without which the cell cannot move: use nvt")
        undetermined = [UNDETERMINED in found.results(index) for index in range(len(replicas))]
        formulas = [replicas[index].atoms.get_chemical_formula() for index in np.flatnonzero(undetermined)]
        self.checks.settle(found)
        if formulas:
            listener.warn(undetermined_energies(formulas))

    def _report(self, listener: Listener) -> None:
        n_running = len(self.batch.replicas)
        if n_running != self.n_running:
            stopped = [replica for replica in self.replicas if replica.record.ending not in (None, "finished")]
            self.n_running, self.n_stopped = n_running, len(stopped)
        ends = [] if n_running else [replica.record.ended_at or 0 for replica in self.replicas]
        step = int(self.batch.state["step"].min()) if n_running else max(ends)
        note = self.note.text(n_running, len(self.replicas), self.n_stopped, self.checks.nearest)
        self._warn_of_unusual(self.checks.nearest, step, listener)
        self.checks.nearest = None
        listener.advance(step, self.config.steps, note)

    def _warn_of_unusual(self, reading: Reading | None, step: int, listener: Listener) -> None:
        """Once, where no limit on force σ ends a replica that has left what the model knows."""
        if self.usual is None or self.usual.forces is None or reading is None or reading.of != "forces":
            return
        if reading.value > (limit := FACTOR * self.usual.forces.largest):
            listener.warn(
                f"step {step}: {reading} is above {limit:.3g}, {FACTOR:g} times the largest of the "
                f"{self.usual.n_structures} calibration structures. The run goes on: it has no limit on force σ "
                "(--stop-above, stop_above). This is said once"
            )
            self.usual = None

    def _save(self) -> None:
        past = {replica.origin.number: replica.history for replica in self.replicas if not replica.running}
        past |= {replica.origin.number: self.batch.past(index) for index, replica in enumerate(self.batch.replicas)}
        sizes, unsafe = self.output.write()
        checkpoint = Checkpoint(
            sizes=sizes,
            memories=[replica.memory() for replica in self.replicas],
            histories=[past[number] for number in range(len(self.replicas))],
        )
        self.saving.result()  # raises what went wrong there
        self.saving = self.writer.submit(_store, checkpoint, unsafe, self.directory)
        if self.output.has_cuts or not self.batch.replicas:
            self.saving.result()
            self.output.apply_cuts()


def _store(checkpoint: Checkpoint, unsafe: Sequence[Path], directory: Path) -> None:
    """Beside the run, which waits for nothing but the checkpoint before."""
    make_safe(unsafe)
    checkpoint.write(directory)


def start_problem(atoms: Atoms, model: Predictor, config: MotionConfig) -> str | None:
    """Why no run can start from a structure; ``None``: it can."""
    if len(atoms) < 2:
        return f"{len(atoms)} atoms; nothing moves but the distances between atoms, so at least 2 are needed"
    if atoms.constraints:
        return "it has constraints (fixed atoms); here all atoms move: remove them"
    if isinstance(model, Model):
        problem = unknown_element(atoms.numbers, model.elements) or other_state(atoms, model.electrons)
        if problem is not None:
            return problem
    if config.ensemble == "npt" and not (atoms.pbc.all() and atoms.cell.rank == 3):
        return "npt needs a cell that is periodic along all three axes"
    momenta = atoms.get_momenta()
    if not config.temperature and not (momenta.any() and np.isfinite(momenta).all()):
        return "it has no velocities of its own; give a temperature to draw them at"
    return None
