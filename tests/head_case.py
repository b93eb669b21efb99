"""What tests of single heads share: a head on features made by hand, and small potentials that are trained a little."""

from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from torch import Tensor, nn

import training_case
from contract import ETHANOL, STEP, WATER, Case, graph_of
from sigmaff.backbones import BackboneConfig
from sigmaff.data import GraphDataset
from sigmaff.graph import AtomicGraph
from sigmaff.graph.embedding import Embedding
from sigmaff.heads import LNK, HeadConfig
from sigmaff.models import Potential
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Prediction
from sigmaff.training import TrainingConfig
from sigmaff.training.objective import Objective, load_batch


def plain_embedding(n_features: int) -> Embedding:
    """Without an activation: a readout sees the features themselves."""
    return Embedding(n_features=n_features, activation=nn.Identity())


def bags(n_atoms: list[int]) -> AtomicGraph:
    """Structures of so many atoms that feel nothing of each other, for heads that look at features alone."""
    return graph_of(*(Atoms(f"H{n}", positions=100.0 * np.arange(3 * n).reshape(n, 3)) for n in n_atoms))


def atoms_of(numbers: list[int], atoms_per_structure: list[int]) -> AtomicGraph:
    """A graph that is nothing but elements and structures: all that a head looks at."""
    return AtomicGraph(
        positions=torch.zeros(len(numbers), 3, dtype=torch.float64),
        atomic_numbers=torch.tensor(numbers),
        structure_index=torch.repeat_interleave(torch.tensor(atoms_per_structure)),
        pair_index=torch.zeros(2, 0, dtype=torch.int64),
        pair_shift=torch.zeros(0, 3, dtype=torch.float64),
        cell=None,
        n_structures=len(atoms_per_structure),
    )


def potential_with(backbone: BackboneConfig, head: HeadConfig) -> Potential:
    """float64, evaluation mode, the head initialised on a few molecules."""
    return Case(backbone=backbone, head=head).build()


@torch.no_grad()
def give_posterior(head: LNK) -> None:
    """Set a random posterior of the weights with eigenvalues between 0.05 and 1."""
    n_weights = len(head.weight_mean)
    rotation = torch.linalg.qr(torch.randn(n_weights, n_weights, dtype=torch.float64)).Q
    covariance = (rotation * torch.linspace(0.05, 1.0, n_weights, dtype=torch.float64)) @ rotation.T
    head.weight_cholesky.copy_(torch.linalg.cholesky(covariance))
    head.weight_mean.normal_()
    head.constant.fill_(0.4)
    head.kernel.log_scale.fill_(-0.3)


def far_copies(atoms: Atoms, n_copies: int) -> Atoms:
    copies = Atoms()
    for index in range(n_copies):
        copy = atoms.copy()
        copy.positions += [17.0 * index, 0.0, 0.0]
        copies += copy
    return copies


def numerical_forces(potential: Potential, atoms: Atoms) -> Tensor:
    """−∂E/∂positions by central differences, (n_atoms, 3)."""
    forces = torch.zeros(len(atoms), 3, dtype=torch.float64)
    for atom, axis in np.ndindex(len(atoms), 3):
        energies = []
        for step in (STEP, -STEP):
            moved = atoms.copy()
            moved.positions[atom, axis] += step
            energies.append(potential.predict(graph_of(moved)).energy[0])
        forces[atom, axis] = (energies[1] - energies[0]) / (2.0 * STEP)
    return forces


def losses_in_training(potential: Potential, n_steps: int) -> list[float]:
    """Of the training objective on displaced water and ethanol, energies and forces, step by step."""
    structures = training_case.labelled_structures(6, seed=1)
    data = GraphDataset(structures, potential.cutoff, potential.dtype)
    config = TrainingConfig(forces_weight=potential.head.forces_weight)
    objective = Objective(potential, config, len(data)).train()
    batch = load_batch(potential, data, torch.arange(len(data)), config)
    optimizer = torch.optim.Adam(potential.parameters(), lr=3e-3)
    losses = []
    for _ in range(n_steps):
        loss = objective.total(objective(batch))
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in potential.parameters())
        optimizer.step()
        losses.append(loss.item())
    objective.eval()
    return losses


def train_and_reload(potential: Potential, dtype: torch.dtype, path: Path) -> tuple[Prediction, Prediction]:
    """Predictions of a potential after a few steps with forces in the loss, which must fall, and of its file."""
    potential.set_precision(dtype)
    losses = losses_in_training(potential, n_steps=6)
    assert losses[-1] < losses[0]
    save(potential, path)
    loaded = load(path)
    assert loaded.config == potential.config
    graph = graph_of(ETHANOL, WATER)
    return potential.predict(graph), loaded.predict(graph)
