"""Ethanol by GFN2-xTB: frames of molecular dynamics on that surface, labelled, in a file that is made once."""

from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

from sigmaff.data.labelling import EngineConfig, label, make_calculator
from sigmaff.files import atomic_write

ENGINE = EngineConfig(calculator="gfn2-xtb")
TIME_STEP = 0.5  # fs
APART = 40  # steps between frames


def simulate(temperature: float, n_frames: int, seed: int) -> list[Atoms]:
    """Labelled frames of Langevin dynamics on the surface of the engine."""
    rng = np.random.default_rng([seed, round(temperature)])
    atoms = molecule("CH3CH2OH")
    atoms.calc = make_calculator(atoms, ENGINE)
    MaxwellBoltzmannDistribution(atoms, temperature_K=2 * temperature, rng=rng)
    dynamics = Langevin(
        atoms, TIME_STEP * units.fs, temperature_K=temperature, friction=0.02 / units.fs, fixcm=False, rng=rng
    )
    dynamics.run(10 * APART)
    frames = []
    for _ in range(n_frames):
        dynamics.run(APART)
        frames.append(label(Atoms(atoms.numbers, atoms.positions), ENGINE))
    return frames


def data_file(path: Path, temperatures: list[float], n_frames: int, seed: int) -> Path:
    """Frames of several temperatures, made once."""
    if not path.exists():
        frames = [frame for t in temperatures for frame in simulate(t, n_frames // len(temperatures), seed)]
        with atomic_write(path) as temporary:
            ase.io.write(temporary, frames, format="extxyz")
    return path
