"""Candidates of a round: frames of guarded MD with the current model, or the rest of a pool."""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ase import Atoms
from ase.io import read

from sigmaff.data import GraphDataset, LabelledStructures, read_structures
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.learning.config import CampaignConfig, ExploreConfig
from sigmaff.learning.directory import Round, read_frames, write_frames
from sigmaff.learning.records import Explored, Trajectories, read_file, write_file
from sigmaff.learning.selection import largest_std
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.simulation import bare_copy, predict_structures
from sigmaff.simulation.md import MDConfig, MDResult, Scores, Threshold, choose_threshold, run_md
from sigmaff.tasks import run_tasks

if TYPE_CHECKING:
    from distributed import Client

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Molecular dynamics at one temperature: all that a worker needs."""

    model: bytes  # the model file
    starts: tuple[Atoms, ...]
    config: MDConfig


def limit_of(config: ExploreConfig, scores: Scores | None) -> Threshold | None:
    """The limit on σ of a round. ``accepted`` is set if risk control guarantees it."""
    if scores is None:
        return None
    try:
        return choose_threshold(config.trust_below, config.error_above, config.risk, scores)
    except ConfigError as reason:
        value = float(scores.forces_std.max())
        statement = f"limit on force σ: {value:.4g} eV/Å, the largest of a held-out structure. No promise yet: {reason}"
        return Threshold(value=value, statement=statement)


def explore(
    round_: Round,
    config: CampaignConfig,
    model_path: Path,
    labelled: Sequence[Atoms],
    scores: Scores | None,
    workers: Callable[[], "Client"],
    listener: Listener,
) -> Explored:
    """Write candidates with σ to ``candidates.extxyz``; the content of ``explored.json``."""
    if round_.explored.exists():
        return read_file(round_.explored, Explored)
    limit = limit_of(config.explore, scores)
    model = load(model_path)
    if config.explore.pool is not None:
        explored = _from_pool(round_, config.explore, model, labelled, limit, listener)
    else:
        starts = _starts(model, labelled, config, round_.number, limit, listener)
        explored = _in_motion(round_, config, model_path.read_bytes(), starts, limit, workers, listener)
    write_file(round_.explored, explored)
    return explored


def with_predictions(model: Model, frames: Sequence[Atoms], listener: Listener) -> list[Atoms]:
    """Copies with energy, forces and calibrated σ of the model."""
    structures = LabelledStructures(
        structures=tuple(bare_copy(atoms) for atoms in frames),
        energy=None,
        forces=None,
        source="structures",
        frame_index=np.arange(len(frames)),
    )
    dataset: GraphDataset = dataset_for(model, structures)
    return predict_structures(model, dataset, BATCH_SIZE, "auto", listener)


def _from_pool(
    round_: Round,
    config: ExploreConfig,
    model: Model,
    labelled: Sequence[Atoms],
    limit: Threshold | None,
    listener: Listener,
) -> Explored:
    """Structures of the pool that no earlier round selected."""
    assert config.pool is not None
    structures = read_structures(config.pool.model_copy(update={"labels": ()})).structures
    before = (round_.path.parent / f"{number:02d}" / round_.selected.name for number in range(1, round_.number))
    taken = {int(atoms.info["pool_index"]) for path in before for atoms in read_frames(path)}
    left = [(index, atoms) for index, atoms in enumerate(structures) if index not in taken]
    frames = with_predictions(model, [atoms for _, atoms in left], listener) if left else []
    for (index, _), frame in zip(left, frames, strict=True):
        frame.info |= {"origin": "pool", "pool_index": index}
    write_frames(round_.candidates, frames)
    above = None if limit is None else [(largest_std(atoms) or 0.0) > limit.value for atoms in frames]
    share_above = float(np.mean(above)) if above else None
    return Explored(n_candidates=len(frames), share_above=share_above, endings={}, limit=limit)


def _starts(
    model: Model,
    labelled: Sequence[Atoms],
    config: CampaignConfig,
    number: int,
    limit: Threshold | None,
    listener: Listener,
) -> list[Atoms]:
    """Draw from the labelled structures with σ below the limit; if there are too few, add those of smallest σ."""
    order = np.random.default_rng([config.seed, number, 1]).permutation(len(labelled))
    if limit is not None:
        std = np.array([largest_std(atoms) for atoms in with_predictions(model, labelled, listener)])
        beyond = np.where(std > limit.value, std, 0.0)
        order = order[np.argsort(beyond[order], kind="stable")]
    return [bare_copy(labelled[index]) for index in order[: config.explore.starts]]


def _in_motion(
    round_: Round,
    config: CampaignConfig,
    model: bytes,
    starts: Sequence[Atoms],
    limit: Threshold | None,
    workers: Callable[[], "Client"],
    listener: Listener,
) -> Explored:
    """Run one task for each temperature; write its frames as soon as it ends."""
    temperatures = config.explore.temperature
    missing = [temperature for temperature in temperatures if not round_.trajectory(temperature).exists()]
    pieces = []
    for temperature in missing:
        seed = [config.seed, config.explore.seed, round_.number, temperatures.index(temperature)]
        derived = int(np.random.default_rng(seed).integers(2**31))
        stop_above = None if limit is None else config.select.upper * limit.value
        settings = config.explore.moves(temperature, stop_above, derived)
        pieces.append(Exploration(model=model, starts=tuple(starts), config=settings))
    done = len(temperatures) - len(missing)
    for outcome in run_tasks(move, pieces, workers()) if pieces else ():
        if outcome.value is None:
            raise SigmaffError(f"exploration at {missing[outcome.index]:g} K failed: {outcome.error}")
        frames, trajectories = outcome.value
        path = round_.trajectory(missing[outcome.index])
        write_file(path.with_suffix(".json"), trajectories, force=True)
        write_frames(path, frames)
        done += 1
        listener.advance(done, len(temperatures))
    paths = [round_.trajectory(temperature) for temperature in temperatures]
    candidates = [frame for path in paths for frame in read_frames(path)]
    write_frames(round_.candidates, candidates)
    parts = [read_file(path.with_suffix(".json"), Trajectories) for path in paths]
    return Explored(
        n_candidates=len(candidates),
        share_above=None if limit is None else _share_above(candidates, sum(part.n_wanted for part in parts), limit),
        endings=sum((Counter(part.endings) for part in parts), Counter[str]()),
        limit=limit,
    )


def move(piece: Exploration) -> tuple[list[Atoms], Trajectories]:
    """Run MD on a worker: frames that were written or crossed the limit, without the starts.

    Leaves no files; every worker returns the same frames.
    """
    with tempfile.TemporaryDirectory() as folder:
        model_path = Path(folder) / "model.sigmaff"
        model_path.write_bytes(piece.model)
        result = run_md(load(model_path), piece.starts, piece.config, Path(folder) / "md")
        frames = _frames(result)
    temperature = piece.config.temperature[0]
    for atoms in frames:
        atoms.info |= {"origin": "dynamics", "temperature": temperature}
    endings = Counter(record.ending or "" for record in result.records)
    n_wanted = len(result.records) * (piece.config.steps // piece.config.every)
    return frames, Trajectories(n_wanted=n_wanted, endings=endings)


def _frames(result: MDResult) -> list[Atoms]:
    found: dict[tuple[int, int], Atoms] = {}
    paths = (result.trajectory(origin.number) for origin in result.origins)
    written = (frame for path in paths if path.exists() for frame in read(path, ":", format="extxyz"))
    for atoms in (*written, *result.crossings):
        found.setdefault((int(atoms.info["replica"]), int(atoms.info["step"])), atoms)
    return [found[key] for key in sorted(found) if key[1] > 0]


def _share_above(frames: Sequence[Atoms], n_wanted: int, limit: Threshold) -> float:
    """Of the frames asked for, those beyond the limit, and those never reached because a replica was stopped."""
    trusted = sum((largest_std(atoms) or 0.0) <= limit.value for atoms in frames)
    return max(0.0, 1.0 - trusted / n_wanted) if n_wanted else 0.0
