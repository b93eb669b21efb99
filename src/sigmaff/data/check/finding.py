"""Findings of the data doctor."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sigmaff.data.structures import LabelledStructures

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding about a data set. Fix errors before training."""

    severity: Severity
    code: str
    message: str
    frames: tuple[int, ...] = ()  # numbers of the frames in the file


def finding(
    severity: Severity, code: str, message: str, structures: LabelledStructures, indices: Iterable[int] = ()
) -> Finding:
    """Make a finding about the structures at these indices. Its message ends with the first five frames."""
    frames = tuple(int(structures.frame_index[index]) for index in indices)
    if frames:
        shown = ", ".join(str(frame) for frame in frames[:5]) + (", …" if len(frames) > 5 else "")
        noun = "frame" if len(frames) == 1 else f"{len(frames)} frames:"
        message = f"{message} ({noun} {shown})"
    return Finding(severity=severity, code=code, message=message, frames=frames)
