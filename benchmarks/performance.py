"""Compiled models beside other programs: ratios of times, alternately in one run; one JSON, one table.

pip install --constraint constraints.txt -e '.[benchmarks]'
python benchmarks/performance.py [--rounds 30] [--only schnet nequip ...] [--json FILE] [--against FILE]

Networks have the paper's sizes and were never fitted: the same operations on other numbers. Ours are exported and
called as users call them (``model.predict`` on a graph); of others energies and forces are timed, on the same edges.
Compiled models are kept in the user's cache. ``--against`` compares with committed ratios and
fails where one is 1.3 times larger.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from machine import describe_machine, prepare, progress
from peers import NequIPPackage, PygDimeNetPP, PygSchNet
from sigma_cost import BACKBONES, ethanol, potential
from torch import Tensor

import sigmaff as sf
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Ensemble, Potential
from sigmaff.timing import time_calls

Calls = dict[str, Callable[[], object]]
REGRESSION = 1.3
"""Of a ratio over the committed one, from which on it is slower; machines are noisy."""


class Row:
    """A ratio of times: what is divided by what, and what it should not exceed."""

    def __init__(self, name: str, over: str, bar: float | None, seconds: dict[str, np.ndarray]) -> None:
        self.name, self.over, self.bar = name, over, bar
        ours, theirs = seconds["ours"], seconds["theirs"]
        self.ours, self.theirs = float(np.median(ours)), float(np.median(theirs))
        self.low, self.ratio, self.high = map(float, np.quantile(ours / theirs, (0.25, 0.5, 0.75)))

    def cells(self) -> list[str]:
        bar = "" if self.bar is None else f"{self.bar:g}"
        times = [f"{1e3 * self.ours:.2f}", f"{1e3 * self.theirs:.2f}"]
        return [self.name, self.over, *times, f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})", bar]


def aspirin(random: np.random.Generator) -> Atoms:
    path = Path(os.environ["SIGMAFF_DATA"]) / "rmd17" / "rmd17_aspirin.npz"
    with np.load(path) as archive:
        frame = int(random.integers(len(archive["coords"])))
        return Atoms(archive["nuclear_charges"], archive["coords"][frame])


MOLECULES = {"ethanol": ethanol, "aspirin": aspirin}


def batch(molecule: str, n_structures: int, cutoff: float) -> AtomicGraph:
    random = np.random.default_rng(0)
    return batch_graphs([build_graph(MOLECULES[molecule](random), cutoff) for _ in range(n_structures)])


def compiled(model: Potential) -> Potential:
    with progress() as terminal:
        found = sf.compiled(model, listener=terminal)
    assert isinstance(found, Potential)
    assert found.program is not None
    return found


def lnk(backbone: str, molecule: str = "aspirin") -> Potential:
    graph = batch(molecule, 4, BACKBONES[backbone].cutoff)
    model = potential(graph, LNKConfig(), BACKBONES[backbone])
    with torch.no_grad():
        model.head.unseen.prior.fill_(4.0)
        model.head.unseen.reach.fill_(5.0)
    return model


def forces_of(peer: Callable[[Tensor], Tensor], graph: AtomicGraph) -> Callable[[], object]:
    def call() -> object:
        positions = graph.positions.detach().float().requires_grad_()
        return torch.autograd.grad(peer(positions).sum(), positions)

    return call


def beside_peers(backbone: str, cases: list[tuple[str, int, float, float | None]], n_rounds: int) -> Iterator[Row]:
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
                seconds = time_calls({"ours": ours, "theirs": theirs}, n_rounds)
                yield Row(f"{backbone}, {n} × {molecule}: E + F + {words}", over, limit, seconds)


def of_schnet(n_rounds: int) -> Iterator[Row]:
    yield from beside_peers(
        "schnet", [("ethanol", 1, 0.17, 0.45), ("ethanol", 32, 0.25, 0.70), ("aspirin", 32, 0.25, 0.70)], n_rounds
    )


def of_dimenet(n_rounds: int) -> Iterator[Row]:
    yield from beside_peers("dimenet++", [("aspirin", 1, 0.35, None), ("aspirin", 32, 0.35, None)], n_rounds)


def of_nequip(n_rounds: int) -> Iterator[Row]:
    yield from beside_peers("nequip", [("aspirin", 1, 0.5, 2.0), ("aspirin", 32, 0.5, 2.0)], n_rounds)


def of_sigma(n_rounds: int) -> Iterator[Row]:
    """σ of energies, and five networks, both compiled."""
    model = compiled(lnk("schnet"))
    some = batch("aspirin", 4, model.cutoff)
    alone = compiled(potential(some, DeterministicConfig(), BACKBONES["schnet"]))
    members = []
    for seed in range(5):
        torch.manual_seed(seed)
        member = potential(some, DeterministicConfig(), BACKBONES["schnet"])
        members.append(member)
    ensemble = Ensemble(members)
    ensemble.compile()
    for n in (1, 8, 32):
        graph = batch("ethanol", n, model.cutoff)
        energy = partial(model.predict, graph, forces_std="none")
        if n != 8:
            seconds = time_calls({"ours": energy, "theirs": partial(alone.predict, graph, forces_std="none")}, n_rounds)
            yield Row(f"schnet, {n} × ethanol: E + F + σ_E", "the same without σ, compiled", 1.05, seconds)
        five = partial(ensemble.predict, graph)
        seconds = time_calls({"ours": energy, "theirs": five}, n_rounds)
        yield Row(f"schnet, {n} × ethanol: E + F + σ_E", "five networks, compiled", 0.3, seconds)
        every = partial(model.predict, graph, forces_std="sampled")
        seconds = time_calls({"ours": every, "theirs": five}, n_rounds)
        yield Row(f"schnet, {n} × ethanol: E + F + σ_E + σ_F", "five networks, compiled", 0.6, seconds)


def of_steps(n_rounds: int) -> Iterator[Row]:
    """A step of molecular dynamics through ASE."""
    eager, fast = lnk("schnet"), compiled(lnk("schnet"))
    calls: Calls = {}
    for name, model in (("ours", fast), ("theirs", eager)):
        atoms = ethanol(np.random.default_rng(0))
        atoms.calc = sf.Calculator(model, forces_uncertainty="none", warn_above=None)
        dynamics = VelocityVerlet(atoms, 1e-3 * units.fs)
        calls[name] = partial(dynamics.run, 10)
    seconds = {name: values / 10 for name, values in time_calls(calls, n_rounds).items()}
    yield Row("schnet, ethanol: a step of MD through ASE, E + F + σ_E", "the same, not exported", 0.15, seconds)


PARTS = {"schnet": of_schnet, "dimenet++": of_dimenet, "nequip": of_nequip, "sigma": of_sigma, "steps": of_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write ratios to this file; rows that are not measured stay in it")
    parser.add_argument("--against", type=Path, help="committed ratios to compare with")
    options = parser.parse_args()
    prepare(options.threads)
    print(f"{describe_machine()}\n\n| | over | ms | ms of that | ratio, median (quartiles) | bar |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name in options.only:
        for row in PARTS[name](options.rounds):
            rows.append(row)
            print(f"| {' | '.join(row.cells())} |", flush=True)
            if options.json is not None:
                write(row, options.json, options.threads)
    if options.against is not None:
        sys.exit(compare(rows, options.against, options.threads))


def write(row: Row, path: Path, n_threads: int) -> None:
    """Add a row to a file, or replace it."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    rows[f"{row.name} / {row.over}, {n_threads} thread(s)"] = vars(row)
    path.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1, ensure_ascii=False) + "\n")


def compare(rows: list[Row], path: Path, n_threads: int) -> int:
    """Print rows that are slower than committed ones; their number."""
    committed, slower = json.loads(path.read_text())["rows"], 0
    for row in rows:
        before = committed.get(f"{row.name} / {row.over}, {n_threads} thread(s)")
        if before is not None and row.ratio > REGRESSION * before["ratio"]:
            slower += 1
            print(f"slower: {row.name} / {row.over}: {row.ratio:.3f}, was {before['ratio']:.3f}")
    return slower


if __name__ == "__main__":
    main()
