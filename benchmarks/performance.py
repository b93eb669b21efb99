"""Compiled models beside other programs: ratios of times, alternately in one run; one JSON, one table.

pip install --constraint constraints.txt -e '.[benchmarks]'
python benchmarks/performance.py [--rounds 30] [--only schnet nequip ...] [--json FILE] [--against FILE]

MACE needs an environment of its own (``make bench-mace``): it asks for another version of e3nn.

Networks have the paper's sizes and were never fitted: the same operations on other numbers. Ours are exported and
called as users call them (``model.predict`` on a graph); of others energies and forces are timed, on the same edges.
Compiled models are kept in the user's cache. ``--against`` compares with committed ratios and
fails where one is 1.3 times larger.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time

import ase.io
import numpy as np
import torch
from ase import units
from ase.md.verlet import VelocityVerlet
from machine import describe_machine, prepare
from md_speed import TIME_STEP, ours
from peers import MACEPackage, NequIPPackage, PygDimeNetPP, PygSchNet, SchNetPack
from rows import Row, batch, compare, compiled, forces_of, lnk, write
from sigma_cost import BACKBONES, ethanol, potential
from torch_sim_model import torch_sim_steps

import sigmaff as sf
from sigmaff.backbones import SchNetConfig
from sigmaff.graph import AtomicGraph, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, Potential
from sigmaff.timing import time_calls

Calls = dict[str, Callable[[], object]]
Timed = Callable[[Calls], dict[str, np.ndarray]]
"""Seconds of calls in every round."""


def beside_peers(backbone: str, cases: list[tuple[str, int, float, float | None]], timed: Timed) -> Iterator[Row]:
    """cases: molecule, structures, bar of E + F + σ_E, bar with force σ."""
    model = compiled(lnk(backbone))
    for molecule, n, bar, bar_with_forces in cases:
        graph = batch(molecule, n, model.cutoff)
        if backbone == "schnet":
            over, theirs = "PyTorch Geometric, E + F", forces_of(PygSchNet(graph), graph)
        elif backbone == "dimenet++":
            over, theirs = "PyTorch Geometric's layers, E + F", forces_of(PygDimeNetPP(graph), graph)
        else:
            package = NequIPPackage(graph, ("H", "C", "O"), 12.0, compiled=True)
            over, theirs = "nequip compiled, E + F", package
        for words, way, limit in (("σ_E", "none", bar), ("σ_E + σ_F", "sampled", bar_with_forces)):
            if limit is not None:
                ours = partial(model.predict, graph, forces_std=way, stress_std=False)
                seconds = timed({"ours": ours, "theirs": theirs})
                yield Row(f"{backbone}, {n} × {molecule}: E + F + {words}", over, limit, seconds)


def of_schnet(timed: Timed) -> Iterator[Row]:
    yield from beside_peers(
        "schnet", [("ethanol", 1, 0.17, 0.45), ("ethanol", 32, 0.25, 0.70), ("aspirin", 32, 0.25, 0.70)], timed
    )


def of_dimenet(timed: Timed) -> Iterator[Row]:
    yield from beside_peers("dimenet++", [("aspirin", 1, 0.35, None), ("aspirin", 32, 0.35, None)], timed)


def of_nequip(timed: Timed) -> Iterator[Row]:
    yield from beside_peers("nequip", [("aspirin", 1, 0.5, 2.0), ("aspirin", 32, 0.5, 2.0)], timed)


def of_sigma(timed: Timed) -> Iterator[Row]:
    """σ of energies over none, both compiled."""
    model = compiled(lnk("schnet"))
    alone = compiled(potential(batch("aspirin", 4, model.cutoff), DeterministicConfig(), BACKBONES["schnet"]))
    for n in (1, 32):
        graph = batch("ethanol", n, model.cutoff)
        calls: Calls = {
            "ours": partial(model.predict, graph, forces_std="none"),
            "theirs": partial(alone.predict, graph, forces_std="none"),
        }
        seconds = timed(calls)
        yield Row(f"schnet, {n} × ethanol: E + F + σ_E", "the same without σ, compiled", 1.05, seconds)


def of_ensemble(timed: Timed) -> Iterator[Row]:
    """One network with σ over five without, all compiled."""
    model = compiled(lnk("schnet"))
    some, members = batch("aspirin", 4, model.cutoff), []
    for seed in range(5):
        torch.manual_seed(seed)
        members.append(potential(some, DeterministicConfig(), BACKBONES["schnet"]))
    ensemble = Ensemble(members)
    ensemble.compile()
    for n in (1, 8, 32):
        graph = batch("ethanol", n, model.cutoff)
        five = partial(ensemble.predict, graph)
        for words, way, bar in (("σ_E", "none", 0.3), ("σ_E + σ_F", "sampled", 0.6)):
            seconds = timed({"ours": partial(model.predict, graph, forces_std=way), "theirs": five})
            yield Row(f"schnet, {n} × ethanol: E + F + {words}", "five networks, compiled", bar, seconds)


def of_steps(timed: Timed) -> Iterator[Row]:
    """A step of molecular dynamics through ASE."""
    eager, fast = lnk("schnet"), compiled(lnk("schnet"))
    calls: Calls = {}
    for name, model in (("ours", fast), ("theirs", eager)):
        atoms = ethanol(np.random.default_rng(0))
        atoms.calc = sf.Calculator(model, forces_uncertainty="none", warn_above=None)
        dynamics = VelocityVerlet(atoms, 1e-3 * units.fs)
        calls[name] = partial(dynamics.run, 10)
    seconds = {name: values / 10 for name, values in timed(calls).items()}
    yield Row("schnet, ethanol: a step of MD through ASE, E + F + σ_E", "the same, not exported", 0.15, seconds)


def of_schnetpack(timed: Timed) -> Iterator[Row]:
    model = compiled(lnk("schnet"))
    for molecule, n in (("ethanol", 1), ("ethanol", 32), ("aspirin", 32)):
        graph = batch(molecule, n, model.cutoff)
        yield from both_ways("schnet", model, graph, f"{n} × {molecule}", ("SchNetPack", SchNetPack(graph)), timed)


def of_mace(timed: Timed) -> Iterator[Row]:
    """Another network: what a prediction takes beside a small MACE."""
    for name in ("schnet", "nequip"):
        model = compiled(lnk(name))
        for n in (1, 32):
            seen, graph = batch("aspirin", n, 5.0), batch("aspirin", n, model.cutoff)
            mace = MACEPackage(seen, (1, 6, 8), 2.0 * seen.pair_index.shape[1] / seen.n_atoms)
            yield from both_ways(name, model, graph, f"{n} × aspirin", ("small MACE", mace), timed)


def both_ways(
    backbone: str,
    model: Potential,
    graph: AtomicGraph,
    what: str,
    other: tuple[str, Callable[[], object]],
    timed: Timed,
) -> Iterator[Row]:
    """Without and with force σ, beside another program, for which there is no goal."""
    for words, way in (("σ_E", "none"), ("σ_E + σ_F", "sampled")):
        predict = partial(model.predict, graph, forces_std=way, stress_std=False)
        seconds = timed({"ours": predict, "theirs": other[1]})
        yield Row(f"{backbone}, {what}: E + F + {words}", f"{other[0]}, E + F", None, seconds)


def of_replicas(timed: Timed) -> Iterator[Row]:
    """Langevin dynamics of 64 ethanols: ``sigmaff md`` with its files beside torch-sim, same network, no files."""
    model, start, n, steps = compiled(lnk("schnet")), ethanol(np.random.default_rng(0)), 64, 20
    calls: Calls = {
        "ours": partial(ours, model, start, 300.0, steps, n, guarded=False),
        "theirs": torch_sim_steps(model, start, 300.0, steps, n, TIME_STEP),
    }
    seconds = {name: values / steps for name, values in timed(calls).items()}
    yield Row(f"schnet, a step of {n} ethanols, sigmaff md", "torch-sim with the same network", None, seconds)


def of_threads(timed: Timed) -> Iterator[Row]:
    """Two threads over one."""
    models = {}
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        models[n_threads] = compiled(lnk("schnet", SchNetConfig(cutoff=5.0)))
    water = ase.io.read(Path(os.environ["SIGMAFF_DATA"]) / "water" / "deepmd_water_192.extxyz", 0).repeat(2)
    graphs = {"32 × ethanol": batch("ethanol", 32, 5.0), "water of 1,536 atoms": build_graph(water, 5.0)}
    for what, graph in graphs.items():
        for words, way in (("σ_E", "none"), ("σ_E + σ_F", "sampled")):
            calls: Calls = {}
            for name, n_threads in (("ours", 2), ("theirs", 1)):
                predict = partial(models[n_threads].predict, graph, forces_std=way, stress_std=False)
                calls[name] = partial(in_threads, n_threads, predict)
            seconds = timed(calls)
            yield Row(f"schnet within 5 Å, {what}: E + F + {words}, two threads", "one thread", None, seconds)
    torch.set_num_threads(1)


def in_threads(n_threads: int, call: Callable[[], object]) -> None:
    torch.set_num_threads(n_threads)
    call()


PARTS = {
    "schnet": of_schnet,
    "dimenet++": of_dimenet,
    "nequip": of_nequip,
    "sigma": of_sigma,
    "ensemble": of_ensemble,
    "steps": of_steps,
    "schnetpack": of_schnetpack,
    "mace": of_mace,
    "replicas": of_replicas,
    "threads": of_threads,
}


NEEDS = {
    "schnet": "torch_geometric",
    "dimenet++": "torch_geometric",
    "nequip": "nequip",
    "schnetpack": "schnetpack",
    "mace": "mace",
    "replicas": "torch_sim",
}
"""The other program of a part."""


def measured(name: str, timed: Timed) -> Iterator[Row]:
    """Rows of a part, if its other program is installed."""
    other = NEEDS.get(name)
    if other is not None and find_spec(other) is None:
        print(f"not measured: {name}; {other} is not installed")
        return
    yield from PARTS[name](timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--processor", action="store_true", help="its time instead of the clock's, for one thread beside other work"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write ratios to this file; rows that are not measured stay in it")
    parser.add_argument("--against", type=Path, help="committed ratios to compare with")
    options = parser.parse_args()
    prepare(options.threads)
    print(f"{describe_machine()}\n\n| | over | ms | ms of that | ratio, median (quartiles) | bar |")
    print("|---|---|---|---|---|---|")
    timed = partial(time_calls, n_rounds=options.rounds, clock=process_time if options.processor else perf_counter)
    rows = []
    for name in options.only:
        for row in measured(name, timed):
            rows.append(row)
            print(f"| {' | '.join(row.cells())} |", flush=True)
            if options.json is not None:
                write(row, options.json, options.threads)
    if options.against is not None:
        sys.exit(compare(rows, options.against, options.threads))


if __name__ == "__main__":
    main()
