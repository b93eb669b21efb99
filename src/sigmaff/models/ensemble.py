"""Ensembles: potentials trained from different starts, whose disagreement is σ."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sigmaff.data import symbols
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig, EnergyDistribution
from sigmaff.models.combine import combine
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential
from sigmaff.models.prediction import ForceStdMethod, Prediction


class Ensemble(Model):
    """Mean and spread of its members. They share one neighbour list; backbones and cutoffs may differ.

    σ is the unbiased standard deviation of the members, to which, if they have a σ of their own, its mean square adds.
    """

    def __init__(self, members: Sequence[Potential]) -> None:
        super().__init__()
        if len(members) < 2:
            raise ConfigError(f"an ensemble needs at least 2 members to have a spread; got {len(members)}")
        for number, member in enumerate(members):
            if member.elements != members[0].elements:
                raise ConfigError(
                    "the members of an ensemble must know the same elements: "
                    f"member 0 knows {symbols(members[0].elements)}; member {number} knows {symbols(member.elements)}"
                )
        self.members = nn.ModuleList(members)
        self._compiled: Callable[[list[AtomicGraph]], list[tuple[EnergyDistribution, Tensor, Tensor | None]]] | None
        self._compiled = None
        self.train(members[0].training)

    @property
    def potentials(self) -> list[Potential]:
        return [member for member in self.members if isinstance(member, Potential)]

    @property
    def n_passes(self) -> int:
        return len(self.members)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Predict with one compiled pass through all members from now on: 1.5 to 2 times faster, after a minute or two.

        For members with energies alone. One pass with a leading axis of members was no faster than one after the other
        where it is not compiled, and compiled anew for every number of pairs where it is (``benchmarks/ensemble.py``).
        """
        if any(not isinstance(member.config.head, DeterministicConfig) for member in self.potentials):
            raise ConfigError("only an ensemble of potentials with deterministic heads can be compiled")
        self._compiled = torch.compile(_Networks(self.potentials), dynamic=True)

    def compute(
        self, graph: AtomicGraph, forces_std: ForceStdMethod, *, stress_std: bool, unseen_elements: bool
    ) -> Prediction:
        graphs = self._graphs(graph, unseen_elements)
        members = list(zip(self.potentials, graphs, strict=True))
        if self._compiled is None:
            found = [
                member.compute(own, forces_std, stress_std=stress_std, unseen_elements=unseen_elements)
                for member, own in members
            ]
        else:
            values = self._compiled(graphs)
            found = [member.in_physical_units(own, *v) for (member, own), v in zip(members, values, strict=True)]
        return combine(found, "ensemble", forces_std, stress_std=stress_std)

    def _graphs(self, graph: AtomicGraph, unseen_elements: bool) -> list[AtomicGraph]:
        """What each member sees; members of one cutoff see the same, prepared once."""
        by_cutoff: dict[float, AtomicGraph] = {}
        for member in self.potentials:
            near = by_cutoff.get(member.cutoff, graph.within(member.cutoff))
            by_cutoff[member.cutoff] = member.prepare(near, unseen_elements=unseen_elements)
        return [by_cutoff[member.cutoff] for member in self.potentials]


class _Networks(nn.Module):
    """Deterministic potentials as one function, which is what is compiled."""

    def __init__(self, potentials: Sequence[Potential]) -> None:
        super().__init__()
        self.potentials = tuple(potentials)
        self.members = nn.ModuleList(potentials)

    def forward(self, graphs: list[AtomicGraph]) -> list[tuple[EnergyDistribution, Tensor, Tensor | None]]:
        return [
            (*potential(graph), None) if graph.cell is None else potential.forward_with_virial(graph)
            for potential, graph in zip(self.potentials, graphs, strict=True)
        ]
