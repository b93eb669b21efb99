"""A campaign that takes seconds: displaced water, springs that count their calls, a tiny network."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator

from sigmaff.learning import CampaignConfig, learn
from sigmaff.progress import Listener

STIFFNESS = 20.0  # eV/Å²

SETTINGS: dict[str, Any] = {
    "start": {"molecules": ["H2O"], "n_labels": 12, "displacement": 0.08},
    "model": {
        "backbone": {
            "name": "schnet",
            "n_hidden": 8,
            "n_filters": 8,
            "n_interactions": 1,
            "n_gaussians": 8,
            "cutoff": 4.0,
        },
        "head": {"name": "lnk", "n_inducing": 8, "n_samples": 16, "n_frequencies": 16},
    },
    "training": {
        "batch_size": 5,
        "max_epochs": 4,
        "learning_rate": 5e-3,
        "schedule": {"name": "exponential", "warmup_steps": 2},
        "threads": 1,
        "tensorboard": False,
        "accelerator": "cpu",
    },
    "retrain": {"growth": 1.4},
    "hold_out_every": 4,
    "explore": {"temperature": [300.0, 900.0], "starts": 2, "steps": 40, "check_every": 4, "every": 4},
    "select": {"n": 3},
    "stop": {"max_rounds": 2},
}


def settings(folder: Path, **changes: Any) -> CampaignConfig:
    """The campaign in ``folder / "campaign"``; the engine writes a line in ``folder / "calls"`` for each label."""
    engine = {"calculator": "campaign_case:Counted", "arguments": {"log": str(folder / "calls")}}
    content = SETTINGS | {"engine": engine, "output": folder / "campaign"}
    for key, value in changes.items():
        content[key] = content.get(key, {}) | value if isinstance(value, dict) else value
    return CampaignConfig.model_validate(content)


class Counted(Calculator):
    """Springs between all atoms of a water molecule, E = ½ k Σ (r − r₀)². Writes down the structure at every call.

    fail: share of structures that fail every time; once: that fail the first time.
    """

    implemented_properties = ("energy", "forces")

    def __init__(self, log: str, fail: float = 0.0, once: float = 0.0, seconds: float = 0.0) -> None:
        super().__init__()
        self.log, self.fail, self.once, self.seconds = Path(log), fail, once, seconds

    def calculate(self, atoms: Atoms | None = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
        super().calculate(atoms, properties, system_changes)
        assert atoms is not None
        name = np.array2string(atoms.positions.ravel(), precision=6, max_line_width=10_000)
        before = self.log.read_text().splitlines().count(name) if self.log.exists() else 0
        with self.log.open("a") as file:
            file.write(name + "\n")
        time.sleep(self.seconds)
        chance = float(np.abs(1e4 * atoms.positions[0, 0]) % 1.0)
        if chance < self.fail or (before == 0 and chance < self.once):
            raise ArithmeticError("the engine is out of order")
        lengths = np.where(np.add.outer(atoms.numbers, atoms.numbers) == 2, 1.53, 0.97)
        vectors = atoms.get_all_distances(vector=True)  # from the first atom to the second
        distances = np.linalg.norm(vectors, axis=-1) + np.eye(len(atoms))
        stretch = (distances - lengths) * (1.0 - np.eye(len(atoms)))
        forces = STIFFNESS * ((stretch / distances)[:, :, None] * vectors).sum(axis=1)
        self.results = {"energy": 0.25 * STIFFNESS * float((stretch**2).sum()), "forces": forces}


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


class Silent(Listener):
    """Keeps stages and warnings."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def go_on(folder: Path, scheduler: str) -> None:
    """The campaign in a process of its own, to be killed; labels take a while, so that some are under way."""
    torch.set_num_threads(1)
    engine = {"arguments": {"log": str(folder / "calls"), "seconds": 0.1}}
    learn(settings(folder, engine=engine, cluster={"scheduler": scheduler}), Silent())
