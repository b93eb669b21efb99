"""Mutants of configuration files of every command that reads one."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from campaign_case import SETTINGS
from cli_case import TINY
from fuzz.edits import NUMBERS, TEXTS, Rng, any_bytes, any_text, edited, pick
from fuzz.mutant import Mutant
from sigmaff.config import print_defaults, read_config
from sigmaff.learning import CampaignConfig
from sigmaff.runs.config import RunConfig
from sigmaff.simulation.md import MDConfig

CLASSES: dict[str, type[BaseModel]] = {
    "train": RunConfig,
    "compare": RunConfig,
    "learn": CampaignConfig,
    "md": MDConfig,
}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
SNIPPETS = (
    *("&a [*a]", "{a: &b {c: *b}}", "2024-02-30", "2024-01-01T00:00:00Z", '!!int "abc"', '!!float "x"', "!!set {a, b}"),
    *("!!python/object/apply:os.system [touch x]", "!!binary aGVsbG8=", "!!timestamp 2024-02-30", "!!null x", "!x y"),
    *(
        "9" * 5000,
        "0x" + "f" * 5000,
        "1" + ":59" * 60,
        "[" * 3000,
        "{a: " * 3000,
        "${NOT_SET}",
        "$",
        "? [a]\n: b",
        "<<: 1",
    ),
    *(
        "<<: {a: 1}",
        "<<: [1]",
        "=",
        "~",
        "? {a: b}\n: c",
        "!!omap [a: 1]",
        "!!pairs [a]",
        "*unknown",
        "%TAG",
        "---\n---",
        "| \n",
    ),
)


def trial(path: Path, expected: None = None) -> str:
    """Read a file as the command does that begins its name, with a value that replaces one of it."""
    read_config(CLASSES[path.name.split("-")[0]], path)
    return "accepted"


def mutant(rng: Rng) -> Mutant:
    command = pick(rng, list(CLASSES))
    change = pick(rng, (_tree, _tree, _text, _text, _snippet, _bytes))
    content = change(rng, good(command, bool(rng.integers(2))))
    return Mutant(kind=change.__name__.strip("_"), name=f"{command}-a.yaml", content=content)


@cache
def good(command: str, is_complete: bool) -> str:
    """A file with the settings that a user writes, or with all that there are."""
    if is_complete:
        return print_defaults(CLASSES[command])
    known: dict[str, Any] = {"learn": SETTINGS, "md": {"temperature": [300.0], "steps": 10, "stop_above": 0.5}}
    return str(yaml.safe_dump(known.get(command, TINY)))


def _tree(rng: Rng, text: str) -> bytes:
    changed = edited(rng, yaml.safe_load(text), n=int(rng.integers(1, 4)))
    return yaml.safe_dump(changed, allow_unicode=True).encode()


def _text(rng: Rng, text: str) -> bytes:
    for _ in range(int(rng.integers(1, 4))):
        text = any_text(rng, text)
    return text.encode("utf-8", "replace")


def _snippet(rng: Rng, text: str) -> bytes:
    """A value or a line becomes something that YAML knows and no configuration holds."""
    lines = text.splitlines()
    row = int(rng.integers(len(lines)))
    new = str(pick(rng, (*SNIPPETS, *SNIPPETS, pick(rng, NUMBERS), pick(rng, TEXTS))))
    key, _, _ = lines[row].partition(":")
    lines[row] = pick(rng, (f"{key}: {new}", f"{key}: {new}", new, f"{lines[row]}\n{new}", f"{new}: 1"))
    return ("\n".join(lines) + "\n" if rng.random() < 0.97 else BOMB).encode()


def _bytes(rng: Rng, text: str) -> bytes:
    return any_bytes(rng, text.encode())
