"""The files of a run: appended to while it runs, cut back when it is rolled back or resumed."""

import csv
import io
import os
from pathlib import Path

from ase import Atoms
from ase.io import write

from sigmaff.errors import DataError
from sigmaff.simulation.md.stepper import Results
from sigmaff.simulation.results import bare_copy, with_results

LOG, CROSSINGS, BROKEN = "log.csv", "crossings.extxyz", "broken.extxyz"


def trajectory_name(replica: int) -> str:
    return f"trajectory-{replica}.extxyz"


class Output:
    """Files of one directory, with the size of each as far as it counts."""

    def __init__(self, directory: Path, sizes: dict[str, int] | None = None) -> None:
        """sizes: of the files at the checkpoint; later content and all other files of the run are removed."""
        self.directory = directory
        self._sizes: dict[str, int] = {}
        self._unsafe: set[str] = set()
        self._cuts: set[str] = set()
        self._columns: list[str] = []  # of the log
        sizes = sizes or {}
        for name in {LOG, CROSSINGS, BROKEN, *(path.name for path in directory.glob("trajectory-*.extxyz"))} - {*sizes}:
            (directory / name).unlink(missing_ok=True)
        for name, size in sizes.items():
            if not (directory / name).is_file() or (directory / name).stat().st_size < size:
                raise DataError(f"{directory / name} is shorter than the run left it; remove {directory} to start anew")
            self.cut(name, size)
        self.apply_cuts()

    def size(self, name: str) -> int:
        return self._sizes.get(name, 0)

    def append(self, name: str, text: str) -> None:
        data = text.encode()
        with (self.directory / name).open("ab") as file:
            file.write(data)
        self._sizes[name] = self.size(name) + len(data)
        self._unsafe.add(name)

    def cut(self, name: str, size: int) -> None:
        """Mark a file to be cut to this size. ``apply_cuts`` must follow before anything is appended to it."""
        self._sizes[name] = size
        self._cuts.add(name)

    @property
    def has_cuts(self) -> bool:
        return bool(self._cuts)

    def apply_cuts(self) -> None:
        """Cut the marked files: only after a checkpoint with their new sizes, or the last one could not be resumed."""
        for name in self._cuts:
            os.truncate(self.directory / name, self._sizes[name])
        self._unsafe |= self._cuts
        self._cuts.clear()

    def flush(self) -> dict[str, int]:
        """Write everything to the disk; the sizes of the files."""
        for name in sorted(self._unsafe):
            with (self.directory / name).open("rb") as file:
                os.fsync(file.fileno())
        self._unsafe.clear()
        return dict(self._sizes)

    def append_frame(self, name: str, atoms: Atoms, results: Results, info: dict[str, float | str]) -> None:
        """Append a frame with its σ."""
        bare = bare_copy(atoms)
        bare.set_momenta(atoms.get_momenta())
        bare.info.update(info)
        text = io.StringIO()
        write(text, with_results(bare, results), format="extxyz")
        self.append(name, text.getvalue())

    def append_log(self, row: dict[str, float | None]) -> None:
        """Append a line; a log that an older version began keeps its columns."""
        text = io.StringIO()
        if not self._columns and self.size(LOG):
            with (self.directory / LOG).open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file))
        self._columns = self._columns or list(row)
        writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
        if not self.size(LOG):
            writer.writeheader()
        writer.writerow(row)
        self.append(LOG, text.getvalue())
