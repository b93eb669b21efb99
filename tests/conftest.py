"""What all tests share: one thread, fixed seeds, and a small labelled data set with a network trained on it."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # tblite reads it when it is loaded; with more threads it is many times slower

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ase.build import molecule

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig

N_TRAIN, N_HELD_OUT = 40, 20
N_STEPS = 200


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but for what torch itself warns of when forward-mode differentiation is first used."""
    config.addinivalue_line("filterwarnings", "ignore:.torch.jit.script:DeprecationWarning")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A float64 potential with a deterministic head, and the data it saw and did not see."""

    potential: Potential
    train: LabelledStructures
    held_out: LabelledStructures

    def datasets(self) -> tuple[GraphDataset, GraphDataset]:
        cutoff = self.potential.cutoff
        return GraphDataset(self.train, cutoff, torch.float64), GraphDataset(self.held_out, cutoff, torch.float64)


@pytest.fixture(scope="session")
def xtb_structures() -> LabelledStructures:
    """Water and ethanol in turn, rattled, with energies and forces of GFN2-xTB."""
    from tblite.ase import TBLite

    generator = np.random.default_rng(3)
    structures, energies, forces = [], [], []
    for index in range(N_TRAIN + N_HELD_OUT):
        atoms = molecule(("CH3CH2OH", "H2O")[index % 2])
        atoms.positions += generator.normal(0.0, 0.05, atoms.positions.shape)
        atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        atoms.calc = None
        structures.append(atoms)
    return LabelledStructures(
        structures=tuple(structures),
        energy=np.array(energies),
        forces=tuple(forces),
        source="xtb",
        frame_index=np.arange(len(structures)),
    )


@pytest.fixture(scope="session")
def trained(xtb_structures: LabelledStructures) -> Trained:
    """A tiny SchNet after a few seconds of training: good enough to have errors worth modelling."""
    train = xtb_structures.subset(range(N_TRAIN))
    held_out = xtb_structures.subset(range(N_TRAIN, N_TRAIN + N_HELD_OUT))
    config = SchNetConfig(cutoff=5.0, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12)
    data = GraphDataset(train, config.cutoff)
    torch.manual_seed(0)
    potential = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), compute_statistics(data))
    _train(potential, data)
    potential.set_precision(torch.float64)
    return Trained(potential=potential.eval(), train=train, held_out=held_out)


def _train(potential: Potential, data: GraphDataset) -> None:
    optimizer = torch.optim.Adam(potential.parameters(), lr=5e-3)
    generator = np.random.default_rng(0)
    for _ in range(N_STEPS):
        graph, labels = data.batch(generator.choice(len(data), 10, replace=False))
        energy, forces = potential.normalised_targets(graph, labels)
        distribution, predicted = potential(graph)
        loss = 0.1 * (distribution.mean - energy).abs().mean() + (predicted - forces).norm(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def joined(one: LabelledStructures, other: LabelledStructures) -> LabelledStructures:
    return LabelledStructures(
        structures=one.structures + other.structures,
        energy=np.concatenate([one.energy, other.energy]),
        forces=one.forces + other.forces,
        source=one.source,
        frame_index=np.arange(len(one) + len(other)),
    )
