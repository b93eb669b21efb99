"""Ethanol hotter than its training set, guarded: runs that let a force error pass, against the share that was promised.

sigmaff demo
python benchmarks/guarded_md.py demo runs/guarded_md

The model of the demonstration (GFN2-xTB, 500 K) moves at 600 K and at 1000 K. At each temperature, pilot runs give the
limit of ``sigmaff guard``, and other runs, with other starts and velocities, test it. Starts are drawn from the test
frames of the demonstration. All runs are made without a limit, and their checks are held against GFN2-xTB until the
first error: a run that is stopped is the beginning of such a run. For comparison: limits per structure, from random
frames of the same pilot runs; a clock, which stops runs at a time by the same risk control; and an oracle.

The errors to guard against are fixed beforehand: 0.3 eV/Å at 600 K and 1 eV/Å at 1000 K, some ten and forty times the
mean error of a force component at 500 K. Run the same command again to resume.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from machine import describe_machine, prepare, progress
from scipy.stats import binomtest
from xtb_ethanol import ENGINE

from sigmaff.data import read_structures
from sigmaff.data.labelling import LabelError, label
from sigmaff.errors import ConfigError
from sigmaff.files import atomic_write
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.simulation.md import GuardConfig, PilotRun, Scores, conditional_threshold, guard, risk_threshold
from sigmaff.simulation.md.guard import pilot_runs
from sigmaff.simulation.md.pilots import run_limit
from sigmaff.simulation.md.risk import n_allowed
from sigmaff.simulation.results import bare_copy

TIME_STEP = 0.5  # fs
RISKS = (0.05, 0.1)
CONFIDENCE = 0.95
N_DIVISIONS = 500
N_PILOTS = (19, 39, 59, 99)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A temperature, its runs, and the error to guard against."""

    temperature: float  # K
    error_above: float  # eV/Å
    steps: int
    pilots: Sequence[PilotRun]
    tests: Sequence[PilotRun]
    frames: Scores  # of random frames of the pilot runs

    def limits(self) -> dict[str, Callable[[float], float]]:
        """The limit on σ for a risk, by its origin."""
        n = len(self.pilots)
        return {
            "runs, on average: `sigmaff guard`": lambda risk: run_limit(self.pilots, n_allowed(n, risk)),
            f"runs, `--confidence {CONFIDENCE:g}`": lambda risk: run_limit(self.pilots, n_allowed(n, risk, CONFIDENCE)),
            "structures, joint": lambda risk: risk_threshold(self.frames, self.error_above, risk).value,
            "structures, conditional": lambda risk: (
                conditional_threshold(self.frames, self.error_above, risk, CONFIDENCE).value
            ),
        }


def measured(model: Model, temperature: float, error_above: float, options: argparse.Namespace) -> Case:
    """Make all runs, or read those that are there; print what the guards promise."""
    folder = options.folder / f"{temperature:g}K"
    starts = read_structures(options.demo / "ethanol.extxyz").subset(model.record.split.test).structures
    config = GuardConfig(
        temperature=(temperature,),
        timestep=TIME_STEP,
        steps=options.steps,
        error_above=error_above,
        risk=RISKS[0],
        pilots=options.pilots,
        engine=ENGINE,
        cluster={"n_workers": options.workers},
    )
    with progress() as terminal:
        found = guard(model, starts, config, folder / "guard", terminal)
        others = config.model_copy(update={"seed": 1, "pilots": options.runs})
        tests = pilot_runs(model, starts, others, folder / "tests", terminal)
        frames = frame_scores(folder / "guard", folder / "frames.extxyz", options.frames, terminal)
    print(f"\nA {found.statement}.\n\n{found.promise.cost.capitalize()}.")
    return Case(
        temperature=temperature,
        error_above=error_above,
        steps=options.steps,
        pilots=found.runs,
        tests=tests,
        frames=frames,
    )


def frame_scores(guarded: Path, path: Path, n: int, terminal: Listener) -> Scores:
    """σ and errors of random frames of pilot runs; the error is infinite where the engine has no answer."""
    paths = sorted((guarded / "pilots").glob("trajectory-*.extxyz"))
    frames = [frame for path in paths for frame in ase.io.read(path, ":")]
    chosen = [frames[index] for index in np.random.default_rng(0).permutation(len(frames))[:n]]
    if not path.exists():
        terminal.stage(f"labels of {n} random frames")
        with atomic_write(path) as temporary:
            ase.io.write(temporary, [labelled(frame) for frame in chosen], format="extxyz")
    errors = [
        np.inf if "failed" in truth.info else largest(frame.get_forces() - truth.get_forces())
        for frame, truth in zip(chosen, ase.io.read(path, ":"), strict=True)
    ]
    stds = [largest(frame.arrays["forces_uncertainty"]) for frame in chosen]
    return Scores(forces_std=np.array(stds), forces_error=np.array(errors))


def labelled(frame: Atoms) -> Atoms:
    try:
        return label(bare_copy(frame), ENGINE)
    except LabelError as error:
        failed = bare_copy(frame)
        failed.info["failed"] = str(error)
        return failed


def largest(vectors: np.ndarray) -> float:
    return float(np.linalg.norm(vectors, axis=1).max())


def table(case: Case) -> list[str]:
    """A row for each limit, and the oracle."""
    n, oracle = len(case.tests), [run.oracle_step for run in case.tests]
    n_wrong = sum(run.wrong_at is not None for run in case.tests)
    lines = [
        f"\n{case.temperature:g} K, error above {case.error_above:g} eV/Å: {n_wrong} of {n} runs of "
        f"{case.steps * TIME_STEP:g} fs have one.\n",
        "| limit by | risk | limit (eV/Å) | runs that let one pass (95 % interval) | stopped | part done | median fs |",
        "|---|---|---|---|---|---|---|",
    ]
    for risk in RISKS:
        for name, limit_for in case.limits().items():
            try:
                limit = limit_for(risk)
            except ConfigError:
                lines.append(f"| {name} | {risk:g} | none keeps it | | | | |")
            else:
                lines.append(f"| {name} | {risk:g} | {limit:.4f} | {cells(case.tests, limit, case)} |")
        clocks = [clock(run) for run in case.pilots]
        limit = run_limit(clocks, n_allowed(len(clocks), risk))
        lines.append(f"| a clock, without σ | {risk:g} | | {cells([clock(run) for run in case.tests], limit, case)} |")
    return [*lines, f"| oracle: stop at the first error | | | 0 | {n_wrong / n:.2f} | {done(oracle, case)} |"]


def clock(run: PilotRun) -> PilotRun:
    """The same run, watched by a clock: time in the place of σ."""
    return replace(run, forces_std=run.steps.astype(float))


def cells(runs: Sequence[PilotRun], limit: float, case: Case) -> str:
    harmful, stopped = sum(run.does_harm(limit) for run in runs), sum(run.stopped_at(limit) is not None for run in runs)
    n, interval = len(runs), binomtest(harmful, len(runs)).proportion_ci(method="exact")
    passing = f"{harmful / n:.2f} ({interval.low:.2f} to {interval.high:.2f})"
    return f"{passing} | {stopped / n:.2f} | {done([run.last_step(limit) for run in runs], case)}"


def done(steps: Sequence[int], case: Case) -> str:
    return f"{np.mean(steps) / case.steps:.2f} | {np.median(steps) * TIME_STEP:g}"


def divisions(case: Case) -> list[str]:
    """A promise holds over draws of pilot runs: divide all runs anew, again and again, into pilot runs and others."""
    runs, generator = [*case.pilots, *case.tests], np.random.default_rng(0)
    lines = [
        f"\nOver {N_DIVISIONS} random divisions of these {len(runs)} runs, risk {RISKS[0]:g}:\n",
        "| pilot runs | promise | runs that let one pass: mean, 95 % of divisions below | part done |",
        "|---|---|---|---|",
    ]
    for n, confidence in product(N_PILOTS, (None, CONFIDENCE)):
        if (allowed := n_allowed(n, RISKS[0], confidence)) < 0:
            continue
        shares, dones = [], []
        for _ in range(N_DIVISIONS):
            pilots, tests = ([runs[i] for i in part] for part in np.split(generator.permutation(len(runs)), [n]))
            limit = run_limit(pilots, allowed)
            shares.append(np.mean([run.does_harm(limit) for run in tests]))
            dones.append(np.mean([run.last_step(limit) for run in tests]) / case.steps)
        promise = "on average" if confidence is None else f"confidence {confidence:g}"
        below = np.quantile(shares, 0.95)
        lines.append(f"| {n} | {promise} | {np.mean(shares):.3f}, {below:.2f} | {np.mean(dones):.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", type=Path, help="folder of sigmaff demo")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--temperature", type=float, nargs="+", default=[600.0, 1000.0], help="K")
    parser.add_argument("--error-above", type=float, nargs="+", default=[0.3, 1.0], help="eV/Å, for each temperature")
    parser.add_argument("--pilots", type=int, default=99)
    parser.add_argument("--runs", type=int, default=100, help="that test the limit")
    parser.add_argument("--steps", type=int, default=400, help="of 0.5 fs")
    parser.add_argument("--frames", type=int, default=200, help="of pilot runs, for the limit per structure")
    parser.add_argument("--workers", type=int, default=1, help="processes that label")
    options = parser.parse_args()
    prepare()
    print(describe_machine())
    model = load(options.demo / "run" / "model.sigmaff")
    assert model.record.split is not None
    for temperature, error_above in zip(options.temperature, options.error_above, strict=True):
        case = measured(model, temperature, error_above, options)
        print("\n".join(table(case)))
        print("\n".join(divisions(case)))


if __name__ == "__main__":
    main()
