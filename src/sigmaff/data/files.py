"""The data files of a run: one or several to learn from, and files of their own for validation and test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from sigmaff.config import Settings
from sigmaff.data.overlap import overlapping
from sigmaff.data.read import read_structures
from sigmaff.data.source import DataSource
from sigmaff.data.splits import Split, SplitConfig, split_structures
from sigmaff.data.structures import LABELS, NO_GROUP, IndexArray, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.files import digest, file_digest

SHOWN = 3
"""Most names of files in a message."""
PART_NAMES = {"train": "training", "validation": "validation"}
ONE, SEVERAL = "[one]", "[several]"
"""Tags of a union; error messages leave out names in brackets."""

Sources = Annotated[
    Annotated[DataSource, Tag(ONE)] | Annotated[tuple[DataSource, ...], Tag(SEVERAL), Field(min_length=1)],
    Discriminator(lambda value: SEVERAL if isinstance(value, list | tuple) else ONE),
]
"""A data file, or a list of them."""


class DataFiles(Settings):
    """Files of labelled structures."""

    source: Sources = Field(
        description="the labelled structures: a path, or a path and how to read it, or a list of these"
    )
    validation: Sources | None = Field(
        None, description="files of validation structures; null: they are taken from source"
    )
    test: Sources | None = Field(None, description="files of test structures; null: they are taken from source")
    unwritten: ClassVar[Mapping[str, Any]] = {"validation": None, "test": None}
    """Values that are not written, as versions without these settings did not."""

    @model_serializer(mode="wrap")
    def _without_unwritten(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if (key, value) not in self.unwritten.items()}

    @property
    def parts(self) -> dict[str, tuple[DataSource, ...]]:
        """Files by what they are for: source, validation, test."""
        found = {name: getattr(self, name) for name in ("source", "validation", "test")}
        several = {name: (each,) if isinstance(each, DataSource) else each for name, each in found.items()}
        return {name: each for name, each in several.items() if each is not None}

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """All files, in the order in which their structures are counted."""
        return tuple(source for part in self.parts.values() for source in part)

    def digest(self) -> str | None:
        """SHA-256 of the file, or of the digests of several; ``None`` if one does not exist."""
        if not all(source.path.is_file() for source in self.sources):
            return None
        found = [file_digest(source.path) for source in self.sources]
        return found[0] if len(found) == 1 else digest(each.encode() for each in found)

    def changed(self, change: Callable[[DataSource], DataSource]) -> Self:
        """The same with each file read in another way."""
        parts = {name: tuple(change(source) for source in part) for name, part in self.parts.items()}
        return self.model_copy(update={name: part[0] if len(part) == 1 else part for name, part in parts.items()})


Parts = Mapping[str, LabelledStructures]
"""Structures by what their files are for: source, validation, test."""


def read_parts(files: DataFiles) -> dict[str, LabelledStructures]:
    """Read all files. Each has the energies and forces that the first has."""
    found = {name: [read_structures(source) for source in part] for name, part in files.parts.items()}
    first = found["source"][0]
    for each in (structures for part in found.values() for structures in part):
        for label in ("energy", "forces"):
            if (label in first.labels) != (label in each.labels):
                having, lacking = (first, each) if label in first.labels else (each, first)
                raise DataError(
                    f"{lacking.source} has no {label}, and {having.source} has: files of one run need the same labels. "
                    f"Add them, or test the model on that file afterwards with 'sigmaff evaluate'"
                )
    return {name: join_structures(part) for name, part in found.items()}


def join_structures(parts: Sequence[LabelledStructures]) -> LabelledStructures:
    """Structures of several files as one data set. A label that one of them does not have is dropped.

    The order in time is that of the files; official splits remain those of the first, whose indices do not change.
    """
    if len(parts) == 1:
        return parts[0]
    labels = [label for label in LABELS if all(label in part.labels for part in parts)]
    joined: dict[str, Any] = {label: [value for part in parts for value in part.labels[label]] for label in labels}
    files = [name for part in parts for name in part.files]
    starts = np.cumsum([0, *(len(part.files) for part in parts)])
    return LabelledStructures(
        structures=tuple(atoms for part in parts for atoms in part.structures),
        energy=np.array(joined["energy"]) if "energy" in joined else None,
        forces=tuple(joined["forces"]) if "forces" in joined else None,
        stress=np.array(joined["stress"]) if "stress" in joined else None,
        source=", ".join(files) if len(files) <= SHOWN else f"{', '.join(files[:SHOWN])} and {len(files) - SHOWN} more",
        frame_index=np.concatenate([part.frame_index for part in parts]),
        file_index=np.concatenate([start + part.file_index for start, part in zip(starts, parts, strict=False)]),
        files=tuple(files),
        time_index=_in_time(parts),
        official_splits=parts[0].official_splits,
        groups=None
        if all(part.groups is None for part in parts)
        else tuple(g for part in parts for g in _groups(part)),
    )


def _in_time(parts: Sequence[LabelledStructures]) -> IndexArray | None:
    if all(part.time_index is None for part in parts):
        return None
    order = [
        np.arange(len(part)) if part.time_index is None else np.argsort(np.argsort(part.time_index)) for part in parts
    ]
    starts = np.cumsum([0, *(len(part) for part in parts)])
    return np.concatenate([start + each for start, each in zip(starts, order, strict=False)])


def _groups(part: LabelledStructures) -> tuple[str, ...]:
    return part.groups or (NO_GROUP,) * len(part)


def split_parts(config: SplitConfig, parts: Parts) -> Split:
    """Split the structures of ``source``, and add all those of files of their own. Indices are those of all, joined."""
    split = split_structures(config, parts["source"])
    start, own, remarks = len(parts["source"]), dict[str, IndexArray](), []
    for name in ("validation", "test"):
        if name in parts:
            own[name] = np.arange(start, start + len(parts[name]))
            start += len(parts[name])
            remarks.append(f"{name}: all {len(parts[name])} structures of {parts[name].source}")
    if len(split.train) == len(parts["source"]):
        split = replace(split, reason=f"train: all {len(split.train)} structures of {parts['source'].source}")
    return Split(
        train=split.train,
        validation=own.get("validation", split.validation),
        test=own.get("test", split.test),
        reason="; ".join(filter(None, [split.reason, *remarks])),
    )


def overlap_warnings(structures: LabelledStructures, split: Split) -> list[str]:
    """Say which validation and test structures are among those that train or choose the model.

    Raises ``DataError`` if all of them are.
    """
    found = []
    for name, others in (("validation", ("train",)), ("test", ("train", "validation"))):
        for other in others:
            chosen, before = getattr(split, name), getattr(split, other)
            pairs = overlapping(structures.subset(before), structures.subset(chosen))
            if not pairs:
                continue
            text = (
                f"{len(pairs)} of {len(chosen)} {name} structures are {PART_NAMES[other]} structures as well: "
                f"{structures.frame_name(chosen[pairs[0][1]])} is {structures.frame_name(before[pairs[0][0]])}"
            )
            if len(pairs) == len(chosen):
                raise DataError(f"{text}; errors on them say nothing. Give other structures")
            found.append(f"{text}; errors will look too small. Remove them from one of the files")
    return found
