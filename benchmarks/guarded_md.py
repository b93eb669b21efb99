"""Ethanol at 1000 K with a model that was trained at 300 K: guarded by σ, and what happens without the guard.

python benchmarks/guarded_md.py runs/guarded_md

Labels, training and every true force are GFN2-xTB. The limit on σ is that of conformal risk control, twice: on
structures at 300 K that the model has not seen, and on structures at the temperature of the runs. Run the same
command again to resume.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from machine import describe_machine, prepare, progress
from xtb_ethanol import ENGINE, data_file

from sigmaff.data import DataSource, LabelledStructures, SplitConfig, read_structures
from sigmaff.data.labelling import LabelError, label
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.runs.config import DataConfig
from sigmaff.runs.demo import demo_config
from sigmaff.runs.run import run
from sigmaff.simulation.md import MDConfig, MDResult, run_md, structure_scores

N_FRAMES, N_TRAIN, N_VALIDATION = 700, 400, 100


@dataclass(frozen=True, kw_only=True)
class Course:
    """One replica, held against the engine."""

    steps: int  # that it ran
    ending: str
    largest_error: float  # eV/Å, of an atom's force, over its frames before the last
    first_error: int | None  # first step with an error above the bound

    @property
    def cells(self) -> str:
        first = "never" if self.first_error is None else f"{self.first_error / 2:.0f}"
        return f"{self.steps / 2:.1f}, {self.ending} | {self.largest_error:.2f} | {first}"


def trained(folder: Path, terminal: Listener) -> Model:
    """A small SchNet with the default head, on frames at 300 K."""
    data = data_file(folder / "ethanol_300K.extxyz", [300.0], N_FRAMES, 0)
    split = SplitConfig(kind="random", n_train=N_TRAIN, n_validation=N_VALIDATION)
    config = demo_config(folder).model_copy(update={"data": DataConfig(source=DataSource(path=data), split=split)})
    result = run(config, terminal)
    assert result is not None
    return load(result.model_path)


def moved(
    model: Model,
    name: str,
    options: argparse.Namespace,
    terminal: Listener,
    calibration: LabelledStructures | None = None,
    risk: float | None = None,
) -> MDResult:
    """Replicas from one frame at 300 K, with the same velocities and the same noise; unguarded without calibration."""
    scores, guard = None, {}
    if calibration is not None:
        terminal.stage(f"σ of calibration structures, {name}")
        scores = structure_scores(evaluate(model, dataset_for(model, calibration), name=name, listener=terminal))
        guard = {"stop_above": "auto", "error_above": options.error_above, "risk": risk}
    config = MDConfig.model_validate(
        {
            "temperature": options.temperature,
            "steps": options.steps,
            "replicas": options.runs,
            "check_every": 1 if guard else options.steps,
            "every": options.every,
            "drift_every": options.steps,
            **guard,
        }
    )
    terminal.stage(f"molecular dynamics, {name}")
    return run_md(
        model,
        recorded_structures(model, "test").structures[:1],
        config,
        options.folder / name,
        terminal,
        calibration=scores,
    )


def courses(result: MDResult, error_above: float, terminal: Listener) -> list[Course]:
    """What the engine says of every frame that a replica let pass: all but the one at which it was stopped."""
    found = []
    for number, record in enumerate(result.records):
        frames = ase.io.read(result.trajectory(number), ":")
        steps = [int(frame.info["step"]) for frame in frames]
        passed = [frame for frame, step in zip(frames, steps, strict=True) if step < (record.ended_at or 0)]
        errors = np.array([true_error(frame) for frame in passed])
        wrong = np.flatnonzero(errors > error_above)
        terminal.advance(number + 1, len(result.records))
        found.append(
            Course(
                steps=record.ended_at or 0,
                ending=record.ending or "",
                largest_error=float(errors.max(initial=0.0)),
                first_error=steps[wrong[0]] if wrong.size else None,
            )
        )
    return found


def true_error(frame: Atoms) -> float:
    """Largest force error of an atom, eV/Å; infinite where the engine has no answer."""
    try:
        truth = label(frame, ENGINE).get_forces()
    except LabelError:
        return float("inf")
    return float(np.linalg.norm(frame.get_forces() - truth, axis=1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--temperature", type=float, default=1000.0, help="K")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4000, help="of 0.5 fs")
    parser.add_argument("--hot", type=int, default=300, help="calibration structures at the temperature of the runs")
    parser.add_argument("--every", type=int, default=2, help="steps between frames that are held against the engine")
    parser.add_argument("--error-above", type=float, default=1.0, help="eV/Å, the bound")
    parser.add_argument("--risk", type=float, default=0.05, help="of a frame, with structures at 300 K")
    parser.add_argument("--hot-risk", type=float, default=0.005, help="of a frame, with those of the runs' temperature")
    options = parser.parse_args()
    prepare()
    hot_file = data_file(options.folder / "hot.extxyz", [options.temperature], options.hot, 1)
    with progress() as terminal:
        model = trained(options.folder, terminal)
        cold, hot = recorded_structures(model, "test"), read_structures(DataSource(path=hot_file))
        results = {
            "300 K": moved(model, "guarded", options, terminal, cold, options.risk),
            f"{options.temperature:g} K": moved(model, "guarded_hot", options, terminal, hot, options.hot_risk),
            "none": moved(model, "unguarded", options, terminal),
        }
        terminal.stage("true forces")
        found = {name: courses(result, options.error_above, terminal) for name, result in results.items()}
    print(f"{describe_machine()}\n")
    for name, result in results.items():
        if result.threshold is not None:
            print(f"- calibrated at {name}: {result.threshold.statement}")
    print(table(found, options.error_above))


def table(found: dict[str, list[Course]], error_above: float) -> str:
    """For each run and guard: when it ended, the largest error until then, and when the first above the bound came."""
    header = (f"{name}: ended after (fs) | largest error before (eV/Å) | first above (fs)" for name in found)
    lines = ["", f"| run | {' | '.join(header)} |", "|---" * (1 + 3 * len(found)) + "|"]
    for number, runs in enumerate(zip(*found.values(), strict=True)):
        lines.append(f"| {number} | {' | '.join(course.cells for course in runs)} |")
    for name, runs in found.items():
        kept = sum(course.first_error is None for course in runs)
        lines += ["", f"{name}: {kept} of {len(runs)} let no error above {error_above:g} eV/Å pass."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
