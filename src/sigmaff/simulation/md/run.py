"""Guarded molecular dynamics: many replicas in one batch, each stopped when a σ of it exceeds its limit."""

from collections.abc import Sequence
from contextlib import closing
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
from sigmaff.simulation.limits import Limits, Reading, exceeded, nearest, readings
from sigmaff.simulation.md.checkpoint import Checkpoint, Summary, open_run, read_checkpoint, run_folder
from sigmaff.simulation.md.config import MDConfig, MotionConfig
from sigmaff.simulation.md.drift import DriftRule, drift_rule
from sigmaff.simulation.md.integrator import temperature_of
from sigmaff.simulation.md.output import BROKEN, CROSSINGS, Output, trajectory_name
from sigmaff.simulation.md.prediction_server import Question, Unphysical, answers
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
        with closing(_Run(model, structures, config, summary, directory, drift)) as run:
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
    ) -> None:
        self.model, self.config, self.summary, self.directory = model, config, summary, directory
        self.limits = Limits(
            forces=None if summary.threshold is None else summary.threshold.value,
            energy=None if summary.safety is None else summary.safety.energy,
            atom=None if summary.safety is None else summary.safety.atom,
        )
        self.note = StatusNote()
        self.nearest: Reading | None = None  # of all replicas since the last report, to its limit
        saved = read_checkpoint(directory)
        self.output = Output(directory, None if saved is None else saved.sizes)
        each = product(range(len(structures)), config.temperature or (None,), range(config.replicas))
        self.replicas = [
            Replica(Origin(number, start, temperature), structures[start], config, drift, self.output)
            for number, (start, temperature, _) in enumerate(each)
        ]
        if saved is not None:
            for replica, memory, history in zip(self.replicas, saved.memories, saved.histories, strict=True):
                replica.load(memory, history)
                if replica.record.ending == "finished" and replica.step < config.steps:
                    replica.record.ending = replica.record.ended_at = None
        self.is_new = saved is None

    def go(self, listener: Listener) -> None:
        if self.is_new:
            self._begin()
            chosen = [replica for replica in self.replicas if UNDETERMINED in replica.results]
            if formulas := [replica.atoms.get_chemical_formula() for replica in chosen]:
                listener.warn(undetermined_energies(formulas))
            self._save()
        elif running := [replica.step for replica in self.replicas if replica.running]:
            step, steps = min(running), self.config.steps
            listener.advance(step, steps, f"resuming from step {step} of {steps}")
        n_done = 0
        while any(replica.running for replica in self.replicas):
            self._advance()
            n_done += 1
            if n_done % self.config.checkpoint_every == 0 or self.output.has_cuts:
                self._save()
            self._report(listener)
        if n_done or self.is_new:
            self._save()
        ends = tuple(asdict(replica.origin) | asdict(replica.record) for replica in self.replicas)
        summary = self.summary.model_copy(update={"finished": True, "steps": self.config.steps, "replicas": ends})
        run_folder(self.directory).write(summary)

    def close(self) -> None:
        for replica in self.replicas:
            replica.stepper.close()

    def _begin(self) -> None:
        """Compute the starts; raise an error if one of them is invalid."""
        self._serve({replica: replica.first_question() for replica in self.replicas})
        for replica in self.replicas:
            if not replica.running:
                raise DataError(f"start {replica.origin.start}: {replica.record.message}")
        has = {reading.of for reading in readings(self.replicas[0].results, self.limits)}
        for name, limit, words, remedy in (
            ("forces", self.limits.forces, "σ of forces", "leave stop_above out"),
            ("energy", self.limits.energy, "σ of energies", "set stop_above_energy to off"),
            ("atom", self.limits.atom, "σ of single atoms", "set stop_above_atom to off"),
        ):
            if limit is not None and name not in has:
                raise ConfigError(f"the model gives no {words}, so there is nothing to stop at: {remedy}")
        if self.config.ensemble == "npt" and "stress" not in self.replicas[0].results:
            raise ConfigError("the model gives no stress, without which the cell cannot move: use nvt")
        for replica in self.replicas:
            self._settle(replica)

    def _advance(self) -> None:
        """One step of every running replica."""
        running = [replica for replica in self.replicas if replica.running]
        self._serve({replica: replica.next_question() for replica in running})
        for replica in running:
            if replica.running:
                self._settle(replica)

    def _serve(self, questions: dict[Replica, Atoms | None]) -> None:
        """Answer the questions of all replicas together until none has one left."""
        waiting = {replica: atoms for replica, atoms in questions.items() if atoms is not None}
        while waiting:
            asked = [Question(atoms, self.config.forces_std_at(replica.step)) for replica, atoms in waiting.items()]
            replies = answers(self.model, asked)
            for replica, reply in zip(list(waiting), replies, strict=True):
                if isinstance(reply, Unphysical):
                    self._give_up(replica, reply)
                    del waiting[replica]
                elif (question := replica.stepper.proceed(reply)) is None:
                    del waiting[replica]
                else:
                    waiting[replica] = question

    def _settle(self, replica: Replica) -> None:
        """Check a replica after its step; write frames and log lines."""
        temperature, limit = temperature_of(replica.atoms), self.config.hottest * replica.target
        if not np.isfinite(temperature):
            self._give_up(replica, Unphysical("not finite", "velocities are not finite numbers"))
            return
        if temperature > limit:
            self._give_up(replica, Unphysical("temperature", f"{temperature:.0f} K, above the limit of {limit:.0f} K"))
            return
        if (crossed := self._look(replica)) is not None:
            self._cross(replica, crossed)
            if self.config.on_crossing != "continue":
                return
        if replica.step % self.config.every == 0:
            self.output.append_frame(replica.trajectory, replica.atoms, replica.results, replica.frame_info())
            self.output.append_log(replica.observation())
        replica.remember()
        if replica.step >= self.config.steps:
            replica.end("finished", "")

    def _look(self, replica: Replica) -> Reading | None:
        """Check σ and the drift monitor; the σ that has just crossed its limit."""
        sizes, is_check = replica.forces_std(), replica.step % self.config.check_every == 0
        if sizes is None and not (is_check and self.limits.energy is not None):
            return None
        record, found = replica.record, readings(replica.results, self.limits)
        self.nearest = nearest([*found, *filter(None, [self.nearest])])
        record.checks += 1
        if sizes is not None and record.drift_step is None and replica.step % self.config.drift_every == 0:
            record.drift_step = replica.drift_alarm(float(sizes.max()))
        above = exceeded(found)
        record.above += above is not None
        entered, record.outside = not record.outside, above is not None
        return above if entered else None

    def _cross(self, replica: Replica, crossed: Reading) -> None:
        record, row = replica.record, replica.observation()
        record.crossings += 1
        info = replica.frame_info(reason="crossing", crossed=crossed.of)
        self.output.append_frame(CROSSINGS, replica.atoms, replica.results, info)
        if self.config.on_crossing == "continue":
            return
        self.output.append_log(row)
        message = f"{crossed} at step {replica.step}, above {crossed.limit:.3g}"
        if self.config.on_crossing == "stop" or not replica.history:
            replica.remember()
            replica.end("crossing", message)
            return
        replica.take_back()
        record.outside = False
        if record.crossings > self.config.max_rollbacks:
            replica.end("crossing", f"{message}; taken back to step {replica.step}")
        else:
            replica.redraw_velocities()

    def _give_up(self, replica: Replica, found: Unphysical) -> None:
        if np.isfinite(replica.atoms.positions).all() and np.isfinite(replica.atoms.get_momenta()).all():
            self.output.append_frame(BROKEN, replica.atoms, {}, replica.frame_info(reason=found.reason))
        replica.end(found.reason, found.message)

    def _report(self, listener: Listener) -> None:
        running = [replica.step for replica in self.replicas if replica.running]
        step = min(running) if running else max(replica.step for replica in self.replicas)
        stopped = sum(replica.record.ending not in (None, "finished") for replica in self.replicas)
        note = self.note.text(len(running), len(self.replicas), stopped, self.nearest)
        self.nearest = None
        listener.advance(step, self.config.steps, note)

    def _save(self) -> None:
        memories, histories = zip(*(replica.saved() for replica in self.replicas), strict=True)
        Checkpoint(sizes=self.output.flush(), memories=memories, histories=histories).write(self.directory)
        self.output.apply_cuts()


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
