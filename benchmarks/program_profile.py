"""Where the time of a compiled prediction goes: the longest operations of a program, by torch's profiler.

python benchmarks/program_profile.py [--backbone schnet] [--head lnk] [--structures 1 32] [--forces-std]

The program is compiled for this, with names of its loops; it goes to a temporary folder. A loop is named after the
operations that the compiler joined in it.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
from machine import describe_machine, prepare, progress
from rows import MOLECULES, batch, lnk
from sigma_cost import BACKBONES, potential
from torch.profiler import ProfilerActivity, profile

import sigmaff as sf
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Model


def compiled(backbone: str, head: str, *, forces_std: bool) -> Model:
    """With names of loops."""
    from torch._inductor import config

    model = lnk(backbone)
    if head == "deterministic":
        model = potential(batch("aspirin", 4, model.cutoff), DeterministicConfig(), BACKBONES[backbone])
    with tempfile.TemporaryDirectory() as folder, progress() as terminal:
        path = Path(folder) / "profiled.pt2"
        with config.patch({"cpp.enable_kernel_profile": True, "cpp.descriptive_names": "original_aten"}):
            sf.export(model, path, forces_std=forces_std, listener=terminal)
        return sf.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", choices=list(BACKBONES), default="schnet")
    parser.add_argument("--head", choices=("lnk", "deterministic"), default="lnk")
    parser.add_argument("--molecule", choices=list(MOLECULES), default="ethanol")
    parser.add_argument("--structures", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--forces-std", action="store_true", help="with sampled σ of forces")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    prepare()
    model = compiled(options.backbone, options.head, forces_std=options.forces_std)
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
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events) / repeats
    print(f"\n{name}: {total:.0f} µs of a call, by the processor\n\n| | calls | µs | % |\n|---|---|---|---|")
    for event in events[:n_rows]:
        micros = event.self_cpu_time_total / repeats
        print(f"| {event.key[:90]} | {event.count / repeats:g} | {micros:.0f} | {100 * micros / total:.1f} |")


if __name__ == "__main__":
    main()
