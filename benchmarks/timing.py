"""Timing of things against each other: alternately, in one process, so that noise of the machine hits all alike."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import torch


def alternate(things: Mapping[str, Callable[[], object]], *, rounds: int = 30, warm_up: int = 3) -> dict[str, float]:
    """Median seconds of each thing, all of them run once in every round."""
    for _ in range(warm_up):
        for thing in things.values():
            thing()
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, thing in things.items():
            start = time.perf_counter()
            thing()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def describe_machine() -> str:
    """What the figures were measured on, and when."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return (
        f"{model}, {torch.get_num_threads()} thread(s), Python {platform.python_version()}, "
        f"torch {torch.__version__}, {date.today().isoformat()}"
    )
