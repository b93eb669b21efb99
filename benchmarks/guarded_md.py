"""Ethanol at 1000 K with a model that was trained at 300 K: guarded by σ, and what happens without the guard.

python benchmarks/guarded_md.py runs/guarded_md

Labels, training and every true force are GFN2-xTB. The limit on σ is that of conformal risk control on structures at
300 K that the model has not seen. The same command goes on after an interruption.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from rich.console import Console
from timing import describe_machine
from xtb_ethanol import ENGINE, data_file

from sigmaff.allocator import keep_large_blocks
from sigmaff.cli.progress import Terminal
from sigmaff.data import DataSource, SplitConfig
from sigmaff.experiments.demo import demo_config
from sigmaff.experiments.evaluate import dataset_for, evaluate_on, recorded_structures
from sigmaff.experiments.run import run
from sigmaff.experiments.settings import DataConfig
from sigmaff.labelling import LabelError, label
from sigmaff.model_file import load
from sigmaff.potential import Model
from sigmaff.simulation.md import MDConfig, MDResult, run_md, structure_scores

N_FRAMES, N_TRAIN, N_VALIDATION = 700, 400, 100


@dataclass(frozen=True, kw_only=True)
class Course:
    """One replica, held against the engine."""

    steps: int  # that it ran
    ending: str
    largest_error: float  # eV/Å, of an atom's force, over its frames before the last
    first_error: int | None  # first step with an error above the bound


def trained(folder: Path, terminal: Terminal) -> Model:
    """A small SchNet with the default head, on frames at 300 K."""
    data = data_file(folder / "ethanol_300K.extxyz", [300.0], N_FRAMES, 0)
    split = SplitConfig(n_train=N_TRAIN, n_validation=N_VALIDATION)
    config = demo_config(folder).model_copy(update={"data": DataConfig(source=DataSource(path=data), split=split)})
    result = run(config, terminal)
    assert result is not None
    return load(result.model_path)


def moved(model: Model, folder: Path, terminal: Terminal, options: argparse.Namespace, *, guarded: bool) -> MDResult:
    """Replicas from one frame at 300 K; guarded or not, the same velocities and the same noise."""
    structures = recorded_structures(model, "test")
    terminal.stage("σ of calibration structures")
    scores = structure_scores(evaluate_on(model, dataset_for(model, structures), name="test", listener=terminal))
    guard = {"stop_above": "auto", "error_above": options.error_above, "risk": options.risk} if guarded else {}
    config = MDConfig.model_validate(
        {
            "temperature": options.temperature,
            "steps": options.steps,
            "replicas": options.runs,
            "check_every": 1 if guarded else options.steps,
            "every": options.every,
            "drift_every": options.steps,
            **guard,
        }
    )
    name = "guarded" if guarded else "unguarded"
    terminal.stage(f"molecular dynamics, {name}")
    start = [structures.structures[0]]
    return run_md(
        model,
        start,
        config,
        folder / name,
        lambda status: terminal.advance(status.step, status.steps),
        calibration=scores if guarded else None,
    )


def courses(result: MDResult, error_above: float, terminal: Terminal) -> list[Course]:
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
    parser.add_argument("--every", type=int, default=2, help="steps between frames that are held against the engine")
    parser.add_argument("--error-above", type=float, default=1.0, help="eV/Å, the bound")
    parser.add_argument("--risk", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_large_blocks()
    with Terminal(Console(stderr=True)) as terminal:
        model = trained(options.folder, terminal)
        results = [moved(model, options.folder, terminal, options, guarded=guarded) for guarded in (True, False)]
        terminal.stage("true forces")
        guarded, unguarded = (courses(result, options.error_above, terminal) for result in results)
    assert results[0].threshold is not None
    print(f"{results[0].threshold.statement}; {describe_machine()}\n")
    print(
        "| run | stopped after (fs) | why | largest error before (eV/Å) | unguarded: first error above it (fs) "
        "| largest error (eV/Å) | end |"
    )
    print("|---" * 7 + "|")
    for number, (one, other) in enumerate(zip(guarded, unguarded, strict=True)):
        first = "never" if other.first_error is None else f"{other.first_error / 2:.0f}"
        print(
            f"| {number} | {one.steps / 2:.1f} | {one.ending} | {one.largest_error:.2f} | {first} "
            f"| {other.largest_error:.2f} | {other.ending} |"
        )
    kept = sum(course.first_error is None for course in guarded)
    print(f"\n{kept} of {len(guarded)} guarded runs let no error above {options.error_above:g} eV/Å pass.")


if __name__ == "__main__":
    main()
