"""Mutants of command lines, in a folder as a user has it: known commands and options, right and wrong values."""

import os
import shlex
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin

import ase.io
import yaml
from typer.main import get_command
from typer.testing import CliRunner

import sigmaff
from campaign_case import SETTINGS
from cli_case import TINY, bare_frames, morse_frames
from fuzz.edits import Rng, pick
from fuzz.models import KEPT
from fuzz.mutant import Mutant
from fuzz.sandbox import BrokenPromiseError
from sigmaff.cli.main import COMMANDS, app, load_command

LONG = {
    "train",
    "compare",
    "learn",
    "demo",
    "md",
    "guard",
    "relax",
    "adopt",
    "audit",
    "evaluate",
    "report",
    "watch",
    "init",
}
"""Commands that work for as long as they are told to."""
FILES = {
    "model": ("model.sigmaff", "plain.sigmaff"),
    "models": ("model.sigmaff", "plain.sigmaff"),
    "config": ("run.yaml", "campaign.yaml"),
    "run": ("finished/run", "."),
    "source": ("plain.sigmaff", "host.pt", "mace:x"),
    "command": ("train", "learn", "md"),
}
FOLDER = (
    *("model.sigmaff", "plain.sigmaff", "data.extxyz", "in.extxyz", "run.yaml", "campaign.yaml", "empty", "text.txt"),
    *(
        "finished",
        "missing.extxyz",
        "missing/x",
        ".",
        "/dev/null",
        "",
        "finished/run/model.sigmaff",
        "out.extxyz",
        "out",
    ),
)
WORDS = (
    *(
        "cpu",
        "meta",
        "cuda",
        "cuda:99",
        "mps",
        "xla",
        "cpu:7",
        "",
        "x",
        "auto",
        "none",
        "all",
        "lnk",
        "schnet",
        "energy",
    ),
    *(
        "eV",
        "kcal/mol",
        "Bohr",
        "extxyz",
        "qm7x",
        "gfn2-xtb",
        "os:getcwd",
        "nowhere:x",
        "math:pi",
        "a=b",
        "training.max_epochs=1",
    ),
    *(
        "training.max_epochs=x",
        "model.head={name: deterministic}",
        "model.head={",
        "data=1",
        "=",
        "output=2024-02-30",
        "\x1b[2J",
    ),
)
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "1e-300",
    "1e300",
    "nan",
    "inf",
    "-inf",
    "x",
    "",
    "9" * 30,
    "300",
    "1e5",
    "0x10",
)
QUICK = {
    "md": ("--steps", "2"),
    "guard": ("--steps", "2", "--pilots", "1"),
    "relax": ("--steps", "2"),
    "audit": ("--quick",),
}


def is_long(path: Path) -> bool:
    return bool(LONG & set(shlex.split(path.read_text())[:1]))


def trial(path: Path, expected: None = None) -> str:
    """Run the command in a copy of the folder: it ends with 0, 1 or 2, and says why in one line."""
    arguments = shlex.split(path.read_text())
    with TemporaryDirectory() as place:
        folder = shutil.copytree(workspace(), Path(place) / "folder")
        os.chdir(folder)
        result = CliRunner().invoke(app, arguments)
        os.chdir("/")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code not in (0, 1, 2) or "Traceback" in result.output:
        raise BrokenPromiseError(f"exit code {result.exit_code}: {result.output[-500:]}")
    if result.exit_code == 1 and not result.output.strip():
        raise BrokenPromiseError("an error without a word")
    return {0: "accepted", 1: "refused", 2: "refused"}[result.exit_code]


def mutant(rng: Rng) -> Mutant:
    name = pick(rng, list(parameters()))
    text = shlex.join([name, *(part.replace("\0", "") for part in _arguments(rng, name))])
    return Mutant(kind=name, name="a.txt", content=text.encode("utf-8", "replace"))


def _arguments(rng: Rng, name: str) -> list[str]:
    found: list[str] = list(QUICK.get(name, ())) if rng.random() < 0.9 else []
    positional = [item for item in parameters()[name] if not item.opts[0].startswith("-")]
    options = [item for item in parameters()[name] if item.opts[0].startswith("-") and item.name != "help"]
    for item in positional:
        if rng.random() < 0.95:
            right = FILES.get(item.name, ("data.extxyz", "in.extxyz") if item.name != "output" else ("out.extxyz",))
            found.append(pick(rng, right) if rng.random() < 0.85 else pick(rng, FOLDER))
    for _ in range(int(rng.integers(4))):
        if options:
            option = pick(rng, options)
            found.append(pick(rng, [*option.opts, *option.secondary_opts]))
            if not option.is_flag:
                found.append(_value(rng, option.type_descriptor.annotation))
    if rng.random() < 0.05:
        found.insert(int(rng.integers(len(found) + 1)), pick(rng, ("--help", "--", "-x", "--version", "", "extra")))
    return found


def _value(rng: Rng, kind: Any) -> str:
    if rng.random() < 0.15:
        return str(pick(rng, pick(rng, (NUMBERS, WORDS, FOLDER))))
    if get_origin(kind) is Literal and rng.random() < 0.9:
        return str(pick(rng, get_args(kind)))
    while get_args(kind) and get_origin(kind) is not Literal:
        kind = get_args(kind)[0]
    return str(pick(rng, FOLDER if kind is Path else NUMBERS if kind in (int, float) else WORDS))


@cache
def parameters() -> dict[str, Sequence[Any]]:
    """What each command takes."""
    context = get_command(app).make_context("sigmaff", ["check"], resilient_parsing=True)
    return {name: load_command(name).get_params(context) for name in COMMANDS}


@cache
def workspace() -> Path:
    """The folder; it goes with the process that made it."""
    folder = Path(_kept().name)
    sigmaff.save(sigmaff.load(KEPT / "lnk.sigmaff"), folder / "model.sigmaff")
    sigmaff.save(sigmaff.load(KEPT / "backbone.sigmaff"), folder / "plain.sigmaff")
    ase.io.write(folder / "data.extxyz", morse_frames(30, seed=1))
    ase.io.write(folder / "in.extxyz", bare_frames())
    split = {"source": "data.extxyz", "split": {"n_train": 20, "n_validation": 6}}
    run = TINY | {"data": split, "training": TINY["training"] | {"max_epochs": 1}}
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    (folder / "campaign.yaml").write_text(yaml.safe_dump(SETTINGS | {"engine": {"calculator": "gfn2-xtb"}}))
    (folder / "empty").touch()
    (folder / "text.txt").write_text("Dear reader,\n")
    (folder / "host.pt").write_bytes(b"PK\x03\x04 nothing")
    shutil.copytree(KEPT.parent / "finished" / "train", folder / "finished")
    return folder


@cache
def _kept() -> Any:
    return TemporaryDirectory()
