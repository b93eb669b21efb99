"""The progress note of a run: replicas that run, and the latest σ as a sparkline."""

from collections import deque
from collections.abc import Sequence

from sigmaff.simulation.limits import Reading

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_LENGTH = 24


class StatusNote:
    """Keeps the latest σ of a run: that nearest to its limit, or of forces if there is no limit."""

    def __init__(self) -> None:
        self.recent: deque[Reading] = deque(maxlen=SPARKLINE_LENGTH)

    def text(self, n_running: int, n_replicas: int, n_stopped: int, reading: Reading | None) -> str:
        """
        n_stopped: replicas that ended before their last step.
        reading: nearest of all replicas since the last note; ``None`` where σ was not computed.
        """
        if reading is not None:
            self.recent.append(reading)
        note = f"{n_running}/{n_replicas} running{f', {n_stopped} stopped' if n_stopped else ''}"
        if not self.recent:
            return note
        latest = self.recent[-1]
        limited = latest.limit is not None
        heights = [item.share if limited else item.value for item in self.recent]
        top = 1.0 if limited else max(heights) or 1.0
        return f"{note}, {latest.name} {sparkline(heights, top)} {latest.value:.3g} {latest.unit}"


def sparkline(values: Sequence[float], top: float) -> str:
    """Values from 0 to ``top`` as blocks of rising height."""
    last = len(BLOCKS) - 1
    return "".join(BLOCKS[min(last, max(0, round(last * value / top)))] for value in values)
