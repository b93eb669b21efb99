"""Batches of ethanol to time things on: thermal-looking displacements of the relaxed molecule, no data needed."""

import numpy as np
from ase import Atoms
from ase.build import molecule

from sigmaff.data import DatasetStatistics, GraphDataset, LabelledStructures
from sigmaff.graph import AtomicGraph, Labels

STATISTICS = DatasetStatistics(
    elements=(1, 6, 8),
    reference_energies={1: 0.0, 6: 0.0, 8: 0.0},
    scale=1.0,
    mean_neighbors=8.0,
    n_structures=1000,
)


def ethanol_batch(n_structures: int, cutoff: float) -> tuple[AtomicGraph, Labels]:
    """Displaced ethanols with random labels: the time of a step does not depend on what they are."""
    random = np.random.default_rng(0)
    structures = []
    for _ in range(n_structures):
        atoms: Atoms = molecule("CH3CH2OH")
        atoms.positions += random.normal(scale=0.05, size=atoms.positions.shape)
        structures.append(atoms)
    dataset = GraphDataset(
        LabelledStructures(
            structures=tuple(structures),
            energy=random.normal(size=n_structures),
            forces=tuple(random.normal(size=atoms.positions.shape) for atoms in structures),
            source="ethanol",
            frame_index=np.arange(n_structures),
        ),
        cutoff,
    )
    return dataset.batch(range(n_structures))
