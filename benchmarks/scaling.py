"""Time and peak memory of a prediction over the number of atoms: periodic water, 192 to 12,288 atoms.

python benchmarks/scaling.py [--backbones schnet nequip] [--json scaling.json]

SIGMAFF_DATA is the folder that holds water/deepmd_water_192.extxyz. Every prediction runs in a process of its own: CPU
seconds of the second of two predictions, and the peak of resident memory beyond what the process holds before it. The
networks have their default sizes and random weights, and an LNK head solved on a few frames. The exponent is the slope
of log(time) or log(memory) over log(atoms) by least squares, from 1,536 atoms on also.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from machine import describe_machine, prepare

import sigmaff as sf
from sigmaff.backbones import BackboneConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DataSource, GraphDataset, compute_statistics, read_structures
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.solve import solve_head

CONFIGS: dict[str, BackboneConfig] = {"schnet": SchNetConfig(cutoff=5.0), "nequip": NequIPConfig()}
REPEATS = {192: (1, 1, 1), 384: (1, 1, 2), 768: (1, 2, 2), 1536: (2, 2, 2), 3072: (2, 2, 4), 6144: (2, 4, 4)}
REPEATS[12288] = (4, 4, 4)
WAYS = {"E + F + σ_E": "none", "with σ_F": "sampled"}


def water_file() -> Path:
    return Path(os.environ["SIGMAFF_DATA"]) / "water" / "deepmd_water_192.extxyz"


def make_model(config: BackboneConfig, path: Path) -> None:
    torch.manual_seed(0)
    frames = read_structures(DataSource(path=water_file()))
    train, held_out = (
        GraphDataset(frames.subset(part), config.cutoff) for part in (range(0, 60, 10), range(5, 35, 10))
    )
    base = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), compute_statistics(train))
    potential, _ = solve_head(base, LNKConfig(), train, held_out)
    sf.save(potential, path, force=True)


def predict_once(path: Path, n_atoms: int, forces_std: str) -> dict[str, float]:
    """In this process: run alone."""
    model = sf.load(path)
    atoms = ase.io.read(water_file(), 0).repeat(REPEATS[n_atoms])
    graph = build_graph(atoms, model.cutoff, model.dtype)
    small = build_graph(atoms[:3], model.cutoff, model.dtype)
    model.predict(small, forces_std=forces_std, stress_std=False)
    before = resident()
    model.predict(graph, forces_std=forces_std, stress_std=False)
    began = time.process_time()
    model.predict(graph, forces_std=forces_std, stress_std=False)
    seconds = time.process_time() - began
    megabytes = (resident("VmHWM") - before) / 1024
    return {"n_pairs": graph.pair_index.shape[1], "seconds": seconds, "megabytes": megabytes}


def resident(kind: str = "VmRSS") -> int:
    """Kilobytes of this process, now; the peak so far begins anew here unless it is asked for."""
    if kind == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")  # so says Linux
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def exponent(rows: list[dict[str, Any]], key: str, at_least: int = 0) -> float:
    chosen = [(row["n_atoms"], row[key]) for row in rows if row["n_atoms"] >= at_least]
    atoms, values = np.log(np.array(chosen).T)
    return float(np.polyfit(atoms, values, 1)[0])


def measure(name: str, model: Path, way: str, sizes: list[int]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for n_atoms in sizes:
        command = [sys.executable, __file__, "--one", str(model), str(n_atoms), WAYS[way]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{name}, {way}, {n_atoms} atoms: {done.stderr.strip()[-300:]}", flush=True)
            break
        row = {"n_atoms": n_atoms, **json.loads(done.stdout)}
        rows.append(row)
        print(f"| {name} | {way} | {n_atoms} | {row['seconds']:.3f} | {row['megabytes']:.0f} |", flush=True)
    slopes = {f"{key} exponent": round(exponent(rows, key), 3) for key in ("seconds", "megabytes")}
    late = {f"{key} exponent from 1536": round(exponent(rows, key, 1536), 3) for key in ("seconds", "megabytes")}
    print(f"{name}, {way}: {slopes}, {late}", flush=True)
    return {"backbone": name, "way": way, "rows": rows, **slopes, **late}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        prepare(1)
        print(json.dumps(predict_once(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=list(REPEATS), default=[192, 768, 1536, 3072, 12288])
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    print(f"{describe_machine()}\n\n| backbone | prediction | atoms | CPU (s) | memory (MB) |\n|---|---|---|---|---|")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.backbones:
            model = Path(folder) / f"{name}.sigmaff"
            make_model(CONFIGS[name], model)
            found += [measure(name, model, way, arguments.sizes) for way in WAYS]
            if arguments.json is not None:
                result = {"machine": describe_machine(), "found": found}
                arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
