"""What every head is: the map from atom embeddings to a distribution over the energy."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph

Fit = Literal["with_backbone", "from_backbone", "after_backbone", "solved"]
"""How a head gets its parameters: trained together with the backbone, from scratch or from a backbone that was trained
first; trained on such a backbone, which is kept; or computed on it without a loop (``sigmaff.training.fits``)."""
ForcesWay = Literal["exact", "sampled", "by_atom"]


@dataclass(frozen=True, kw_only=True)
class EnergyDistribution:
    """Mean and variance of the energies of structures, in the model's normalised unit.

    Variances never leave the library; ``None`` means that the head does not estimate them. A head whose loss needs
    more of the distribution adds it in a subclass.
    """

    mean: Tensor  # (n_structures,)
    node_mean: Tensor | None = None  # (n_atoms,); None for a head that sees structures as wholes
    variance: Tensor | None = None  # (n_structures,)

    def detached(self) -> Self:
        return type(self)(**{name: value.detach() for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """What is estimated, by name: the form in which torch.func carries it."""
        return {name: value for name, value in vars(self).items() if value is not None}


class HeadSettings(BaseModel):
    """What the settings of all heads have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def trained(self) -> Fit:
        return "with_backbone"

    def n_draws(self, n_features: int, n_elements: int) -> int:
        """Random numbers that the head makes for itself when it is built, and that no model file holds."""
        return 0

    def without_draws(self) -> Self:
        """Settings of a head with the same tensors and as few of these numbers as can be."""
        return self


class Head(nn.Module, ABC):
    """Reads energies, and what can be said of their error, off the embeddings of atoms."""

    method: str
    kind: Literal["epistemic", "aleatoric", "total"] | None = None
    covariance: Literal["full", "diagonal"] | None = None  # between atoms; None for one that sees structures as wholes
    distribution: ClassVar[type[EnergyDistribution]] = EnergyDistribution
    forces_ways: tuple[ForcesWay, ...] = ()
    """How force σ can be had: from ``slope_variance`` (exact), from ``energy_deviations`` (sampled), or not at all. A
    head that knows of no slopes may give each atom's ``node_variance`` for the components of its force (by_atom)."""
    n_samples: int = 0
    """Posterior function samples that ``energy_deviations`` gives."""
    forces_weight: float = 0.99
    """ρ in the loss (1 − ρ)·energy + ρ·forces where a training does not say."""
    learning_rate: float | None = None
    """Of the head's own parameters where a training does not say; ``None`` is that of the backbone."""

    @abstractmethod
    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution: ...

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Set what depends on embeddings of training structures, before training. Most heads have nothing to set."""

    def take_readout(self, readout: nn.Linear) -> None:
        """Start from the last linear map of a trained deterministic head, where this head has a use for it."""

    def prepared(self) -> AbstractContextManager[None]:
        """Within, what follows from the parameters alone may be computed once for all predictions."""
        return nullcontext()

    def find_damage(self) -> str | None:
        """What is wrong with tensors that point at something, if anything is: of a head that comes from a file."""
        return None

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
