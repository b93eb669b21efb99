"""Small potentials with random weights, and structures for them, for tests of the calculator and its files."""

import torch
from ase import Atoms
from ase.build import molecule

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import batch_graphs, build_graph
from sigmaff.heads import LNK, HeadConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig

BACKBONE = SchNetConfig(n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12, cutoff=5.0)
LNK_CONFIG = LNKConfig(kernel="rbf+linear", n_inducing=12, n_samples=16, n_frequencies=32)
STATISTICS = DatasetStatistics(
    elements=(1, 6, 8),
    reference_energies={1: -13.6, 6: -1029.0, 8: -2042.0},
    scale=1.3,
    mean_neighbors=8.0,
    n_structures=100,
)


def build_potential(head: HeadConfig, dtype: torch.dtype = torch.float64) -> Potential:
    """Random weights; an LNK has a random posterior over inducing points on ethanol."""
    torch.manual_seed(3)
    potential = Potential(PotentialConfig(backbone=BACKBONE, head=head), STATISTICS)
    potential.set_precision(dtype)
    if isinstance(potential.head, LNK):
        fill_posterior(potential)
    return potential.eval()


def fill_posterior(potential: Potential) -> None:
    graph = batch_graphs([build_graph(rattled(molecule("CH3CH2OH"), seed), 5.0) for seed in range(4)])
    graph = graph.to(dtype=potential.dtype)
    head = potential.head
    assert isinstance(head, LNK)
    with torch.no_grad():
        head.initialize(potential.embed(graph), graph.atomic_numbers, graph.structure_index)
        head.weight_mean.normal_()
        head.weight_cholesky.copy_(0.3 * torch.randn_like(head.weight_cholesky).tril())


def rattled(atoms: Atoms, seed: int = 0) -> Atoms:
    atoms.rattle(0.05, seed=seed)
    return atoms


def ethanol() -> Atoms:
    return rattled(molecule("CH3CH2OH"))


def water_crystal() -> Atoms:
    """Two molecules in a skewed cell smaller than the cutoff's sphere."""
    atoms = molecule("H2O") + molecule("H2O")
    atoms.positions[3:] += [2.4, 2.1, 1.9]
    atoms.set_cell([[4.9, 0.0, 0.0], [0.6, 4.5, 0.0], [0.3, -0.4, 5.2]])
    atoms.pbc = True
    return rattled(atoms)
