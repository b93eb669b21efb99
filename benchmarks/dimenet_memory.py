"""Peak memory of DimeNet++ on periodic water, as the number of angles grows with cutoff and cell.

python benchmarks/dimenet_memory.py [--threads 1]

SIGMAFF_DATA is the folder that holds water/deepmd_water_192.extxyz. Each row is measured in a process of its own.
"""

import argparse
import os
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from ase.io import read
from machine import describe_machine
from peers import PygDimeNetPP, energies_and_forces, triplets

from sigmaff.backbones import DimeNetPPConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig

CASES = [(4.0, 1), (5.0, 1), (6.0, 1), (5.0, 2), (5.0, 4)]  # cutoff in Å, cells
PEER_CASES = [(4.0, 1), (5.0, 1)]
STATISTICS = DatasetStatistics(
    elements=(1, 8), reference_energies={1: 0.0, 8: 0.0}, scale=1.0, mean_neighbors=40.0, n_structures=1
)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(model: str, kind: str, cutoff: float, n_cells: int) -> str:
    """Atoms, pairs, angles, and megabytes that one evaluation adds to the peak of the process."""
    cell = read(Path(os.environ["SIGMAFF_DATA"]) / "water" / "deepmd_water_192.extxyz", index=0)
    graph = build_graph(cell.repeat((n_cells, 1, 1)), cutoff).with_incoming()
    n_angles = len(triplets(graph)[0])
    backbone = DimeNetPPConfig(cutoff=cutoff)
    potential = Potential(PotentialConfig(backbone=backbone, head=DeterministicConfig()), STATISTICS)
    both = energies_and_forces(PygDimeNetPP(graph)) if model == "peer" else None
    before = peak_megabytes()
    if kind == "inference":
        if both is None:
            potential.requires_grad_(False).derivatives(graph)
        else:
            with torch.no_grad():
                both(graph.positions)
    else:
        energy, forces = (both(graph.positions)) if both is not None else _energy_and_forces(potential, graph)
        (energy.square().sum() + forces.square().sum()).backward()
    return f"{graph.n_atoms} | {graph.pair_index.shape[1]} | {n_angles} | {peak_megabytes() - before:.0f}"


def _energy_and_forces(potential, graph):
    distribution, forces = potential(graph)
    return distribution.mean, forces


def measured_apart(model: str, kind: str, cutoff: float, n_cells: int, threads: int) -> list[str]:
    command = [sys.executable, __file__, "--threads", str(threads), "--one", model, kind, str(cutoff), str(n_cells)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().split(" | ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=4, metavar=("MODEL", "KIND", "CUTOFF", "CELLS"), help="measure a single figure")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # of the peer
    if arguments.one:
        model, kind, cutoff, n_cells = arguments.one
        print(measure(model, kind, float(cutoff), int(n_cells)))
        return
    print(f"Megabytes above what the model takes; {describe_machine()}\n")
    print("| cutoff (Å) | atoms | pairs | angles | E + F | training step | PyTorch Geometric: E + F | training step |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        rows = [measured_apart("ours", kind, *case, arguments.threads) for kind in ("inference", "training")]
        if case in PEER_CASES:
            rows += [measured_apart("peer", kind, *case, arguments.threads) for kind in ("inference", "training")]
        cells = [row[3] for row in rows] + ["–"] * (4 - len(rows))
        print(f"| {case[0]:g} | {' | '.join([*rows[0][:3], *cells])} |", flush=True)


if __name__ == "__main__":
    main()
