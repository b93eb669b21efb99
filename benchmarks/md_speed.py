"""Steps per second of molecular dynamics: one molecule through ASE, one and many replicas by ``sigmaff md``.

python benchmarks/md_speed.py MODEL START --replicas 64

All run alternately. A step of n replicas counts as n steps.
"""

import argparse
import itertools
import tempfile
from pathlib import Path

import ase.io
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from machine import describe_machine, prepare

from sigmaff import Calculator, load
from sigmaff.models import Model
from sigmaff.simulation.md import MDConfig, run_md
from sigmaff.timing import median_seconds

TIME_STEP = 0.5  # fs
TEMPERATURE = 300.0  # K


def through_ase(model: Model, start: Atoms, steps: int) -> None:
    atoms = start.copy()
    atoms.calc = Calculator(model, forces_uncertainty="none")
    MaxwellBoltzmannDistribution(atoms, temperature_K=TEMPERATURE)
    Langevin(atoms, TIME_STEP * units.fs, temperature_K=TEMPERATURE, friction=0.01 / units.fs, fixcm=False).run(steps)


def ours(model: Model, start: Atoms, steps: int, replicas: int, folder: Path, *, guarded: bool) -> None:
    """As ``sigmaff md`` does it, trajectories and log included."""
    config = MDConfig(
        temperature=(TEMPERATURE,),
        timestep=TIME_STEP,
        steps=steps,
        replicas=replicas,
        forces_std="auto" if guarded else "none",
        stop_above=1e3 if guarded else None,
    )
    run_md(model, [start], config, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("start", type=Path, help="a file whose first structure moves")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="of all replicas together; one molecule takes as many")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    prepare()
    model, read = load(options.model), ase.io.read(options.start, "0")
    start = Atoms(read.numbers, read.positions)
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in itertools.count())

        def md(replicas: int, *, guarded: bool) -> None:
            ours(model, start, options.steps, replicas, next(folders), guarded=guarded)

        many = options.replicas
        things = {
            "one molecule, ASE's Langevin and our calculator": lambda: through_ase(model, start, options.steps),
            "one replica, sigmaff md": lambda: md(1, guarded=False),
            f"{many} replicas, sigmaff md": lambda: md(many, guarded=False),
            "one replica, sigmaff md, force σ every 10 steps": lambda: md(1, guarded=True),
            f"{many} replicas, sigmaff md, force σ every 10 steps": lambda: md(many, guarded=True),
        }
        seconds = median_seconds(things, options.rounds)
    steps = {what: options.steps * (many if what.startswith(str(many)) else 1) for what in things}
    first = next(iter(things))
    print(f"{len(start)} atoms, {describe_machine()}\n")
    print("| | steps per second | ratio |\n|---|---|---|")
    for what, time in seconds.items():
        rate = steps[what] / time
        print(f"| {what} | {rate:.0f} | {rate / (steps[first] / seconds[first]):.2f} |")


if __name__ == "__main__":
    main()
