"""``python -m fuzz``: make mutants, run each, and tell what broke."""

import argparse
import gc
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from zlib import crc32

import numpy as np

from fuzz import commands, configs, data, models
from fuzz.mutant import Mutant
from fuzz.sandbox import SECONDS, Outcome, tried

KINDS: dict[str, ModuleType] = {"models": models, "data": data, "configs": configs, "commands": commands}
CORPUS = Path(__file__).parent / "corpus"
SHARES = {"commands": 0.25}
"""Of the count: the kinds that take longer."""
AT_WORK = 2
"""Seconds of the processor that a command has that may work for long."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants of each kind; a quarter of it of commands")
    parser.add_argument("--seed", type=int, default=0, help="mutant n of a seed is always the same")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--keep", type=Path, help="folder for mutants that broke something")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    figures = {}
    for kind in options.kinds:
        figures[kind] = _run(kind, options)
        print(f"{kind}: {figures[kind]['verdicts']}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if any(found["broken"] for found in figures.values()) else 0


def _run(kind: str, options: argparse.Namespace) -> dict[str, object]:
    module, broken = KINDS[kind], []
    verdicts, by_kind = Counter[str](), Counter[str]()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        _warm_up(kind, Path(folder))
        for path in sorted((CORPUS / kind).glob("*")):
            outcome = _tried(module, path, None)
            verdicts["corpus"] += 1
            if outcome.broken is not None:
                broken.append(f"corpus {path.name}: {outcome.broken}")
        for number in range(options.first, options.first + int(options.count * SHARES.get(kind, 1.0))):
            rng = np.random.default_rng([options.seed, crc32(kind.encode()), number])
            mutant: Mutant = module.mutant(rng)
            path = Path(folder) / mutant.name
            path.write_bytes(mutant.content)
            outcome = _tried(module, path, mutant.expected)
            verdicts[outcome.verdict] += 1
            by_kind[f"{mutant.kind}: {outcome.verdict}"] += 1
            if outcome.broken is not None:
                broken.append(
                    f"{kind} {number} of seed {options.seed} ({mutant.kind}, {mutant.name}): {outcome.broken}"
                )
                print(broken[-1], file=sys.stderr, flush=True)
                if options.keep is not None:
                    kept = options.keep / kind
                    kept.mkdir(parents=True, exist_ok=True)
                    (kept / f"{path.stem}-{options.seed}-{number}{path.suffix}").write_bytes(mutant.content)
            for left in Path(folder).iterdir():
                left.unlink()
    seconds = time.monotonic() - began
    return {"verdicts": dict(verdicts), "by_kind": dict(sorted(by_kind.items())), "broken": broken, "seconds": seconds}


def _tried(module: ModuleType, path: Path, expected: object) -> Outcome:
    may_be_long = module is commands and commands.is_long(path)
    return tried(
        lambda: module.trial(path, expected),
        path.stat().st_size,
        seconds=AT_WORK if may_be_long else SECONDS,
        may_be_long=may_be_long,
    )


def _warm_up(kind: str, folder: Path) -> None:
    """Import what trials need, and make what they share, before this process is copied."""
    if kind == "commands":
        commands.workspace()
        place = Path.cwd()
        for text in ("check data.extxyz", "predict model.sigmaff in.extxyz out.extxyz", "train run.yaml", "learn x"):
            path = folder / "a.txt"
            path.write_text(text)
            commands.trial(path)
            path.unlink()
        os.chdir(place)
    gc.collect()
    gc.freeze()


sys.exit(main())
