"""What users pass to the functions of ``sigmaff.api``: settings and structures in several forms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ase import Atoms
from pydantic import BaseModel

from sigmaff.config import read_config
from sigmaff.data import DataSource, LabelledStructures, label_structures, read_structures

Config = TypeVar("Config", bound=BaseModel)
Structures: TypeAlias = Path | str | DataSource | Atoms | Sequence[Atoms] | LabelledStructures


def settings_of(
    kind: type[Config], config: Config | Mapping[str, Any] | Path | str, overrides: Sequence[str] = ()
) -> Config:
    """Validated settings, from an object, a mapping with the keys of the YAML file, or the path of such a file."""
    if isinstance(config, BaseModel):
        if not overrides:
            return config
        config = config.model_dump(mode="json")
    return read_config(kind, config if isinstance(config, Mapping) else Path(config), overrides)


def structures_of(structures: Structures, labels: tuple[str, ...] = ("energy", "forces")) -> LabelledStructures:
    """Labelled structures; every one has these labels."""
    found = source_of(structures, labels)
    return read_structures(found) if isinstance(found, DataSource) else found


def source_of(
    structures: Structures, labels: tuple[str, ...] = ("energy", "forces")
) -> LabelledStructures | DataSource:
    """The structures, or where to read them."""
    if isinstance(structures, LabelledStructures | DataSource):
        return structures
    if isinstance(structures, Path | str):
        return DataSource(path=Path(structures), labels=labels)
    return label_structures([structures] if isinstance(structures, Atoms) else structures, labels)


def spaced(structures: LabelledStructures, at_most: int | None) -> LabelledStructures:
    """Structures at equal distances in the order of the file, at most so many."""
    n = len(structures)
    if at_most is None or n <= at_most:
        return structures
    return structures.subset(n * index // at_most for index in range(at_most))
