"""``python -m storm``: strike every long command, and tell what was lost."""

import argparse
import gc
import json
import os
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np
import torch
from typer.testing import CliRunner

from sigmaff.cli.main import app
from storm.commands import COMMANDS, make_folder, make_small
from storm.here import without_dask
from storm.storms import KINDS, Outcome, Storms, Trial

SHARES = {"kills": 0.1, "cuts": 1.0, "full": 1.0, "signals": 0.1, "rivals": 1.0, "small_disks": 1.0}
"""Of what can be struck."""


class Ledger:
    """What was tried before and what it showed, in a file of lines, so that a stop loses one trial."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.outcomes = {tuple(key): Outcome(**outcome) for key, outcome in map(json.loads, lines)}

    def outcome(self, *key: str, of: Trial) -> Outcome:
        """Of a trial, which is run if it is new."""
        if (*key, of.name) not in self.outcomes:
            self.outcomes[(*key, of.name)] = found = of.run()
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([(*key, of.name), asdict(found)]) + "\n")
        return self.outcomes[(*key, of.name)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m storm", description=__doc__)
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    for kind, share in SHARES.items():
        parser.add_argument(
            f"--{kind.replace('_', '-')}", type=float, default=share, help=f"share of {kind}, drawn at random; 1: all"
        )
    parser.add_argument("--count", type=int, default=30, help="kills and signals at random times, of each command")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--dask", action="store_true", help="with real workers; else they are in the same process")
    parser.add_argument("--ledger", type=Path, help="write each trial to this file, and run none that it holds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    figures: dict[str, dict[str, Any]] = {}
    ledger = Ledger(options.ledger)
    with TemporaryDirectory() as folder:
        _prepare(Path(folder), options)
        for name in options.commands:
            figures[name] = _struck(name, Path(folder), options, ledger)
            if options.json is not None:
                options.json.write_text(json.dumps(figures, indent=1))
    return 1 if any(found["broken"] for found in figures.values()) else 0


def _struck(name: str, folder: Path, options: argparse.Namespace, ledger: Ledger) -> dict[str, Any]:
    """All storms of a command."""
    storms = Storms(name, COMMANDS[name], folder / "template", folder / "work")
    found: dict[str, Any] = {"operations": dict(Counter(storms.unbroken.kinds)), "broken": []}
    for kind in KINDS:
        rng = np.random.default_rng([options.seed, crc32(name.encode()), crc32(kind.encode())])
        if (share := getattr(options, kind)) > 0:
            trials = KINDS[kind](storms, share, rng)
            found[kind] = _counted(name, kind, trials, ledger, found["broken"])
    trials = storms.random([options.seed, crc32(name.encode())])
    found["random"] = _counted(name, "random", trials, ledger, found["broken"], enough=options.count)
    return found


def _counted(
    name: str, kind: str, trials: Iterable[Trial], ledger: Ledger, broken: list[str], enough: float = inf
) -> dict[str, int]:
    """Trials, how often they struck, how often of these a worker, and how many broke something; enough: strikes."""
    began, counts = time.monotonic(), Counter(trials=0, struck=0, workers=0, broken=0)
    for trial in trials:
        if counts["struck"] >= enough:
            break
        outcome = ledger.outcome(name, kind, of=trial)
        is_broken = outcome.broken is not None
        counts.update(trials=1, struck=int(outcome.struck), workers=outcome.workers, broken=int(is_broken))
        if outcome.broken is not None:
            broken.append(f"{name}, {trial.name}: {outcome.broken}")
            print(broken[-1], file=sys.stderr, flush=True)
    print(f"{name}, {kind}: {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    return dict(counts)


def _prepare(folder: Path, options: argparse.Namespace) -> None:
    """Import what commands need, and make what they share, before this process is copied."""
    torch.set_num_threads(1)
    make_small()
    if not options.dask:
        without_dask()
    make_folder(folder / "template")
    shutil.copytree(folder / "template", folder / "warm")
    place = Path.cwd()
    os.chdir(folder / "warm")
    for name in options.commands:
        if not (options.dask and COMMANDS[name].with_dask):
            CliRunner().invoke(app, list(COMMANDS[name].arguments))
    os.chdir(place)
    gc.collect()
    gc.freeze()


sys.exit(main())
