"""Guarded MD with the σ of a head and with that of an ensemble: time before the stop, at an equal share of misses.

python benchmarks/networks.py networks --sets ethanol
python benchmarks/guarded_heads.py networks runs/guarded_heads --heads "{lnk: {}}"

Protocol, written before a run was made. Ethanol, trained at 500 K (GFN2-xTB), moves at 600 K and at 1000 K, from starts
drawn from the test part, without a limit. The first head and the ensemble drive runs of their own, with the same starts
and velocities. Every 5 fs, frames are held against GFN2-xTB until the first force error of an atom above 0.3 eV/Å at
600 K and 1 eV/Å at 1000 K: the errors that ``guarded_md.py`` guards against. A run under a limit on σ is the beginning
of such a run. It misses if it has an error that no σ up to then announces. For each contender the limit is the largest
under which a given share of all runs misses; all have that advantage of hindsight alike. What counts is the mean time
until the stop, with a 95 % interval by bootstrap over runs, in which the limit is found anew; paired for differences.

Two tables: each drives its own runs; all watch the runs of the first head, where errors are the same for all and σ
alone decides. σ is the largest force σ of an atom, energy σ, or the largest ``node_energy_std``; beside it a clock and
an oracle. Run the same command again to resume; other settings of the first head need another folder. With the default
numbers it takes about 10 minutes of one core.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from contenders import Contenders, Measure, command, contenders, finish, shown, table
from guarded_md import ENGINE, TIME_STEP, clock, largest
from machine import describe_machine, prepare, progress

from sigmaff.models import Model
from sigmaff.models.prediction import FloatArray
from sigmaff.progress import Listener
from sigmaff.simulation.md import GuardConfig, PilotRun
from sigmaff.simulation.md.guard import pilot_runs
from sigmaff.simulation.md.pilots import run_limit
from sigmaff.simulation.md.risk import largest_limit

SHARES = (0.05, 0.1, 0.2)
"""Of runs that miss."""
CHECK_EVERY = 10  # steps
FORCE, ENERGY, NODE = "force σ", "energy σ", "node σ"


# --- runs


def driven(
    name: str, model: Model, starts: Sequence[Atoms], case: tuple[float, float], options: Namespace, listener: Listener
) -> tuple[list[PilotRun], list[list[Atoms]]]:
    """Runs that a model drives, and their frames at checks."""
    temperature, error_above = case
    folder = options.runs_folder / f"{temperature:g}K" / name.replace(" ", "_")
    config = GuardConfig(
        temperature=(temperature,),
        timestep=TIME_STEP,
        steps=options.steps,
        check_every=CHECK_EVERY,
        error_above=error_above,
        risk=0.5,  # a promise is not asked for
        pilots=options.runs,
        engine=ENGINE,
    )
    listener.stage(f"{temperature:g} K: runs of {name}")
    runs = pilot_runs(model, starts, config, folder, listener)
    frames = []
    for path, run in zip(sorted((folder / "pilots").glob("trajectory-*.extxyz")), runs, strict=True):
        by_step = {int(frame.info["step"]): frame for frame in ase.io.read(path, ":")}
        frames.append([by_step[step] for step in run.steps.tolist()])
    return runs, frames


def watched(
    model: Model, runs: Sequence[PilotRun], frames: Sequence[Sequence[Atoms]], listener: Listener
) -> dict[str, list[PilotRun]]:
    """The same runs with another σ at their checks, by kind of σ."""
    found: dict[str, list[PilotRun]] = {}
    for done, (run, own) in enumerate(zip(runs, frames, strict=True), 1):
        predictions = model.predict([Atoms(frame.numbers, frame.positions) for frame in own])
        stds = {
            FORCE: [largest(one.forces_std) for one in predictions],
            ENERGY: [one.energy_std for one in predictions],
        }
        if predictions[0].node_energy_std is not None:
            stds[NODE] = [one.node_energy_std.max() for one in predictions]
        for kind, values in stds.items():
            found.setdefault(kind, []).append(replace(run, forces_std=np.array(values, dtype=np.float64)))
        listener.advance(done, len(runs))
    return found


# --- measures


def rows_of(runs: Sequence[PilotRun]) -> FloatArray:
    """A row for each run: score, last step, and σ at its checks, −∞ after its end."""
    rows = np.full((len(runs), 2 + max(run.steps.size for run in runs)), -np.inf)
    for row, run in zip(rows, runs, strict=True):
        row[:2] = run.score, run.ended_at
        row[2 : 2 + run.steps.size] = run.forces_std
    return rows


def mean_time(rows: FloatArray, share: float) -> float:
    """fs, until the stop, under the largest limit with at most this share of runs that miss."""
    scores, ended, stds = rows[:, 0], rows[:, 1], rows[:, 2:]
    limit = largest_limit(scores[np.isfinite(scores)], floor(share * len(rows)), float(stds.max()))
    above = stds > limit
    last = np.where(above.any(axis=1), CHECK_EVERY * above.argmax(axis=1), ended)
    return TIME_STEP * float(last.mean())


def measure(runs: Sequence[PilotRun], share: float) -> Measure:
    return Measure(rows_of(runs), partial(mean_time, share=share))


def numbers(runs: Sequence[PilotRun], others: Sequence[PilotRun] | None, share: float) -> dict[str, Any]:
    """Of one contender; ``others``: the same runs as the ensemble sees them, for the difference."""
    limit = run_limit(runs, floor(share * len(runs)))
    last = [TIME_STEP * run.last_step(limit) for run in runs]
    return {
        "limit": limit,
        "missed": float(np.mean([run.does_harm(limit) for run in runs])),
        "stopped": float(np.mean([run.stopped_at(limit) is not None for run in runs])),
        "mean_time": measure(runs, share).found(),
        "median_time": float(np.median(last)),
        "minus_ensemble": None if others is None else measure(runs, share).minus(measure(others, share)),
    }


def compared(found: Contenders, case: tuple[float, float], options: Namespace, listener: Listener) -> dict[str, Any]:
    """All numbers at one temperature."""
    starts = found.parts["test"].structures
    head = next(iter(found.models))
    content: dict[str, Any] = {"own": {}, "same": {}}
    own = {}
    for name in dict.fromkeys([head, *([] if found.ensemble is None else [found.ensemble])]):
        runs, frames = driven(name, found.models[name], starts, case, options, listener)
        listener.stage(f"{name} watches")
        own[name] = watched(found.models[name], runs, frames, listener)
        content["own"][name] = {"oracle": oracle(runs), "wrong": sum(run.wrong_at is not None for run in runs)}
        if name == head:
            same = {head: own[head]}
            for other, model in found.models.items():
                if other != head:
                    listener.stage(f"{other} watches")
                    same[other] = watched(model, runs, frames, listener)
            same["a clock"] = {"time": [clock(run) for run in runs]}
    for key, seen in (("own", own), ("same", same)):
        for name, kinds in seen.items():
            for kind, runs_seen in kinds.items():
                reference = None if found.ensemble in (None, name) else seen[found.ensemble][FORCE]
                content[key].setdefault(name, {})[kind] = {
                    f"{share:g}": numbers(runs_seen, reference, share) for share in SHARES
                }
    return content


def oracle(runs: Sequence[PilotRun]) -> float:
    """fs, mean."""
    return TIME_STEP * float(np.mean([run.oracle_step for run in runs]))


# --- tables


def tables(content: dict[str, Any]) -> str:
    lines = []
    for key, title in (("own", "each drives its own runs"), ("same", "all watch the runs of the first head")):
        rows = []
        for share in (f"{share:g}" for share in SHARES):
            for name, kinds in content[key].items():
                for kind in (kind for kind in kinds if kind not in ("oracle", "wrong")):
                    one = kinds[kind][share]
                    rows.append(
                        [
                            share,
                            f"{name}, {kind}",
                            f"{one['limit']:.3g}",
                            f"{one['missed']:.2f}",
                            f"{one['stopped']:.2f}",
                            shown(one["mean_time"], ".0f"),
                            f"{one['median_time']:.0f}",
                            shown(one["minus_ensemble"], "+.0f"),
                        ]
                    )
        header = ["share", title, "limit", "missed", "stopped", "mean fs", "median fs", "minus force σ of the ensemble"]
        lines.append(table(header, rows))
    for name, kinds in content["own"].items():
        lines.append(f"{name}: {kinds['wrong']} runs have an error; an oracle stops after {kinds['oracle']:.0f} fs.")
    return "\n\n".join(lines)


def main() -> None:
    parser = command(__doc__.splitlines()[0], "guarded_heads.json")
    parser.add_argument("runs_folder", type=Path, help="gets all runs and labels")
    parser.add_argument("--temperature", type=float, nargs="+", default=[600.0, 1000.0], help="K")
    parser.add_argument("--error-above", type=float, nargs="+", default=[0.3, 1.0], help="eV/Å, for each temperature")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400, help="of 0.5 fs")
    options = parser.parse_args()
    prepare()
    everything: dict[str, Any] = {}
    with progress() as terminal:
        found = contenders("ethanol", options, terminal)
    if found is None:
        raise SystemExit("first: python benchmarks/networks.py FOLDER --sets ethanol")
    print(f"{describe_machine()}\n")
    for case in zip(options.temperature, options.error_above, strict=True):
        with progress() as terminal:
            everything[f"{case[0]:g} K"] = content = compared(found, case, options, terminal)
        print(
            f"## {case[0]:g} K, error above {case[1]:g} eV/Å, {options.runs} runs of {options.steps * TIME_STEP:g} fs\n"
        )
        print(tables(content) + "\n", flush=True)
        finish(options, everything)


if __name__ == "__main__":
    main()
