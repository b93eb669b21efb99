"""What the contract tests run on: every backbone with every head, small and fitted, and structures of all kinds.

A new backbone or head joins by one line in ``BACKBONES`` or ``HEADS``, and inherits every test of ``test_contract``.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import HEADS as HEAD_CLASSES
from sigmaff.heads import LNK, DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.potential import Potential, PotentialConfig

CUTOFF = 4.5

BACKBONES: list[BackboneConfig] = [
    SchNetConfig(cutoff=CUTOFF, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12),
    DimeNetPPConfig(cutoff=CUTOFF, n_hidden=12, n_blocks=2, n_directional=8, n_output=10, n_spherical=3, n_radial=3),
    NequIPConfig(cutoff=CUTOFF, n_features=6, n_layers=2, n_radial=8),
    NequIPConfig(cutoff=CUTOFF, n_features=4, n_layers=2, n_radial=8, l_max=2),
]
HEADS: list[HeadConfig] = [
    DeterministicConfig(),
    LNKConfig(kernel="rbf", mean="constant", n_inducing=12, n_samples=16, n_frequencies=64),
    LNKConfig(kernel="rbf", mean="residual", covariance="diagonal", n_inducing=12, n_samples=16, n_frequencies=64),
    LNKConfig(kernel="rbf+linear", mean="residual", n_inducing=12, n_samples=16, n_frequencies=64),
    LNKConfig(kernel="rbf+linear", mean="backbone", covariance="diagonal", n_inducing=12, n_samples=16),
    LNKConfig(kernel="matern52", mean="backbone", n_inducing=12, n_samples=16, n_frequencies=64),
    LNKConfig(kernel="linear", mean="residual", n_samples=16),
]

EXACT = {"rtol": 1e-9, "atol": 1e-9}
"""float64, the same numbers added in another order."""
FINITE_DIFFERENCE = {"rtol": 1e-5, "atol": 1e-7}
"""float64, central differences of step ``STEP``."""
SINGLE = {"rtol": 1e-3, "atol": 2e-5}
"""float32 against float64. σ loses half of the digits where it is small: it is the root of a difference."""
STEP = 1e-4  # Å, or strain


@dataclass(frozen=True, kw_only=True)
class Case:
    backbone: BackboneConfig
    head: HeadConfig

    @property
    def name(self) -> str:
        changed = [value for key, value in self.head if key in ("kernel", "covariance", "mean")]
        degree = [f"l{self.backbone.l_max}"] if isinstance(self.backbone, NequIPConfig) else []
        return "-".join([self.backbone.name, *degree, self.head.name, *changed])

    def build(self) -> Potential:
        """A potential of its own: float64, evaluation mode."""
        return deepcopy(_build(self))


CASES = [Case(backbone=backbone, head=head) for backbone in BACKBONES for head in HEADS]
CASES_WITH_STD = [case for case in CASES if HEAD_CLASSES[case.head.name].kind is not None]


@cache
def _build(case: Case) -> Potential:
    statistics = DatasetStatistics(
        elements=(1, 6, 7, 8),
        reference_energies={1: -13.6, 6: -1029.0, 7: -1485.0, 8: -2042.0},
        scale=0.7,
        mean_neighbors=8.0,
        n_structures=100,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        potential = Potential(PotentialConfig(backbone=case.backbone, head=case.head), statistics)
        potential.set_precision(torch.float64)
        _fit(potential.eval())
    return potential


@torch.no_grad()
def _fit(potential: Potential) -> None:
    """Give a head that needs data some embeddings, and a posterior that is neither the prior nor narrow."""
    if isinstance(potential.head, LNK):
        frames = [displaced(atoms, seed) for atoms in (ETHANOL, AMMONIA, WATER) for seed in range(4)]
        graph = graph_of(*frames)
        potential.head.initialize(potential.backbone(graph), graph.atomic_numbers, graph.structure_index)
        give_posterior(potential.head)


@torch.no_grad()
def give_posterior(head: LNK) -> None:
    """A random posterior of the weights with eigenvalues between 0.05 and 1."""
    n_weights = len(head.weight_mean)
    rotation = torch.linalg.qr(torch.randn(n_weights, n_weights, dtype=torch.float64)).Q
    covariance = (rotation * torch.linspace(0.05, 1.0, n_weights, dtype=torch.float64)) @ rotation.T
    head.weight_cholesky.copy_(torch.linalg.cholesky(covariance))
    head.weight_mean.normal_()
    head.constant.fill_(0.4)
    head.kernel.log_scale.fill_(-0.3)


def displaced(atoms: Atoms, seed: int, width: float = 0.08) -> Atoms:
    moved = atoms.copy()
    moved.positions += np.random.default_rng(seed).normal(0.0, width, atoms.positions.shape)
    return moved


def graph_of(*structures: Atoms, dtype: torch.dtype = torch.float64, cutoff: float = CUTOFF) -> AtomicGraph:
    return batch_graphs([build_graph(atoms, cutoff, dtype) for atoms in structures])


def predicted(potential: Potential, graph: AtomicGraph) -> dict[str, Tensor]:
    """All that a potential says of a graph, by name; force σ computed in every way that the head offers."""
    values = potential.predict(graph, forces_std="none")
    names = ("energy", "forces", "node_energy", "energy_std", "stress")
    found = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
    for how in () if values.energy_std is None else ways(potential):
        complete = potential.predict(graph, forces_std=how)
        found |= {"node_energy_std": complete.node_energy_std, f"forces_std_{how}": complete.forces_std}
        if complete.stress_std is not None:
            found["stress_std"] = complete.stress_std
    return found


def ways(potential: Potential) -> tuple[str, ...]:
    """How force σ can be had of this potential."""
    return ("exact",) if potential.head.covariance == "diagonal" else ("exact", "sampled")


ETHANOL = displaced(molecule("CH3CH2OH"), 10)
WATER = displaced(molecule("H2O"), 11)
AMMONIA = displaced(molecule("NH3"), 12)
OXYGEN_ATOM = Atoms("O", positions=[[0.3, -0.2, 0.1]])
CRYSTAL = displaced(bulk("CO", "zincblende", a=4.1), 13)  # lattice vectors of 2.9 Å: atoms see their own images
SLAB = displaced(
    Atoms("CON", positions=[[0, 0, 0], [1.2, 0.3, 0.8], [0.5, 1.6, 3.0]], cell=[3, 3.4, 9], pbc=[1, 1, 0]), 14
)
MIXED = (ETHANOL, WATER, OXYGEN_ATOM, AMMONIA)
