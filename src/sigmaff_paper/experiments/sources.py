"""Where the data of the experiments are."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from pydantic import Field

from sigmaff.data import DataSource, LabelledStructures, read_structures
from sigmaff.files import atomic_write
from sigmaff.progress import Listener
from sigmaff_paper.experiments.cell import Cell, Place

EQUILIBRIUM, NON_EQUILIBRIUM = "equilibrium.extxyz", "nonequilibrium.extxyz"
QM7X_FOLDERS = ("", "qm7x", "qm7x-like", "qm7x_like")
"""Where in a data folder the QM7-X files are looked for."""
N_GATHERED = 2000
"""Non-equilibrium structures that are drawn from each of the published QM7-X files."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Folders with data sets, and one for what is made of them."""

    folders: tuple[Path, ...]
    made: Path

    def md17(self, molecule: str) -> Path:
        """The rMD17 file of a molecule, which holds the original MD17 labels too."""
        file = f"rmd17_{molecule}.npz"
        return self._first(f"rmd17/{file}", file)

    def qm7x(self) -> "Qm7x":
        """Two extxyz files (as of ``sigmaff generate qm7x-like``), or else the published HDF5 files."""
        for folder in self._qm7x_folders():
            if (folder / EQUILIBRIUM).is_file():
                return Qm7x(folder=folder)
        for folder in self._qm7x_folders():
            if published := tuple(sorted(folder.glob("[1-8]000.hdf5"))):
                return Qm7x(folder=self.made / "qm7x", published=published)
        return Qm7x(folder=self._first("qm7x-like"))

    def _qm7x_folders(self) -> Iterable[Path]:
        return (folder / name for folder in self.folders for name in QM7X_FOLDERS)

    def _first(self, *names: str) -> Path:
        """The first of these that is in a folder; if there is none, the path where it was looked for first."""
        paths = [folder / name for name in names for folder in self.folders or (Path(),)]
        return next((path for path in paths if path.exists()), paths[0])


@dataclass(frozen=True, kw_only=True)
class Qm7x:
    """Equilibrium and non-equilibrium structures, each in one file."""

    folder: Path
    published: tuple[Path, ...] = ()  # HDF5 files that they have to be gathered from

    @property
    def equilibrium(self) -> Path:
        return self.folder / EQUILIBRIUM

    @property
    def non_equilibrium(self) -> Path:
        return self.folder / NON_EQUILIBRIUM

    @property
    def gathering(self) -> "list[Gathered]":
        """The cell that makes the two files, if one has to."""
        return [Gathered(name="data/qm7x", needs=self.published, folder=self.folder)] if self.published else []

    @property
    def needs(self) -> tuple[Path, ...]:
        """Files that have to be there before any cell."""
        return () if self.published else (self.equilibrium, self.non_equilibrium)


class Gathered(Cell):
    """The published QM7-X as two extxyz files: all equilibrium structures, and a draw of the others."""

    folder: Path = Field(description="where the two files go")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        equilibrium, others = list[Atoms](), list[Atoms]()
        for number, path in enumerate(self.needs):
            listener.stage(f"reading {path}")
            stable = read_structures(DataSource(path=path, format="qm7x", structures="equilibrium"))
            displaced = read_structures(DataSource(path=path, format="qm7x", structures="non_equilibrium"))
            n_drawn = min(N_GATHERED, len(displaced))
            drawn = np.random.default_rng(number).choice(len(displaced), n_drawn, replace=False)
            equilibrium += _frames(stable)
            others += _frames(displaced.subset(np.sort(drawn)))
        for name, frames in ((EQUILIBRIUM, equilibrium), (NON_EQUILIBRIUM, others)):
            with atomic_write(self.folder / name, force=True) as temporary:
                ase.io.write(temporary, frames, format="extxyz")
        return {"n_equilibrium": len(equilibrium), "n_non_equilibrium": len(others)}


def _frames(structures: LabelledStructures) -> list[Atoms]:
    """With labels as ASE keeps them."""
    assert structures.energy is not None
    assert structures.forces is not None
    frames = []
    for atoms, energy, forces in zip(structures.structures, structures.energy, structures.forces, strict=True):
        frame = atoms.copy()
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
        frames.append(frame)
    return frames
