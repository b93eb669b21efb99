"""What the short-range repulsion does in unguarded MD: how runs end with it and without it.

sigmaff train run.yaml
python benchmarks/repulsion.py run/model.sigmaff start.extxyz runs/repulsion --temperature 600

The same starts, velocities and thermostat; the model drives each run with its repulsion and without it.
"""

from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path

import ase.io
import numpy as np
from machine import describe_machine, prepare, progress

import sigmaff as sf
from sigmaff.models import Potential


def options() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("starts", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--temperature", type=float, default=600.0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=16)
    return parser.parse_args()


def main() -> None:
    prepare()
    given = options()
    frames = ase.io.read(given.starts, ":")
    chosen = np.linspace(0, len(frames) - 1, given.runs).astype(int)
    starts = [frames[index] for index in chosen]
    print(describe_machine())
    for name in ("with", "without"):
        model = sf.load(given.model)
        for potential in model.potentials:
            assert isinstance(potential, Potential)
            if name == "without":
                potential.repulsion = None
        settings = {"temperature": given.temperature, "steps": given.steps, "timestep": 0.5, "forces_std": "none"}
        with progress() as listener:
            result = sf.run_md(model, starts, settings, given.folder / name, listener=listener)
        endings = Counter(record.ending for record in result.records)
        steps = sorted(given.steps if record.ended_at is None else record.ended_at for record in result.records)
        print(f"{name} repulsion: {dict(endings)}; steps: median {np.median(steps):g}, shortest {steps[0]}")


if __name__ == "__main__":
    main()
