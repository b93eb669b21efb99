"""Findings of the data doctor."""

from collections.abc import Iterable, Iterator
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


def findings(
    severity: Severity, code: str, message: str, data: LabelledStructures, indices: Iterable[int] | None = None
) -> Iterator[Finding]:
    """Yield a finding about the structures at these indices, nothing if there are none.

    Its message ends with the first five frames. Without ``indices`` the finding is about the whole data set.
    """
    if indices is None:
        yield Finding(severity=severity, code=code, message=message)
    elif frames := tuple(int(data.frame_index[index]) for index in indices):
        shown = ", ".join(map(str, frames[:5])) + (", …" if len(frames) > 5 else "")
        noun = "frame" if len(frames) == 1 else f"{len(frames)} frames:"
        yield Finding(severity=severity, code=code, message=f"{message} ({noun} {shown})", frames=frames)
