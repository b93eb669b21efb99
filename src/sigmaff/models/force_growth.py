"""Force σ that grows with energy σ, and is shared among the components of an atom's force.

    σ²_ic = [(1 − α) v_ic + α (v_ix + v_iy + v_iz)/3] · [(1 + r)/(1 + r/R)]^β,      r = (s_i/s̄)²

A head that is linear in frozen features sees in energy σ how far features have moved, and in force σ only their
slope, which hardly changes: off its data errors of forces grow, and force σ does not. Energy σ tells by how much.

s is σ of the energy divided by the number of atoms, of the connected part of the graph that holds the atom. So far
copies of a molecule have the force σ of one, and a strange molecule far from others is not diluted by them. Atoms
within one connected part, as of a liquid, share s: it then says how far the whole has moved, and v_ic what is strange
where. 1 + r instead of r: small s, of a structure near the training data or in a large box, takes at most 2^(β/2) off
a typical σ. R bounds what a large s adds.

| symbol | here |
|---|---|
| v | ``forces_std`` squared: raw variances (n_atoms, 3) |
| s | ``component_std``, raw (n_atoms,), eV per atom |
| α, β, s̄ | ``isotropy``, ``exponent``, ``typical`` |
| R | ``LARGEST_RATIO`` |
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph

LARGEST_RATIO = 100.0
Values = TypeVar("Values", npt.NDArray[np.float64], Tensor)


@dataclass(frozen=True, kw_only=True)
class ForceGrowth:
    """What calibration learned of force σ before its factor. Its ``repr`` identifies the model of a simulation."""

    isotropy: float  # 0: components as the method has them, 1: the same σ for the three of an atom
    exponent: float  # 0: no growth, 1: variances grow as those of energies
    typical: float  # component σ of held-out structures, eV per atom

    def apply(self, forces_std: Values, component_std: Values) -> Values:
        """Raw force σ (n_atoms, 3) with growth, before the factor of calibration; component σ (n_atoms,)."""
        variance = self.mixed(forces_std**2)
        std: Values = (variance * (growth_ratio(component_std / self.typical) ** self.exponent)[:, None]) ** 0.5
        return std

    def mixed(self, variance: Values) -> Values:
        """Variances of components (n_atoms, 3), drawn towards their mean."""
        mixed: Values = (1 - self.isotropy) * variance + self.isotropy * (variance.sum(-1)[:, None] / 3)
        return mixed

    def __str__(self) -> str:
        return f"isotropy {self.isotropy:.2g}, growth with energy σ: exponent {self.exponent:.2g}"


def growth_ratio(relative_std: Values) -> Values:
    """(1 + r)/(1 + r/R) of r = relative σ squared."""
    r = relative_std**2
    ratio: Values = (1 + r) / (1 + r / LARGEST_RATIO)
    return ratio


def connected_parts(graph: AtomicGraph) -> tuple[AtomicGraph, Tensor]:
    """The graph with each connected part of a structure as a structure of its own, and the order of its atoms in it.

    Energies are sums over atoms that pairs connect: nothing else changes. Stress does not exist for parts.
    """
    first, second = graph.pair_index.cpu().numpy()
    links = scipy.sparse.coo_array(
        (np.ones(first.size, dtype=np.int8), (first, second)), shape=(graph.n_atoms, graph.n_atoms)
    )
    n_parts, labels = scipy.sparse.csgraph.connected_components(links, directed=False)
    part = torch.as_tensor(labels, dtype=torch.int64, device=graph.structure_index.device)
    order = torch.argsort(part, stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    parts = AtomicGraph(
        positions=graph.positions[order],
        atomic_numbers=graph.atomic_numbers[order],
        structure_index=part[order],
        pair_index=place[graph.pair_index],
        pair_shift=graph.pair_shift,
        cell=None,
        n_structures=int(n_parts),
        dtype=graph.dtype,
    )
    return parts, order
