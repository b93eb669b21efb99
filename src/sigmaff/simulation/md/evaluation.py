"""Predictions for replicas that move together. An unphysical structure is refused; the others are predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from ase.data import covalent_radii
from ase.symbols import Symbols
from torch import Tensor

from sigmaff.graph import AtomicGraph, Pairs, SkinList
from sigmaff.models.prediction import FloatArray, ForceStdMethod, Predictor
from sigmaff.simulation.md.connectivity import Connectivity
from sigmaff.simulation.md.state import BoolArray, IndexArray, State, System
from sigmaff.simulation.results import BatchResults, not_finite_message

OVERLAP = 0.5
"""Two atoms closer than this fraction of the sum of their covalent radii overlap."""
MAX_PAIRS = 20_000
"""Pairs of atoms that are predicted at once; bounds memory."""


@dataclass(frozen=True)
class Unphysical:
    """Why a structure is not physical."""

    reason: Literal["overlap", "not finite", "temperature", "isolated", "bond broken"]
    message: str


@dataclass(frozen=True)
class Group:
    """Replicas that were predicted together."""

    replicas: IndexArray
    results: BatchResults


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions for all replicas but those with a problem."""

    kept: State  # energy, forces and stress, of all replicas; NaN where there are none
    groups: list[Group]
    problems: dict[int, Unphysical]  # by replica

    def results(self, replica: int) -> dict[str, Any]:
        """Under ASE's names; nothing for a replica with a problem."""
        for group in self.groups:
            if replica in group.replicas:
                return group.results.part(int(np.searchsorted(group.replicas, replica)))
        return {}


class Evaluator:
    """Predicts one system again and again. It keeps neighbours, and what the graph holds beside positions."""

    def __init__(
        self,
        model: Predictor,
        system: System,
        connectivity: Connectivity | None = None,
        neighbors: SkinList | None = None,
    ) -> None:
        """
        connectivity: of the starts; ``None``: a structure may fall apart.
        neighbors: of this system, if they are known already.
        """
        self.model, self.system, self.connectivity = model, system, connectivity
        radii = covalent_radii[system.numbers]
        self.closest = OVERLAP * radii  # Å, half of the distance of two such atoms
        reach = 0.0 if connectivity is None else connectivity.reach
        cutoff = max(model.cutoff, 2.0 * float(self.closest.max()), reach)
        self.neighbors = neighbors or SkinList(system.n_atoms.tolist(), system.periodic, cutoff)
        self.is_periodic: BoolArray = np.asarray(system.periodic.any(1))
        self.everything = _Chosen(system, np.ones(system.n_replicas, dtype=bool))

    def select(self, chosen: BoolArray) -> "Evaluator":
        """For these replicas alone."""
        connectivity = None if self.connectivity is None else self.connectivity.select(chosen)
        return Evaluator(self.model, self.system.select(chosen), connectivity, self.neighbors.select(chosen))

    def evaluate(self, state: State, forces_std: ForceStdMethod, with_std: BoolArray) -> Evaluation:
        """Energies and forces, and force σ of the replicas for which ``with_std`` (n_replicas,) says so."""
        positions, cells = state["positions"], state["cell"]
        problems = self._not_finite(positions, cells)
        if problems:  # at zero, where they do no harm
            lost = np.isin(np.arange(self.system.n_replicas), list(problems))
            positions = np.where(lost[self.system.replica, None], 0.0, positions)
            cells = np.where(lost[:, None, None], 0.0, cells)
        pairs = self.neighbors.pairs(positions, cells)
        problems |= self._overlaps(pairs, problems)
        problems |= self._losses(pairs, problems)
        if self.neighbors.cutoff > self.model.cutoff:
            near = pairs.distance <= self.model.cutoff
            pairs = Pairs(pairs.atoms[:, near], pairs.shift[near], pairs.distance[near])
        n_pairs = np.bincount(self.system.replica[pairs.atoms[0]], minlength=self.system.n_replicas)
        is_possible = np.ones(self.system.n_replicas, dtype=bool)
        is_possible[list(problems)] = False
        has_cell = self.is_periodic & (cells != 0.0).any(2).all(1)
        groups = []
        for how, asked in ((forces_std, with_std), ("none", ~with_std)):
            for members in _groups(np.flatnonzero(asked & is_possible), n_pairs):
                chosen = self.everything
                if len(members) < self.system.n_replicas:
                    chosen = _Chosen(self.system, np.isin(np.arange(self.system.n_replicas), members))
                graph = chosen.graph(positions, cells, pairs, self.is_periodic)
                prediction = self.model.predict(graph, forces_std=how, stress_std=False)
                groups.append(Group(members, BatchResults.of(prediction, chosen.first_atom, has_cell[members])))
        for group in groups:
            for index in group.results.not_finite().tolist():
                problems[int(group.replicas[index])] = self._lost(group, index)
        return Evaluation(kept=self._kept(groups), groups=groups, problems=problems)

    def _not_finite(self, positions: FloatArray, cells: FloatArray) -> dict[int, Unphysical]:
        if np.isfinite(positions).all() and np.isfinite(cells).all():
            return {}
        lost = {*self.system.replica[~np.isfinite(positions).all(1)].tolist()}
        lost |= {*np.flatnonzero(~np.isfinite(cells).all((1, 2))).tolist()}
        message = "a position or a lattice vector is not a finite number"
        return {replica: Unphysical("not finite", message) for replica in sorted(lost)}

    def _overlaps(self, pairs: Pairs, known: dict[int, Unphysical]) -> dict[int, Unphysical]:
        """Of replicas without a known problem."""
        found = {index: Unphysical("overlap", text) for index, text in self.neighbors.problems.items()}
        first, second = pairs.atoms
        closest = self.closest.take(first) + self.closest.take(second)
        if (pairs.distance < closest).any():
            ratio = OVERLAP * pairs.distance / closest
            replica = self.system.replica[first]
            for index in np.unique(replica[ratio < OVERLAP]).tolist():
                pair = int(np.where(replica == index, ratio, np.inf).argmin())
                one, other = pairs.atoms[:, pair] - self.system.first_atom[index]
                where = f"atoms {one} and {other} are {pairs.distance[pair]:.3g} Å apart"
                text = f"{where}, {ratio[pair]:.2f} of the sum of their covalent radii"
                found[index] = Unphysical("overlap", text)
        return {index: problem for index, problem in sorted(found.items()) if index not in known}

    def _losses(self, pairs: Pairs, known: dict[int, Unphysical]) -> dict[int, Unphysical]:
        """Atoms and bonds of replicas without a known problem."""
        if self.connectivity is None:
            return {}
        lost = self.connectivity.lost(pairs)
        return {index: Unphysical(*what) for index, what in sorted(lost.items()) if index not in known}

    def _lost(self, group: Group, index: int) -> Unphysical:
        symbols = str(Symbols(self.system.numbers[self.system.atoms(int(group.replicas[index]))]))
        return Unphysical("not finite", not_finite_message(group.results.part(index), symbols))

    def _kept(self, groups: list[Group]) -> State:
        """Energies, forces and stress of all replicas."""
        if len(groups) == 1 and len(groups[0].replicas) == self.system.n_replicas:
            values = groups[0].results.values
            return {name: values[name] for name in ("energy", "forces", "stress") if name in values}
        shapes = {"energy": (self.system.n_replicas,), "forces": (len(self.system.numbers), 3)}
        if any("stress" in group.results.values for group in groups):
            shapes["stress"] = (self.system.n_replicas, 6)
        kept = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        for group in groups:
            chosen = np.isin(np.arange(self.system.n_replicas), group.replicas)
            for name in kept.keys() & group.results.values.keys():
                kept[name][chosen[self.system.replica] if name == "forces" else chosen] = group.results.values[name]
        return kept


class _Chosen:
    """The graph of some of the replicas, without positions and pairs."""

    def __init__(self, system: System, chosen: BoolArray) -> None:
        self.system, self.is_all = system if chosen.all() else system.select(chosen), bool(chosen.all())
        self.chosen, self.atoms = chosen, chosen[system.replica]
        self.number = np.cumsum(self.atoms) - 1  # of each atom among these
        self.first_atom = np.append(self.system.first_atom, len(self.system.numbers))
        self.atomic_numbers, self.structure_index = (
            torch.as_tensor(self.system.numbers),
            torch.as_tensor(self.system.replica),
        )

    def graph(self, positions: FloatArray, cells: FloatArray, pairs: Pairs, is_periodic: BoolArray) -> AtomicGraph:
        """Positions relative to the mean of each replica, as ``build_graph`` has them."""
        index, shift = pairs.atoms, pairs.shift
        if not self.is_all:
            near = self.atoms[index[0]]
            index, shift = self.number[index[:, near]], shift[near]
            positions, cells, is_periodic = positions[self.atoms], cells[self.chosen], is_periodic[self.chosen]
        mean = self.system.sum(positions) / self.system.n_atoms[:, None]
        cell: Tensor | None = None
        if is_periodic.any():
            cell = torch.as_tensor(np.where(is_periodic[:, None, None], cells, 0.0))
        return AtomicGraph(
            positions=torch.as_tensor(positions - mean[self.system.replica]),
            atomic_numbers=self.atomic_numbers,
            structure_index=self.structure_index,
            pair_index=torch.as_tensor(index),
            pair_shift=torch.as_tensor(shift),
            cell=cell,
            n_structures=self.system.n_replicas,
        )


def _groups(replicas: IndexArray, n_pairs: IndexArray) -> Iterator[IndexArray]:
    """Consecutive ones of at most ``MAX_PAIRS`` pairs together, but at least one."""
    if len(replicas) and n_pairs[replicas].sum() <= MAX_PAIRS:
        yield replicas
        return
    group: list[int] = []
    total = 0
    for replica in replicas.tolist():
        if group and total + n_pairs[replica] > MAX_PAIRS:
            yield np.array(group)
            group, total = [], 0
        group.append(replica)
        total += int(n_pairs[replica])
    if group:
        yield np.array(group)


def evaluate_once(model: Predictor, structures: Sequence[Atoms], forces_std: ForceStdMethod) -> Evaluation:
    """Predictions for some structures; force σ of the first alone."""
    system = System.of(structures)
    positions = np.concatenate([atoms.positions for atoms in structures])
    state = {"positions": positions, "cell": np.array([atoms.cell.array for atoms in structures])}
    return Evaluator(model, system).evaluate(state, forces_std, np.arange(system.n_replicas) == 0)
