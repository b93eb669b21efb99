"""How the commands read data files."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sigmaff.data import DataSource


class Reading(NamedTuple):
    """The reading options that commands share; ``None`` leaves a choice to the file's layout."""

    format: str = "auto"
    energy_unit: str | None = None
    length_unit: str | None = None
    energy_key: str | None = None
    forces_key: str | None = None

    def source(self, path: Path, labels: tuple[str, ...] = ("energy", "forces")) -> "DataSource":
        from sigmaff.config import validated
        from sigmaff.data import DataSource

        return validated(DataSource, {"path": path, "labels": labels, **self._asdict()}, str(path))
