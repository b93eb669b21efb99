"""A small training that takes a second: displaced water and ethanol with Morse labels, a tiny SchNet.

Run as a script it trains in its own process, for tests that kill processes or need several of them.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from ase.build import molecule
from ase.calculators.morse import MorsePotential

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.heads import LNK, DeterministicConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.progress import Listener
from sigmaff.training import ExponentialSchedule, TrainingConfig, TrainingResult
from sigmaff.training.loop import train

CUTOFF = 4.0
CONFIG = TrainingConfig(
    batch_size=5,
    max_epochs=3,
    learning_rate=5e-3,
    schedule=ExponentialSchedule(warmup_steps=5),
    threads=1,
    tensorboard=False,
    accelerator="cpu",
)


def labelled_structures(n: int, seed: int) -> LabelledStructures:
    """Water and ethanol in turn, displaced by 0.05 Å, with the energies and forces of a Morse potential."""
    generator = np.random.default_rng(seed)
    structures, energies, forces = [], [], []
    for index in range(n):
        atoms = molecule(("H2O", "CH3CH2OH")[index % 2])
        atoms.positions += generator.normal(0.0, 0.05, atoms.positions.shape)
        atoms.calc = MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        atoms.calc = None
        structures.append(atoms)
    return LabelledStructures(
        structures=tuple(structures),
        energy=np.array(energies),
        forces=tuple(forces),
        source=f"morse-{seed}",
        frame_index=100 + np.arange(n),
    )


def train_set(n: int = 21) -> GraphDataset:
    return GraphDataset(labelled_structures(n, seed=1), CUTOFF)


def validation_set() -> GraphDataset:
    return GraphDataset(labelled_structures(10, seed=2), CUTOFF)


def potential(dropout: float = 0.0, seed: int = 0) -> Potential:
    backbone = SchNetConfig(cutoff=CUTOFF, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=10, dropout=dropout)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = PotentialConfig(backbone=backbone, head=DeterministicConfig())
        return Potential(config, compute_statistics(train_set()))


def lnk_potential() -> Potential:
    """With a variational head, whose loss has a term that no structure owns, and with an unused weight."""
    base, data = potential(), train_set()
    config = PotentialConfig(backbone=base.config.backbone, head=LNKConfig(n_inducing=8))
    graph, _ = data.batch(range(len(data)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Potential(config, base.statistics)
        assert isinstance(model.head, LNK)
        model.head.initialize(model.embed(graph), graph.atomic_numbers, graph.structure_index)
    return model


def run(
    model: Potential, config: TrainingConfig, directory: Path, listener: "Reporter | None" = None
) -> TrainingResult:
    return train(model, train_set(), validation_set(), config, directory, seed=7, listener=listener)


class Reporter(Listener):
    """Acts at one step or at the end of one epoch of a training, and keeps the steps that were reported."""

    def __init__(self, *, at_step: int | None = None, at_epoch: int | None = None) -> None:
        self.at_step, self.at_epoch = at_step, at_epoch
        self.steps: list[int] = []
        self.done_steps: int | None = None  # where training began
        self.note = ""

    def advance(self, done: int, total: int, note: str = "") -> None:
        if self.done_steps is None:
            self.done_steps = done
        elif note != self.note and note.startswith(f"epoch {self.at_epoch}: validation"):
            self.act()
        elif done > self.done_steps and done not in self.steps:
            self.steps.append(done)
            if done == self.at_step:
                self.act()
        self.note = note

    def act(self) -> None:
        raise ZeroDivisionError("a crash")


class Killer(Reporter):
    """Ends its process as nothing else can be ended."""

    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Interrupter(Reporter):
    """Ctrl-C, or another signal."""

    number = signal.SIGINT

    def act(self) -> None:
        signal.raise_signal(self.number)


def weights(model: Potential) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


PAIRS = {"deterministic": (potential, 5), "lnk": (lnk_potential, 1)}
"""Batches of 5 leave two processes with different numbers of structures and atoms, of 1 leave one idle."""


if __name__ == "__main__":
    task, where = sys.argv[1], Path(sys.argv[2])
    if task == "kill":
        run(potential(dropout=0.1), CONFIG, where, Killer(at_step=int(sys.argv[3])))
    else:
        for name, (build, batch_size) in PAIRS.items():
            pair = CONFIG.model_copy(update={"batch_size": batch_size, "devices": 2, "strategy": "ddp"})
            run(build(), pair, where / name)
