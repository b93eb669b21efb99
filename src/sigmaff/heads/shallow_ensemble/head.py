"""The shallow ensemble: many last linear maps on the embeddings of one backbone, whose disagreement is σ.

    E_m = Σ_i (w + δ_m)·φ(h_i),   φ(h) = (a(h), 1),   Σ_m δ_m = 0

| symbol | here |
|---|---|
| h | ``node_features`` (n_atoms, n_blocks · n_features) |
| a | the activation before the backbone's own readout; without the 1 if that readout has no bias |
| w | ``readout``, in the network's precision: the mean of the members is a member itself |
| δ | ``deviations`` (n_members, n_weights), float64 |
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import forward_slope, scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings, Stage
from sigmaff.heads.shallow_ensemble import fit


class ShallowEnsembleConfig(HeadSettings):
    """Hyper-parameters of the shallow ensemble and of its fit."""

    name: Literal["shallow_ensemble"] = "shallow_ensemble"
    n_members: int = Field(default=32, ge=2, le=1024, description="last linear maps")
    n_steps: int = Field(
        default=300, ge=0, le=1_000_000, description="steps of Adam on the likelihood of energies and forces"
    )
    learning_rate: float = Field(
        default=0.003, gt=0, description="of Adam at the first step, in units of the spread that the members start with"
    )
    batch_size: int = Field(default=512, ge=1, description="energies of a step, and the same number of forces")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "solve")


class ReadoutBasis:
    """What the weights of a last linear map multiply: activated embeddings and, for its bias, a one. float64."""

    def __init__(self, embedding: Embedding) -> None:
        self.embedding = embedding
        self.n_weights = embedding.n_blocks * embedding.n_features + int(embedding.readout_bias)

    def of_atoms(self, node_features: Tensor) -> Tensor:
        """φ of each atom, (n_atoms, n_weights)."""
        activated = self.embedding.activation(self.embedding.last(node_features).double())
        if not self.embedding.readout_bias:
            return activated
        return torch.cat([activated, torch.ones_like(activated[..., :1])], dim=-1)

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """Σ_i φ(h_i) of each structure, (n_structures, n_weights), and the variance that it leaves out: none."""
        summed = scatter_sum(self.of_atoms(node_features), graph.structure_index, graph.n_structures)
        return summed, summed.new_zeros(graph.n_structures)

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The same of slopes along tangents (c, n_atoms, n_blocks · n_features): (c, n_structures, n_weights)."""

        def slope(tangent: Tensor) -> Tensor:
            atoms = forward_slope(self.of_atoms, (node_features.double(),), (tangent,))
            return scatter_sum(atoms, graph.structure_index, graph.n_structures)

        summed = torch.func.vmap(slope)(tangents.double())
        return summed, summed.new_zeros(summed.shape[:-1])


class ShallowEnsemble(Head):
    """Members are energies with slopes of their own, so σ of forces is their spread, and exact either way:
    ``exact`` takes a forward pass for each coordinate, ``sampled`` a backward pass for each member."""

    Config = ShallowEnsembleConfig
    method = "shallow_ensemble"
    kind = "epistemic"
    covariance = "full"
    force_std_methods = ("exact", "sampled")
    solve = fit.solve

    def __init__(self, config: ShallowEnsembleConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.n_samples = config.n_members
        self.basis = ReadoutBasis(embedding)
        self.activation = embedding.activation
        self.readout = embedding.readout()
        self.deviations = nn.Parameter(torch.zeros(config.n_members, self.basis.n_weights, dtype=torch.float64))

    def set_precision(self, dtype: torch.dtype) -> None:
        self.readout.to(dtype)

    def take_readout(self, readout: nn.Linear) -> None:
        self.readout.load_state_dict(readout.state_dict())

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        """Derivatives of the mean are always there; those of the variance only in training, which alone needs them."""
        node_mean = self.readout(self.activation(self.basis.embedding.last(node_features))).squeeze(-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.training):
            rows, _ = self.basis.rows(node_features, graph)
            variance = self._variance(rows)
        return EnergyDistribution(
            node_mean=node_mean,
            mean=scatter_sum(node_mean, graph.structure_index, graph.n_structures),
            variance=variance,
        )

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative log-likelihood of a normal distribution with the members' mean and variance."""
        if distribution.variance is None:
            raise TypeError("the shallow ensemble is trained on a distribution with a variance")
        variance = distribution.variance
        misfit = (target.double() - distribution.mean).square() / variance
        return 0.5 * (misfit + variance.log() + math.log(2.0 * math.pi))

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """E_m − E, scaled so that their mean square is the unbiased variance."""
        rows, _ = self.basis.rows(node_features, graph)
        return math.sqrt(self.n_samples / (self.n_samples - 1)) * self._members(rows).T

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        rows, _ = self.basis.slope_rows(node_features, tangents, graph)
        return self._variance(rows)

    def _members(self, rows: Tensor) -> Tensor:
        """Deviations of the members from their mean: (..., n_weights) -> (..., n_members)."""
        return rows @ (self.deviations - self.deviations.mean(0)).T

    def _variance(self, rows: Tensor) -> Tensor:
        return self._members(rows).square().sum(-1) / (self.n_samples - 1)
