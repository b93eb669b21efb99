"""What the data doctor says."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sigmaff.data.structures import LabelledStructures

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about a data set. An error should be mended before training."""

    severity: Severity
    code: str
    message: str
    frames: tuple[int, ...] = ()  # numbers within the source


def finding(
    severity: Severity, code: str, message: str, structures: LabelledStructures, indices: Iterable[int] = ()
) -> Finding:
    """A finding about the structures at these indices; the message ends with the first few frames."""
    frames = tuple(int(structures.frame_index[index]) for index in indices)
    if frames:
        shown = ", ".join(str(frame) for frame in frames[:5]) + (", …" if len(frames) > 5 else "")
        noun = "frame" if len(frames) == 1 else f"{len(frames)} frames:"
        message = f"{message} ({noun} {shown})"
    return Finding(severity=severity, code=code, message=message, frames=frames)
