"""How the commands read data files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from typer.core import TyperCommand

from sigmaff.cli.options import config_command
from sigmaff.config import Settings

if TYPE_CHECKING:
    from sigmaff.data import DataSource, LabelledStructures
    from sigmaff.models import Model


OWN_UNIT = "default: the unit that the data files or their format state"


class Reading(Settings):
    """The reading options of a command. ``None``: as the file or its format says."""

    format: str = Field("auto", description="format of the data files; auto: by file extension")
    energy_unit: str | None = Field(None, description=f"eV, kcal/mol, kJ/mol, Hartree, ...; {OWN_UNIT}")
    length_unit: str | None = Field(None, description=f"Angstrom, Bohr or nm; {OWN_UNIT}")
    energy_key: str | None = Field(None, description="name of the energy in the files; default: energy, REF_energy")
    forces_key: str | None = Field(None, description="name of the forces in the files; default: forces, REF_forces")
    energies_only: bool = Field(False, description="accept data files without forces")

    def source(self, path: Path, labels: tuple[str, ...] | None = None) -> "DataSource":
        """A data file; ``labels``: required of every structure, ``None``: energy, and forces unless energies_only."""
        from sigmaff.config import validated
        from sigmaff.data import DataSource

        required = ("energy",) if self.energies_only else ("energy", "forces")
        content: dict[str, Any] = self.model_dump(exclude={"energies_only"})
        return validated(
            DataSource, content | {"path": path, "labels": required if labels is None else labels}, str(path)
        )


def reading_command(*only: str) -> type[TyperCommand]:
    """A command class with the reading options; their values are in ``context.obj``."""
    return config_command(lambda: Reading, only or None)


def warn_of_leakage(
    model: "Model", structures: "LabelledStructures", warn: Callable[[str], None], name: str = "the model"
) -> None:
    """Warn if a model was trained on structures that it is about to be tested on."""
    from sigmaff.evaluation.datasets import leaked_structures

    if n_leaked := leaked_structures(model, structures):
        text = f"{name} was trained on {n_leaked} of these {len(structures)} structures: errors will look too small"
        warn(f"{structures.source}: {text}")
