"""What a folder holds, without times: two runs of a command are compared by it, bit by bit."""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from safetensors import SafetensorError, safe_open

from sigmaff.files import TEMPORARY

TIMES = re.compile(r"(.*_)?(seconds(_per_structure)?|milliseconds|date|sha256|digest)")
"""Keys and columns of what differs from run to run; the digest of a model file covers its times too."""
NUMBERS = re.compile(r"\d[\d.,e+-]*(\s(µs|ms|s|min|h)\b)?")
"""In pages; a time has the unit that reads best."""


def contents(folder: Path) -> dict[str, Any]:
    """The content of each file by its path, hidden ones and leftovers included."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return {str(path.relative_to(folder)): _readable(path) for path in paths}


def same_states(states: Path) -> list[list[Path]]:
    """Folders in groups of equal files and folders within; names of temporary files, which are random, may differ."""
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for folder in sorted(states.iterdir(), key=lambda path: (int(path.name.split()[-1]), path.name.startswith("half"))):
        key = tuple(sorted((_lasting(path.relative_to(folder)), _digest(path)) for path in folder.rglob("*")))
        groups.setdefault(key, []).append(folder)
    return list(groups.values())


def _lasting(path: Path) -> str:
    return str(path.with_name(".sigmaff-temporary") if TEMPORARY.fullmatch(path.name) else path)


def _digest(path: Path) -> str:
    return "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is missing, left over or other."""
    missing = [f"{name} is missing" for name in expected if name not in found]
    left = [f"{name} is left over" for name in found if name not in expected]
    other = [
        f"{name} differs at {place}"
        for name in expected
        if name in found and (place := _first_difference(found[name], expected[name])) is not None
    ]
    return missing + left + other


def _first_difference(one: Any, two: Any, place: str = "") -> str | None:
    """Where two contents differ; ``None``: nowhere."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        pairs = [(f"{place}/{key}", one[key], two[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        pairs = [(f"{place}/{number}", *values) for number, values in enumerate(zip(one, two, strict=True))]
    else:
        return None if one == two else place or "/"
    return next((found for name, *both in pairs if (found := _first_difference(*both, name)) is not None), None)


def _readable(path: Path) -> Any:
    """The content of a file; of one that is cut, that it is damaged."""
    try:
        return _content(path)
    except (ValueError, EOFError, BadZipFile, SafetensorError):
        return "damaged"


def _content(path: Path) -> Any:
    if path.suffix in (".sigmaff", ".safetensors"):
        return _tensors(path)
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text()))
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [_without_times(row) for row in csv.DictReader(file)]
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name].tobytes() for name in file.files if not TIMES.fullmatch(name)}
    if path.suffix == ".pt2":
        with ZipFile(path) as archive:
            parts = {each.filename: each.CRC for each in archive.infolist()}
        return {name: value for name, value in parts.items() if not name.endswith("model.sigmaff")}  # has times
    if path.name == "trusted":  # digests of artefacts, which have times too; a kill may leave one of none
        return sorted({line.split(maxsplit=1)[1] for line in path.read_text().splitlines() if "  " in line})
    if path.suffix in (".html", ".md", ".svg"):  # which show times among other numbers
        return NUMBERS.sub("0", path.read_text())
    if path.suffix == ".png":
        return path.read_bytes()[-8:]  # it is whole
    return _digest(path)


def _tensors(path: Path) -> Any:
    with safe_open(path, framework="np") as file:
        metadata = {name: _without_times(_parsed(text)) for name, text in (file.metadata() or {}).items()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return metadata, {name: (value.dtype.str, value.shape, value.tobytes()) for name, value in tensors.items()}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_times(value) for key, value in content.items() if not TIMES.fullmatch(key)}
    return [_without_times(value) for value in content] if isinstance(content, list) else content
