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


@dataclass(frozen=True, kw_only=True)
class LabelledStructures:
    """Structures and labels of one file. eV and Å; stress has ASE's sign. ``None``: the label is missing."""

    structures: tuple[Atoms, ...]  # without calculators
    energy: FloatArray | None  # (n,)
    forces: tuple[FloatArray, ...] | None  # n arrays (n_atoms, 3)
    stress: FloatArray | None = None  # (n, 3, 3)
    source: str  # path of the file
    frame_index: IndexArray  # (n,) numbers of the frames in the file, from 0
    time_index: IndexArray | None = None  # (n,) order in the trajectory, if the file contains it
    official_splits: Mapping[str, IndexArray] | None = None  # "train", "test": (n_folds, n_indices)
    incomplete_labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # label: frames without it

    def __len__(self) -> int:
        return len(self.structures)

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in the data, sorted."""
        return tuple(sorted({int(number) for atoms in self.structures for number in set(atoms.numbers)}))

    def subset(self, indices: Iterable[int] | IndexArray) -> Self:
        """Select structures by index, in this order. Official splits are dropped: their indices would be wrong."""
        chosen = np.fromiter(indices, dtype=np.int64)
        return type(self)(
            structures=tuple(self.structures[i] for i in chosen),
            energy=None if self.energy is None else self.energy[chosen],
            forces=None if self.forces is None else tuple(self.forces[i] for i in chosen),
            stress=None if self.stress is None else self.stress[chosen],
            source=self.source,
            frame_index=self.frame_index[chosen],
            time_index=None if self.time_index is None else self.time_index[chosen],
            incomplete_labels=_restricted(self.incomplete_labels, self.frame_index[chosen]),
        )

    def without_labels(self) -> Self:
        return replace(self, energy=None, forces=None, stress=None)

    def frame_name(self, index: int) -> str:
        """File and frame of a structure, for messages."""
        return f"{self.source}, frame {self.frame_index[index]}"


def _restricted(incomplete: Mapping[str, tuple[int, ...]], selected: IndexArray) -> dict[str, tuple[int, ...]]:
    kept = set(selected.tolist())
    return {label: tuple(frame for frame in frames if frame in kept) for label, frames in incomplete.items()}
