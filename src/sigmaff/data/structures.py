"""Structures with labels of a quantum-chemistry code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from ase import Atoms

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

LABELS = ("energy", "forces", "stress")
NO_GROUP = "none"
"""Group of structures that name none, where others do."""


@dataclass(frozen=True, kw_only=True)
class LabelledStructures:
    """Structures and labels of one file or several. eV and Å; stress has ASE's sign. ``None``: the label is missing."""

    structures: tuple[Atoms, ...]  # without calculators
    energy: FloatArray | None  # (n,)
    forces: tuple[FloatArray, ...] | None  # n arrays (n_atoms, 3)
    stress: FloatArray | None = None  # (n, 3, 3)
    source: str  # path of the file; of several, their paths
    frame_index: IndexArray  # (n,) numbers of the frames in their file, from 0
    files: tuple[str, ...] = ()  # path of each file; () is source alone
    file_index: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (n,) the file of each
    groups: tuple[str, ...] | None = None  # (n,) what kind of structure each is; None: the data do not say
    time_index: IndexArray | None = None  # (n,) order in the trajectory, if the file contains it
    official_splits: Mapping[str, IndexArray] | None = None  # "train", "test": (n_folds, n_indices)
    incomplete_labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # label: frames without it
    partial_labels: Mapping[str, tuple[float | FloatArray | None, ...]] = field(default_factory=dict)
    """labels that only some structures have; none of them is used, and files that are written keep them"""
    units: str = ""  # in which the file was read, and why, for people
    names: tuple[str, ...] = ()  # of all values that the first structure has in the file

    def __post_init__(self) -> None:
        if not self.files:
            object.__setattr__(self, "files", (self.source,))
            object.__setattr__(self, "file_index", np.zeros(len(self.structures), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.structures)

    @property
    def labels(self) -> dict[str, FloatArray | tuple[FloatArray, ...]]:
        """The labels that are not missing, by name; one value per structure."""
        labels = {"energy": self.energy, "forces": self.forces, "stress": self.stress}
        return {name: values for name, values in labels.items() if values is not None}

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in the data, sorted."""
        found = np.unique(np.concatenate([atoms.numbers for atoms in self.structures])) if self.structures else ()
        return tuple(int(number) for number in found)

    def subset(self, indices: Iterable[int] | IndexArray) -> Self:
        """Select structures by index, in this order. Official splits are dropped: their indices would be wrong."""
        chosen = np.fromiter(indices, dtype=np.int64)
        frames = self.frame_index[chosen]
        kept = set(frames.tolist())
        return replace(
            self,
            structures=tuple(self.structures[i] for i in chosen),
            energy=None if self.energy is None else self.energy[chosen],
            forces=None if self.forces is None else tuple(self.forces[i] for i in chosen),
            stress=None if self.stress is None else self.stress[chosen],
            frame_index=frames,
            file_index=self.file_index[chosen],
            groups=None if self.groups is None else tuple(self.groups[i] for i in chosen),
            time_index=None if self.time_index is None else self.time_index[chosen],
            official_splits=None,
            incomplete_labels={
                name: tuple(f for f in old if f in kept) for name, old in self.incomplete_labels.items()
            },
            partial_labels={name: tuple(old[i] for i in chosen) for name, old in self.partial_labels.items()},
        )

    def without_labels(self) -> Self:
        return replace(self, energy=None, forces=None, stress=None, partial_labels={})

    def labels_of(self, index: int) -> dict[str, float | FloatArray]:
        """The labels of one structure by name, also those that others do not have."""
        labels = {name: values[index] for name, values in (*self.labels.items(), *self.partial_labels.items())}
        return {name: value for name, value in labels.items() if value is not None}

    def frame_name(self, index: int) -> str:
        """File and frame of a structure, for messages."""
        return f"{self.files[self.file_index[index]]}, frame {self.frame_index[index]}"
