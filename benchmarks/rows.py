"""Rows of the benchmark of speed: a ratio of times each, in one JSON; and the models and molecules that they time."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from machine import describe_machine, progress
from sigma_cost import BACKBONES, ethanol, potential
from torch import Tensor

import sigmaff as sf
from sigmaff.backbones import BackboneConfig
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import LNKConfig
from sigmaff.models import Potential

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
    """The same with a program for as many threads as torch has now, from the cache of this user."""
    with progress() as terminal:
        found = sf.compiled(model, listener=terminal)
    assert isinstance(found, Potential)
    assert found.program is not None
    return found


def lnk(backbone: str, config: BackboneConfig | None = None) -> Potential:
    """A potential of H, C and O with σ, as if it knew most surroundings; config: another size of the backbone."""
    config = config or BACKBONES[backbone]
    model = potential(batch("aspirin", 4, config.cutoff), LNKConfig(), config)
    with torch.no_grad():
        model.head.unseen.prior.fill_(4.0)
        model.head.unseen.reach.fill_(5.0)
    return model


def forces_of(peer: Callable[[Tensor], Tensor], graph: AtomicGraph) -> Callable[[], object]:
    def call() -> object:
        positions = graph.positions.detach().float().requires_grad_()
        return torch.autograd.grad(peer(positions).sum(), positions)

    return call


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
