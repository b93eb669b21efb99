"""Find the data sets of the experiments."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from pydantic import Field

from sigmaff.data import DataSource, LabelledStructures, read_structures
from sigmaff.errors import DataError
from sigmaff.files import atomic_write
from sigmaff.progress import Listener
from sigmaff.runs.jobs import Job, JobFolder

EQUILIBRIUM, NON_EQUILIBRIUM = "equilibrium.extxyz", "nonequilibrium.extxyz"
QM7X_FOLDERS = ("", "qm7x", "qm7x-like", "qm7x_like")
"""Folders within a data folder that may contain the QM7-X files."""
N_GATHERED = 2000
"""Non-equilibrium structures drawn from each of the published QM7-X files."""


@dataclass(frozen=True, kw_only=True)
class DataFolders:
    """Folders with data sets, and one for files made from them."""

    folders: tuple[Path, ...]
    made: Path

    def md17(self, molecule: str) -> DataSource:
        """Return the original MD17 labels of a molecule: of its rMD17 file, or else of its published MD17 file."""
        revised, published = f"rmd17_{molecule}.npz", f"md17_{molecule}.npz"
        path = self._first(f"rmd17/{revised}", revised, f"md17/{published}", published)
        return DataSource(path=path, format="md17" if path.name == published else "rmd17_original")

    def qm7x(self) -> "Qm7xFiles":
        """Return two extxyz files, e.g. of ``sigmaff generate qm7x-like``, or else the published HDF5 files."""
        folders = [folder / name for folder in self.folders for name in QM7X_FOLDERS]
        existing = [folder for folder in folders if (folder / EQUILIBRIUM).is_file()]
        published = [files for folder in folders if (files := sorted(folder.glob("[1-8]000.hdf5")))]
        if published and not existing:
            return Qm7xFiles(folder=self.made / "qm7x", published=tuple(published[0]))
        return Qm7xFiles(folder=existing[0] if existing else self._first("qm7x-like"))

    def _first(self, *names: str) -> Path:
        """The first path that exists, or else the first of all."""
        paths = [folder / name for name in names for folder in self.folders or (Path(),)]
        return next((path for path in paths if path.exists()), paths[0])


@dataclass(frozen=True, kw_only=True)
class Qm7xFiles:
    """Equilibrium and non-equilibrium structures, each in one file."""

    folder: Path
    published: tuple[Path, ...] = ()  # HDF5 files to make them from

    @property
    def equilibrium(self) -> Path:
        return self.folder / EQUILIBRIUM

    @property
    def non_equilibrium(self) -> Path:
        return self.folder / NON_EQUILIBRIUM

    @property
    def n_equilibrium(self) -> int | None:
        """Return the number of equilibrium structures; ``None`` if there is no such file yet."""
        file = self.equilibrium
        return _n_frames(file, file.stat().st_mtime_ns) if file.is_file() else None

    @property
    def jobs(self) -> list[Job]:
        """Return the job that makes the two files, if they have to be made."""
        return [GatherJob(name="data/qm7x", needs=self.published, folder=self.folder)] if self.published else []

    @property
    def needs(self) -> tuple[Path, ...]:
        """Return files that must exist before any job."""
        return () if self.published else (self.equilibrium, self.non_equilibrium)


class GatherJob(Job):
    """Writes the published QM7-X as two extxyz files: all equilibrium structures, and a random sample of the others."""

    kind: ClassVar[str] = "Gathered"

    folder: Path = Field(description="of the two files")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
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


@lru_cache
def _n_frames(path: Path, _changed: int) -> int:
    """Count the structures of an extxyz file: each has a line with its number of atoms, a comment and the atoms."""
    n = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip().isdecimal():
                raise DataError(f"{path}: structure {n + 1} does not begin with its number of atoms")
            n += 1
            for _ in islice(lines, int(line) + 1):
                pass
    return n


def _frames(structures: LabelledStructures) -> list[Atoms]:
    """With labels as results of a calculator."""
    assert structures.energy is not None
    assert structures.forces is not None
    frames = []
    for atoms, energy, forces in zip(structures.structures, structures.energy, structures.forces, strict=True):
        frame = atoms.copy()
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
        frames.append(frame)
    return frames
