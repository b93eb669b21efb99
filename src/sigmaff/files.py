"""Writing files whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sigmaff.errors import SigmaffError


def refuse_overwrite(path: Path, force: bool) -> None:
    """An existing file is replaced only when that was asked for."""
    if path.exists() and not force:
        raise SigmaffError(f"{path} exists; use --force (force=True) to replace it, or another name")


@contextmanager
def written_whole(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to, moved into place only when the block ends without an error."""
    refuse_overwrite(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any, *, force: bool = False) -> None:
    with written_whole(path, force=force) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
