"""Data of very many elements: one kernel for all of them."""

import numpy as np
import pytest
import torch
from ase import Atoms

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.heads import LNK, DeterministicConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.solve import solve_head
from sigmaff.progress import Listener

CUTOFF, HIDDEN = 4.0, 8


class Told(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, text: str) -> None:
        self.texts.append(text)


def chains(n_elements: int, seed: int, n: int = 6) -> GraphDataset:
    """Chains of one atom of each element, with springs between neighbours."""
    generator = np.random.default_rng(seed)
    structures, energies, forces = [], [], []
    for _ in range(n):
        lengths = generator.normal(1.5, 0.05, n_elements - 1)
        positions = np.zeros((n_elements, 3))
        positions[1:, 0] = np.cumsum(lengths)
        pulls = np.zeros((n_elements, 3))
        pulls[:-1, 0] += 4.0 * (lengths - 1.5)
        pulls[1:, 0] -= 4.0 * (lengths - 1.5)
        structures.append(Atoms(np.arange(1, n_elements + 1), positions))
        energies.append(2.0 * ((lengths - 1.5) ** 2).sum())
        forces.append(pulls)
    labelled = LabelledStructures(
        structures=tuple(structures),
        energy=np.array(energies),
        forces=tuple(forces),
        source="chains",
        frame_index=np.arange(n),
    )
    return GraphDataset(labelled, CUTOFF)


@pytest.mark.parametrize(
    ("n_elements", "kernel", "n_kernels"), [(25, "linear", 25), (26, "linear", 1), (26, "rbf", 26)]
)
def test_the_kernel_of_many_elements_is_shared(n_elements: int, kernel: str, n_kernels: int, tmp_path):
    """A linear kernel has a weight for each feature and a constant; inducing points are as many as they are."""
    train, held_out, told = chains(n_elements, 0), chains(n_elements, 1), Told()
    torch.manual_seed(0)
    schnet = SchNetConfig(cutoff=CUTOFF, n_hidden=2 * HIDDEN, n_filters=8, n_interactions=1, n_gaussians=8)
    backbone = Potential(
        PotentialConfig(backbone=schnet, head=DeterministicConfig()), compute_statistics(train)
    ).requires_grad_(False)
    config = LNKConfig(kernel=kernel, n_inducing=26, n_samples=2, n_frequencies=4)
    solved, _ = solve_head(backbone, config, train, held_out, listener=told)
    assert isinstance(solved.head, LNK)
    assert solved.head.kernel.n_elements == n_kernels
    if kernel == "linear":
        assert solved.head.n_weights == n_kernels * (HIDDEN + 1)
    shared = [text for text in told.texts if "by_element: false" in text]
    assert bool(shared) == (n_kernels == 1)
    save(solved, tmp_path / "model.sigmaff")
    loaded = load(tmp_path / "model.sigmaff")
    assert loaded.potentials[0].config.head.by_element == (n_kernels > 1)
    atoms = held_out.structures.structures[0]
    assert loaded.predict(atoms).energy_std == solved.predict(atoms).energy_std > 0
