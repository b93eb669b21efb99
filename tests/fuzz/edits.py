"""Random changes of bytes, texts, trees of values and arrays."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Rng = np.random.Generator

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 100, 0.5, -0.5, 1e-300, 1e-30, 1e-7, 1e7, 1e30, 1e300, 1e308, -1e30, 2**31, 2**63, 2**64),
    *(10**30, 10**9, 99999999, float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.5),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, "", "x", "auto", "none", "1", "1e5", "nan", "\x1b[2J", "\0", "σ" * 50, "a" * 5000),
    *([], {}, [None], [1, 2], {"name": "x"}, {"name": "lnk"}, {"": 1}, [[[]]]),
)
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "nan",
    "inf",
    "1e300",
    "1e-300",
    "9" * 400,
    "x",
    "T",
    "F",
    "é",
    "\0",
    "\x1b[2J",
    '"',
    "'",
    "\t",
)


def pick(rng: Rng, values: Any) -> Any:
    """One of some values, as it is."""
    return values[int(rng.integers(len(values)))]


def any_value(rng: Rng) -> Any:
    return pick(rng, NUMBERS) if rng.random() < 0.6 else pick(rng, OTHERS)


# Bytes


def flipped(rng: Rng, content: bytes, low: int = 0, high: int | None = None, n: int | None = None) -> bytes:
    """With one to four bits changed between two places."""
    changed = bytearray(content)
    high = len(content) if high is None else high
    for place in rng.choice(np.arange(low, high), size=min(n or int(rng.integers(1, 5)), high - low), replace=False):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def spliced(rng: Rng, content: bytes, other: bytes | None = None) -> bytes:
    """With a part of itself or of another in another place: instead of what is there, or between."""
    other = content if other is None else other
    length = int(rng.integers(1, max(2, min(len(other), int(2 ** rng.uniform(0, 13))))))
    begin, place = int(rng.integers(len(other) - length + 1)), int(rng.integers(len(content)))
    end = place + length * int(rng.integers(2))
    return content[:place] + other[begin : begin + length] + content[end:]


def cut(rng: Rng, content: bytes) -> bytes:
    """Shorter at its end or in the middle, or longer."""
    place = int(rng.integers(len(content)))
    match int(rng.integers(4)):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + content[place + int(rng.integers(1, 500)) :]
        case 2:
            return content + bytes(rng.integers(256, size=int(rng.integers(1, 100)), dtype=np.uint8))
        case _:
            return content[:place] + bytes(int(rng.integers(1, 100))) + content[place:]


def any_bytes(rng: Rng, content: bytes) -> bytes:
    return pick(rng, (flipped, spliced, cut))(rng, content)


# Texts


def any_text(rng: Rng, text: str) -> str:
    """With a word, a line or a character changed, repeated, moved or left out."""
    lines = text.splitlines(keepends=True)
    row = int(rng.integers(len(lines)))
    words = lines[row].split(" ")
    word, other = int(rng.integers(len(words))), int(rng.integers(len(lines)))
    match int(rng.integers(8)):
        case 0:
            words[word] = str(pick(rng, NUMBERS))
        case 1:
            words[word] = pick(rng, TEXTS)
        case 2:
            del words[word]
        case 3:
            words.insert(word, words[int(rng.integers(len(words)))])
        case 4:
            lines[row], lines[other] = lines[other], lines[row]
            return "".join(lines)
        case 5:
            return "".join([*lines[:row], lines[other], *lines[row:]])
        case 6:
            return "".join(lines[:row] + lines[row + 1 :])
        case _:
            place = int(rng.integers(len(text)))
            return text[:place] + pick(rng, TEXTS) + text[place + int(rng.integers(2)) :]
    lines[row] = " ".join(words)
    return "".join(lines)


# Trees of dicts and lists, as JSON and YAML have them


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values below a tree."""
    found = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in found:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def edited(rng: Rng, tree: Any, *, n: int = 1) -> Any:
    """A copy with some values changed, moved, removed or added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(n):
        if not (paths := list(places(tree))):
            return tree
        path = paths[int(rng.integers(len(paths)))]
        holder, key = at(tree, path[:-1]), path[-1]
        value = holder[key]
        match int(rng.integers(7)):
            case 0:
                del holder[key]
            case 1:
                holder[key] = json.loads(json.dumps(at(tree, paths[int(rng.integers(len(paths)))])))
            case 2 if isinstance(value, bool | int | float):
                holder[key] = pick(rng, (-value, value + 1, value * 1000, value / 3, [value], str(value)))
            case 3 if isinstance(holder, dict):
                holder[str(pick(rng, TEXTS))] = any_value(rng)
            case 4 if isinstance(value, list):
                holder[key] = value * int(rng.integers(4)) + [any_value(rng)]
            case _:
                holder[key] = any_value(rng)
    return tree


# Arrays


def _one(rng: Rng, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if changed.size:
        changed.flat[int(rng.integers(changed.size))] = pick(rng, [n for n in NUMBERS if abs(n) < 2**31 or n != int(n)])
    return changed


SHAPES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda array: array.T,
    lambda array: array[None],
    lambda array: array[:0],
    lambda array: array[:-1],
    lambda array: array.reshape(-1),
    lambda array: array.reshape(-1)[:1].reshape(()),
    lambda array: np.concatenate([array, array]),
    lambda array: array[..., :-1],
)
TYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "bool",
    "complex128",
    "S8",
    "U4",
    "V4",
)
VALUES: tuple[float, ...] = (0.0, -1.0, 1e5, 1e9, 1e30, 1e300, 1e-30, 0.999, float("nan"), float("inf"))


def any_array(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Of another shape, of another type, or with other values; as it is where that cannot be."""
    kind = int(rng.integers(5))
    with np.errstate(all="ignore"):
        try:
            if kind == 0:
                return np.ascontiguousarray(pick(rng, SHAPES)(array))
            if kind == 1:
                return array.astype(pick(rng, TYPES))
            if kind == 2:
                return (array * pick(rng, VALUES)).astype(array.dtype)
            if kind == 3:
                return rng.permutation(array.reshape(-1)).reshape(array.shape)
            return _one(rng, array)
        except (ValueError, TypeError, IndexError, OverflowError):
            return array
