"""ASE trajectory files."""

from pathlib import Path

from ase.io.trajectory import Trajectory

from sigmaff.data.formats.ase_frames import frame_contents
from sigmaff.data.formats.contents import FileContents, reading
from sigmaff.data.source import DataSource


def read_ase_traj(path: Path, source: DataSource) -> FileContents:
    with reading(path, "an ASE trajectory"), Trajectory(str(path)) as trajectory:
        frames = list(trajectory)
    return frame_contents(path, frames, source)
