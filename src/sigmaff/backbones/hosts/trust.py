"""Files with programs that the user has said to trust: by content, in a list that belongs to the user.

A model file may refer to such a file. Whoever made the model cannot vouch for it: the user's own list must have it.
"""

import os
from pathlib import Path

from sigmaff.errors import ConfigError
from sigmaff.files import file_digest, naming


def trusted_list() -> Path:
    """``sigmaff/trusted`` in the folder of the user's settings: a SHA-256 and a path on each line."""
    settings = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(settings) / "sigmaff" / "trusted"


def is_trusted(sha256: str) -> bool:
    try:
        lines = trusted_list().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return False
    return any(line.split(maxsplit=1)[:1] == [sha256] for line in lines)


def trust_file(path: Path, *, name: Path | None = None) -> str:
    """Add a file to the list, and return its SHA-256.

    Arguments:
        path: of the file.
        name: that it will have, if another one.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    sha256, known = file_digest(path), trusted_list()
    if not is_trusted(sha256):
        known.parent.mkdir(parents=True, exist_ok=True)
        with naming(known), known.open("a+", encoding="utf-8", errors="replace") as file:
            file.seek(0)
            is_cut = not f"\n{file.read()}".endswith("\n")  # by a kill or a full disk
            file.write("\n" * is_cut + f"{sha256}  {(name or path).resolve()}\n")
    return sha256
