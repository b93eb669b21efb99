"""The files of a run: appended to while it runs, cut back when it is rolled back or resumed.

What is appended waits in memory: for a checkpoint, or for a second, so that people see it.
"""

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from sigmaff.errors import DataError
from sigmaff.files import naming

LOG, CROSSINGS, BROKEN = "log.csv", "crossings.extxyz", "broken.extxyz"
PATIENCE = 1.0
"""Seconds that appended text waits in memory at most."""


def trajectory_name(replica: int) -> str:
    return f"trajectory-{replica}.extxyz"


class Output:
    """Files of one directory, with the size of each as far as it counts."""

    def __init__(self, directory: Path, sizes: dict[str, int] | None = None) -> None:
        """sizes: of the files at the checkpoint; later content and all other files of the run are removed."""
        self.directory = directory
        self._written: dict[str, int] = {}  # sizes on the disk, as far as they count
        self._waiting: dict[str, bytearray] = {}
        self._unsafe: set[str] = set()
        self._cuts: set[str] = set()
        self._columns: list[str] = []  # of the log
        self._last = monotonic()
        sizes = sizes or {}
        for name in {LOG, CROSSINGS, BROKEN, *(path.name for path in directory.glob("trajectory-*.extxyz"))} - {*sizes}:
            (directory / name).unlink(missing_ok=True)
        for name, size in sizes.items():
            if not (directory / name).is_file() or (directory / name).stat().st_size < size:
                raise DataError(f"{directory / name} is shorter than the run left it; remove {directory} to start anew")
            self._written[name] = size
            self._cuts.add(name)
        self.apply_cuts()

    def size(self, name: str) -> int:
        return self._written.get(name, 0) + len(self._waiting.get(name, b""))

    def append(self, name: str, text: str) -> None:
        self._waiting.setdefault(name, bytearray()).extend(text.encode())

    def cut(self, name: str, size: int) -> None:
        """Cut a file to this size. If that ``has_cuts``, a checkpoint must follow before anything is appended to it."""
        written = self._written.get(name, 0)
        del self._waiting.get(name, bytearray())[max(0, size - written) :]
        if size < written:
            self._written[name] = size
            self._cuts.add(name)

    @property
    def has_cuts(self) -> bool:
        """Whether the disk holds what was cut."""
        return bool(self._cuts)

    def apply_cuts(self) -> None:
        """Cut the marked files: only after a checkpoint with their new sizes, or the last one could not be resumed."""
        for name in self._cuts:
            os.truncate(self.directory / name, self._written[name])
        self._unsafe |= self._cuts
        self._cuts.clear()

    def write_sometimes(self) -> None:
        """Write what has waited long enough."""
        if monotonic() - self._last > PATIENCE:
            self._write()

    def write(self) -> tuple[dict[str, int], list[Path]]:
        """Write all that waits; the sizes of the files, and those that a power cut could still take (``make_safe``)."""
        self._write()
        unsafe = [self.directory / name for name in sorted(self._unsafe)]
        self._unsafe.clear()
        return dict(self._written), unsafe

    def append_rows(self, rows: Iterable[dict[str, float | None]]) -> None:
        """Append lines to the log; one that an older version began keeps its columns."""
        text = io.StringIO()
        for row in rows:
            if not self._columns and self._written.get(LOG, 0):
                with (self.directory / LOG).open(newline="", encoding="utf-8") as file:
                    self._columns = next(csv.reader(file))
            writer = csv.DictWriter(text, self._columns or list(row), extrasaction="ignore", lineterminator="\n")
            if not self._columns:
                self._columns = list(row)
                writer.writeheader()
            writer.writerow(row)
        self.append(LOG, text.getvalue())

    def _write(self) -> None:
        self._last = monotonic()
        for name, data in self._waiting.items():
            if data:
                with naming(self.directory / name), (self.directory / name).open("ab") as file:
                    file.write(data)
                self._written[name] = self._written.get(name, 0) + len(data)
                self._unsafe.add(name)
                data.clear()


def make_safe(paths: Iterable[Path]) -> None:
    """Return when a power cut cannot take what was written to these files."""
    for path in paths:
        with naming(path), path.open("rb") as file:
            os.fsync(file.fileno())
