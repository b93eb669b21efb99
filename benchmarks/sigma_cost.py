"""What σ costs: E + F + σ over E + F of the backbone alone, in eager mode, alternately in one run.

python benchmarks/sigma_cost.py [--threads 1] [--rounds 15] [--only schnet nequip dimenet++ water heads]
python benchmarks/sigma_cost.py --runs runs/compare_ethanol/backbone runs/compare_ethanol/fixed_lnk

The first compares networks at the paper's sizes under heads that were never fitted: the same operations on other
numbers. The second compares the models of two runs.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from machine import describe_machine, prepare
from molecules import STATISTICS, ethanol_batch
from scipy.spatial.transform import Rotation

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.models import Model, Potential, PotentialConfig
from sigmaff.models.file import load
from sigmaff.models.prediction import EnergyForceStd
from sigmaff.timing import median_seconds

BATCHES = (1, 8, 32)
HEADS = {
    "backbone": DeterministicConfig(),
    "LNK, mean backbone": LNKConfig(kernel="rbf+linear", mean="backbone"),
    "LNK, mean residual": LNKConfig(kernel="rbf+linear", mean="residual"),
    "LNK, linear kernel": LNKConfig(kernel="linear"),
}
BACKBONES: dict[str, BackboneConfig] = {
    "schnet": SchNetConfig(),
    "nequip": NequIPConfig(),
    "dimenet++": DimeNetPPConfig(),
}
WATER_CUTOFF = 6.0
"""Å. At the paper's 10 Å an atom of water has 419 neighbours."""
WATER_VOLUME = 29.9
"""Å³ of a molecule."""


def ethanol(random: np.random.Generator) -> Atoms:
    return shaken(molecule("CH3CH2OH"), random)


def twenty_seven_atoms(random: np.random.Generator) -> Atoms:
    """27 atoms of H, C, N and O within 10 Å, as 3BPA has: benzene, pyridine, water and an atom."""
    parts = [molecule("C6H6"), molecule("C5H5N"), molecule("H2O"), molecule("H")]
    for part, place in zip(parts, ([0, 0, 0], [0, 1.4, 3.6], [0, 5.2, 0.8], [3.8, 0, 1.8]), strict=True):
        part.positions += place
    return shaken(sum(parts[1:], parts[0]), random)


def water(n_molecules: int, random: np.random.Generator) -> Atoms:
    """A periodic cube at the density of the liquid: molecules turned at random on a lattice, displaced by 0.1 Å."""
    length, n_side = (n_molecules * WATER_VOLUME) ** (1 / 3), round(n_molecules ** (1 / 3))
    assert n_side**3 == n_molecules
    box = Atoms(cell=[length] * 3, pbc=True)
    for place in np.ndindex(n_side, n_side, n_side):
        one = molecule("H2O")
        one.positions = Rotation.random(rng=random).apply(one.positions)
        one.positions += np.array(place) * length / n_side + random.normal(scale=0.1, size=3)
        box += one
    return box


def shaken(atoms: Atoms, random: np.random.Generator) -> Atoms:
    atoms.positions += random.normal(scale=0.05, size=atoms.positions.shape)
    return atoms


def batch(make: Callable[[np.random.Generator], Atoms], n_structures: int, cutoff: float) -> AtomicGraph:
    random = np.random.default_rng(0)
    return batch_graphs([build_graph(make(random), cutoff) for _ in range(n_structures)])


def potential(graph: AtomicGraph, head: HeadConfig, backbone: BackboneConfig) -> Potential:
    """A potential that knows the elements of the graph and was never fitted."""
    torch.manual_seed(0)
    elements = tuple(graph.atomic_numbers.unique().tolist())
    statistics = DatasetStatistics(
        elements=elements,
        reference_energies=dict.fromkeys(elements, 0.0),
        scale=STATISTICS.scale,
        mean_neighbors=STATISTICS.mean_neighbors,
        n_structures=STATISTICS.n_structures,
    )
    model = Potential(PotentialConfig(backbone=backbone, head=head), statistics)
    model.eval().requires_grad_(False)  # as loaded
    with torch.no_grad():
        embeddings = model.embed(model.prepare(graph))
        model.head.initialize(embeddings, graph.atomic_numbers, graph.structure_index)
    model.energy_force_std = EnergyForceStd(
        scales=dict.fromkeys(elements, 1.0), exponent=0.5, reference=1.0, n_structures=20
    )
    return model


def print_force_std_row(name: str, graph: AtomicGraph, backbone: BackboneConfig, n_rounds: int) -> None:
    alone, with_std = (potential(graph, head, backbone) for head in (DeterministicConfig(), LNKConfig()))
    calls = {
        "alone": partial(alone.predict, graph, forces_std="none"),
        "again": partial(alone.predict, graph, forces_std="none"),
        "energy": partial(with_std.predict, graph, forces_std="energy"),
        "sampled": partial(with_std.predict, graph, forces_std="sampled"),
    }
    seconds = median_seconds(calls, n_rounds)
    ratios = [seconds[way] / seconds["alone"] for way in ("again", "energy", "sampled")]
    n_pairs = graph.pair_index.shape[1]
    cells = [backbone.name, name, f"{n_pairs:,}", f"{1e3 * seconds['alone']:.1f}", *(f"{r:.2f} ×" for r in ratios)]
    print(f"| {' | '.join(cells)} |", flush=True)


def of_force_std(chosen: Sequence[str], n_rounds: int) -> None:
    """Force σ of 16 samples (and, for water, exact σ of stress), and force σ from energy σ."""
    print(f"LNK with a linear kernel, {LNKConfig().n_samples} samples; {describe_machine()}\n")
    print("| backbone | structures | pairs | E + F (ms) | the same again | + σ, `energy` | + σ, `sampled` |")
    print("|---|---|---|---|---|---|---|")
    for name in (name for name in BACKBONES if name in chosen):
        backbone = BACKBONES[name]
        for title, make in (("ethanol", ethanol), ("27 atoms", twenty_seven_atoms)):
            for n_structures in (1, 8):
                graph = batch(make, n_structures, backbone.cutoff)
                print_force_std_row(f"{n_structures} × {title}", graph, backbone, n_rounds)
    if "water" in chosen:
        for n_molecules in (64, 512):
            graph = batch(partial(water, n_molecules), 1, WATER_CUTOFF)
            name = f"water, {3 * n_molecules:,} atoms"
            print_force_std_row(name, graph, SchNetConfig(cutoff=WATER_CUTOFF), max(1, n_rounds // 3))


def of_heads() -> None:
    """Energy σ, and exact force σ, of several kernels."""
    models = {name: potential(ethanol_batch(32, 10.0)[0], head, SchNetConfig()) for name, head in HEADS.items()}
    print(f"\nSchNet at the paper's size, ethanol, m = 100; {describe_machine()}\n")
    print(
        "| batch | E + F of the backbone (ms) | + energy σ, `rbf+linear` | the same, mean backbone | `linear` "
        "| + force σ, exact |"
    )
    print("|---|---|---|---|---|---|")
    for n_structures in BATCHES:
        graph, _ = ethanol_batch(n_structures, 10.0)
        things = {name: partial(model.predict, graph, forces_std="none") for name, model in models.items()}
        things["with force σ"] = partial(models["LNK, mean residual"].predict, graph, forces_std="exact")
        seconds = median_seconds(things, 30)
        base = seconds["backbone"]
        order = ("LNK, mean residual", "LNK, mean backbone", "LNK, linear kernel", "with force σ")
        ratios = [seconds[name] / base for name in order]
        print(f"| {n_structures} | {1e3 * base:.2f} | " + " | ".join(f"{ratio:.3f} ×" for ratio in ratios) + " |")


def of_runs(backbone: Model, fitted: Model) -> None:
    """The noise of the ratio is that of the backbone over itself."""
    print(f"ethanol; {describe_machine()}\n")
    print("| batch | E + F of the backbone (ms) | the same again | + energy σ |\n|---|---|---|---|")
    for n_structures in BATCHES:
        graph, _ = ethanol_batch(n_structures, backbone.cutoff)
        models = {"backbone": backbone, "again": backbone, "fitted": fitted}
        things = {name: partial(model.predict, graph, forces_std="none") for name, model in models.items()}
        seconds = median_seconds(things, 100)
        base = seconds["backbone"]
        again, with_std = seconds["again"] / base, seconds["fitted"] / base
        print(f"| {n_structures} | {1e3 * base:.2f} | {again:.3f} × | {with_std:.3f} × |")


def main() -> None:
    parts = (*BACKBONES, "water", "heads")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="of each row; a third of it for water")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--runs", type=Path, nargs=2, metavar=("BACKBONE", "FITTED"), help="with models to compare")
    options = parser.parse_args()
    prepare(options.threads)
    if options.runs is not None:
        of_runs(*(load(run / "model.sigmaff") for run in options.runs))
        return
    if set(options.only) - {"heads"}:
        of_force_std(options.only, options.rounds)
    if "heads" in options.only:
        of_heads()


if __name__ == "__main__":
    main()
