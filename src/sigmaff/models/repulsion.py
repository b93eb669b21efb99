"""Repulsion of nuclei that nearly touch: the universal potential of Ziegler, Biersack and Littmark (ZBL)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from ase.data import covalent_radii
from ase.units import Bohr, Hartree
from torch import Tensor

from sigmaff.graph import AtomicGraph, Layout
from sigmaff.graph.ops import kept, polynomial_cutoff, scatter_sum
from sigmaff.models.prediction import Prediction

OF_SHORTEST = 0.9
"""Of the shortest distance of two elements in the training set: no training structure feels the repulsion, nor do those
of a run that is a little hotter."""
OF_RADII = 0.75
"""Of the sum of covalent radii: shorter than any bond, so that chemistry is left to the network."""
WEIGHTS = (0.18175, 0.50986, 0.28022, 0.02817)
DECAYS = (3.1998, 0.94229, 0.4029, 0.20162)
LENGTH, POWER = 0.8854 * Bohr, 0.23  # of the screening length, LENGTH / (z₁^POWER + z₂^POWER)


@dataclass(frozen=True)
class Repelled:
    """What the repulsion adds to a batch of structures, float64."""

    node_energy: Tensor  # (n_atoms,) eV; a pair belongs to its atoms by halves
    energy: Tensor  # (n_structures,) eV
    forces: Tensor  # (n_atoms, 3) eV/Å
    virial: Tensor  # (n_structures, 3, 3) eV; derivative of the energies by strain

    def added_to(self, prediction: Prediction, volume: Tensor | None) -> Prediction:
        """The prediction of the network with the repulsion; volume: (n_structures, 1, 1) Å³ of periodic ones."""
        stress = prediction.stress
        if stress is not None and volume is not None:
            stress = stress + (self.virial / volume).to(stress.dtype)
        return replace(
            prediction,
            energy=prediction.energy + self.energy,
            forces=prediction.forces + self.forces.to(prediction.forces.dtype),
            node_energy=None if prediction.node_energy is None else prediction.node_energy + self.node_energy,
            stress=stress,
        )


class Repulsion:
    """Σ_pairs s(r) · e² z₁ z₂ φ(r/a) / r, with a switch s that is 0 from a range on which depends on the elements.

    The range is a part of the shortest distance of the two elements in the training set, and never as long as a bond.
    """

    def __init__(self, shortest_distances: Sequence[tuple[int, int, float]]) -> None:
        """shortest_distances: of pairs of elements in the training set, (z, z', Å)."""
        radii = torch.tensor(covalent_radii, dtype=torch.float64, device="cpu")
        self.ranges = OF_RADII * (radii[:, None] + radii)  # (n_numbers, n_numbers) Å
        for first, second, distance in shortest_distances:
            shorter = min(OF_SHORTEST * distance, float(self.ranges[first, second]))
            self.ranges[first, second] = self.ranges[second, first] = shorter

    def __call__(self, graph: AtomicGraph) -> Repelled | None:
        """Energies, forces and virials; ``None`` if no two atoms are within range."""
        first, second = graph.pair_index
        vectors = graph.positions[second] + graph.pair_shift - graph.positions[first]
        distances = torch.linalg.vector_norm(vectors, dim=-1)
        numbers = graph.atomic_numbers
        ranges = self.ranges.to(numbers.device)[numbers[first], numbers[second]]
        if graph.layout is not None:
            return self._everywhere(graph, graph.layout, vectors, distances, ranges)
        if not (near := distances < ranges).any():
            return None
        first, second, vectors = first[near], second[near], vectors[near]
        with torch.enable_grad():
            length = distances[near].detach().requires_grad_()
            energy = pair_energy(numbers[first], numbers[second], length, ranges[near])
            (slope,) = torch.autograd.grad(energy.sum(), length)
        energy = energy.detach()
        pulls = (slope / length.detach()).unsqueeze(-1) * vectors  # derivatives by the position of the second atom
        of_structure = graph.structure_index[first]
        ends = torch.cat([first, second])
        return Repelled(
            node_energy=scatter_sum(0.5 * energy.repeat(2), ends, graph.n_atoms),
            energy=scatter_sum(energy, of_structure, graph.n_structures),
            forces=scatter_sum(torch.cat([pulls, -pulls]), ends, graph.n_atoms),
            virial=scatter_sum(pulls.unsqueeze(-1) * vectors.unsqueeze(-2), of_structure, graph.n_structures),
        )

    def _everywhere(
        self, graph: AtomicGraph, layout: Layout, vectors: Tensor, distances: Tensor, ranges: Tensor
    ) -> Repelled:
        """Of all pairs, for compiled code: those out of range add zeros."""
        numbers, (first, second) = graph.atomic_numbers, graph.pair_index
        with torch.enable_grad():
            length = distances.detach().requires_grad_()
            energy = pair_energy(numbers[first], numbers[second], length, ranges)
            (slope,) = torch.autograd.grad(energy.sum(), length)
        by_vector = kept((slope / distances).unsqueeze(-1) * vectors)
        node_energy = layout.sum_of_edges(kept(0.5 * energy.detach()))
        return Repelled(
            node_energy=node_energy,
            energy=layout.sum_of_structures(node_energy),
            forces=-layout.sum_by_side(by_vector),
            virial=layout.sum_of_structures(layout.sum_of_edges(0.5 * by_vector.unsqueeze(-1) * vectors.unsqueeze(-2))),
        )


def pair_energy(first: Tensor, second: Tensor, distances: Tensor, ranges: Tensor) -> Tensor:
    """The switched repulsion of pairs in eV, (n_pairs,).

    Arguments:
        first, second: atomic numbers, (n_pairs,).
        distances: Å, (n_pairs,).
        ranges: Å, (n_pairs,); energy, force and curvature vanish there.
    """
    x = distances * (first.double() ** POWER + second.double() ** POWER) / LENGTH
    screening = sum(weight * torch.exp(-decay * x) for weight, decay in zip(WEIGHTS, DECAYS, strict=True))
    return polynomial_cutoff(distances / ranges, 6) * screening * (Hartree * Bohr * first * second / distances)
