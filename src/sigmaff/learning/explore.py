"""Candidates of a round: frames of guarded MD with the current model, or the rest of a pool."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from ase import Atoms

from sigmaff.data import label_structures, read_structures, require_state
from sigmaff.data.labelling import engine_state
from sigmaff.errors import SigmaffError
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.learning.directory import Context, Round, read_frames, write_frames
from sigmaff.learning.labels import drawn_in, labels_so_far
from sigmaff.learning.limit import choose_limit
from sigmaff.learning.records import Explored, Trajectories, read_file, write_file
from sigmaff.learning.selection import largest_std
from sigmaff.models.file import load
from sigmaff.simulation import bare_copy, predict_structures
from sigmaff.simulation.md import (
    KnownStd,
    MDConfig,
    MDResult,
    Safety,
    Threshold,
    choose_safety,
    choose_threshold,
    run_md,
    structure_scores,
)
from sigmaff.simulation.md.safety import FACTOR
from sigmaff.tasks import run_tasks

BATCH_SIZE = 16
"""Structures predicted at once: so few that the first rounds need as much memory as the last."""


def explore(context: Context, round_: Round) -> Explored:
    """Write candidates with σ to ``candidates.extxyz``; the content of ``explored.json``."""
    if round_.explored.exists():
        return read_file(round_.explored, Explored)
    explorer = _Explorer(context, round_)
    explored = explorer.in_motion() if context.config.explore.pool is None else explorer.in_pool()
    write_file(round_.explored, explored)
    return explored


class _Explorer:
    """The exploration of one round, with the model of the round before."""

    def __init__(self, context: Context, round_: Round) -> None:
        self.context, self.config, self.round = context, context.config, round_
        self.model = load(round_.before.model)
        self.labelled = labels_so_far(round_.before, context.config.hold_out_every)
        self.limit, self.known = self._limit()

    def _limit(self) -> tuple[Threshold | None, KnownStd | None]:
        """The limit on force σ, and the other σ of held-out structures. ``accepted``: risk control guarantees it."""
        config = self.config.explore
        if config.trust_below != "auto":
            return choose_threshold(config.trust_below, config.error_above, config.risk, None), None
        held_out = [atoms for atoms in self.labelled if atoms.info["held_out"]]
        dataset = dataset_for(self.model, label_structures(held_out))
        evaluation = evaluate(
            self.model, dataset, name="held out", batch_size=BATCH_SIZE, listener=self.context.listener
        )
        scores = structure_scores(evaluation)
        limit = choose_limit(config, scores, [drawn_in(atoms) for atoms in held_out])
        return limit, KnownStd.of_structures(scores, f"the {len(scores)} held-out structures")

    def in_pool(self) -> Explored:
        """Structures of the pool that no earlier round selected."""
        assert self.config.explore.pool is not None
        pool = read_structures(self.config.explore.pool.model_copy(update={"labels": ()}))
        require_state(pool, engine_state(self.config.engine), of="the engine")
        structures = pool.structures
        before = (atoms for round_ in self.round.before.so_far()[1:] for atoms in read_frames(round_.selected))
        taken = {int(atoms.info["pool_index"]) for atoms in before}
        left = [index for index in range(len(structures)) if index not in taken]
        frames = self._predicted([structures[index] for index in left]) if left else []
        for index, frame in zip(left, frames, strict=True):
            frame.info |= {"origin": "pool", "pool_index": index}
        write_frames(self.round.candidates, frames)
        above = None if self.limit is None else [(largest_std(atoms) or 0.0) > self.limit.value for atoms in frames]
        share_above = float(np.mean(above)) if above else None
        return Explored(n_candidates=len(frames), share_above=share_above, endings={}, limit=self.limit)

    def in_motion(self) -> Explored:
        """Run one task for each temperature; write its frames as soon as it ends."""
        temperatures, trajectory = self.config.explore.temperature, self.round.trajectory
        if missing := [temperature for temperature in temperatures if not trajectory(temperature).exists()]:
            work = partial(move, self.round.before.model.read_bytes(), self._starts())
            outcomes = run_tasks(work, [self._settings(temperature) for temperature in missing], self.context.workers())
            for done, outcome in enumerate(outcomes, len(temperatures) - len(missing) + 1):
                temperature = missing[outcome.index]
                if outcome.value is None:
                    raise SigmaffError(f"exploration at {temperature:g} K failed: {outcome.error}")
                frames, trajectories = outcome.value
                write_file(trajectory(temperature).with_suffix(".json"), trajectories, force=True)
                write_frames(trajectory(temperature), frames)
                self.context.listener.advance(done, len(temperatures))
        paths = [trajectory(temperature) for temperature in temperatures]
        candidates = [frame for path in paths for frame in read_frames(path)]
        write_frames(self.round.candidates, candidates)
        parts = [read_file(path.with_suffix(".json"), Trajectories) for path in paths]
        return Explored(
            n_candidates=len(candidates),
            share_above=self._share_above(candidates, sum(part.n_wanted for part in parts)),
            endings=sum((Counter(part.endings) for part in parts), Counter[str]()),
            limit=self.limit,
            safety=self._safety(),
        )

    def _safety(self) -> Safety | None:
        """Replicas go on to ``select.upper`` times the limit on force σ, and to as many times the safety stops."""
        return choose_safety(MDConfig(), self.known, factor=FACTOR * self.config.select.upper)

    def _settings(self, temperature: float) -> MDConfig:
        config = self.config.explore
        seed = [self.config.seed, config.seed, self.round.number, config.temperature.index(temperature)]
        stop_above = None if self.limit is None else self.config.select.upper * self.limit.value
        moves = config.moves(temperature, stop_above, int(np.random.default_rng(seed).integers(2**31)))
        if (safety := self._safety()) is None:
            return moves
        stops = {"stop_above_energy": safety.energy or "off", "stop_above_atom": safety.atom or "off"}
        return moves.model_copy(update=stops)

    def _starts(self) -> list[Atoms]:
        """Draw from the training structures with σ below the limit; if there are too few, add those of smallest σ.

        None is held out: what is explored from there would be selected and trained on, and held-out errors be small.
        """
        labelled = [atoms for atoms in self.labelled if not atoms.info["held_out"]]
        order = np.random.default_rng([self.config.seed, self.round.number, 1]).permutation(len(labelled))
        if self.limit is not None:
            std = np.array([largest_std(atoms) for atoms in self._predicted(labelled)])
            beyond = np.where(std > self.limit.value, std, 0.0)
            order = order[np.argsort(beyond[order], kind="stable")]
        return [bare_copy(labelled[index]) for index in order[: self.config.explore.starts]]

    def _predicted(self, frames: Sequence[Atoms]) -> list[Atoms]:
        """Copies with energy, forces and calibrated σ of the model."""
        dataset = dataset_for(self.model, label_structures([bare_copy(atoms) for atoms in frames], ()))
        return predict_structures(self.model, dataset, BATCH_SIZE, "auto", self.context.listener, stress_std=False)

    def _share_above(self, frames: Sequence[Atoms], n_wanted: int) -> float | None:
        """Of the frames asked for, those beyond the limit, and those never reached because a replica was stopped."""
        if self.limit is None:
            return None
        n_trusted = sum((largest_std(atoms) or 0.0) <= self.limit.value for atoms in frames)
        return max(0.0, 1.0 - n_trusted / n_wanted) if n_wanted else 0.0


def move(model: bytes, starts: Sequence[Atoms], config: MDConfig) -> tuple[list[Atoms], Trajectories]:
    """Run MD on a worker: frames that were written or crossed the limit, without the starts.

    Leaves no files; every worker returns the same frames. model: the content of its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        model_path = Path(folder) / "model.sigmaff"
        model_path.write_bytes(model)
        result = run_md(load(model_path), starts, config, Path(folder) / "md")
        frames = _frames(result)
    for atoms in frames:
        atoms.info |= {"origin": "dynamics", "temperature": config.temperature[0]}
    endings = Counter(record.ending or "" for record in result.records)
    n_wanted = len(result.records) * (config.steps // config.every)
    return frames, Trajectories(n_wanted=n_wanted, endings=endings)


def _frames(result: MDResult) -> list[Atoms]:
    found: dict[tuple[int, int], Atoms] = {}
    paths = (result.trajectory(origin.number) for origin in result.origins)
    written = (frame for path in paths if path.exists() for frame in read_frames(path))
    for atoms in (*written, *result.crossings):
        found.setdefault((int(atoms.info["replica"]), int(atoms.info["step"])), atoms)
    return [found[key] for key in sorted(found) if key[1] > 0]
