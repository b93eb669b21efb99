"""What is looked at after each step, and what follows: replicas that end, or are rolled back; frames and log lines.

Checks are made for all replicas at once. Single replicas are looked at where something is written or happens.
"""

import numpy as np
from ase import units

from sigmaff.models.prediction import FloatArray
from sigmaff.simulation.limits import Limits, Reading, exceeded, nearest, readings
from sigmaff.simulation.md.batch import Batch, Stds
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.evaluation import Evaluation, Unphysical
from sigmaff.simulation.md.frame import frame_text
from sigmaff.simulation.md.output import BROKEN, CROSSINGS, Output
from sigmaff.simulation.md.state import BoolArray, State
from sigmaff.simulation.results import Results

ROUNDING = 1e-9
"""Relative. What is nearer to a limit is looked at alone."""


class Checks:
    """Looks at a batch after each step."""

    def __init__(self, batch: Batch, output: Output, limits: Limits, config: MDConfig) -> None:
        self.batch, self.output, self.limits, self.config = batch, output, limits, config
        self.nearest: Reading | None = None  # of all replicas since the last report, to its limit

    def settle(self, found: Evaluation) -> None:
        """After a step: check all replicas; write frames and log lines; keep the state, without replicas that ended."""
        batch, steps = self.batch, self.batch.state["step"]
        alive = self._give_up(found)
        is_due = alive & (steps % self.config.every == 0)
        crossed: dict[int, Reading] = {}
        if self.config.is_looked_at(steps).any():
            stds = Stds.of(found, batch.system)
            crossed = self._look(found, stds, alive)
            self._write(found, stds, crossed, is_due)
        stopped = {} if self.config.on_crossing == "continue" else crossed
        ended = [index for index, reading in stopped.items() if self._stop(index, reading)]
        batch.remember()
        is_moving = alive.copy()
        for index in np.flatnonzero(alive & (batch.state["step"] >= self.config.steps)).tolist():
            if index not in ended and index not in stopped:
                batch.replicas[index].end("finished", "", int(batch.state["step"][index]))
                ended.append(index)
        for index in ended:
            batch.replicas[index].history = batch.past(index)
            is_moving[index] = False
        if not is_moving.all():
            batch.keep(is_moving)

    def _give_up(self, found: Evaluation) -> BoolArray:
        """End the replicas that are not physical any more; the others."""
        batch = self.batch
        alive = np.ones(len(batch.replicas), dtype=bool)
        for index, problem in found.problems.items():
            self._break(index, problem, batch.moved)
            alive[index] = False
        temperature = batch.system.temperature(batch.state["momenta"])
        for index in np.flatnonzero(alive & ~(temperature <= batch.hottest)).tolist():
            problem = Unphysical("not finite", "velocities are not finite numbers")
            if np.isfinite(temperature[index]):
                text = f"{temperature[index]:.0f} K, above the limit of {batch.hottest[index]:.0f} K"
                problem = Unphysical("temperature", text)
            self._break(index, problem, batch.state)
            alive[index] = False
        return alive

    def _break(self, index: int, problem: Unphysical, state: State) -> None:
        replica, atoms = self.batch.replicas[index], self.batch.system.atoms(index)
        if np.isfinite(state["positions"][atoms]).all() and np.isfinite(state["momenta"][atoms]).all():
            self._append_frame(BROKEN, index, state, {}, reason=problem.reason)
        replica.end(problem.reason, problem.message, int(state["step"][index]))
        if self.batch.history:
            replica.history = self.batch.past(index)

    def _look(self, found: Evaluation, stds: Stds, alive: BoolArray) -> dict[int, Reading]:
        """Check σ and the drift monitors; the σ that has just crossed its limit, by replica."""
        config, steps = self.config, self.batch.state["step"]
        has_std = ~np.isnan(stds.forces_max)
        is_check = (steps % config.check_every == 0) & (self.limits.energy is not None)
        looked = alive & (has_std | is_check)
        if not looked.any():
            return {}
        share = np.zeros(len(looked))  # the largest, of a limit
        pairs = ((stds.forces_max, self.limits.forces), (stds.energy_per_atom, self.limits.energy))
        for values, limit in (*pairs, (stds.atom_max, self.limits.atom)):
            share = np.fmax(share, values / (limit or np.inf))
        size = np.where(looked, np.where(share.any(), share, np.nan_to_num(stds.forces_max)), -1.0)
        self._note(found, int(size.argmax()))
        crossed = {}
        for index in np.flatnonzero(looked).tolist():
            replica, step = self.batch.replicas[index], int(steps[index])
            record = replica.record
            record.checks += 1
            if has_std[index] and step % config.drift_every == 0:
                replica.look(step, float(stds.forces_max[index]))
            is_near = share[index] > 1.0 - ROUNDING
            above = exceeded(readings(found.results(index), self.limits)) if is_near else None
            record.above += above is not None
            if above is not None and not record.outside:
                crossed[index] = above
            record.outside = above is not None
        return crossed

    def _note(self, found: Evaluation, index: int) -> None:
        """Keep the reading of this replica that is nearest to its limit, for people."""
        if values := readings(found.results(index), self.limits):
            self.nearest = nearest([*values, *filter(None, [self.nearest])])

    def _write(self, found: Evaluation, stds: Stds, crossed: dict[int, Reading], is_due: BoolArray) -> None:
        """Frames and log lines, in the order of replicas."""
        if not (crossed or is_due.any()):
            return
        batch, rows = self.batch, []
        observed = self._observations(stds)
        sizes = batch.state["trajectory"].copy()
        for index in sorted({*crossed, *np.flatnonzero(is_due).tolist()}):
            results, row = found.results(index), {name: values[index] for name, values in observed.items()}
            if (reading := crossed.get(index)) is not None:
                batch.replicas[index].record.crossings += 1
                self._append_frame(CROSSINGS, index, batch.state, results, reason="crossing", crossed=reading.of)
                if self.config.on_crossing != "continue":
                    rows.append(row)
                    continue
            if is_due[index]:
                name = batch.replicas[index].trajectory
                self._append_frame(name, index, batch.state, results)
                sizes[index] = self.output.size(name)
                rows.append(row)
        self.output.append_rows(rows)
        batch.state = batch.state | {"trajectory": sizes}

    def _stop(self, index: int, crossed: Reading) -> bool:
        """Whether a replica ends because of a σ above its limit; else it is rolled back."""
        batch, replica = self.batch, self.batch.replicas[index]
        step = int(batch.state["step"][index])
        message = f"{crossed} at step {step}, above {crossed.limit:.3g}"
        if self.config.on_crossing == "stop" or not batch.depth[index]:
            replica.end("crossing", message, step)
            return True
        batch.take_back(index)
        step = int(batch.state["step"][index])
        self.output.cut(replica.trajectory, int(batch.state["trajectory"][index]))
        replica.record.outside = False
        if replica.record.crossings > self.config.max_rollbacks:
            replica.end("crossing", f"{message}; taken back to step {step}", step)
            return True
        batch.redraw_velocities(index)
        return False

    def _append_frame(self, name: str, index: int, state: State, results: Results, **more: str) -> None:
        system, step = self.batch.system, int(state["step"][index])
        atoms, number = system.atoms(index), self.batch.replicas[index].origin.number
        info: dict[str, float | str] = {"replica": number, "step": step, "time_fs": step * self.config.timestep, **more}
        positions, momenta = state["positions"][atoms], state["momenta"][atoms]
        where = (system.numbers[atoms], positions, momenta, state["cell"][index], system.periodic[index])
        self.output.append(name, frame_text(*where, results, info))

    def _observations(self, stds: Stds) -> dict[str, list[float | None]]:
        """Columns of the log, with a value for each replica."""
        batch, state, system = self.batch, self.batch.state, self.batch.system
        potential, doubled = state["energy"], system.doubled_kinetic(state["momenta"])
        volume = np.where(system.periodic.all(1), np.abs(np.linalg.det(state["cell"])), np.nan)
        return {
            "step": state["step"].tolist(),
            "replica": [replica.origin.number for replica in batch.replicas],
            "time_fs": (state["step"] * self.config.timestep).tolist(),
            "potential_energy": potential.tolist(),
            "kinetic_energy": (0.5 * doubled).tolist(),
            "total_energy": (potential + 0.5 * doubled).tolist(),
            "temperature": (doubled / ((3 * system.n_atoms - 3) * units.kB)).tolist(),
            "volume": _known(volume),
            "forces_std_max": _known(stds.forces_max),
            "forces_std_mean": _known(stds.forces_mean),
            "energy_std_per_atom": _known(stds.energy / system.n_atoms),
            "atom_std_max": _known(stds.atom_max),
        }


def _known(values: FloatArray) -> list[float | None]:
    """``None`` for NaN."""
    return [None if value != value else value for value in values.tolist()]
