"""Programs: a potential as machine code that takes tensors.

A program computes what ``models.traced`` does, for any numbers of atoms, pairs and structures. Its parts are
functions of the same inputs. ``energy``: energies, forces, stress and σ of energies. ``forces_std``: the same with
sampled σ of forces and σ of atoms. Where torch cannot compile derivatives of many samples at once, there are two
instead: ``slopes`` ends where samples enter the network, and ``pull`` takes one of them through it. What a program has
no part for, such as exact force σ, the potential computes itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph, Layout
from sigmaff.graph.layout import DYNAMIC_AXES as LAYOUT_AXES
from sigmaff.models import traced
from sigmaff.models.prediction import ForceStdMethod, ForceStdSource, Prediction, Provenance

if TYPE_CHECKING:
    from sigmaff.models.potential import Potential

Part = Literal["energy", "forces_std", "slopes", "pull"]
SAMPLED: tuple[Part, ...] = ("forces_std", "slopes")
Inputs = tuple[Tensor, ...]
DYNAMIC_AXES: tuple[tuple[int, ...], ...] = ((0,), (0,), (0,), (1,), (0,), (0,), *LAYOUT_AXES)
"""Of each input, the axes of any length."""
MAX_PADDED = 2**24
"""Pairs of atoms of one structure, near or not, that a program looks at; more take too much memory at once."""


@dataclass(frozen=True)
class Topology:
    """What follows from elements and pairs alone, so that all steps with the same pairs share it."""

    atomic_numbers: Tensor
    structure_index: Tensor
    pair_index: Tensor
    layout: Layout
    n_fewest: int  # atoms of the smallest structure

    @classmethod
    def of(cls, graph: AtomicGraph, elements: tuple[int, ...]) -> "Topology":
        index = torch.zeros(max(elements) + 1, dtype=torch.int64)
        index[list(elements)] = torch.arange(len(elements))
        kinds = index[graph.atomic_numbers]
        n_structures = graph.n_structures + 1
        layout = Layout.of(graph.pair_index, graph.structure_index, n_structures, kinds, len(elements))
        n_fewest = int(layout.is_member[:, :-1].sum(0).min())
        return cls(graph.atomic_numbers, graph.structure_index, graph.pair_index, layout, n_fewest)

    def is_of(self, graph: AtomicGraph) -> bool:
        return (
            torch.equal(self.pair_index, graph.pair_index)
            and torch.equal(self.atomic_numbers, graph.atomic_numbers)
            and torch.equal(self.structure_index, graph.structure_index)
        )


class Program:
    """Loaded parts, each with the names of the fields of a prediction that it returns, and the last topology."""

    def __init__(
        self, parts: Mapping[Part, Callable[..., list[Tensor]]], outputs: Mapping[Part, tuple[str, ...]]
    ) -> None:
        self._parts, self._outputs = dict(parts), dict(outputs)
        self._last: Topology | None = None

    def predict(
        self, potential: "Potential", graph: AtomicGraph, forces_std: ForceStdMethod, *, stress_std: bool
    ) -> Prediction | None:
        """As ``Potential.compute`` with known elements; ``None`` if there is no part for it."""
        if graph.n_atoms < 2 or graph.pair_index.shape[1] < 2 or graph.positions.device.type != "cpu":
            return None
        topology = self._topology(graph, potential)
        part = self._part(potential, topology, forces_std)
        if part is None or (stress_std and part != "energy" and graph.cell is not None):
            return None
        if topology.layout.member.shape[0] ** 2 * graph.n_structures > MAX_PADDED:
            return None
        inputs = inputs_of(graph, topology.layout)
        found = dict(zip(self._outputs[part], self._parts[part](*inputs), strict=True))
        if part == "slopes":
            slopes, moved, scale = found.pop("slopes"), found.pop("moved"), potential.statistics.scale
            for sample, slope in zip(moved, slopes, strict=True):
                sample += self._parts["pull"](*inputs, slope)[0]
            found["forces_std"] = torch.hypot(found["forces_std"], scale * moved.square().mean(0).sqrt())
        for name in ("energy", "energy_std", "unseen_std", "stress"):
            if name in found:
                found[name] = found[name][:-1]  # without the empty structure
        if graph.cell is None:
            found.pop("stress", None)
        head = potential.head
        how: ForceStdSource | None = None if part == "energy" else "sampled"
        provenance = Provenance(method=head.method, kind=head.kind, covariance=head.covariance, forces_std=how)
        return Prediction(**found, provenance=provenance)

    def _topology(self, graph: AtomicGraph, potential: "Potential") -> Topology:
        if self._last is None or not self._last.is_of(graph):
            potential.require_known(graph)
            self._last = Topology.of(graph, potential.elements)
        return self._last

    def _part(self, potential: "Potential", topology: Topology, forces_std: ForceStdMethod) -> Part | None:
        """The part that computes force σ in this way, as ``choose_way`` takes it."""
        ways, n_samples = potential.head.force_std_methods, potential.head.n_samples
        if forces_std == "none" or not ways:
            return "energy"
        sampled = forces_std == "sampled" or (forces_std == "auto" and 3 * topology.n_fewest > n_samples)
        known = [part for part in SAMPLED if part in self._parts]
        return known[0] if known and sampled and "sampled" in ways else None


def function_of(potential: "Potential", part: Part) -> tuple[Callable[..., list[Tensor]], list[str]]:
    """What a part computes, as a function of its inputs, and the names of what it returns: filled by a call."""
    names: list[str] = []

    def evaluate(*inputs: Tensor) -> list[Tensor]:
        more: dict[str, Tensor] = {}
        graph = graph_of(inputs, potential.dtype)
        if part == "slopes":
            prediction, more["slopes"], more["moved"] = traced.predicted_slopes(potential, graph)
        else:
            prediction = traced.predicted(potential, graph, sampled=part == "forces_std")
        found = {item.name: getattr(prediction, item.name) for item in fields(Prediction)} | more
        found = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        names[:] = found
        return list(found.values())

    def pull(*inputs: Tensor) -> list[Tensor]:
        return [traced.pulled(potential, graph_of(inputs[:-1], potential.dtype), inputs[-1])]

    return (pull if part == "pull" else evaluate), names


def inputs_of(graph: AtomicGraph, layout: Layout) -> Inputs:
    """The tensors that a program takes, contiguous: it does not look at strides.

    An empty structure is added: the compiler takes a length of one for a constant.
    """
    cell = graph.positions.new_zeros(graph.n_structures + 1, 3, 3)
    if graph.cell is not None:
        cell[:-1] = graph.cell
    own = (graph.positions, graph.atomic_numbers, graph.structure_index, graph.pair_index, graph.pair_shift)
    return (*(tensor.contiguous() for tensor in own), cell, *layout.tensors())


def graph_of(inputs: Inputs, dtype: torch.dtype) -> AtomicGraph:
    """The inverse of ``inputs_of``, with the empty structure."""
    positions, atomic_numbers, structure_index, pair_index, pair_shift, cell, *layout = inputs
    return AtomicGraph(
        positions=positions,
        atomic_numbers=atomic_numbers,
        structure_index=structure_index,
        pair_index=pair_index,
        pair_shift=pair_shift,
        cell=cell,
        n_structures=cell.shape[0],
        dtype=dtype,
        layout=Layout.from_tensors(tuple(layout)),
    )
