"""Energies of other compositions from reference energies alone, for a training set of one molecule. Takes seconds.

python benchmarks/references.py

Ten displaced structures of ethanol, labelled by GFN2-xTB, give reference energies: by least squares, and by free atoms
of GFN2-xTB with a fit of what is left. Errors are those of sums of reference energies against GFN2-xTB, σ is that of
compositions.
"""

import numpy as np
from ase import Atoms
from ase.build import molecule
from machine import describe_machine, prepare

from sigmaff.data import DatasetStatistics, GraphDataset, ReferenceEnergies, compute_statistics, label_structures
from sigmaff.data.labelling import EngineConfig, label

MOLECULES = ("C2H6", "CH3OH", "H2O", "CH4", "C3H8", "CH3COCH3")
CHOICES: tuple[ReferenceEnergies, ...] = ("least_squares", "gfn2-xtb")


def training_set() -> GraphDataset:
    generator, frames = np.random.default_rng(0), []
    for _ in range(10):
        atoms = molecule("CH3CH2OH")
        atoms.positions += generator.normal(0.0, 0.05, atoms.positions.shape)
        frames.append(label(atoms, EngineConfig()))
    return GraphDataset(label_structures(frames), 4.0)


def error_and_std(statistics: DatasetStatistics, atoms: Atoms, true: float) -> tuple[float, float]:
    """Of the energy of a molecule, eV."""
    counts = np.bincount(atoms.numbers, minlength=119)[None].astype(float)
    found = sum(statistics.reference_energies[number] for number in atoms.numbers)
    return found - true, float(statistics.composition_std(counts)[0])


def main() -> None:
    prepare()
    train = training_set()
    found = [compute_statistics(train, choice) for choice in CHOICES]
    print(f"{describe_machine()}\n")
    for statistics in found:
        print(f"{statistics.reference_source}: {statistics.compositions}\n")
    print("| molecule | least_squares: error, σ (eV) | gfn2-xtb: error, σ (eV) |\n|---|---|---|")
    for name in MOLECULES:
        atoms = molecule(name)
        true = float(label(atoms, EngineConfig()).get_potential_energy())
        cells = [error_and_std(statistics, atoms, true) for statistics in found]
        print(f"| {name} | {' | '.join(f'{error:+.3g}, {std:.3g}' for error, std in cells)} |")


if __name__ == "__main__":
    main()
