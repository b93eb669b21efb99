"""A training step (energies and forces in the loss, backward, AdamW) against other implementations, same batch.

pip install -e ".[benchmarks]" -c constraints.txt
python benchmarks/training_step.py [--backbones schnet dimenet++ nequip] [--batch 10] [--json training_step.json]

SIGMAFF_DATA is the folder that holds rmd17/rmd17_ethanol.npz and rmd17/rmd17_aspirin.npz. Steps alternate. Their times
are CPU seconds of this process, which other jobs of the machine lengthen little; with more than one thread they would
add up, so this runs one. Compiling is timed too: how many steps pay for it?
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from backbone_speed import CONFIGS, PEERS, RHO, Run, loss, our_runs, package_runs, step_of
from machine import describe_machine, prepare
from peers import PygDimeNetPP, PygSchNet, energies_and_forces

from sigmaff.data import DatasetStatistics, DataSource, GraphDataset, compute_statistics, read_structures
from sigmaff.training.objective import Batch

MOLECULES = ("ethanol", "aspirin")


def load(molecule: str, cutoff: float, n_structures: int) -> tuple[Batch, DatasetStatistics]:
    path = Path(os.environ["SIGMAFF_DATA"]) / "rmd17" / f"rmd17_{molecule}.npz"
    frames = read_structures(DataSource(path=path, format="rmd17_original"))
    dataset = GraphDataset(frames.subset(np.arange(n_structures) * 100), cutoff)
    graph, _ = dataset.batch(range(n_structures))
    batch = Batch(graph=graph, energy=torch.randn(graph.n_structures), forces=torch.randn(graph.n_atoms, 3))
    return batch, compute_statistics(dataset)


def peer_steps(name: str, batch: Batch, statistics: DatasetStatistics) -> dict[str, Run]:
    """A step of the peer as its users run it: PyTorch Geometric eagerly, the nequip package eagerly and compiled."""
    torch.manual_seed(0)
    if name == "nequip":
        try:
            return {
                "peer, compiled": package_runs(batch, statistics, compiled=True)[1],
                "peer": package_runs(batch, statistics, compiled=False)[1],
            }
        except ModuleNotFoundError:
            return {}
    model = {"schnet": PygSchNet, "dimenet++": PygDimeNetPP}[name](batch.graph)
    both = energies_and_forces(model)
    return {"peer": step_of(model, lambda: loss(*both(batch.graph.positions), batch))}


def cpu_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Of each call in every round. Each is made twice and the second one counts, as in ``sigmaff.timing``."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    return seconds


def measure(name: str, molecule: str, arguments: argparse.Namespace) -> dict[str, object]:
    batch, statistics = load(molecule, CONFIGS[name].cutoff, arguments.batch)
    steps = {"eager": our_runs(CONFIGS[name], batch, statistics, compiled=False)[1]}
    compiled = our_runs(CONFIGS[name], batch, statistics, compiled=True)[1]
    began = time.perf_counter()
    compiled()
    compiling = time.perf_counter() - began
    steps |= {"compiled": compiled} | peer_steps(name, batch, statistics)
    for step in steps.values():
        step()
    seconds = cpu_seconds(steps, arguments.rounds)
    quartiles = {
        step: (1e3 * np.percentile(values, [25, 50, 75])).round(2).tolist() for step, values in seconds.items()
    }
    medians = {step: values[1] for step, values in quartiles.items()}
    peer = medians.get("peer, compiled", medians.get("peer"))
    saved = 1e-3 * (medians["eager"] - medians["compiled"])
    return {
        "backbone": name,
        "molecule": molecule,
        "n_pairs": int(batch.graph.pair_index.shape[1]),
        "milliseconds": quartiles,
        "ratio": None if peer is None else round(medians["compiled"] / peer, 3),
        "eager_ratio": None if peer is None else round(medians["eager"] / peer, 3),
        "compile_seconds": round(compiling, 1),
        "steps_that_pay": round(compiling / saved) if saved > 0 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--molecules", nargs="+", choices=MOLECULES, default=list(MOLECULES))
    parser.add_argument("--batch", type=int, default=10, help="structures per step")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    prepare(1)
    warnings.simplefilter("ignore")  # of the peers
    print(f"batch {arguments.batch}, forces weight {RHO}; medians of CPU time; {describe_machine()}\n")
    print("| backbone, peer | molecule | peer (ms) | eager | compiled | compiling (s, wall) | steps that pay |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for name in arguments.backbones:
        for molecule in arguments.molecules:
            row = measure(name, molecule, arguments)
            rows.append(row)
            times = row["milliseconds"]
            assert isinstance(times, dict)
            peer = times.get("peer, compiled", times.get("peer", [0, 0, 0]))[1]
            ratios = f"{row['eager_ratio']} | **{row['ratio']}**"
            cost = f"{row['compile_seconds']} | {row['steps_that_pay']}"
            print(f"| {name}, {PEERS[name]} | {molecule} | {peer:.1f} | {ratios} | {cost} |", flush=True)
            if arguments.json is not None:
                result = {"machine": describe_machine(), "rows": rows}
                arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
