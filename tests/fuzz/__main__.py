"""``python -m fuzz``: make mutants, run each, and tell what broke."""

import argparse
import gc
import json
import os
import sys
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import torch

from fuzz import commands, configs, data, models
from fuzz.mutant import Mutant
from fuzz.sandbox import SECONDS, Outcome, Trial, tried

KINDS: dict[str, ModuleType] = {"models": models, "data": data, "configs": configs, "commands": commands}
CORPUS = Path(__file__).parent / "corpus"
AT_WORK = 1
"""Seconds of the processor that a command has that may work for long."""
USED = (
    *("sigmaff.training.loop", "sigmaff.report", "sigmaff.audit", "sigmaff.learning", "sigmaff.runs.compare"),
    *("lightning_fabric", "scipy.stats", "distributed", "sigmaff.cli.watch"),
)
"""What commands import when they are called."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants of each kind")
    parser.add_argument("--seed", type=int, default=0, help="mutant n of a seed is always the same")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--keep", type=Path, help="folder for mutants that broke something")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a copy of this process would wait for the others
    figures = {}
    with TemporaryDirectory() as folder:
        for kind in options.kinds:
            figures[kind] = Fuzz(kind, options, Path(folder)).run()
            print(f"{kind}: {figures[kind]['verdicts']}, {figures[kind]['seconds']:.0f} s", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if any(found["broken"] for found in figures.values()) else 0


class Fuzz:
    """All trials of one kind."""

    def __init__(self, kind: str, options: argparse.Namespace, folder: Path) -> None:
        self.kind, self.options, self.folder = kind, options, folder
        self.module, self.corpus = KINDS[kind], sorted((CORPUS / kind).iterdir())

    def run(self) -> dict[str, Any]:
        began, broken = time.monotonic(), []
        verdicts, by_kind = Counter[str](), Counter[str]()
        together = 1 if self.module is commands else 500
        _warm_up(self.kind, self.folder)
        outcomes = tried(self.trial, len(self.corpus) + self.options.count, together=together)
        for index, outcome in enumerate(outcomes):
            is_known = index < len(self.corpus)
            verdicts["corpus" if is_known else outcome.verdict] += 1
            by_kind[f"{outcome.kind}: {outcome.verdict}"] += 1
            if outcome.broken is not None:
                broken.append(self.told(index, outcome))
                print(broken[-1], file=sys.stderr, flush=True)
        seconds = time.monotonic() - began
        return {
            "verdicts": dict(verdicts),
            "by_kind": dict(sorted(by_kind.items())),
            "broken": broken,
            "seconds": seconds,
        }

    def mutant(self, index: int) -> Mutant:
        number = self.options.first + index - len(self.corpus)
        found: Mutant = self.module.mutant(
            np.random.default_rng([self.options.seed, crc32(self.kind.encode()), number])
        )
        return found

    def trial(self, index: int) -> Trial:
        """A file of the corpus; after these, a mutant."""
        if index < len(self.corpus):
            path, kind, expected = self.corpus[index], "corpus", None
        else:
            mutant = self.mutant(index)
            path, kind, expected = self.folder / mutant.name, mutant.kind, mutant.expected
            path.unlink(missing_ok=True)
            path.write_bytes(mutant.content)
        may_be_long = self.module is commands and commands.is_long(path)
        return Trial(
            run=lambda: str(self.module.trial(path, expected)),
            kind=kind,
            size=path.stat().st_size,
            seconds=AT_WORK if may_be_long else SECONDS,
            may_be_long=may_be_long,
        )

    def told(self, index: int, outcome: Outcome) -> str:
        """What broke, for people; its file is kept."""
        if index < len(self.corpus):
            return f"corpus {self.corpus[index].name}: {outcome.broken}"
        number, mutant = self.options.first + index - len(self.corpus), self.mutant(index)
        if self.options.keep is not None:
            kept = self.options.keep / self.kind
            kept.mkdir(parents=True, exist_ok=True)
            stem, _, ending = mutant.name.rpartition(".")
            (kept / f"{stem}-{self.options.seed}-{number}.{ending}").write_bytes(mutant.content)
        return f"{self.kind} {number} of seed {self.options.seed} ({mutant.kind}, {mutant.name}): {outcome.broken}"


def _warm_up(kind: str, folder: Path) -> None:
    """Import what trials need, and make what they share, before this process is copied."""
    if kind == "models":
        for path in models.bases():
            models.base(path)
    if kind == "commands":
        commands.workspace()
        commands.parameters()
        for name in USED:
            import_module(name)
        place = Path.cwd()
        for text in ("check data.extxyz", "predict model.sigmaff in.extxyz out.extxyz"):
            (folder / "a.txt").write_text(text)
            commands.trial(folder / "a.txt")
        os.chdir(place)
    gc.collect()
    gc.freeze()


sys.exit(main())
