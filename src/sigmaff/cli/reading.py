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
    energies_only: bool = False

    def source(self, path: Path, labels: tuple[str, ...] | None = None) -> "DataSource":
        """A file of which every structure must have the labels: energy and forces, unless told otherwise."""
        from sigmaff.config import validated
        from sigmaff.data import DataSource

        options = self._asdict()
        required = ("energy",) if options.pop("energies_only") else ("energy", "forces")
        return validated(
            DataSource, {"path": path, "labels": required if labels is None else labels} | options, str(path)
        )
