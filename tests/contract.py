"""The cases of the contract tests: backbone × head × wrapper, small and with parameters, and structures of all kinds.

To add a backbone or a head, add one line to ``BACKBONES`` or ``HEADS``: it inherits every test of ``test_contract``.
``BREAKS`` lists the properties that a method violates by design. There a test must fail, or the entry is wrong.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

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
from sigmaff.models import Ensemble, MonteCarloDropout, MonteCarloDropoutConfig, Potential, PotentialConfig
from sigmaff.models.model import Model
from sigmaff.models.solve import solve_head
from toy_host import toy_config

CUTOFF = 4.5

SECOND_DEGREE = NequIPConfig(cutoff=CUTOFF, n_features=4, n_layers=2, n_radial=8, l_max=2)
BACKBONES: list[BackboneConfig] = [
    SchNetConfig(cutoff=CUTOFF, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12),
    DimeNetPPConfig(cutoff=CUTOFF, n_hidden=12, n_blocks=2, n_directional=8, n_output=10, n_spherical=3, n_radial=3),
    NequIPConfig(cutoff=CUTOFF, n_features=6, n_layers=2, n_radial=8),
    SECOND_DEGREE,
]
LNK = LNKConfig(n_samples=16)
PAPERS_LNK = LNKConfig(
    kernel="rbf", covariance="diagonal", fit="variational", n_inducing=12, n_samples=16, n_frequencies=64
)
HEADS: list[HeadConfig] = [
    DeterministicConfig(),
    LNKConfig(kernel="rbf", mean="constant", fit="variational", n_inducing=12, n_samples=16, n_frequencies=64),
    PAPERS_LNK,
    LNKConfig(kernel="rbf+linear", fit="variational", n_inducing=12, n_samples=16, n_frequencies=64),
    LNKConfig(kernel="rbf+linear", mean="backbone", n_inducing=12, n_samples=16),
    LNKConfig(kernel="matern52", mean="backbone", n_inducing=12, n_samples=16, n_frequencies=64),
    LNK,
    LNKConfig(features="all_layers", n_samples=16),
    EvidentialConfig(),
    GMDNConfig(n_components=3, n_hidden=8),
    SVGPConfig(n_inducing=8, n_samples=16, n_frequencies=64),
    LLPRConfig(n_samples=16),
    ShallowEnsembleConfig(n_members=6, n_steps=20),
    LatentDistanceConfig(distance="knn", n_points=40, n_neighbors=3),
    LatentDistanceConfig(distance="mixture", n_components=2),
    GPConfig(n_structures=6, n_force_rows=60),
]
WRAPPED_HEADS = [head for head in HEADS if head.name == "evidential" or head == LNK]
Wrapper = Literal["none", "ensemble", "mc dropout"]
WRAPPERS: tuple[Wrapper, ...] = ("ensemble", "mc dropout")
HOST = toy_config(cutoff=CUTOFF)
DESCRIPTOR = DescriptorConfig(cutoff=CUTOFF, n_radial=4, n_shells=3, n_powers=2)

EXTENSIVITY = "extensivity: energies of far structures add"
ISOLATED_EXTENSIVITY = "extensivity: energies of isolated atoms add"
STD_EXTENSIVITY = "size consistency: σ of far structures adds, or its square does"
GRADIENT_STD = "σ of forces is that of the energy's gradient"
PERMUTATION = "equivariance under permutation of atoms"
PERIODIC_CELL = "invariance under the choice of periodic cell"
BATCHING = "batching: a structure's place in a batch does not matter"
SMOOTHNESS = "smoothness at the cutoff"
BREAKS: dict[str, set[str]] = {
    "evidential": {STD_EXTENSIVITY},  # σ is a curve of the summed readout
    "gmdn": {EXTENSIVITY, ISOLATED_EXTENSIVITY, STD_EXTENSIVITY},  # networks of the summed embedding
    "svgp": {EXTENSIVITY, ISOLATED_EXTENSIVITY, STD_EXTENSIVITY},  # a process compares summed embeddings
    "gp": {EXTENSIVITY, ISOLATED_EXTENSIVITY, STD_EXTENSIVITY},
    "latent_distance": {GRADIENT_STD},  # a distance is a number for each atom
    # masks depend on the number and the order of the atoms and pairs of a batch
    "mc dropout": {EXTENSIVITY, STD_EXTENSIVITY, PERMUTATION, PERIODIC_CELL, BATCHING, SMOOTHNESS},
    "mc dropout of schnet": {ISOLATED_EXTENSIVITY},  # DimeNet++ has no masks without pairs
    "mc dropout of nequip": {ISOLATED_EXTENSIVITY},
}
"""The properties that do not hold, for reasons that lie in the method: by head, by wrapper, by wrapper of a head or
backbone."""

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
NOISE = 0.3
"""Standard deviation of the noise on a head's parameters, in their own units."""


@dataclass(frozen=True, kw_only=True)
class Case:
    backbone: BackboneConfig
    head: HeadConfig
    wrapper: Wrapper = "none"

    @property
    def name(self) -> str:
        changed = [value for key, value in self.head if key in ("kernel", "covariance", "mean", "distance")]
        changed += [value for key, value in self.head if key == "features" and value != "last"]
        degree = [f"l{self.backbone.l_max}"] if isinstance(self.backbone, NequIPConfig) else []
        wrapper = [] if self.wrapper == "none" else [self.wrapper]
        return "-".join([*wrapper, self.backbone.name, *degree, self.head.name, *changed])

    @property
    def breaks(self) -> set[str]:
        wrapped = [f"{self.wrapper} of {part.name}" for part in (self.head, self.backbone)]
        return set().union(*(BREAKS.get(key, set()) for key in (self.head.name, self.wrapper, *wrapped)))

    @property
    def is_slow(self) -> bool:
        """Whether it runs with ``-m slow`` alone: a head that sees embeddings only, beside others that do, elsewhere
        than on the first backbone."""
        others = ("gmdn", "svgp", "llpr", "shallow_ensemble", "latent_distance")
        return self.head.name in others and self.backbone in BACKBONES[1:]

    @property
    def has_std(self) -> bool:
        return self.wrapper != "none" or HEAD_CLASSES[self.head.name].kind is not None

    def build(self) -> Model:
        """A model of its own: float64, evaluation mode. Without a wrapper it is a ``Potential``."""
        if self.wrapper == "ensemble":
            return Ensemble([deepcopy(_build(self.backbone, self.head, seed)) for seed in (1, 2)])
        if self.wrapper == "mc dropout":
            dropping = self.backbone.model_copy(update={"dropout": 0.2})
            return MonteCarloDropout(deepcopy(_build(dropping, self.head)), MonteCarloDropoutConfig(n_samples=2))
        return deepcopy(_build(self.backbone, self.head))


def _is_case(backbone: BackboneConfig, head: HeadConfig) -> bool:
    """Every head runs on one backbone of each kind, every kernel of the LNK on the first: kernels know no backbone."""
    if backbone == HOST:
        return head == LNK or head.name in ("deterministic", "llpr", "shallow_ensemble", "latent_distance")
    if backbone == DESCRIPTOR:
        return head.name in ("deterministic", "gp")
    if head.name == "lnk" and backbone != BACKBONES[0]:
        return head == LNK or (head == PAPERS_LNK and backbone != SECOND_DEGREE)
    return head.name == "deterministic" if backbone == SECOND_DEGREE else head.name != "gp"


POTENTIAL_CASES = [
    Case(backbone=backbone, head=head)
    for backbone in (*BACKBONES, DESCRIPTOR, HOST)
    for head in HEADS
    if _is_case(backbone, head)
]
CASES = [
    *POTENTIAL_CASES,
    *(Case(backbone=backbone, head=HEADS[0], wrapper=wrapper) for wrapper in WRAPPERS for backbone in BACKBONES[:3]),
    *(Case(backbone=BACKBONES[0], head=head, wrapper=wrapper) for wrapper in WRAPPERS for head in WRAPPED_HEADS),
]
"""Every head on every backbone; every wrapper on every backbone, and on heads that have a σ of their own."""


@cache
def _build(backbone: BackboneConfig, head: HeadConfig, seed: int = 1) -> Potential:
    """Solve the head where its method solves it; else initialise it on embeddings and add noise to its parameters.

    Noise stands for training: it keeps a posterior apart from its prior and gives every parameter a part in the result.
    """
    frames = [displaced(atoms, number) for atoms in (ETHANOL, AMMONIA, WATER) for number in range(4)]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        solved = "solve" in head.stages
        start = DeterministicConfig() if solved else head
        potential = Potential(PotentialConfig(backbone=backbone, head=start), STATISTICS)
        potential.set_precision(torch.float64)
        potential.eval()
        if solved:
            dataset = GraphDataset(relabelled(potential, frames), CUTOFF, torch.float64)
            return solve_head(potential, head, dataset, dataset)[0].eval()
        with torch.no_grad():
            graph = potential.prepare(graph_of(*frames))
            potential.head.initialize(potential.embed(graph), graph.atomic_numbers, graph.structure_index)
            for parameter in potential.head.parameters():
                parameter.add_(NOISE * torch.randn_like(parameter))
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


def relabelled(potential: Potential, frames: list[Atoms]) -> LabelledStructures:
    """Labels that a potential misses by a little: what it predicts, plus noise."""
    generator = np.random.default_rng(4)
    predictions = [potential.predict(graph_of(atoms)) for atoms in frames]
    return replace(
        labelled(frames),
        energy=np.array([float(prediction.energy) for prediction in predictions])
        + generator.normal(0, 0.1, len(frames)),
        forces=tuple(p.forces.numpy() + generator.normal(0.0, 0.1, p.forces.shape) for p in predictions),
    )


def displaced(atoms: Atoms, seed: int, width: float = 0.08) -> Atoms:
    moved = atoms.copy()
    moved.positions += np.random.default_rng(seed).normal(0.0, width, atoms.positions.shape)
    return moved


def graph_of(*structures: Atoms, dtype: torch.dtype = torch.float64, cutoff: float = CUTOFF) -> AtomicGraph:
    return batch_graphs([build_graph(atoms, cutoff, dtype) for atoms in structures])


def covariance_of(model: Model) -> str | None:
    """Between the errors of atoms. Members without a σ of their own are functions that all atoms share."""
    potential = model.potentials[0]
    return "full" if potential.kind is None and isinstance(model, Ensemble) else potential.head.covariance


def force_std_modes(model: Model) -> tuple[str, ...]:
    """The ways in which a model computes force σ, as they stand in the provenance of a prediction."""
    return model.head.force_std_methods if isinstance(model, Potential) else ("members",)


def predicted(model: Model, graph: AtomicGraph) -> dict[str, Tensor]:
    """All quantities that a model predicts for a graph, by name; force σ in every mode that it offers."""
    names = ("energy", "forces", "node_energy", "energy_std", "stress", "node_energy_std", "stress_std")
    found = {}
    for mode in force_std_modes(model) or ("none",):
        values = model.predict(graph, forces_std=mode if mode in ("exact", "sampled", "none") else "auto")
        found |= {name: getattr(values, name) for name in names if getattr(values, name) is not None}
        if values.forces_std is not None:
            found[f"forces_std_{mode}"] = values.forces_std
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
