"""Batches of a data set of a million structures whose graphs are in files: time per batch, and memory.

python benchmarks/loading.py [--structures 1000000] [--batch 32] [--json loading.json]

The structures are ethanols, displaced at random, of a thousand kinds: what stays in memory is what ``GraphDataset``
holds. Files go to a temporary folder (2 GB for a million). Batches are drawn at random, first with all pages of files
on the disk alone, later with those that the system has kept. Anonymous memory is what the process needs; pages of files
are in memory as long as nobody else needs it.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from machine import describe_machine, prepare

from sigmaff.data import GraphDataset, LabelledStructures, dataset

ETHANOL = molecule("CH3CH2OH")


class Ethanols(Sequence[Any]):
    """Displaced molecules, or random forces, of one length: a thousand, again and again."""

    def __init__(self, n: int, *, forces: bool = False) -> None:
        values = np.random.default_rng(int(forces)).normal(scale=0.05, size=(1000, len(ETHANOL), 3))
        self.n = n
        self.kinds = [value if forces else Atoms(ETHANOL.numbers, ETHANOL.positions + value) for value in values]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return self.kinds[index % len(self.kinds)]


def megabytes() -> dict[str, float]:
    """Resident memory of this process by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("RssAnon", "RssFile"))}
    return {name: round(int(value) / 1024, 1) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32, help="structures per batch")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--cutoff", type=float, default=5.0, help="Å")
    parser.add_argument("--in-memory", action="store_true", help="hold the graphs in memory, for comparison")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    prepare()
    dataset.MAX_ATOMS = 10**12 if arguments.in_memory else 0
    n = arguments.structures
    structures = LabelledStructures(
        structures=Ethanols(n),  # type: ignore[arg-type]
        energy=np.zeros(n),
        forces=Ethanols(n, forces=True),  # type: ignore[arg-type]
        source="ethanols",
        frame_index=np.arange(n),
    )
    found: dict[str, Any] = {"machine": describe_machine(), "structures": n, "before": megabytes()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SIGMAFF_CACHE"] = folder
        began = time.process_time()
        data = GraphDataset(structures, arguments.cutoff)
        found |= {"build_seconds": round(time.process_time() - began, 1), "built": megabytes()}
        began = time.process_time()
        data = GraphDataset(structures, arguments.cutoff)
        found |= {"again_seconds": round(time.process_time() - began, 1), "bytes": _size(Path(folder))}
        forget(Path(folder))
        found |= {"pairs": int(data.n_pairs.sum()), "milliseconds_per_batch": {}}
        for name in ("from disk", "the same again"):
            found["milliseconds_per_batch"][name] = quartiles(data, arguments.batch, arguments.batches)
        found["after"] = megabytes()
    print(json.dumps(found, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def quartiles(data: GraphDataset, batch_size: int, n_batches: int) -> list[float]:
    """Milliseconds of random batches."""
    generator, seconds = torch.Generator().manual_seed(0), []
    for _ in range(n_batches):
        chosen = torch.randint(len(data), (batch_size,), generator=generator)
        began = time.perf_counter()
        data.batch(chosen)
        seconds.append(time.perf_counter() - began)
    return (1e3 * np.percentile(seconds, [25, 50, 75])).round(3).tolist()


def forget(folder: Path) -> None:
    """Let the system forget the pages of files that it keeps in memory."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
