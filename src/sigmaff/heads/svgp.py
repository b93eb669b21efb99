"""A sparse variational Gaussian process on the summed embedding of a structure: SVGP, and SVGP-DKL on a network.

    E = c + f(Σ_i x(h_i)),      f ~ sparse GP,      x: ``Comparison``

It is the LNK's process, seen by structures of one atom each: the pseudo-atom whose embedding is the sum. A structure is
one point of the kernel's space, so neither the energy nor σ of two distant molecules follows from those of each. A
process on atoms has this property, this one does not.
"""

from contextlib import AbstractContextManager
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, SampledHeadSettings, Stage, summed_over_atoms
from sigmaff.heads.comparison import Compared, Comparison
from sigmaff.heads.lnk.head import LNK, LNKConfig
from sigmaff.heads.lnk.inducing import Placement
from sigmaff.heads.lnk.start import refit_process, start_from_solution
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener

PSEUDO_ELEMENT = 1


class SVGPConfig(SampledHeadSettings):
    """Hyper-parameters of the sparse variational Gaussian process on structures."""

    name: Literal["svgp"] = "svgp"
    kernel: Literal["rbf", "linear", "rbf+linear", "matern52"] = Field(
        default="rbf", description="covariance of the summed embeddings of two structures"
    )
    embedding: Compared = Field(
        default="activated",
        description="what is summed over atoms: the activated embedding, each feature weighed as the readout does "
        "(activated), or the embedding before its activation (pre_activation; the authors' code)",
    )
    n_inducing: int = Field(default=100, ge=1, le=20_000, description="inducing points; a linear kernel has none")
    inducing: Placement = Field(
        default="farthest",
        description="where inducing points are: far apart, centres of clusters (kmeans), at random, or on the first "
        "structures of the training set (first_k)",
    )
    readout_pairs: bool = Field(
        default=True, description="whether two of the inducing points lie along the readout, on both sides of the mean"
    )
    lengthscale_factor: float = Field(
        default=10.0,
        gt=0,
        le=1e4,
        description="lengthscale at the start, in units of the mean distance between inducing points",
    )
    freeze_backbone: bool = Field(
        default=False,
        description="train the backbone first and keep it, or continue to train it with the process (the paper's)",
    )
    from_scratch: bool = Field(
        default=False,
        description="with freeze_backbone false: after a warm-up of a tenth of the epochs with the readout, network "
        "and process are trained together (as in the paper), not after a whole training",
    )
    start: Literal["solve", "prior"] = Field(
        default="solve", description="begin with the posterior that the closed form gives, or with the prior"
    )
    objective: Literal["predictive", "elbo"] = Field(
        default="predictive",
        description="log-likelihood of energies under the predictive distribution (the paper's), or its expectation",
    )
    n_samples: int = Field(default=16, ge=1, le=1024, description="posterior functions drawn for sampled force σ")
    n_frequencies: int = Field(
        default=512, ge=1, le=8192, description="random Fourier features of each of these functions"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.from_scratch and self.freeze_backbone:
            raise ValueError("from_scratch goes with freeze_backbone false")
        return self

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.process.stages

    @property
    def process(self) -> LNKConfig:
        """The same process on pseudo-atoms."""
        return LNKConfig(
            kernel=self.kernel,
            mean="constant",
            fit="variational",
            embedding="pre_activation",  # of pseudo-atoms, which have no activation
            n_inducing=self.n_inducing,
            inducing=self.inducing,
            readout_pairs=self.readout_pairs,
            lengthscale_factor=self.lengthscale_factor,
            freeze_backbone=self.freeze_backbone,
            from_scratch=self.from_scratch,
            start=self.start,
            objective=self.objective,
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
    has_likelihood_loss = True

    def __init__(self, config: SVGPConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.n_samples = config.n_samples
        self.compared = Comparison(config.embedding, embedding)
        summed = Embedding(n_features=embedding.n_features, activation=nn.Identity())
        self.process = LNK(config.process, summed, (PSEUDO_ELEMENT,))
        self.learning_rate = self.process.learning_rate

    def find_damage(self) -> str | None:
        return self.process.find_damage()

    def set_precision(self, dtype: torch.dtype) -> None:
        self.process.set_precision(dtype)

    def take_readout(self, readout: nn.Linear) -> None:
        self.compared.take_readout(readout)

    def prepared(self) -> AbstractContextManager[None]:
        return self.process.prepared()

    @torch.no_grad()
    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Place the inducing points on summed embeddings of training structures."""
        n_structures = int(structure_index.max()) + 1
        summed = scatter_sum(self.compared(node_features.double()), structure_index, n_structures)
        n_distinct = len(summed.unique(dim=0))
        if self.process.kernel.n_inducing > n_distinct:
            raise ConfigError(
                f"n_inducing is {self.config.n_inducing}, but the training set holds only {n_distinct} distinct "
                f"structures, which are the points of this process; set n_inducing to at most {n_distinct}"
            )
        index = torch.arange(n_structures, device=summed.device)
        self.process.initialize(summed, torch.full_like(index, PSEUDO_ELEMENT), index)

    def start(self, train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> None:
        """Begin with the posterior that the closed form gives, unless the settings say otherwise."""
        super().start(train, held_out, seed=seed, listener=listener)
        if self.process.config.begins_solved:
            start_from_solution(self.process, self, train, held_out, seed, listener)

    def refit(self, train: Observations, held_out: Observations, *, moved: bool, seed: int, listener: Listener) -> None:
        if self.process.config.begins_solved:
            refit_process(self.process, self, train, held_out, seed, listener)

    @property
    def n_weights(self) -> int:
        return self.process.n_weights

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """φ of each structure, (n_structures, p), and the variance that it leaves out, (n_structures,)."""
        return self.process.rows(self._summed(node_features, graph), _pseudo_atoms(graph))

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The same for slopes along tangents (c, n_atoms, n_features): (c, n_structures, p), (c, n_structures)."""
        moved = self._summed_slopes(node_features, tangents, graph)
        return self.process.slope_rows(self._summed(node_features, graph), moved, _pseudo_atoms(graph))

    def _summed(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """What is compared, summed over the atoms of a structure, (n_structures, d)."""
        return summed_over_atoms(self.compared(node_features.double()), graph)

    def _summed_slopes(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        return summed_over_atoms(self.compared.slopes(node_features.double(), tangents.double()), graph)

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        distribution = self.process(self._summed(node_features, graph), _pseudo_atoms(graph))
        return EnergyDistribution(mean=distribution.mean, variance=distribution.variance)

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative predictive log-likelihood plus KL(q(w) ‖ p(w)) shared by the n_train structures."""
        return self.process.energy_losses(distribution, target, n_train)

    def draw(self) -> None:
        self.process.draw()

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        return self.process.energy_deviations(self._summed(node_features, graph), _pseudo_atoms(graph))

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        moved = self._summed_slopes(node_features, tangents, graph)
        return self.process.slope_variance(self._summed(node_features, graph), moved, _pseudo_atoms(graph))


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
