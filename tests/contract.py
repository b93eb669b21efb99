"""What the contract tests run on: every backbone with every head, small and fitted, and structures of all kinds.

A new backbone or head joins by a line in ``BACKBONES`` or ``HEADS`` and inherits every test of ``test_contract``. What
a method is not meant to hold is in ``BREAKS``: then the test must fail, or it is wrong.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor

from sigmaff.backbones import BackboneConfig, DescriptorConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DatasetStatistics, GraphDataset, LabelledStructures
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import HEADS as HEAD_CLASSES
from sigmaff.heads import (
    LNK,
    SVGP,
    DeterministicConfig,
    EvidentialConfig,
    GMDNConfig,
    GPConfig,
    HeadConfig,
    LatentDistanceConfig,
    LLPRConfig,
    LNKConfig,
    ShallowEnsembleConfig,
    SVGPConfig,
)
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.solve import solve_head

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
OTHER_HEADS: list[HeadConfig] = [
    EvidentialConfig(),
    GMDNConfig(n_components=3, n_hidden=8),
    SVGPConfig(n_inducing=8, n_samples=16, n_frequencies=64),
    LLPRConfig(n_samples=16),
    ShallowEnsembleConfig(n_members=6, n_steps=20),
    LatentDistanceConfig(distance="knn", n_points=40, n_neighbors=3),
    LatentDistanceConfig(distance="mixture", n_components=2),
]
"""Heads that are tested on one of each kind of backbone."""
DESCRIPTOR = DescriptorConfig(cutoff=CUTOFF, n_radial=4, n_shells=3, n_powers=2)

ADDITIVE = "energies of far structures add"
ADDITIVE_STD = "σ of far structures adds, or its square does"
SLOPES = "σ of forces comes from slopes of energies"
BREAKS: dict[str, set[str]] = {
    "evidential": {ADDITIVE_STD},  # σ is a curve of the summed readout
    "gmdn": {ADDITIVE, ADDITIVE_STD},  # energy and σ are networks of the summed embedding
    "svgp": {ADDITIVE, ADDITIVE_STD},  # a process compares summed embeddings
    "gp": {ADDITIVE, ADDITIVE_STD},
    "latent_distance": {SLOPES},  # a distance is a number for each atom
}
"""By method, what does not hold, for reasons that lie in the method."""

STATISTICS = DatasetStatistics(
    elements=(1, 6, 7, 8),
    reference_energies={1: -13.6, 6: -1029.0, 7: -1485.0, 8: -2042.0},
    scale=0.7,
    mean_neighbors=8.0,
    n_structures=100,
)
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
        changed = [value for key, value in self.head if key in ("kernel", "covariance", "mean", "distance")]
        degree = [f"l{self.backbone.l_max}"] if isinstance(self.backbone, NequIPConfig) else []
        return "-".join([self.backbone.name, *degree, self.head.name, *changed])

    @property
    def breaks(self) -> set[str]:
        return BREAKS.get(self.head.name, set())

    def build(self) -> Potential:
        """A potential of its own: float64, evaluation mode."""
        return deepcopy(_build(self))


CASES = [
    *(Case(backbone=backbone, head=head) for backbone in BACKBONES for head in HEADS),
    *(Case(backbone=backbone, head=head) for backbone in BACKBONES[:3] for head in OTHER_HEADS),
    *(
        Case(backbone=DESCRIPTOR, head=head)
        for head in (DeterministicConfig(), GPConfig(n_structures=6, n_force_rows=60))
    ),
]
CASES_WITH_STD = [case for case in CASES if HEAD_CLASSES[case.head.name].kind is not None]


@cache
def _build(case: Case) -> Potential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        lnk = issubclass(HEAD_CLASSES[case.head.name], LNK)
        solved = "solve" in case.head.stages and not lnk
        head = DeterministicConfig() if solved else case.head
        potential = Potential(PotentialConfig(backbone=case.backbone, head=head), STATISTICS)
        potential.set_precision(torch.float64)
        frames = [displaced(atoms, seed) for atoms in (ETHANOL, AMMONIA, WATER) for seed in range(4)]
        if solved:
            dataset = GraphDataset(labelled(frames), CUTOFF, torch.float64)
            return solve_head(potential.eval(), case.head, dataset, dataset)[0].eval()
        _initialize(potential.eval(), frames)
    return potential


def labelled(frames: list[Atoms]) -> LabelledStructures:
    """Frames with energies and forces that mean nothing, near to what an untrained potential says."""
    generator = np.random.default_rng(3)
    energies = [sum(STATISTICS.reference_energies[z] for z in atoms.numbers) + generator.normal() for atoms in frames]
    return LabelledStructures(
        structures=tuple(frames),
        energy=np.array(energies),
        forces=tuple(generator.normal(size=(len(atoms), 3)) for atoms in frames),
        source="made up",
        frame_index=np.arange(len(frames)),
    )


@torch.no_grad()
def _initialize(potential: Potential, frames: list[Atoms]) -> None:
    """Give a head some embeddings, and a posterior that is neither the prior nor narrow."""
    graph = graph_of(*frames)
    potential.head.initialize(potential.backbone(graph), graph.atomic_numbers, graph.structure_index)
    if isinstance(potential.head, LNK):
        give_posterior(potential.head)
    elif isinstance(potential.head, SVGP):
        give_posterior(potential.head.process)
    elif potential.head.method in ("evidential", "gmdn"):
        for parameter in potential.head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


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
    for way in potential.head.force_std_methods:
        complete = potential.predict(graph, forces_std="auto" if way == "by_atom" else way)
        found[f"forces_std_{way}"] = complete.forces_std
        for name in ("node_energy_std", "stress_std"):
            if getattr(complete, name) is not None:
                found[name] = getattr(complete, name)
    return found


ETHANOL = displaced(molecule("CH3CH2OH"), 10)
WATER = displaced(molecule("H2O"), 11)
AMMONIA = displaced(molecule("NH3"), 12)
OXYGEN_ATOM = Atoms("O", positions=[[0.3, -0.2, 0.1]])
CRYSTAL = displaced(bulk("CO", "zincblende", a=4.1), 13)  # lattice vectors of 2.9 Å: atoms see their own images
SLAB = displaced(
    Atoms("CON", positions=[[0, 0, 0], [1.2, 0.3, 0.8], [0.5, 1.6, 3.0]], cell=[3, 3.4, 9], pbc=[1, 1, 0]), 14
)
MIXED = (ETHANOL, WATER, OXYGEN_ATOM, AMMONIA)
