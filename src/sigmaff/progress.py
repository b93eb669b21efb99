"""Progress of long work: the callbacks that every long function takes, and the time that is left."""

from bisect import bisect_left


class Listener:
    """Callbacks for progress, silent by default: override those you need. Long functions take ``listener=None``."""

    def stage(self, text: str) -> None:
        """A new stage of the work begins."""

    def advance(self, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total`` steps of the stage are done."""

    def tell(self, text: str) -> None:
        """A fact about the work that people should know."""

    def warn(self, text: str) -> None:
        """Something needs attention, and the work continues."""


class Collecting(Listener):
    """Keep the warnings in ``texts``."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


class Counter:
    """Counts finished items towards a total, and reports them to a listener."""

    def __init__(self, listener: Listener, total: int) -> None:
        self.listener, self.total, self.done = listener, total, 0

    def add(self, n: int) -> None:
        self.done += n
        self.listener.advance(self.done, self.total)


class Pace:
    """How fast steps are done, and the time that is left at the pace of the later half of the work so far.

    The first half is left out: compilers, caches and other jobs make it slower than the rest.
    """

    MAX_LOOKS = 1000

    def __init__(self) -> None:
        self.times: list[float] = []  # s
        self.done: list[int] = []

    def look(self, time: float, done: int) -> None:
        """Note how many steps are done at this time (s). Resumed work begins with more than 0."""
        self.times.append(time)
        self.done.append(done)
        if len(self.times) > self.MAX_LOOKS:  # every second one, and the last
            self.times[:-1], self.done[:-1] = self.times[:-1:2], self.done[:-1:2]

    def seconds_left(self, total: int) -> float | None:
        """Until ``total`` steps are done; ``None`` before anything is known."""
        if not self.times or self.done[-1] <= self.done[0]:
            return None
        half = bisect_left(self.times, 0.5 * (self.times[0] + self.times[-1]))
        first = half if self.done[half] < self.done[-1] else 0
        seconds = self.times[-1] - self.times[first]
        return max(0, total - self.done[-1]) * seconds / (self.done[-1] - self.done[first])


def duration(seconds: float) -> str:
    """For people: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 d 5 h``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 36 else f"{hours // 24} d {hours % 24} h"
