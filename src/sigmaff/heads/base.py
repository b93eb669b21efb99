"""What every head is: the map from atom embeddings to a distribution over the energy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor, nn

from sigmaff.config import Settings
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener

Stage = Literal["backbone", "warmup", "joint", "head", "solve"]
"""How a head gets its parameters, one stage after the other:

- backbone: train the backbone with its own readout, without this head;
- warmup: the same for a small part of the epochs;
- joint: train backbone and head together, from scratch or from the stage before;
- head: train the head on the frozen backbone;
- solve: compute the head on the frozen backbone (``Head.solve``).
"""
HeadForceStdMethod = Literal["exact", "sampled", "by_atom"]


@dataclass(frozen=True, kw_only=True)
class EnergyDistribution:
    """Mean and variance of the energies of structures, in the model's normalised unit.

    Variances never leave the library; ``None`` means that the head does not estimate them. A head whose loss needs
    more of the distribution adds it in a subclass.
    """

    mean: Tensor  # (n_structures,)
    node_mean: Tensor | None = None  # (n_atoms,); None for a head that sees structures as wholes
    variance: Tensor | None = None  # (n_structures,)
    unseen: Tensor | None = None  # (n_structures,) part of the variance: surroundings unlike all known ones

    def plus(self, node_energy: Tensor, graph: AtomicGraph) -> Self:
        """With a certain energy of each atom added, (n_atoms,)."""
        added = graph.sum_of_structures(node_energy)
        node_mean = None if self.node_mean is None else self.node_mean + node_energy
        return replace(self, mean=self.mean + added, node_mean=node_mean)

    def detached(self) -> Self:
        return type(self)(**{name: value.detach() for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The estimated tensors by name: the form in which torch.func carries them."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class FitSummary:
    """What ``Head.solve`` chose, for the record in the model file. Each head has its own subclass."""


class HeadSettings(Settings):
    """What the settings of all heads have in common."""

    name: str
    unwritten: ClassVar[Mapping[str, Any]] = {}
    """Values of settings that are not written: those of files and folders of versions without the setting."""

    @model_serializer(mode="wrap")
    def _without_unwritten(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        left_out = self.unwritten.items()
        return {key: value for key, value in written.items() if (key, value) not in left_out and key not in self.idle}

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings that others leave without effect: they are not written."""
        return ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("joint",)

    @property
    def wants_surroundings(self) -> bool:
        """Whether the features of an atom include what is not learned (``Embedding.n_surroundings``)."""
        return False

    @property
    def wants_layers(self) -> bool:
        """Whether the features of an atom include those of hidden layers (``Embedding.hidden_layers``)."""
        return False

    @property
    def has_atom_std(self) -> bool:
        """Whether a head that can estimate ``node_variance`` does with these settings."""
        return True

    @property
    def takes_backbone(self) -> bool:
        """Whether the backbone is trained before the head."""
        return self.stages[0] == "backbone"

    @property
    def trains_on_backbone(self) -> bool:
        """Whether the head is trained in a loop that starts from a trained backbone."""
        return self.takes_backbone and self.stages[-1] != "solve"

    def sized_for(self, train: Observations, seed: int, listener: Listener) -> Self:
        """The settings of the head that is solved on these data, where its size follows from them."""
        return self


FORMER_DEFAULTS = {
    "model.head.variance_labels": "energy+forces",
    "model.head.distance_aware": False,
    "model.head.embedding": "pre_activation",
    "model.head.readout_pairs": False,
    "model.head.lengthscale_factor": 3.0,
    "model.head.start": "prior",
    "model.head.inducing": "farthest",
    "model.head.from_scratch": False,
    "model.head.objective": "predictive",
    "training.likelihood_unit": "normalised",
    "head_training.likelihood_unit": "normalised",
}
"""Of settings whose default is another now, or which are new: a run that began with them keeps them."""
UNTRAINED = ("model.head.n_samples", "model.head.draws", "model.repulsion")
"""Settings of predictions that decide nothing of how a model is trained: with others, its run resumes."""


class SampledHeadSettings(HeadSettings):
    """What the settings of heads with sampled force σ have in common, beside ``n_samples``."""

    draws: Literal["orthogonal", "independent"] = Field(
        default="orthogonal",
        description="weights of the samples: orthogonal to each other, which takes fewer samples, or independent",
    )
    unwritten: ClassVar[Mapping[str, Any]] = {"draws": "independent"}


class Head(nn.Module, ABC):
    """Reads energies and their variance off the embeddings of atoms.

    Every head is built from its settings (an instance of ``Config``), the backbone's ``Embedding``, and the atomic
    numbers of the model in increasing order.
    """

    Config: ClassVar[type[HeadSettings]]
    method: str
    kind: Literal["epistemic", "aleatoric", "total"] | None = None
    covariance: Literal["full", "diagonal"] | None = None  # between atoms; None for one that sees structures as wholes
    distribution: ClassVar[type[EnergyDistribution]] = EnergyDistribution
    force_std_methods: tuple[HeadForceStdMethod, ...] = ()
    """How force σ can be computed: from ``slope_variance`` (exact), from ``energy_deviations`` (sampled), or not at
    all. A head without slopes may give each atom's ``node_variance`` to the components of its force (by_atom)."""
    n_samples: int = 0
    """Posterior function samples that ``energy_deviations`` gives."""
    forces_weight: float = 0.99
    """Default of ρ in the loss (1 − ρ)·energy + ρ·forces."""
    has_likelihood_loss: ClassVar[bool] = False
    """Whether ``energy_losses`` are negative log-likelihoods, up to ``energy_penalties``. It has no unit: how much it
    counts beside errors of forces depends on theirs."""
    learning_rate: float | None = None
    """Default learning rate of the head's own parameters; ``None`` is that of the backbone."""
    solved_in: ClassVar[torch.dtype | None] = None
    """Precision of backbone and data in ``solve``; ``None`` keeps that of the potential."""

    @abstractmethod
    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution: ...

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Set what depends on embeddings of training structures, before training."""

    def start(self, train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> None:
        """Set what depends on training structures and their labels, before training. Arguments as for ``solve``."""
        self.initialize(*train.embeddings())

    def refit(self, train: Observations, held_out: Observations, *, moved: bool, seed: int, listener: Listener) -> None:
        """Solve again for what training has left off its optimum, or dropout shifted.

        Arguments:
            moved: whether the backbone was trained with the head, so that embeddings are no longer those of ``start``.
            train, held_out, seed, listener: as for ``solve``.
        """

    def solve(self, train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> FitSummary:
        """Compute the parameters from labels. Heads with the stage ``solve`` have it.

        Arguments:
            train: structures to learn from.
            held_out: structures to choose hyper-parameters on.
            seed: of random draws.
            listener: callbacks for progress.
        """
        raise TypeError(f"the {self.method} head is trained, not solved")

    def take_readout(self, readout: nn.Linear) -> None:
        """Start from the last linear map of a trained deterministic head, if this head has one."""

    def prepared(self) -> AbstractContextManager[None]:
        """Within, values that follow from the parameters alone are computed once for all predictions."""
        return nullcontext()

    def find_damage(self) -> str | None:
        """Check index tensors after loading; return an error message or ``None``."""
        return None

    def set_precision(self, dtype: torch.dtype) -> None:
        """Cast what runs in the network's precision."""
        self.to(dtype)

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """The energy part of the training loss: the mean of ``energy_losses``."""
        return self.energy_losses(distribution, target, n_train).mean()

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """The energy part of the training loss of each structure, (n_structures,).

        Arguments:
            distribution: predicted energies of a batch.
            target: true energies (n_structures,), normalised.
            n_train: number of training structures, which share a term that no structure owns.
        """
        raise TypeError(f"the {self.method} head is solved, not trained")

    def energy_penalties(self, distribution: EnergyDistribution, target: Tensor) -> Tensor:
        """The part of a likelihood loss that has the unit of energy, as errors of forces do, (n_structures,)."""
        return torch.zeros_like(target)

    def node_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor | None:
        """How unusual the surroundings of each atom are, as a variance of energy, (n_atoms,).

        Of the deviation of an atom's share of the energy from the mean share of its element in the training set.
        Shares themselves are not determined: energies are sums of them. ``None``: the head does not estimate it.
        """
        return None

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Samples of f − mean(f), summed over atoms: (n_samples, n_structures), differentiable."""
        raise TypeError(f"the {self.method} head has no posterior to sample")

    def draw(self) -> None:
        """Draw the random numbers behind ``energy_deviations``, outside of any transform that would record them."""

    def deviation_slopes(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Derivatives of the samples by the embeddings, (n_samples, n_atoms, n_blocks · n_features)."""
        self.draw()
        return torch.func.jacrev(lambda h: self.energy_deviations(h, graph).sum(-1))(node_features)

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        """Variance of the slope of the energy along directions in embedding space.

        tangents (n_directions, n_atoms, n_features) -> (n_directions, n_structures).
        """
        raise TypeError(f"the {self.method} head has no variance")

    def hidden_slope_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor | None:
        """Variance of each component of a force that no slope of the energy holds, (n_atoms,); ``None``: there is none.

        The energy of atoms without neighbours does not depend on positions, so its slopes say nothing.
        """
        return None


def pooled(embedding: Embedding, values: Tensor, graph: AtomicGraph) -> Tensor:
    """Σ_i h_i of each structure in float64, or of tangents: (..., n_atoms, d) -> (..., n_structures, d)."""
    return summed_over_atoms(embedding.kernel_features(values.double()), graph)


def summed_over_atoms(values: Tensor, graph: AtomicGraph) -> Tensor:
    """Of each structure: (..., n_atoms, d) -> (..., n_structures, d)."""
    shape = (*values.shape[:-2], graph.n_structures, values.shape[-1])
    return values.new_zeros(shape).index_add(-2, graph.structure_index, values)
