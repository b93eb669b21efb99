"""The machine that benchmarks run on, and the start of each of them."""

import platform
from datetime import date
from pathlib import Path

import torch
from rich.console import Console

from sigmaff.allocator import keep_large_blocks
from sigmaff.cli.progress import Terminal


def prepare(n_threads: int = 1) -> None:
    """Set the threads of torch and the memory allocator, as the program does."""
    torch.set_num_threads(n_threads)
    keep_large_blocks()


def progress() -> Terminal:
    """Return progress on stderr, to use in a ``with`` block: tables go to stdout."""
    return Terminal(Console(stderr=True))


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
