"""What tells a whole model file from a damaged one: a digest, keys that appear once, settings that are all there."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sigmaff.files import digest
from sigmaff.heads.base import Head

SEAL = re.compile(r',"sha256":"([0-9a-f]{64})"}\Z')


def sealed(description: str, tensors: Mapping[str, Tensor]) -> str:
    """A JSON object with a last key: the SHA-256 of its text and of tensors with their names, types and shapes."""
    return f'{description[:-1]},"sha256":"{_digest(description, tensors)}"}}'


def opened(text: str) -> tuple[str, str | None]:
    """What ``sealed`` was given, and its digest; ``None`` if there is none."""
    found = SEAL.search(text)
    return (text, None) if found is None else (text[: found.start()] + "}", found[1])


def is_whole(description: str, tensors: Mapping[str, Tensor], seal: str | None) -> bool:
    """Whether this is what the seal was made for."""
    return seal == _digest(description, tensors)


def _digest(description: str, tensors: Mapping[str, Tensor]) -> str:
    def parts() -> Iterator[bytes]:
        yield description.encode()
        for name in sorted(tensors):
            tensor = tensors[name]
            yield f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode()
            yield tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()

    return digest(parts())


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ, as ``object_pairs_hook``; a repeated one raises a ``ValueError``."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return content


def unnamed(content: Any, complete: Any, prefix: str = "") -> list[str]:
    """Settings by dotted name that a complete description has and this one does not."""
    if isinstance(complete, list) and isinstance(content, list):
        content, complete = dict(enumerate(content)), dict(enumerate(complete))
    if not isinstance(complete, dict) or not isinstance(content, dict):
        return []
    return [
        found
        for name, value in complete.items()
        for found in (unnamed(content[name], value, f"{prefix}{name}.") if name in content else [f"{prefix}{name}"])
    ]


def find_damage(head: Head) -> str | None:
    """What makes a head unusable whose tensors all have the right form; ``None`` if nothing does."""
    if damage := head.find_damage():
        return damage
    try:
        with head.prepared():
            return None
    except torch.linalg.LinAlgError:
        return "a covariance of its Gaussian process is not positive definite"
