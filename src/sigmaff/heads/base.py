"""What every head is: the map from atom embeddings to a distribution over the energy."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph


class EnergyDistribution(NamedTuple):
    """Mean and variance of the energies of structures, in the model's normalised unit.

    Variances never leave the library; ``None`` means that the head does not estimate them.
    """

    node_mean: Tensor  # (n_atoms,)
    mean: Tensor  # (n_structures,)
    variance: Tensor | None = None  # (n_structures,)

    def detached(self) -> "EnergyDistribution":
        return EnergyDistribution(**{name: value.detach() for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """What is estimated, by name: the form in which torch.func carries it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Head(nn.Module, ABC):
    """Reads energies, and what can be said of their error, off the embeddings of atoms."""

    method: str
    kind: Literal["epistemic", "aleatoric", "total"] | None = None
    covariance: Literal["full", "diagonal"] | None = None
    n_samples: int = 0
    """Posterior function samples that ``energy_deviations`` gives; 0 for a head without force σ."""

    @abstractmethod
    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution: ...

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor) -> None:
        """Set what depends on embeddings of training structures, before training. Most heads have nothing to set."""

    def prepared(self) -> AbstractContextManager[None]:
        """Within, what follows from the parameters alone may be computed once for all predictions."""
        return nullcontext()

    def set_precision(self, dtype: torch.dtype) -> None:
        """Cast what runs in the network's precision."""
        self.to(dtype)

    @abstractmethod
    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """What training minimises of the energies of a batch; ``n_train`` structures make the training set."""

    def node_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor | None:
        """Variance of the share of each atom in the energy, (n_atoms,)."""
        return None

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Samples of f − mean(f), summed over atoms: (n_samples, n_structures), differentiable."""
        raise TypeError(f"the {self.method} head has no posterior to sample")

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        """Variance of the slope of the energy along directions in embedding space.

        tangents (n_directions, n_atoms, n_features) -> (n_directions, n_structures).
        """
        raise TypeError(f"the {self.method} head has no variance")
