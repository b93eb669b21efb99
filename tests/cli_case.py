"""A folder as a user has it, with data files, a configuration and a trained model, for tests of the command line.

Labels are those of a Morse potential; the network is tiny and learns for a second.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import yaml
from ase import Atoms
from ase.build import molecule
from ase.calculators.morse import MorsePotential
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from sigmaff.cli.main import app
from training_case import labelled_structures

TINY: dict[str, Any] = {
    "data": {"source": "data.extxyz", "split": {"n_train": 30, "n_validation": 20}},
    "model": {
        "backbone": {
            "name": "schnet",
            "n_hidden": 16,
            "n_filters": 16,
            "n_interactions": 2,
            "n_gaussians": 10,
            "cutoff": 4.0,
        },
        "head": {"name": "lnk", "n_inducing": 12, "n_samples": 30, "n_frequencies": 32},
    },
    "training": {
        "batch_size": 6,
        "max_epochs": 15,
        "learning_rate": 5e-3,
        "schedule": {"name": "exponential", "warmup_steps": 5},
        "ema_decay": 0.9,
        "threads": 1,
        "tensorboard": False,
        "accelerator": "cpu",
    },
    "output": "run",
}

COMPARED = {"n_train": 40, "n_validation": 20, "n_test": 20}
"""Structures of the comparison of all methods."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left behind: its exit code and what it printed."""

    code: int
    out: str
    err: str


def sigmaff(*arguments: str | Path) -> Outcome:
    """Run a command in this process, as the shell would; an error that is not meant for people fails the test."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(code=result.exit_code, out=result.stdout, err=result.stderr)


def succeed(*arguments: str | Path) -> str:
    outcome = sigmaff(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def fail(*arguments: str | Path) -> str:
    """The message of a command that ends with an error."""
    outcome = sigmaff(*arguments)
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    return outcome.err.removeprefix("error: ").strip()


def labelled(atoms: Atoms, energy: float, forces: np.ndarray) -> Atoms:
    frame = atoms.copy()
    frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
    return frame


def morse_frames(n: int, seed: int) -> list[Atoms]:
    """Water and ethanol in turn, displaced."""
    data = labelled_structures(n, seed)
    assert data.energy is not None
    assert data.forces is not None
    return [labelled(*row) for row in zip(data.structures, data.energy, data.forces, strict=True)]


def ether_frames(n: int) -> list[Atoms]:
    """A molecule of the same elements that the model has not seen, displaced further."""
    generator = np.random.default_rng(8)
    frames = []
    for _ in range(n):
        atoms = molecule("CH3OCH3")
        atoms.positions += generator.normal(0.0, 0.08, atoms.positions.shape)
        atoms.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        frames.append(labelled(atoms, atoms.get_potential_energy(), atoms.get_forces()))
    return frames


def scan_frames(n: int) -> list[Atoms]:
    """Ethanol with its O-H bond stretched further and further."""
    frames = []
    for index in range(n):
        atoms = molecule("CH3CH2OH")
        atoms.set_distance(2, 3, 0.9 + 0.2 * index, fix=0)
        atoms.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        frames.append(labelled(atoms, atoms.get_potential_energy(), atoms.get_forces()))
        frames[-1].info["bond_length"] = 0.9 + 0.2 * index
    return frames


def bare_frames() -> list[Atoms]:
    """Structures without labels: of all sizes, one periodic, one atom alone."""
    crystal = molecule("H2O")
    crystal.set_cell([4.5, 4.8, 5.1])
    crystal.pbc = True
    frames = [molecule("CH3CH2OH"), molecule("H2O"), Atoms("O"), crystal]
    for index, atoms in enumerate(frames):
        atoms.rattle(0.03, seed=index)
        atoms.info["name"] = f"structure {index}"
    return frames


def write_config(path: Path, *changes: tuple[str, Any]) -> Path:
    """The tiny configuration with some keys set, such as ``("training.max_epochs", 3)``; data beside the file."""
    content: dict[str, Any] = yaml.safe_load(yaml.safe_dump(TINY))
    content["data"]["source"] = str(path.parent / "data.extxyz")
    content["output"] = str(path.parent / "run")
    for key, value in changes:
        *sections, last = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


def write_files(folder: Path) -> None:
    """The data files of a user's folder."""
    files: dict[str, Sequence[Atoms]] = {
        "data.extxyz": morse_frames(60, seed=1),
        "test.extxyz": morse_frames(20, seed=5),
        "held_out.extxyz": morse_frames(20, seed=6),
        "other.extxyz": ether_frames(12),
        "in.extxyz": bare_frames(),
        "start.extxyz": morse_frames(2, seed=7),
        "scan.extxyz": scan_frames(6),
        "mine.extxyz": morse_frames(9, seed=9),
    }
    for name, frames in files.items():
        ase.io.write(folder / name, frames)


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A user's folder. Tests write elsewhere, or to names of their own in it."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def model(self) -> Path:
        return self.folder / "run" / "model.sigmaff"

    def copied_model(self, folder: Path) -> Path:
        return Path(shutil.copy(self.model, folder / "model.sigmaff"))
