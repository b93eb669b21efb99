"""What a mutator makes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A file: how it was made, its name, and what it must say if it is accepted (``None``: anything)."""

    kind: str
    name: str
    content: bytes
    expected: Any = None
