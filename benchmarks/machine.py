"""The machine that benchmarks run on."""

import platform
from datetime import date
from pathlib import Path

import torch


def describe_machine() -> str:
    """Return the processor, threads, versions and date of a measurement."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return (
        f"{model}, {torch.get_num_threads()} thread(s), Python {platform.python_version()}, "
        f"torch {torch.__version__}, {date.today().isoformat()}"
    )
