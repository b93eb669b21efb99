"""A sparse variational Gaussian process on the summed embedding of a structure: SVGP, and SVGP-DKL on a network.

    E = c + f(Σ_i h_i),      f ~ sparse GP

It is the LNK's process, seen by structures of one atom each: the pseudo-atom whose embedding is the sum. A structure is
one point of the kernel's space, so neither the energy nor σ of two distant molecules follows from those of each. A
process on atoms has this property, this one does not.
"""

from contextlib import AbstractContextManager
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, SampledHeadSettings, Stage, pooled
from sigmaff.heads.lnk.head import LNK, LNKConfig

PSEUDO_ELEMENT = 1


class SVGPConfig(SampledHeadSettings):
    """Hyper-parameters of the sparse variational Gaussian process on structures."""

    name: Literal["svgp"] = "svgp"
    kernel: Literal["rbf", "linear", "rbf+linear", "matern52"] = Field(
        default="rbf", description="covariance of the summed embeddings of two structures"
    )
    n_inducing: int = Field(default=100, ge=1, le=20_000, description="inducing points; a linear kernel has none")
    freeze_backbone: bool = Field(
        default=False,
        description="train the backbone first and keep it, or continue to train it with the process (the paper's)",
    )
    n_samples: int = Field(default=16, ge=1, le=1024, description="posterior functions drawn for sampled force σ")
    n_frequencies: int = Field(
        default=512, ge=1, le=8192, description="random Fourier features of each of these functions"
    )

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "head") if self.freeze_backbone else ("backbone", "joint")

    @property
    def process(self) -> LNKConfig:
        """The same process on pseudo-atoms."""
        return LNKConfig(
            kernel=self.kernel,
            mean="constant",
            fit="variational",
            n_inducing=self.n_inducing,
            n_samples=self.n_samples,
            draws=self.draws,
            n_frequencies=self.n_frequencies,
        )


class SVGP(Head):
    """Sparse Gaussian process of summed embeddings. Its algebra is always float64."""

    Config = SVGPConfig
    method = "svgp"
    kind = "epistemic"
    force_std_methods = ("exact", "sampled")
    learning_rate = LNK.learning_rate

    def __init__(self, config: SVGPConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.n_samples = config.n_samples
        summed = Embedding(n_features=embedding.n_features, activation=nn.Identity())
        self.process = LNK(config.process, summed, (PSEUDO_ELEMENT,))

    def find_damage(self) -> str | None:
        return self.process.find_damage()

    def set_precision(self, dtype: torch.dtype) -> None:
        self.process.set_precision(dtype)

    def prepared(self) -> AbstractContextManager[None]:
        return self.process.prepared()

    @torch.no_grad()
    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Place the inducing points on summed embeddings of training structures."""
        n_structures = int(structure_index.max()) + 1
        summed = scatter_sum(self.embedding.kernel_features(node_features.double()), structure_index, n_structures)
        n_distinct = len(summed.unique(dim=0))
        if self.process.kernel.n_inducing > n_distinct:
            raise ConfigError(
                f"n_inducing is {self.config.n_inducing}, but the training set holds only {n_distinct} distinct "
                f"structures, which are the points of this process; set n_inducing to at most {n_distinct}"
            )
        index = torch.arange(n_structures, device=summed.device)
        self.process.initialize(summed, torch.full_like(index, PSEUDO_ELEMENT), index)

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        distribution = self.process(pooled(self.embedding, node_features, graph), _pseudo_atoms(graph))
        return EnergyDistribution(mean=distribution.mean, variance=distribution.variance)

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative predictive log-likelihood plus KL(q(w) ‖ p(w)) shared by the n_train structures."""
        return self.process.energy_loss(distribution, target, n_train)

    def draw(self) -> None:
        self.process.draw()

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        return self.process.energy_deviations(pooled(self.embedding, node_features, graph), _pseudo_atoms(graph))

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        return self.process.slope_variance(
            pooled(self.embedding, node_features, graph),
            pooled(self.embedding, tangents, graph),
            _pseudo_atoms(graph),
        )


def _pseudo_atoms(graph: AtomicGraph) -> AtomicGraph:
    """One atom of one element in the place of each structure: all that the process looks at."""
    index = torch.arange(graph.n_structures, device=graph.structure_index.device)
    return AtomicGraph(
        positions=graph.positions.new_zeros(graph.n_structures, 3),
        atomic_numbers=torch.full_like(index, PSEUDO_ELEMENT),
        structure_index=index,
        pair_index=index.new_zeros(2, 0),
        pair_shift=graph.positions.new_zeros(0, 3),
        cell=None,
        n_structures=graph.n_structures,
    )
