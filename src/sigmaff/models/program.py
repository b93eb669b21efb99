"""Programs: a potential as machine code that takes tensors, made by PyTorch's ahead-of-time compiler.

A program computes what ``Potential.compute_traced`` does, for any numbers of atoms, pairs and structures. What its
inputs are follows from positions and pairs (``Layout``). A program of a potential has two parts, each a function of the
same inputs: energies, forces, stress and σ of energies; and the same with sampled σ of forces and σ of atoms.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from torch import Tensor, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx.experimental import _config as symbols
from torch.fx.experimental.proxy_tensor import make_fx

from sigmaff.graph import AtomicGraph, Layout, batch_graphs, build_graph
from sigmaff.graph.layout import DYNAMIC_AXES as LAYOUT_AXES
from sigmaff.models.potential import Potential
from sigmaff.models.prediction import Prediction

Part = Literal["energy", "forces_std"]
PARTS: tuple[Part, ...] = ("energy", "forces_std")
Inputs = tuple[Tensor, ...]
DYNAMIC_AXES: tuple[tuple[int, ...], ...] = ((0,), (0,), (0,), (1,), (0,), (0,), *LAYOUT_AXES)
"""Of each input, the axes of any length."""
INDUCTOR = {"assert_indirect_indexing": False}
"""Settings of the compiler: indices come from ``Layout``, which is right."""


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


def layout_of(graph: AtomicGraph, elements: tuple[int, ...]) -> Layout:
    """Of a graph of known elements, and an empty structure."""
    index = torch.zeros(max(elements) + 1, dtype=torch.int64)
    index[list(elements)] = torch.arange(len(elements))
    kinds = index[graph.atomic_numbers.cpu()]
    return Layout.of(graph.pair_index, graph.structure_index, graph.n_structures + 1, kinds, len(elements))


def traced(potential: Potential, part: Part) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """One part of a potential as a program, and the names of the fields of a prediction that it returns."""
    sample = example_graph(potential)
    inputs = inputs_of(sample, layout_of(sample, potential.elements))
    names: list[str] = []

    def evaluate(*inputs: Tensor) -> list[Tensor]:
        prediction = potential.compute_traced(graph_of(inputs, potential.dtype), sampled=part == "forces_std")
        found = {item.name: getattr(prediction, item.name) for item in fields(Prediction)}
        found = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        names[:] = found
        return list(found.values())

    with torch.no_grad(), symbols.patch(use_duck_shape=False):  # lengths that happen to be equal are not the same
        evaluate(*inputs)  # fills all caches with numbers, not with traces
        operations = make_fx(evaluate, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
        operations.graph = fx_graph_cse(operations.graph)
        operations.recompile()
        lengths = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in DYNAMIC_AXES)
        program = torch.export.export(_Function(operations), inputs, dynamic_shapes={"inputs": lengths}, strict=False)
    return program, tuple(names)


class _Function(nn.Module):
    """What ``torch.export`` takes."""

    def __init__(self, operations: torch.fx.GraphModule) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return self.operations(*inputs)


def example_graph(potential: Potential) -> AtomicGraph:
    """Clusters of the elements of a potential in which no two numbers that may differ are equal."""
    random = np.random.default_rng(0)
    elements, graphs = potential.elements, []
    for n_atoms in (5, 9, 7, 6):
        lattice = np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
        spacing = min(1.6, 0.6 * potential.cutoff)
        positions = spacing * lattice[random.permutation(27)[:n_atoms]] + random.normal(scale=0.05, size=(n_atoms, 3))
        numbers = np.resize(elements, n_atoms)
        atoms = Atoms(numbers, positions, cell=[4 * spacing] * 3, pbc=len(graphs) == 0)
        graphs.append(build_graph(atoms, potential.cutoff, potential.dtype))
    return batch_graphs(graphs)
