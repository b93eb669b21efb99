"""Long runs under watch: memory, open files, threads and results of the program itself.

sigmaff export model.sigmaff model.pt2
python benchmarks/soak.py md model.pt2 ethanol.extxyz runs/soak_md [--steps 1000000] [--replicas 16]
python benchmarks/soak.py campaign examples/campaign_ethanol.yaml runs/soak_campaign [--rounds 20] [--kills 40]

``md``: replicas of a relaxed structure at constant energy, 600 K at the start and so about 300 K, with force σ every
100 steps; drift is that of the total energy. ``campaign``: active learning whose workers, and now and then the command
itself, are killed at random times; a killed command is started again. Every few seconds the memory of the command
(anonymous pages), its open files, threads and processes are read from /proc. Run the same command again to go on where
it was interrupted. Prints one JSON object.
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import describe_machine

PERIOD = 2.0  # s between looks
BETWEEN_KILLS = 15.0  # s, on average
MAX_ERRORS = 3
"""Starts of a campaign that may end with an error: it gives a task up that was killed twice."""
WARM_UP = 0.1
"""Share of a run that is left out of the growth of memory: caches and buffers fill."""


@dataclass(frozen=True)
class Look:
    """A process at one time; with ``workers``, those that it started."""

    seconds: float
    memory: float  # MB
    files: int
    threads: int
    workers: int


def look(pid: int, began: float) -> Look:
    own = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    return Look(
        seconds=round(time.monotonic() - began, 1),
        memory=round(int(status["RssAnon"].split()[0]) / 1024, 2),
        files=len(list((own / "fd").iterdir())),
        threads=int(status["Threads"]),
        workers=len(list(descendants(pid))),
    )


def descendants(pid: int) -> Iterator[int]:
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            try:
                yield from descendants(child)
            except FileNotFoundError:
                continue


def watched(process: subprocess.Popen[bytes], looks: list[Look], began: float) -> int:
    """Look at a process until it ends: its exit code."""
    while process.poll() is None:
        try:
            looks.append(look(process.pid, began))
        except (FileNotFoundError, ProcessLookupError, KeyError):
            break
        time.sleep(PERIOD)
    return process.wait()


def summary(looks: list[Look]) -> dict[str, float]:
    """Growth of memory as the slope of a line over the whole run but its begin, over the mean.

    What is held between the parts of the work is the least of each tenth; its growth is from the first to the last.
    """
    settled = looks[int(WARM_UP * len(looks)) :]
    seconds, memory = np.array([[each.seconds, each.memory] for each in settled]).T
    slope = np.polyfit(seconds, memory, 1)[0] if len(settled) > 2 else 0.0
    held = [float(part.min()) for part in np.array_split(memory, 10)]
    return {
        "memory, MB": round(float(memory.mean()), 1),
        "memory in each tenth, MB": [round(float(part.mean()), 1) for part in np.array_split(memory, 10)],
        "least in each tenth, MB": [round(least, 1) for least in held],
        "growth of the least, %": round(100 * (held[-1] / held[0] - 1), 2),
        "growth, %": round(100 * float(slope * (seconds[-1] - seconds[0]) / memory.mean()), 2),
        "open files, fewest and most": [min(each.files for each in settled), max(each.files for each in settled)],
        "threads, fewest and most": [min(each.threads for each in settled), max(each.threads for each in settled)],
        "looks": len(looks),
    }


def command(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).with_name("sigmaff")), *map(str, arguments)]


def soak_md(model: Path, start: Path, folder: Path, steps: int, replicas: int) -> dict[str, object]:
    options = {"ensemble": "nve", "temperature": 600, "steps": steps, "replicas": replicas, "every": 1000}
    options |= {"check-every": 100, "drift-every": 1000, "checkpoint-every": 10_000, "output": folder}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    looks, began = [], time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        process = subprocess.Popen(command("md", model, start, *words), stdout=log, stderr=log)
        code = watched(process, looks, began)
    replicas_found = trajectories(folder / "log.csv")
    return {
        "exit code": code,
        "hours": round((time.monotonic() - began) / 3600, 3),
        "steps of each replica": [int(max(own["step"])) for own in replicas_found],
        **drift(replicas_found),
        **summary(looks),
    }


def trajectories(log: Path) -> list[dict[str, np.ndarray]]:
    """Columns of the log of each replica."""
    with log.open(newline="", encoding="utf-8") as file:
        rows = [{name: float(text or "nan") for name, text in row.items()} for row in csv.DictReader(file)]
    numbers = sorted({row["replica"] for row in rows})
    each = ([row for row in rows if row["replica"] == number] for number in numbers)
    return [{name: np.array([row[name] for row in own]) for name in own[0]} for own in each]


def drift(replicas: list[dict[str, np.ndarray]]) -> dict[str, object]:
    """Of the total energy of a molecule: least squares of each replica, mean and standard error over them."""
    slopes = [1e3 * np.polyfit(own["time_fs"] / 1e6, own["total_energy"], 1)[0] for own in replicas]
    error = float(np.std(slopes, ddof=1) / len(slopes) ** 0.5) if len(slopes) > 1 else float("nan")
    return {"drift of a replica, meV/ns, mean and standard error": [round(float(np.mean(slopes)), 3), round(error, 3)]}


def soak_campaign(
    config: Path, folder: Path, changes: list[str], rounds: int, kills: int, seed: int, unbroken: Path | None
) -> dict[str, object]:
    settings = [*changes, f"stop.max_rounds={rounds}", "stop.max_labels=null", "stop.share_above=null"]
    words = ["--output", folder, *(word for each in settings for word in ("--set", each))]
    looks, began, chance = [], time.monotonic(), random.Random(seed)
    killed = {"workers": 0, "command": 0}
    starts, errors, code = 0, 0, -1
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        while code != 0 and errors <= MAX_ERRORS:
            starts += 1
            process = subprocess.Popen(command("learn", config, *words), stdout=log, stderr=log)
            while process.poll() is None:
                time.sleep(PERIOD)
                try:
                    looks.append(look(process.pid, began))
                except (FileNotFoundError, ProcessLookupError, KeyError):
                    break
                if sum(killed.values()) < kills and chance.random() < PERIOD / BETWEEN_KILLS:
                    _kill_one(process.pid, chance, killed)
            code = process.wait()
            errors += code == 1
    return {
        "exit code": code,
        "ended with an error": errors,
        "hours": round((time.monotonic() - began) / 3600, 3),
        "rounds": len(list((folder / "rounds").glob("*/model.sigmaff"))) - 1,
        "killed": killed,
        "starts of the command": starts,
        "same data set as the unbroken campaign": unbroken and same(folder, unbroken),
        "left behind": [path.name for path in folder.rglob(".*") if path.is_file()],
        **summary(looks),
    }


def same(folder: Path, other: Path) -> bool:
    """Whether two campaigns labelled the same structures, to the last bit."""
    return (folder / "dataset.extxyz").read_bytes() == (other / "dataset.extxyz").read_bytes()


def _kill_one(pid: int, chance: random.Random, killed: dict[str, int]) -> None:
    workers = [child for child in descendants(pid) if "resource_tracker" not in _words(child)]
    who = "command" if not workers or chance.random() < 0.1 else "workers"
    try:
        os.kill(pid if who == "command" else chance.choice(workers), signal.SIGKILL)
        killed[who] += 1
    except ProcessLookupError:
        return


def _words(pid: int) -> str:
    """The command of a process; Python's own, which tracks resources, is no worker."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text()
    except FileNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    md = kinds.add_parser("md")
    md.add_argument("model", type=Path)
    md.add_argument("start", type=Path)
    md.add_argument("folder", type=Path)
    md.add_argument("--steps", type=int, default=1_000_000)
    md.add_argument("--replicas", type=int, default=16)
    campaign = kinds.add_parser("campaign")
    campaign.add_argument("config", type=Path)
    campaign.add_argument("folder", type=Path)
    campaign.add_argument("--set", dest="changes", action="append", default=[], help="section.key=value (repeatable)")
    campaign.add_argument("--rounds", type=int, default=20)
    campaign.add_argument("--kills", type=int, default=40)
    campaign.add_argument("--seed", type=int, default=0)
    campaign.add_argument("--against", type=Path, help="folder of the same campaign with --kills 0")
    given = parser.parse_args()
    given.folder.parent.mkdir(parents=True, exist_ok=True)
    if given.kind == "md":
        found = soak_md(given.model, given.start, given.folder, given.steps, given.replicas)
    else:
        how_often = (given.rounds, given.kills, given.seed)
        found = soak_campaign(given.config, given.folder, given.changes, *how_often, given.against)
    print(json.dumps({"machine": describe_machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
