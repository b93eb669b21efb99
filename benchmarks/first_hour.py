"""The first hour of a new user with data of their own: every command in turn, and what it must say or leave alone.

cd ${SIGMAFF_DATA}/acac
python benchmarks/first_hour.py train_300K.extxyz runs/first_hour/acac --other test_MD_600K.extxyz

Each step runs the program as a user does, looks at its exit code, its words and its files, and is a row of the table.
Run the same command again to go on where it was interrupted; steps that were passed are not repeated.
"""

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ase.io
import numpy as np
import yaml
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.units import Bohr
from machine import describe_machine

Change = Callable[[Atoms, float, np.ndarray], tuple[float, np.ndarray]]
"""Turns a structure and its labels into faulty ones."""


class Journey:
    """A folder, its data, and what was seen in it."""

    def __init__(self, data: Path, folder: Path, other: Path | None, minutes: float) -> None:
        self.data, self.folder, self.other, self.minutes = data, folder, other, minutes
        self.kept = folder / "steps.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.steps: dict[str, list[str | float]] = json.loads(self.kept.read_text()) if self.kept.exists() else {}
        self.frames: list[Atoms] = ase.io.read(data, ":")
        many = max(len(self.frames) // 5, 20)
        self.test = folder / "test.extxyz"
        self.own = folder / "data.extxyz"
        if not self.own.exists():
            ase.io.write(self.own, self.frames[:-many])
            ase.io.write(self.test, self.frames[-many:])

    def sigmaff(self, *arguments: str | Path) -> tuple[int, str]:
        """Run a command in the folder: its exit code, and all that it says."""
        command = [Path(sys.executable).with_name("sigmaff"), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def step(self, name: str, act: Callable[[], str]) -> None:
        """Do one thing, unless it was done; what was seen, or how it failed."""
        if name in self.steps and self.steps[name][0] == "passed":
            return
        began = time.monotonic()
        try:
            outcome = ["passed", act()]
        except AssertionError as error:
            outcome = ["FAILED", str(error)[:300]]
        self.steps[name] = [*outcome, round(time.monotonic() - began, 1)]
        self.kept.write_text(json.dumps(self.steps, indent=1))
        print(f"{name}: {self.steps[name]}", flush=True)


def words(text: str, after: str, length: int = 160) -> str:
    """The words of a text from ``after`` on."""
    place = text.find(after)
    return text[place : place + length].strip() if place >= 0 else ""


def figures(found: dict[str, float], prefix: str) -> str:
    """Errors of forces, and what σ covers of them."""
    mae, share, rms = (found[f"{prefix}forces_{name}"] for name in ("mae", "coverage_68", "rms_z"))
    return f"{mae:.4f} eV/Å, 68 % covers {share:.2f}, rms z {rms:.2f}"


def planted(journey: Journey, name: str, change: Change) -> str:
    """Train on data with a fault: the command must refuse them and name the fault."""
    path = journey.folder / f"{name}.extxyz"
    frames = []
    for frame in journey.frames[:200]:
        changed = Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc)
        energy, forces = change(changed, *labels_of(frame))
        changed.calc = SinglePointCalculator(changed, energy=energy, forces=forces)
        frames.append(changed)
    ase.io.write(path, frames)
    settings = {
        "data": {"source": path.name, "split": {"kind": "random", "n_train": 100, "n_validation": 40}},
        "training": {"max_epochs": 1},  # of a fault that is not found
        "output": name,
    }
    (journey.folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    code, text = journey.sigmaff("train", f"{name}.yaml")
    assert code == 1, f"exit code {code}: {text[-200:]}"
    assert not (journey.folder / name / "backbone").exists(), "a training began"
    return words(text, "error:", 200)


def labels_of(frame: Atoms) -> tuple[float, np.ndarray]:
    if frame.calc is not None:
        return frame.get_potential_energy(), frame.get_forces()
    energy = next(frame.info[key] for key in ("energy", "REF_energy") if key in frame.info)
    return energy, next(frame.arrays[key] for key in ("forces", "REF_forces") if key in frame.arrays)


def lengths_in_bohr(atoms: Atoms, energy: float, forces: np.ndarray) -> tuple[float, np.ndarray]:
    atoms.set_cell(atoms.cell.array / Bohr)
    atoms.positions /= Bohr
    return energy, forces


FAULTS: dict[str, Change] = {
    "energies in kcal/mol": lambda _, energy, forces: (energy * 23.06, forces * 23.06),
    "flipped forces": lambda _, energy, forces: (energy, -forces),
    "forces of other atoms": lambda _, energy, forces: (energy, np.roll(forces, 1, axis=0)),
    "lengths in Bohr": lengths_in_bohr,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--other", type=Path, help="structures unlike the training set")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the training")
    given = parser.parse_args()
    other = None if given.other is None else given.other.resolve()
    journey = Journey(given.data, given.folder.resolve(), other, given.minutes)
    for name, act in steps(journey).items():
        journey.step(name, act)
    print(f"\n{describe_machine()}; {given.data.name}, {len(journey.frames)} structures\n")
    print("| step | | seen | seconds |\n|---|---|---|---|")
    for name, (outcome, seen, seconds) in journey.steps.items():
        print(f"| {name} | {outcome} | {seen} | {seconds} |")


def steps(journey: Journey) -> dict[str, Callable[[], str]]:
    """All steps, in order."""
    folder, model = journey.folder, "run/model.sigmaff"

    def succeed(*arguments: str | Path, having: str = "") -> str:
        code, text = journey.sigmaff(*arguments)
        assert code == 0, f"exit code {code}: {text[-250:]}"
        assert having in text, f"{having!r} is not in: {text[-250:]}"
        return text

    def check() -> str:
        code, text = journey.sigmaff("check", "data.extxyz")
        assert code in (0, 1), text[-250:]
        assert "read energies as" in text, text[-250:]
        return words(text, "read energies", 200)

    def train() -> str:
        began = time.monotonic()
        text = succeed("init", "data.extxyz", "--minutes", str(journey.minutes), "-o", "run.yaml", "--force")
        planned = words(text, "about", 60)
        succeed("train", "run.yaml")
        return f"init says: {planned}; init and training took {(time.monotonic() - began) / 60:.1f} min"

    def again() -> str:
        moved = folder / "moved.extxyz"
        (folder / "data.extxyz").rename(moved)
        settings = yaml.safe_load((folder / "run.yaml").read_text())
        settings["data"]["source"] = "moved.extxyz"
        (folder / "again.yaml").write_text(yaml.safe_dump(settings))
        text = succeed("train", "again.yaml", having="nothing was done")
        moved.rename(folder / "data.extxyz")
        return words(text, "nothing was done", 60)

    def evaluate() -> str:
        other = [] if journey.other is None else ["--ood", journey.other]
        text = succeed("evaluate", model, "test.extxyz", *other, "--json", "out.json", "--force")
        found = json.loads((folder / "out.json").read_text())
        own = f"test MAE {found['energy_mae']:.4f} eV, {figures(found, '')}"
        if journey.other is None:
            return own
        assert "rms" in text, text[-250:]
        return f"{own}; other set {figures(found, 'ood_')}, AUROC {found['forces_auroc']:.3f}"

    def predict() -> str:
        succeed("predict", model, "test.extxyz", "predicted.extxyz", "--force")
        before, after = ase.io.read(folder / "test.extxyz", ":"), ase.io.read(folder / "predicted.extxyz", ":")
        for one, two in zip(before, after, strict=True):
            np.testing.assert_allclose(labels_of(one)[1], labels_of(two)[1], atol=1e-6)
        assert not np.allclose(after[0].arrays["sigmaff_forces"], labels_of(after[0])[1])
        return "labels are as they were; predictions have keys of their own"

    def no_training_on_predictions() -> str:
        bare = [frame.copy() for frame in ase.io.read(folder / "test.extxyz", ":")]
        for frame in bare:
            frame.info.clear()
            for name in set(frame.arrays) - {"numbers", "positions"}:
                del frame.arrays[name]
        ase.io.write(folder / "bare.extxyz", bare)
        ase.io.write(folder / "few.extxyz", bare[:4])
        succeed("predict", model, "bare.extxyz", "labels.extxyz", "--force")
        settings = yaml.safe_load((folder / "run.yaml").read_text())
        settings["data"]["source"], settings["output"] = "labels.extxyz", "self"
        settings["data"]["split"] = {"kind": "random", "n_train": 10, "n_validation": 5}
        (folder / "self.yaml").write_text(yaml.safe_dump(settings))
        code, text = journey.sigmaff("train", "self.yaml")
        assert code == 1, f"exit code {code}: {text[-200:]}"
        return words(text, "error:", 200)

    def other_composition() -> str:
        frame = journey.frames[-1].copy()
        frame.calc = None
        del frame[[len(frame) - 1]]
        frame.info.clear()
        ase.io.write(folder / "smaller.extxyz", Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc))
        text = succeed("predict", model, "smaller.extxyz", "smaller_out.extxyz", "--force")
        flagged = "undetermined" in ase.io.read(folder / "smaller_out.extxyz").info.__repr__()
        return words(text, "warning", 200) if flagged else "the training set determines it; not flagged"

    def relax() -> str:
        text = succeed("relax", model, "few.extxyz", "relaxed.extxyz", "--force", "--steps", "100")
        return text[-200:]

    def stable() -> str:
        length = ("--picoseconds", "0.5", "--starts", "4")
        text = succeed("evaluate", model, "test.extxyz", "--md", "stability", *length)
        return words(text, "stability", 300)

    def dynamics() -> str:
        text = succeed("md", model, "few.extxyz", "--steps", "200", "--stop-above", "0.5", "--output", "md")
        return text[-160:]

    def audit() -> str:
        text = succeed("audit", model, "--data", "test.extxyz", "--quick", having="reference for accuracy and speed")
        return words(text, "accuracy:", 160)

    def report() -> str:
        other = [] if journey.other is None else ["--ood", journey.other]
        succeed("report", model, "test.extxyz", *other, "report.html", "--force")
        return f"{(folder / 'report.html').stat().st_size / 1e6:.1f} MB"

    found: dict[str, Callable[[], str]] = {"check": check}
    for name, change in FAULTS.items():
        found[name] = partial(planted, journey, name.replace(" ", "_").replace("/", "_"), change)
    return found | {
        "init and train": train,
        "info": lambda: words(succeed("info", model), "composition", 200),
        "train again, data moved": again,
        "evaluate": evaluate,
        "predict": predict,
        "train on predictions": no_training_on_predictions,
        "another composition": other_composition,
        "relax": relax,
        "stability": stable,
        "guarded MD": dynamics,
        "audit": audit,
        "report": report,
        "watch": lambda: words(succeed("watch", "run", "--once"), "epoch", 80),
    }


if __name__ == "__main__":
    main()
