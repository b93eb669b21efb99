"""Steps per second of molecular dynamics: one molecule through ASE, one and many replicas by ``sigmaff md``.

python benchmarks/md_speed.py MODEL START --replicas 16 64 --before ../other/src --json md_speed.json

A step of n replicas counts as n steps. Cases run alternately, and so do this version and the one before (``--before``:
the folder ``src`` of a checkout), each in a process of its own. Seconds are of the clock and of the processor: on a
machine with other work only the second say something.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from machine import describe_machine, prepare

import sigmaff
from sigmaff import Calculator, load
from sigmaff.models import Model
from sigmaff.simulation.md import MDConfig, run_md

TIME_STEP = 0.5  # fs
BASE = "one replica, sigmaff md"

Times = dict[str, list[tuple[float, float]]]
"""Of each case, in every round: seconds per step of a replica, of the clock and of the processor."""


def through_ase(model: Model, start: Atoms, temperature: float, steps: int) -> None:
    atoms = start.copy()
    atoms.calc = Calculator(model, forces_uncertainty="none")
    MaxwellBoltzmannDistribution(atoms, temperature_K=temperature)
    Langevin(atoms, TIME_STEP * units.fs, temperature_K=temperature, friction=0.01 / units.fs, fixcm=False).run(steps)


def ours(model: Model, start: Atoms, temperature: float, steps: int, replicas: int, *, guarded: bool) -> None:
    """As ``sigmaff md`` does it, trajectories and log included; guarded: force σ every 10 steps."""
    config = MDConfig(
        temperature=(temperature,),
        timestep=TIME_STEP,
        steps=steps,
        replicas=replicas,
        forces_std="auto" if guarded else "none",
        stop_above=1e3 if guarded else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        ends = run_md(model, [start], config, Path(folder) / "run").records
    assert all(record.ending == "finished" for record in ends), "a replica ended early: take a better model"


def measure(
    model: Model, start: Atoms, temperature: float, steps: int, replicas: list[int]
) -> dict[str, tuple[float, float]]:
    """Seconds of each case per step of a replica, once, after a short run that warms up."""
    cases: dict[str, tuple[Callable[[int], None], int]] = {
        "one molecule, ASE's Langevin and our calculator": (lambda n: through_ase(model, start, temperature, n), 1)
    }
    for guarded, words in ((False, ""), (True, ", force σ every 10 steps")):
        for many in (1, *replicas):
            name = BASE if many == 1 else f"{many} replicas, sigmaff md"
            run = partial(ours, model, start, temperature, replicas=many, guarded=guarded)
            cases[name + words] = (run, many)
    found = {}
    for name, (run, count) in cases.items():
        n_steps = max(20, steps // count // 10 * 10)
        run(10)
        clock, processor = time.perf_counter(), time.process_time()
        run(n_steps)
        seconds = (time.perf_counter() - clock, time.process_time() - processor)
        found[name] = (seconds[0] / n_steps / count, seconds[1] / n_steps / count)
    return found


def in_process(source: Path, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """One round by the version with this ``src``."""
    replicas = [str(count) for count in options.replicas]
    command = [sys.executable, __file__, str(options.model), str(options.start), "--steps", str(options.steps)]
    command += ["--temperature", str(options.temperature)]
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    output = subprocess.run(
        [*command, "--replicas", *replicas, "--once"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, tuple[float, float]] = json.loads(output)
    return found


def table(times: dict[str, Times], which: int) -> str:
    """Of the clock (0) or of the processor (1): steps per second and seconds relative to one replica without σ."""
    lines = ["| | version | steps per second (quartiles) | time of a step / one replica without σ | / before |"]
    lines.append("|---|---|---|---|---|")
    for case in times["now"]:
        for version, found in times.items():
            seconds, base = (np.array(found[name])[:, which] for name in (case, BASE))
            low, middle, high = np.quantile(1.0 / seconds, [0.25, 0.5, 0.75])
            ratio = np.median(seconds / base)
            before = np.median(seconds / np.array(times["before"][case])[:, which]) if "before" in times else 1.0
            row = (case, version, f"{middle:.0f} ({low:.0f}–{high:.0f})", f"{ratio:.3f}", f"{before:.3f}")
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("start", type=Path, help="a file whose first structure moves")
    parser.add_argument("--replicas", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--steps", type=int, default=400, help="of all replicas together; at least 20 of each")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="the folder src of another version")
    parser.add_argument("--json", type=Path, help="where all times are written")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare()
    read = ase.io.read(options.start, "0")
    start = Atoms(read.numbers, read.positions)
    if options.once:
        print(json.dumps(measure(load(options.model), start, options.temperature, options.steps, options.replicas)))
        return
    sources = {"before": options.before} if options.before else {}
    sources["now"] = Path(sigmaff.__file__).parent.parent
    times: dict[str, Times] = {version: {} for version in sources}
    for number in range(options.rounds):
        for version in list(sources)[:: 1 if number % 2 else -1]:
            for case, seconds in in_process(sources[version], options).items():
                times[version].setdefault(case, []).append(seconds)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), "times": times}, indent=2))
    print(f"{len(start)} atoms, {describe_machine()}, {options.rounds} rounds\n")
    print(f"By the clock:\n\n{table(times, 0)}\n\nBy the processor:\n\n{table(times, 1)}")


if __name__ == "__main__":
    main()
