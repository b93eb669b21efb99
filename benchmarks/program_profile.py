"""Where the time of a compiled prediction goes: the longest operations of a program, by torch's profiler.

python benchmarks/program_profile.py [--backbone schnet] [--head lnk] [--structures 1 32] [--forces-std]

The program is compiled for this, with names of its loops: a loop is named after the operations that the compiler
joined in it.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, prepare, progress
from rows import MOLECULES, batch, lnk
from sigma_cost import BACKBONES, potential
from torch.profiler import ProfilerActivity, profile

import sigmaff as sf
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Model


def compiled(backbone: str, head: str, path: Path, *, forces_std: bool) -> Model:
    """With names of loops."""
    from torch._inductor import config

    if path.exists():
        return sf.load(path)

    model = lnk(backbone)
    if head == "deterministic":
        model = potential(batch("aspirin", 4, model.cutoff), DeterministicConfig(), BACKBONES[backbone])
    with progress() as terminal, config.patch({"cpp.enable_kernel_profile": True}):
        sf.export(model, path, forces_std=forces_std, listener=terminal)
    return sf.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", choices=list(BACKBONES), default="schnet")
    parser.add_argument("--head", choices=("lnk", "deterministic"), default="lnk")
    parser.add_argument("--molecule", choices=list(MOLECULES), default="ethanol")
    parser.add_argument("--structures", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--forces-std", action="store_true", help="with sampled σ of forces")
    parser.add_argument("--artefact", type=Path, help="where the program is kept, for the next time")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        path = options.artefact or Path(folder) / "profiled.pt2"
        model = compiled(options.backbone, options.head, path, forces_std=options.forces_std)
    print(describe_machine())
    for n_structures in options.structures:
        graph = batch(options.molecule, n_structures, model.cutoff)
        way = "sampled" if options.forces_std else "none"
        predict = partial(model.predict, graph, forces_std=way, stress_std=False)
        predict()
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(options.repeats):
                predict()
        print_longest(found, f"{n_structures} × {options.molecule}", options.repeats, options.rows)


def print_longest(found: torch.profiler.profile, name: str, repeats: int, n_rows: int) -> None:
    """Sums over the operations of a call of their median times: other work of the machine makes some of them long."""
    times: dict[str, list[float]] = {}
    for event in sorted(found.events(), key=lambda event: event.time_range.start):
        times.setdefault(event.name, []).append(event.self_cpu_time_total)
    micros = {key: of_a_call(np.array(values), repeats) for key, values in times.items()}
    total = sum(micros.values())
    print(f"\n{name}: {total:.0f} µs of a call\n\n| | calls | µs | % |\n|---|---|---|---|")
    for key in sorted(micros, key=lambda key: -micros[key])[:n_rows]:
        calls = len(times[key]) / repeats
        print(f"| {key[:100]} | {calls:g} | {micros[key]:.0f} | {100 * micros[key] / total:.1f} |")


def of_a_call(times: np.ndarray, repeats: int) -> float:
    """The n-th operation of one name has the same size in every call; others of that name may be larger."""
    if len(times) % repeats:
        return float(times.sum()) / repeats
    return float(np.median(times.reshape(repeats, -1), axis=0).sum())


if __name__ == "__main__":
    main()
