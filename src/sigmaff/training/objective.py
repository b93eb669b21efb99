"""What training minimises: (1 − ρ)·L_E + ρ·L_F.

L_E is the head's, L_F the mean over atoms of ‖F − F_label‖₂, both in the model's normalised unit.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from sigmaff.data import GraphDataset
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph
from sigmaff.potential import Potential
from sigmaff.training.config import TrainingConfig


class Batch(NamedTuple):
    """Structures and their labels in the model's normalised unit, on its device."""

    graph: AtomicGraph
    energy: Tensor  # (n_structures,)
    forces: Tensor | None  # (n_atoms, 3); None where no forces are trained


class LossTerms(NamedTuple):
    """Scalars of a batch, normalised; ``None`` where no forces are computed."""

    energy_loss: Tensor
    energy_mae: Tensor
    forces_loss: Tensor | None = None
    forces_mae: Tensor | None = None


class Objective(nn.Module):
    """The losses of a potential as a module, which is what is compiled and distributed over devices."""

    def __init__(self, potential: Potential, config: TrainingConfig, n_train: int) -> None:
        super().__init__()
        self.potential = potential
        self.config = config
        self.n_train = n_train
        self._compiled: Callable[[Batch], LossTerms] | None = None
        if config.compile:
            self._compiled = torch.compile(self._terms, dynamic=True)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.config.freeze_backbone:
            self.potential.backbone.eval()
        return self

    def forward(self, batch: Batch) -> LossTerms:
        if self._compiled is None:
            return self._terms(batch)
        try:
            return self._compiled(batch)
        except RuntimeError as error:  # all that the compiler raises; an error of the model itself comes back below
            terms = self._terms(batch)
            reason = next(iter(str(error).splitlines()), "no reason given")
            warnings.warn(f"compiling the loss failed ({reason}): training goes on without, slower", stacklevel=2)
            self._compiled = None
            return terms

    def _terms(self, batch: Batch) -> LossTerms:
        potential = self.potential
        if batch.forces is None:
            distribution = potential.head(potential.backbone(batch.graph), batch.graph)
        else:
            distribution, forces = potential(batch.graph)
        energy_loss = potential.head.energy_loss(distribution, batch.energy, self.n_train)
        energy_mae = (distribution.mean.detach() - batch.energy).abs().mean()
        if batch.forces is None:
            return LossTerms(energy_loss, energy_mae)
        error = forces - batch.forces
        return LossTerms(energy_loss, energy_mae, mean_norm(error), error.detach().abs().mean())

    def total(self, terms: LossTerms, of_structures: float = 1.0, of_atoms: float = 1.0) -> Tensor:
        """The loss, or the part in it of a process that holds these fractions of the batch.

        Means over the parts, weighted by their fractions, add up to the mean over the whole batch.
        """
        weight = self.config.forces_weight
        loss = (1.0 - weight) * of_structures * terms.energy_loss
        return loss if terms.forces_loss is None else loss + weight * of_atoms * terms.forces_loss


def freeze(potential: Potential, dataset: GraphDataset, config: TrainingConfig) -> None:
    """Mark the weights that are not trained: the backbone's if it is kept, and all without part in the loss.

    Processes that average their gradients would wait for the latter for ever.
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


def mean_norm(vectors: Tensor) -> Tensor:
    """Mean of ‖v‖₂ over rows; its gradient is 0, not NaN, where v = 0."""
    return torch.linalg.vector_norm(vectors, dim=-1).mean()


def load_batch(potential: Potential, dataset: GraphDataset, indices: Tensor, config: TrainingConfig) -> Batch:
    """The structures at these indices, ready for the objective. A label that is trained on must be there."""
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
    device = potential.device
    return Batch(
        graph=potential.backbone.prepare(graph.to(device=device, dtype=potential.dtype)),
        energy=energy.to(device),
        forces=None if forces is None else forces.to(device),
    )
