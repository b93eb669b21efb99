"""The progress note of a run: replicas that run, and the latest force σ as a sparkline."""

from collections import deque
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_LENGTH = 24


class StatusNote:
    """Keeps the latest force σ of a run."""

    def __init__(self, limit: float | None) -> None:
        """limit: on the largest force σ of an atom, eV/Å."""
        self.limit = limit
        self.recent: deque[float] = deque(maxlen=SPARKLINE_LENGTH)

    def text(self, n_running: int, n_replicas: int, forces_std: float | None) -> str:
        """forces_std: largest of all replicas since the last note, eV/Å; ``None`` where it was not computed."""
        if forces_std is not None:
            self.recent.append(forces_std)
        note = f"{n_running}/{n_replicas} running"
        if not self.recent:
            return note
        top = self.limit or max(self.recent) or 1.0
        return f"{note}, σ {sparkline(self.recent, top)} {self.recent[-1]:.3g} eV/Å"


def sparkline(values: Sequence[float], top: float) -> str:
    """Values from 0 to ``top`` as blocks of rising height."""
    last = len(BLOCKS) - 1
    return "".join(BLOCKS[min(last, max(0, round(last * value / top)))] for value in values)
