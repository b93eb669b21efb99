"""Latent distance: how far the embedding of each atom is from those of the training atoms of its element.

    σ_i = s d(h_i, e_i),      σ_E = Σ_i σ_i

The energy is the backbone's own; the distance says nothing of slopes, so σ of a force is that of its atom. With a
mixture p of Gaussians N(m, L Lᵀ) for the training embeddings of an element,

    d² = −2 log(p(h)/p_max),      p_max = the largest p at one of the m

which for one Gaussian is the Mahalanobis distance |L⁻¹(h − m)|. k-NN: the mean distance to the k nearest training
embeddings in the coordinates L⁻¹(h − m) of one Gaussian. There distances have no unit, so that those of different
elements, and along directions in which embeddings spread more or less, can be compared and added.

| symbol | here |
|---|---|
| h | ``compared(node_features)`` (n_atoms, d) |
| s | ``scale`` |
| m, L⁻¹ | ``means`` (n_elements, c, d), ``whitening`` (n_elements, c, d, d) |
| log(weight · density at m / p_max) | ``log_heights`` (n_elements, c) |
| L⁻¹(h − m) of training atoms | ``points`` (n_points, d), their atomic numbers ``point_numbers``; 0: an empty place |
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings, Stage
from sigmaff.heads.latent_distance import fit


class LatentDistanceConfig(HeadSettings):
    """Hyper-parameters of the latent distance."""

    name: Literal["latent_distance"] = "latent_distance"
    distance: Literal["knn", "mahalanobis", "mixture"] = Field(
        default="knn",
        description="from the training embeddings of an atom's element: to the nearest of them (knn), to their mean in "
        "units of their covariance (mahalanobis), or by their density as a mixture of Gaussians (mixture)",
    )
    layer: Literal["last", "first"] | Annotated[int, Field(ge=1)] = Field(
        default="last",
        description="embeddings that are compared: the last, or features of an atom after the first or another "
        "message-passing step, counted from 1; for DimeNet++ its embeddings one by one, in place of their sum",
    )
    n_neighbors: int = Field(default=5, ge=1, le=1000, description="knn only: nearest embeddings whose distance counts")
    n_points: int = Field(
        default=2000, ge=1, le=1_000_000, description="knn only: embeddings kept, shared out over the elements"
    )
    n_components: int = Field(default=4, ge=1, le=100, description="mixture only: Gaussians for each element")

    unwritten: ClassVar[Mapping[str, Any]] = {"layer": "last"}

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "solve")

    @property
    def wants_layers(self) -> bool:
        return self.layer != "last"


class LatentDistance(Head):
    """The backbone's readout with a σ from distances. Its algebra is always float64."""

    Config = LatentDistanceConfig
    method = "latent_distance"
    kind = "epistemic"
    covariance = "full"
    force_std_methods = ("by_atom",)
    solve = fit.solve

    def __init__(self, config: LatentDistanceConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.elements = elements
        self.readout = embedding.readout()
        self.layer = _number(config.layer, embedding)
        n_elements, d = len(elements), self._n_compared()
        n_components = config.n_components if config.distance == "mixture" else 1
        n_points = config.n_points if config.distance == "knn" else 0
        identity = torch.eye(d, dtype=torch.float64).expand(n_elements, n_components, d, d)
        self.means = nn.Buffer(torch.zeros(n_elements, n_components, d, dtype=torch.float64))
        self.whitening = nn.Buffer(identity.clone())
        self.log_heights = nn.Buffer(torch.zeros(n_elements, n_components, dtype=torch.float64))
        self.points = nn.Buffer(torch.zeros(n_points, d, dtype=torch.float64))
        self.point_numbers = nn.Buffer(torch.zeros(n_points, dtype=torch.int64))
        self.scale = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.unseen_distance = nn.Buffer(torch.ones((), dtype=torch.float64))

    def set_precision(self, dtype: torch.dtype) -> None:
        self.readout.to(dtype)

    def take_readout(self, readout: nn.Linear) -> None:
        self.readout.load_state_dict(readout.state_dict())

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        node_mean = self.readout(self.embedding.activation(self.embedding.last(node_features))).squeeze(-1)
        distance = self.distances(node_features, graph.atomic_numbers)
        summed = scatter_sum(distance, graph.structure_index, graph.n_structures)
        return EnergyDistribution(
            node_mean=node_mean,
            mean=scatter_sum(node_mean, graph.structure_index, graph.n_structures),
            variance=(self.scale * summed).square(),
        )

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Absolute errors: the distance has no part in it."""
        return (distribution.mean - target).abs()

    def node_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        return (self.scale * self.distances(node_features, graph.atomic_numbers)).square()

    def compared(self, node_features: Tensor) -> Tensor:
        """Features of the layer that is looked at, (n_atoms, d)."""
        if self.layer is None:
            return self.embedding.kernel_features(node_features.double())
        return self.embedding.layer(node_features.double(), self.layer)

    def _n_compared(self) -> int:
        embedding = self.embedding
        if self.layer is None or not embedding.hidden_layers:
            return embedding.n_features
        return embedding.hidden_layers[self.layer - 1]

    @torch.no_grad()
    def distances(self, node_features: Tensor, atomic_numbers: Tensor) -> Tensor:
        """d of each atom, (n_atoms,); of an element without training atoms, ``unseen_distance``."""
        features = self.compared(node_features)
        measure = self._to_neighbors if self.config.distance == "knn" else self._to_mixture
        distance = self.unseen_distance.expand(len(features))
        for element, number in enumerate(self.elements):
            atoms = (atomic_numbers == number).nonzero().squeeze(-1)
            distance = distance.index_copy(0, atoms, measure(features[atoms], element))
        return distance

    def standardized(self, features: Tensor, element: int) -> Tensor:
        """L⁻¹(h − mean) for each Gaussian of an element: (n_atoms, d) -> (c, n_atoms, d)."""
        return (features - self.means[element].unsqueeze(1)) @ self.whitening[element].transpose(1, 2)

    def _to_mixture(self, features: Tensor, element: int) -> Tensor:
        squares = self.standardized(features, element).square().sum(-1)  # (c, n_atoms)
        log_density = torch.logsumexp(self.log_heights[element].unsqueeze(1) - 0.5 * squares, dim=0)
        return (-2.0 * log_density).clamp(min=0.0).sqrt()

    def _to_neighbors(self, features: Tensor, element: int) -> Tensor:
        points = self.points[self.point_numbers == self.elements[element]]
        standardized = self.standardized(features, element)[0]
        distances = torch.cdist(standardized, points, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.topk(min(self.config.n_neighbors, len(points)), largest=False).values.mean(-1)


def _number(layer: Literal["last", "first"] | int, embedding: Embedding) -> int | None:
    """Of a layer, counted from 1; ``None`` is the last embedding."""
    if layer == "last":
        return None
    number = 1 if layer == "first" else layer
    if number > embedding.n_layers:
        raise ConfigError(f"layer is {number}, but the backbone has {embedding.n_layers} layers to compare")
    return number
