"""The loss: (1 − ρ)·L_E + ρ·L_F + ς·L_S.

L_E is the head's, L_F the mean over atoms of ‖F − F_label‖₂, L_S the mean over structures of ‖W − W_label‖₂ / n_atoms
with W = volume · stress, the derivative of the energy by strain; all in the model's normalised unit. Where groups of
structures have weights, the terms of each structure and of its atoms are multiplied by its weight (``weights.py``).

A negative log-likelihood has no unit, errors have one: their unit decides how much the likelihood counts beside forces.
In that of ``likelihood_unit``, which is s normalised ones, the loss is

    (1 − ρ)·(N + P/s) + ρ·L_F/s + ς·L_S/s      with L_E = N + P, the likelihood and a penalty on energies

and s times this is minimised, which is the loss above with s·N for N. Losses without a likelihood have no such choice.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from sigmaff.data import GraphDataset
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads import EnergyDistribution
from sigmaff.models import Potential
from sigmaff.progress import Listener
from sigmaff.training.config import TrainingConfig
from sigmaff.training.weights import batch_weights
from sigmaff.units import KCAL_PER_MOL

SAME = 1e-3
"""Relative difference of a compiled gradient that is rounding; wrong code gives far larger ones."""


class Batch(NamedTuple):
    """Structures and their labels in the model's normalised unit, on its device."""

    graph: AtomicGraph
    energy: Tensor  # (n_structures,)
    forces: Tensor | None  # (n_atoms, 3); None where no forces are trained
    virial: Tensor | None = None  # (n_structures, 3, 3); None where no stress is trained
    weight: Tensor | None = None  # (n_structures,) of each structure in the loss; None: 1


class LossTerms(NamedTuple):
    """Scalars of a batch, normalised; ``None`` where no forces are computed."""

    energy_loss: Tensor
    energy_mae: Tensor
    forces_loss: Tensor | None = None
    forces_mae: Tensor | None = None
    virial_loss: Tensor | None = None


class Objective(nn.Module):
    """The losses of a potential as a module, which is what is compiled and distributed over devices."""

    def __init__(self, potential: Potential, config: TrainingConfig, n_train: int) -> None:
        super().__init__()
        self.potential = potential
        self.config = config.for_head(potential.head)
        self.n_train = n_train
        self.warn: Callable[[str], None] = Listener().warn
        self._compiled: Callable[[Batch], LossTerms] | None = None
        if config.compile is True:
            self._compile()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.config.freeze_backbone:
            self.potential.backbone.eval()
        return self

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def compile_for(self, batch: Batch) -> None:
        """Compile from now on, if the loss of a batch and its gradient are what they are without.

        Which code the compiler writes may depend on the batch it sees first: a training that is resumed gives the same
        one, for the same bits.
        """
        expected = self._slopes(batch, self._terms)
        self._compile()
        found = self._slopes(batch, self)
        if self.is_compiled and not _agree(found, expected):
            self._compiled = None
            self.warn("the compiled loss differs from the loss itself: training continues without, slower")

    def _compile(self) -> None:
        self._compiled = torch.compile(self._terms, dynamic=True)

    def _slopes(self, batch: Batch, terms: Callable[[Batch], LossTerms]) -> tuple[Tensor, Tensor]:
        """The loss and its gradient by all weights that are trained, as one vector."""
        loss = self.total(terms(batch))
        weights = [weight for weight in self.potential.parameters() if weight.requires_grad]
        slopes = torch.autograd.grad(loss, weights, materialize_grads=True)
        return loss.detach(), torch.cat([slope.flatten().double() for slope in slopes])

    def forward(self, batch: Batch) -> LossTerms:
        if self._compiled is None:
            return self._terms(batch)
        try:
            return self._compiled(batch)
        except RuntimeError as error:  # all that the compiler raises; an error of the model itself comes back below
            terms = self._terms(batch)
            reason = next(iter(str(error).splitlines()), "no reason given")
            if any(isinstance(part, nn.Dropout) and part.p > 0 for part in self.potential.modules()):
                reason = "the network has dropout"
            self.warn(f"the loss cannot be compiled ({reason}): training continues without, slower")
            self._compiled = None
            return terms

    def _terms(self, batch: Batch) -> LossTerms:
        distribution, forces, virial = self._predicted(batch)
        terms = LossTerms(
            energy_loss=_weighted_mean(self._energy_losses(distribution, batch.energy), batch.weight),
            energy_mae=(distribution.mean.detach() - batch.energy).abs().mean(),
        )
        if forces is not None and batch.forces is not None:
            error = forces - batch.forces
            weight = None if batch.weight is None else batch.weight[batch.graph.structure_index]
            terms = terms._replace(forces_loss=mean_norm(error, weight), forces_mae=error.detach().abs().mean())
        if virial is not None and batch.virial is not None:
            graph = batch.graph
            ones = graph.positions.new_ones(graph.n_atoms, dtype=graph.dtype)
            n_atoms = scatter_sum(ones, graph.structure_index, graph.n_structures)
            error = (virial - batch.virial).flatten(1) / n_atoms[:, None]
            terms = terms._replace(virial_loss=mean_norm(error, batch.weight))
        return terms

    def _energy_losses(self, distribution: EnergyDistribution, target: Tensor) -> Tensor:
        """Those of the head, with its likelihood in the unit of the settings, (n_structures,)."""
        head = self.potential.head
        losses = head.energy_losses(distribution, target, self.n_train)
        if self.config.likelihood_unit == "normalised":
            return losses
        penalties = head.energy_penalties(distribution, target)
        return penalties + KCAL_PER_MOL / self.potential.statistics.scale * (losses - penalties)

    def _predicted(self, batch: Batch) -> tuple[EnergyDistribution, Tensor | None, Tensor | None]:
        """Energies, and forces and virial where they are trained."""
        if batch.virial is not None:
            return self.potential.forward_with_virial(batch.graph)
        if batch.forces is not None:
            return *self.potential(batch.graph), None
        return self.potential.energies(self.potential.embed(batch.graph), batch.graph), None, None

    @property
    def forces_weight(self) -> float:
        """ρ, which the training's settings or the head give."""
        assert self.config.forces_weight is not None
        return self.config.forces_weight

    def total(self, terms: LossTerms, of_structures: float = 1.0, of_atoms: float = 1.0) -> Tensor:
        """The loss, or the part in it of a process that holds these fractions of the batch.

        Means over the parts, weighted by their fractions, add up to the mean over the whole batch.
        """
        weight = self.forces_weight
        loss = (1.0 - weight) * of_structures * terms.energy_loss
        if terms.forces_loss is not None:
            loss = loss + weight * of_atoms * terms.forces_loss
        if terms.virial_loss is not None:
            loss = loss + self.config.stress_weight * of_structures * terms.virial_loss
        return loss


def freeze(potential: Potential, dataset: GraphDataset, config: TrainingConfig) -> None:
    """Freeze the backbone if asked for, and all weights that the loss does not depend on.

    Processes that average gradients would wait for the latter forever.
    """
    if config.freeze_backbone:
        potential.backbone.requires_grad_(False)
    potential.zero_grad()
    objective = Objective(potential, config.model_copy(update={"compile": False}), len(dataset)).train()
    loss = objective.total(objective(load_batch(potential, dataset, torch.arange(1), config)))
    if loss.requires_grad:
        loss.backward()
    for weight in potential.parameters():
        weight.requires_grad_(weight.grad is not None)
    potential.zero_grad()


def _agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    """Whether losses and gradients are equal but for rounding."""
    return all(bool((one - other).norm() <= SAME * other.norm()) for one, other in zip(found, expected, strict=True))


def mean_norm(vectors: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of ‖v‖₂ over rows, times a weight of each; its gradient is 0, not NaN, where v = 0."""
    return _weighted_mean(torch.linalg.vector_norm(vectors, dim=-1), weight)


def _weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    return values.mean() if weight is None else (weight * values).mean()


def load_batch(potential: Potential, dataset: GraphDataset, indices: Tensor, config: TrainingConfig) -> Batch:
    """The structures at these indices, ready for the objective. Missing labels raise an error."""
    graph, labels = dataset.batch(indices)
    energy, forces = potential.normalised_targets(graph, labels)
    source = dataset.structures.source
    if energy is None:
        raise DataError(f"{source}: training needs energies; add them, or name their key (energy_key)")
    if config.forces_weight == 0.0:
        forces = None
    elif forces is None:
        raise DataError(
            f"{source}: training with forces_weight {config.forces_weight} needs forces; "
            "add them, name their key (forces_key), or set forces_weight to 0"
        )
    virial = None
    if config.stress_weight > 0.0:
        if labels.stress is None or graph.cell is None or not torch.linalg.det(graph.cell).all():
            raise DataError(
                f"{source}: training with stress_weight {config.stress_weight} needs a periodic cell and a stress for "
                "every structure; add them, name their key (stress_key), or set stress_weight to 0"
            )
        virial = potential.normalised_virial(graph, labels.stress)
    device = potential.device
    return Batch(
        graph=potential.backbone.prepare(graph.to(device=device, dtype=potential.dtype)),
        energy=energy.to(device),
        forces=None if forces is None else forces.to(device),
        virial=None if virial is None else virial.to(device),
        weight=None if (weight := batch_weights(dataset, indices, config)) is None else weight.to(device, energy.dtype),
    )
