"""What users pass to the functions of ``sigmaff.api``: settings and structures in several forms."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ase import Atoms
from pydantic import BaseModel

from sigmaff.backbones import AdoptConfig
from sigmaff.backbones.hosts.trust import is_trusted, trust_file
from sigmaff.config import read_config
from sigmaff.data import DataSource, GraphDataset, LabelledStructures, label_structures, read_structures
from sigmaff.data.check.gate import require_sound
from sigmaff.data.labelling import EngineConfig
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import datasets
from sigmaff.files import file_digest
from sigmaff.models import Model, PotentialConfig
from sigmaff.progress import Listener

Config = TypeVar("Config", bound=BaseModel)
Structures: TypeAlias = Path | str | DataSource | Atoms | Sequence[Atoms] | LabelledStructures


def settings_of(
    kind: type[Config],
    config: Config | Mapping[str, Any] | Path | str,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
) -> Config:
    """Validated settings, from an object, a mapping with the keys of the YAML file, or the path of such a file.

    Arguments:
        kind: the config class.
        config: an object or a mapping is the caller's own; a file may be somebody else's.
        overrides: texts ``section.key=value`` that replace values of the file.
        values: values by ``section.key`` that replace both; ``None`` replaces nothing.
        trust: import the programs that a file names, and remember the file by its content.
    """
    if isinstance(config, BaseModel):
        if not overrides:
            return config
        config = config.model_dump(mode="json")
    if isinstance(config, Mapping):
        return read_config(kind, config, overrides, values)
    settings = read_config(kind, Path(config), overrides, values)
    _require_trust(Path(config), settings, overrides, trust=trust)
    return settings


def _require_trust(path: Path, settings: BaseModel, typed: Sequence[str], *, trust: bool) -> None:
    """A file that names programs is refused, unless the user trusts it or has typed the names."""
    named = [name for name, key in _programs(settings) if not any(key in text for text in typed)]
    if not named:
        return
    if trust:
        trust_file(path)
    elif not is_trusted(file_digest(path)):
        raise ConfigError(
            f"{path}: {', '.join(named)} is a program, and this file would run it; if you trust whoever wrote both, "
            f"say so: --trust, or trust=True, or sigmaff trust {path}"
        )


def _programs(settings: BaseModel) -> Iterator[tuple[str, str]]:
    """Programs that settings name, each with the text that a user types who means it."""
    for value in vars(settings).values():
        if isinstance(value, EngineConfig) and value.is_factory:
            yield value.calculator, value.calculator
        if isinstance(value, PotentialConfig) and isinstance(value.backbone, AdoptConfig) and value.backbone.trust:
            yield value.backbone.adopt, "model.backbone.trust="


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


def dataset_of(model: Model, structures: Structures, listener: Listener, *, skip_checks: bool = False) -> GraphDataset:
    """Labelled structures as graphs, checked, with a warning if the model was trained on some of them."""
    found = structures_of(structures)
    if not skip_checks:
        require_sound(found, listener)
    dataset = datasets.dataset_for(model, found)
    warn_of_leakage(model, found, listener)
    return dataset


def warn_of_leakage(model: Model, structures: LabelledStructures, listener: Listener, name: str = "the model") -> None:
    if n_leaked := datasets.leaked_structures(model, structures):
        text = f"{name} was trained on {n_leaked} of these {len(structures)} structures: errors will look too small"
        listener.warn(f"{structures.source}: {text}")


def audited_structures(
    model: Model | None, structures: Structures | None, name: str, max_data: int | None
) -> tuple[LabelledStructures, LabelledStructures | None]:
    """Structures, and labels: those given, or the test set of the model, or its training set without labels."""
    if structures is not None:
        given = spaced(structures_of(structures), max_data)
        return given, given
    if model is None:
        raise DataError(f"{name}: missing structures to audit it on; give some with --data (structures=...)")
    try:
        test = spaced(datasets.recorded_structures(model, "test"), max_data)
        return test, test
    except DataError:
        pass
    try:
        return datasets.recorded_structures(model, "train", labelled=False), None
    except DataError as error:
        raise DataError(f"{name}: {error}; give some with --data (structures=...)") from None
