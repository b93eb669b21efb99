"""The drift monitor on real dynamics: alarms of ethanol at the temperature of its calibration, and when it is heated.

sigmaff demo
python benchmarks/drift_monitor.py demo runs/drift_monitor

The model is that of the demonstration, trained at 500 K. The calibration structures of a replica are one of each other
replica, at random, after equilibration: independent draws of the same ensemble, as far as replicas are independent and
equilibrated. The held-out structures of the demonstration are a second calibration set: 200 frames of only 6 ps of
another dynamics, GFN2-xTB, so neither independent nor quite of the same ensemble. Run the same command again to resume.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import ase.io
import numpy as np
import numpy.typing as npt
from ase import Atoms
from machine import describe_machine, prepare, progress
from scipy.stats import binomtest

from sigmaff.data import LabelledStructures
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.simulation.md import MDConfig, MDResult, run_md, structure_scores
from sigmaff.simulation.md.drift import DriftMonitor, DriftRule, drift_rule

TEMPERATURE = 500.0  # K, of the demonstration
TIME_STEP = 1.0  # fs
LOOK = 50  # steps
RATES = (0.01, 0.05, 0.1)
FloatArray = npt.NDArray[np.float64]


def moved(
    model: Model, starts: list[Atoms], temperature: float, steps: int, folder: Path, terminal: Listener
) -> MDResult:
    config = MDConfig(
        temperature=(temperature,),
        timestep=TIME_STEP,
        steps=steps,
        check_every=LOOK,
        drift_every=LOOK,
        every=LOOK,
        seed=round(temperature),
    )
    terminal.stage(f"molecular dynamics at {temperature:g} K")
    return run_md(model, starts, config, folder, terminal)


def looks(result: MDResult) -> list[FloatArray]:
    """Of each replica, the largest force σ of an atom at each look, eV/Å."""
    scores = defaultdict(list)
    with (result.directory / "log.csv").open() as file:
        for row in csv.DictReader(file):
            scores[int(row["replica"])].append(float(row["forces_std_max"]))
    return [np.array(scores[number]) for number in range(len(result.records))]


def alarm(scores: FloatArray, rule: DriftRule) -> float | None:
    """ps after the first look."""
    monitor = DriftMonitor(rule)
    found = next((index for index, score in enumerate(scores.tolist()) if monitor.update(score)), None)
    return None if found is None else found * LOOK * TIME_STEP / 1000


def held_out_scores(model: Model, terminal: Listener) -> FloatArray:
    def scores(held_out: LabelledStructures, name: str) -> FloatArray:
        terminal.stage(f"σ of held-out structures, {name}")
        return structure_scores(evaluate(model, dataset_for(model, held_out), name=name, listener=terminal)).forces_std

    return np.concatenate([scores(recorded_structures(model, name), name) for name in ("validation", "test")])


def references(calm: list[FloatArray], held_out: FloatArray) -> dict[str, list[FloatArray]]:
    """Of each set of calibration structures, the scores for each replica."""
    drawn = np.random.default_rng(0).permuted(np.stack(calm), axis=1)[:, 0]
    others = [np.delete(drawn, number) for number in range(len(calm))]
    return {f"{len(calm) - 1} of other replicas": others, f"{held_out.size} of GFN2-xTB": [held_out] * len(calm)}


def autocorrelation(calm: list[FloatArray]) -> str:
    """Of log σ around the mean of all replicas, by the time between looks."""
    scores = np.log(np.stack(calm))
    scores = scores - scores.mean()
    lags = [lag for lag in (1, 2, 4, 8, 16, 32) if lag < scores.shape[1] // 2]
    values = [np.mean(scores[:, lag:] * scores[:, :-lag]) / np.mean(scores**2) for lag in lags]
    return ", ".join(f"{value:.2f} at {lag * LOOK:g} fs" for lag, value in zip(lags, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", type=Path, help="folder of sigmaff demo, named as it was made")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replicas", type=int, default=128)
    parser.add_argument("--equilibration", type=int, default=20, help="looks left out, 50 fs each")
    parser.add_argument("--looks", type=int, default=40, help="at each temperature")
    parser.add_argument("--hot", type=float, nargs="*", default=[800.0, 1000.0], help="K")
    parser.add_argument("--heated", type=int, default=12, help="replicas")
    options = parser.parse_args()
    prepare()
    with progress() as terminal:
        model = load(options.demo / "run" / "model.sigmaff")
        held_out = held_out_scores(model, terminal)
        starts = [*recorded_structures(model, "test").structures, *recorded_structures(model, "validation").structures]
        steps = (options.equilibration + options.looks) * LOOK
        first = moved(model, starts[: options.replicas], TEMPERATURE, steps, options.folder / "calm", terminal)
        calm = [scores[options.equilibration :] for scores in looks(first)]
        last = [ase.io.read(first.trajectory(number), -1) for number in range(options.heated)]
        hot = {}
        for temperature in options.hot:
            folder = options.folder / f"{temperature:g}"
            hot[temperature] = looks(moved(model, last, temperature, options.looks * LOOK, folder, terminal))
    length = options.looks * LOOK * TIME_STEP / 1000
    print(f"{describe_machine()}\n\n{len(calm)} replicas, {length:g} ps at {TEMPERATURE:g} K after equilibration.")
    print(f"Autocorrelation of the largest force σ: {autocorrelation(calm)}.\n")
    print(table(calm, hot, references(calm, held_out)))


def table(calm: list[FloatArray], hot: dict[float, list[FloatArray]], calibrations: dict[str, list[FloatArray]]) -> str:
    """Alarms of each rate and calibration: without drift, heated from the first look on, heated after the calm."""
    heated = (f"{t:g} K: alarms, median ps | {t:g} K after the calm: alarms, median ps" for t in hot)
    lines = [f"| promised | calibration | {TEMPERATURE:g} K: alarms | {' | '.join(heated)} |"]
    lines.append("|---" * (3 + 2 * len(hot)) + "|")
    for rate in RATES:
        for name, scores in calibrations.items():
            rules = [drift_rule(values, rate) for values in scores]
            if rules[0].share > 1:
                lines.append(f"| {rate:.0%} | {name} | off: too few |" + " |" * 2 * len(hot))
                continue
            n_found = sum(alarm(values, rule) is not None for values, rule in zip(calm, rules, strict=True))
            interval = binomtest(n_found, len(calm)).proportion_ci(method="exact")
            cells = [f"{n_found} of {len(calm)} ({interval.low:.1%} to {interval.high:.1%})"]
            for runs in hot.values():
                cells.append(times([alarm(run, rule) for run, rule in zip(runs, rules, strict=False)]))
                cells.append(times([late(*each) for each in zip(calm, runs, rules, strict=False)]))
            lines.append(f"| {rate:.0%} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def late(before: FloatArray, after: FloatArray, rule: DriftRule) -> float | None:
    """ps from the heating to the alarm; below 0 for a false alarm before it."""
    at = alarm(np.concatenate([before, after[1:]]), rule)
    return None if at is None else at - (before.size - 1) * LOOK * TIME_STEP / 1000


def times(found: list[float | None]) -> str:
    """How many alarms, and the median time over all replicas: never, where half of them gave none."""
    all_times = sorted(float("inf") if at is None else at for at in found)
    middle = all_times[(len(all_times) - 1) // 2]
    n_found = sum(at is not None for at in found)
    return f"{n_found} of {len(found)}, {middle:.2g}" if np.isfinite(middle) else f"{n_found} of {len(found)}, –"


if __name__ == "__main__":
    main()
