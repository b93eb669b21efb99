"""Write the files that every later version must read and resume: a folder beside ``tests/data/v0.1.0``.

python tests/keep_files.py tests/data/v0.1.0-format6

Run it once for each version, with that version, and never again: files that are kept are not made anew. Networks are
tiny, and the data are triangles of nitrogen in a Morse potential. Runs are stopped as Ctrl-C stops them, and their
results are those of the same runs without a stop.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import yaml
from ase import Atoms
from ase.calculators.morse import MorsePotential
from ase.calculators.singlepoint import SinglePointCalculator

import sigmaff as sf
from sigmaff.progress import Listener

METHODS = ("backbone", "fixed_lnk", "llpr", "shallow_ensemble", "mc_dropout", "evidential")
REFERENCES = {"N": -1.0}
BACKBONE = {"name": "schnet", "n_hidden": 6, "n_filters": 6, "n_interactions": 1, "n_gaussians": 8, "cutoff": 4.0}
SMALL_HEAD = {"name": "lnk", "n_samples": 8, "distance_aware": False}
"""The part of unseen surroundings has 256 rows; one model with them is enough."""
FEW = {"n_inducing": 8, "n_samples": 8, "n_frequencies": 16}
VARIATIONAL = {"name": "lnk", "fit": "variational", "kernel": "rbf", "distance_aware": False}
TRAINED = {
    "lnk_variational": {"model": {"backbone": BACKBONE, "head": VARIATIONAL | FEW}},
    "svgp": {"model": {"backbone": BACKBONE, "head": {"name": "svgp"} | FEW}},
    "latent_knn": {"model": {"backbone": BACKBONE, "head": {"name": "latent_distance", "n_points": 40}}},
    "ensemble": {"model": {"backbone": BACKBONE, "head": {"name": "deterministic"}}, "ensemble": {"size": 2}},
}
"""Methods that a comparison makes too large for files that are kept."""
TRAINING = {
    "batch_size": 4,
    "max_epochs": 12,
    "learning_rate": 0.01,
    "schedule": {"name": "exponential", "warmup_steps": 5},
    "ema_decay": 0.9,
    "threads": 1,
    "tensorboard": False,
    "accelerator": "cpu",
}
RUN = {
    "data": {
        "source": "data.extxyz",
        "split": {"kind": "random", "n_train": 12, "n_validation": 20, "n_test": 4},
        "reference_energies": REFERENCES,
    },
    "model": {"backbone": BACKBONE, "head": SMALL_HEAD},
    "training": TRAINING,
    "output": "run",
}
CAMPAIGN = {
    "start": {"source": "structures.extxyz", "n_labels": 8},
    "engine": {"calculator": "ase.calculators.morse:MorsePotential", "arguments": {"rho0": 3.0, "r0": 1.5}},
    "model": {"backbone": BACKBONE, "head": SMALL_HEAD},
    "training": TRAINING | {"batch_size": 3},
    "reference_energies": REFERENCES,
    "hold_out_every": 4,
    "explore": {"temperature": [150.0], "starts": 2, "steps": 16, "check_every": 4, "every": 4},
    "select": {"n": 3},
    "stop": {"max_rounds": 1},
    "cluster": {"n_workers": 1},
    "output": "campaign",
}
MOTION = {"steps": 60, "every": 20, "check_every": 5, "checkpoint_every": 7, "replicas": 2, "temperature": [100.0]}
MOTION |= {"damping": 20.0, "stop_above": 20.0}
DIGITS = 10


class Stop(Listener):
    """Ctrl-C where a condition holds: of the stage and the steps that are done."""

    def __init__(self, is_here: Callable[[str, int], bool]) -> None:
        self.is_here, self.now = is_here, ""

    def stage(self, text: str) -> None:
        self.now = text
        self.advance(0, 0)

    def advance(self, done: int, total: int, note: str = "") -> None:
        if self.is_here(self.now, done):
            raise KeyboardInterrupt


def stopped(work: Callable[[Listener], Any], is_here: Callable[[str, int], bool]) -> None:
    try:
        work(Stop(is_here))
    except KeyboardInterrupt:
        return
    raise SystemExit("the run was over before it could be stopped")


def frames(n: int, seed: int) -> list[Atoms]:
    """Displaced triangles with labels."""
    generator, made = np.random.default_rng(seed), []
    for _ in range(n):
        atoms = Atoms("N3", positions=1.5 * np.array([[0, 0, 0], [1, 0, 0], [0.5, 0.866, 0]]))
        atoms.positions = (atoms.positions + generator.normal(0.0, 0.08, (3, 3))).round(6)
        calculator = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        energy, forces = calculator.get_potential_energy(atoms), calculator.get_forces(atoms)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces.round(8))
        made.append(atoms)
    return made


def predictions(model: Path, structures: list[Atoms]) -> list[dict[str, Any]]:
    """Every number that the calculator gives, to ``DIGITS``."""
    calculator, found = sf.Calculator(model, stress_uncertainty=True, warn_above=None), []
    for atoms in structures:
        calculator.calculate(atoms)
        numbers = {name: value for name, value in calculator.results.items() if not isinstance(value, str | bool)}
        found.append({name: rounded(value) for name, value in numbers.items() if value is not None})
    return found


def rounded(values: Any) -> Any:
    array = np.asarray(values, dtype=float)
    return np.array([float(f"{value:.{DIGITS}g}") for value in array.ravel()]).reshape(array.shape).tolist()


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(content, sort_keys=False) if path.suffix == ".yaml" else json.dumps(content)
    path.write_text(text if path.suffix != ".txt" else f"{content}\n", encoding="utf-8")


def keep_models(folder: Path, work: Path) -> None:
    """A model of each method, and what it predicts."""
    os.chdir(work)
    ase.io.write("data.extxyz", frames(36, seed=1))
    sf.compare(RUN | {"model": {"backbone": BACKBONE, "head": {"name": "lnk"} | FEW}}, METHODS)
    for name, settings in TRAINED.items():
        sf.train(RUN | settings | {"output": f"run/{name}"})
    folder.mkdir(parents=True)
    ase.io.write(folder / "structures.extxyz", [Atoms(atoms.symbols, atoms.positions) for atoms in frames(2, seed=2)])
    structures, expected = ase.io.read(folder / "structures.extxyz", ":"), {}
    for method in (*METHODS, *TRAINED):
        shutil.copy(work / "run" / method / "model.sigmaff", folder / f"{method}.sigmaff")
        found = predictions(folder / f"{method}.sigmaff", structures)
        expected[method] = {"structures": "structures.extxyz", "predictions": found}
    write(folder / "expected.json", expected)


def keep_training(folder: Path, work: Path) -> None:
    """Stopped in the middle of an epoch of the backbone; the head is not fitted yet."""
    folder.mkdir(parents=True)
    ase.io.write(folder / "data.extxyz", frames(36, seed=1))
    ase.io.write(folder / "structures.extxyz", [Atoms(atoms.symbols, atoms.positions) for atoms in frames(2, seed=2)])
    write(folder / "run.yaml", RUN)
    write(folder / "command.txt", "sigmaff train run.yaml")
    shutil.copytree(folder, work, dirs_exist_ok=True)
    os.chdir(work)
    sf.train("run.yaml")
    metrics = json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))
    found = {"energy_mae": metrics["energy_mae"], "forces_mae": metrics["forces_mae"]}
    structures = ase.io.read("structures.extxyz", ":")
    predicted = predictions(work / "run" / "model.sigmaff", structures)
    write(folder / "expected.json", {"epochs": 12, "metrics": found, "predictions": predicted})
    os.chdir(folder)
    stopped(lambda listener: sf.train("run.yaml", listener=listener), lambda _, done: done >= 17)


def keep_dynamics(folder: Path, work: Path, model: Path) -> None:
    """Two replicas, stopped after frames that follow the last checkpoint."""
    folder.mkdir(parents=True)
    shutil.copy(model, folder / "model.sigmaff")
    ase.io.write(folder / "start.extxyz", [Atoms(atoms.symbols, atoms.positions) for atoms in frames(1, seed=3)])
    options = " ".join(
        f"--{name.replace('_', '-')} {value[0] if isinstance(value, list) else value}" for name, value in MOTION.items()
    )
    write(folder / "command.txt", f"sigmaff md model.sigmaff start.extxyz --output run {options}")
    os.chdir(folder)
    loaded, start = sf.load("model.sigmaff"), ase.io.read("start.extxyz", ":")
    result = sf.run_md(loaded, start, MOTION, work / "run")
    written = json.loads((work / "run" / "md.json").read_text(encoding="utf-8"))["replicas"]
    last = [ase.io.read(result.trajectory(number), ":") for number in range(len(written))]
    ends = [
        {
            "frames": len(found),
            "positions": rounded(found[-1].positions),
            "momenta": rounded(found[-1].get_momenta()),
            "cell": rounded(found[-1].cell.array),
        }
        for found in last
    ]
    write(folder / "expected.json", {"replicas": written, "trajectories": ends})
    run = lambda listener: sf.run_md(loaded, start, MOTION, "run", listener=listener)  # noqa: E731
    stopped(run, lambda _, done: done >= 45)


def keep_campaign(folder: Path, work: Path) -> None:
    """Stopped after the start, where its first round begins."""
    folder.mkdir(parents=True)
    ase.io.write(folder / "structures.extxyz", frames(8, seed=4))
    write(folder / "campaign.yaml", CAMPAIGN)
    write(folder / "command.txt", "sigmaff learn campaign.yaml")
    shutil.copytree(folder, work, dirs_exist_ok=True)
    os.chdir(work)
    result = sf.learn(CAMPAIGN)
    structures = ase.io.read("structures.extxyz", ":")
    last = f"rounds/{len(result.rounds) - 1:02d}/model.sigmaff"
    counted = ("round", "n_labels", "n_new", "n_held_out", "n_set_aside", "engine_calls")
    expected = {
        "predictions": {last: predictions(work / "campaign" / last, structures)},
        "ended": result.reason,
        "rounds": [figures.model_dump(mode="json", include=set(counted)) for figures in result.rounds],
    }
    write(folder / "expected.json", expected)
    shutil.copy("campaign/dataset.extxyz", folder / "expected.extxyz")
    os.chdir(folder)
    stopped(lambda listener: sf.learn(CAMPAIGN, listener=listener), lambda stage, _: stage.startswith("round 1"))


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        work = [Path(name) / part for part in ("models", "train", "md", "campaign")]
        for path in work:
            path.mkdir()
        keep_models(folder / "models", work[0])
        keep_training(folder / "train" / "backbone", work[1])
        keep_dynamics(folder / "md" / "langevin", work[2], work[1] / "run" / "model.sigmaff")
        keep_campaign(folder / "campaign", work[3])
    for path in folder.rglob("*"):
        if path.name.startswith(".") or path.name == "report.html":  # locks; a page that is written anew
            path.unlink()


if __name__ == "__main__":
    main()
