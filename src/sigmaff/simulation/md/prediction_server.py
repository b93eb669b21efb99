"""Predictions for the replicas of a batch. An unphysical structure is refused; the others are predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from ase import Atoms
from ase.data import covalent_radii

from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.models.prediction import ForceStdMethod, Predictor, split_prediction
from sigmaff.simulation.md.stepper import Results
from sigmaff.simulation.results import finite_results

OVERLAP = 0.5
"""Two atoms closer than this fraction of the sum of their covalent radii overlap."""
MAX_PAIRS = 20_000
"""Pairs of atoms that are predicted at once; bounds memory."""


@dataclass(frozen=True)
class Question:
    atoms: Atoms
    forces_std: ForceStdMethod


@dataclass(frozen=True)
class Unphysical:
    """Why a structure is not physical."""

    reason: Literal["overlap", "not finite", "temperature"]
    message: str


def answers(model: Predictor, questions: Sequence[Question]) -> list[Results | Unphysical]:
    """Results under ASE's names, in order; those that ask for the same σ are predicted together."""
    checked = {index: _physical_graph(question.atoms, model.cutoff) for index, question in enumerate(questions)}
    found: dict[int, Results | Unphysical] = {k: item for k, item in checked.items() if isinstance(item, Unphysical)}
    graphs = {index: graph for index, graph in checked.items() if isinstance(graph, AtomicGraph)}
    for how in dict.fromkeys(question.forces_std for question in questions):
        alike = [index for index in graphs if questions[index].forces_std == how]
        for group in _groups(alike, graphs):
            batch = batch_graphs([graphs[index] for index in group])
            parts = split_prediction(model.predict(batch, forces_std=how, stress_std=False), batch)
            for index, part in zip(group, parts, strict=True):
                try:
                    found[index] = finite_results(part, questions[index].atoms)
                except DataError as error:
                    found[index] = Unphysical("not finite", str(error))
    return [found[index] for index in range(len(questions))]


def _groups(indices: Sequence[int], graphs: dict[int, AtomicGraph]) -> Iterator[list[int]]:
    """Consecutive ones of at most ``MAX_PAIRS`` pairs together, but at least one."""
    group: list[int] = []
    n_pairs = 0
    for index in indices:
        count = graphs[index].pair_index.shape[1]
        if group and n_pairs + count > MAX_PAIRS:
            yield group
            group, n_pairs = [], 0
        group.append(index)
        n_pairs += count
    if group:
        yield group


def _physical_graph(atoms: Atoms, cutoff: float) -> AtomicGraph | Unphysical:
    radii = covalent_radii[atoms.numbers]
    reach = max(cutoff, 2.0 * OVERLAP * float(radii.max()))
    if not (np.isfinite(atoms.positions).all() and np.isfinite(atoms.cell.array).all()):
        return Unphysical("not finite", "a position or a lattice vector is not a finite number")
    try:
        graph = build_graph(atoms, reach, dtype=torch.float64)
    except DataError as error:
        return Unphysical("overlap", str(error))
    first, second = graph.pair_index.numpy()
    ratio = graph.pair_vectors().norm(dim=-1).numpy() / (radii[first] + radii[second])
    if ratio.size and ratio.min() < OVERLAP:
        pair = int(ratio.argmin())
        distance = ratio[pair] * (radii[first[pair]] + radii[second[pair]])
        where = f"atoms {first[pair]} and {second[pair]} are {distance:.3g} Å apart"
        return Unphysical("overlap", f"{where}, {ratio[pair]:.2f} of the sum of their covalent radii")
    return graph if reach == cutoff else graph.within(cutoff)
