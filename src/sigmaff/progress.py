"""Callbacks of long work: training, evaluation, labelling, molecular dynamics, campaigns."""


class Listener:
    """Progress callbacks. All are silent by default: override those you need.

    Every long function takes ``listener=None``, which is silent.
    """

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def advance(self, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total`` steps of the stage are done."""

    def warn(self, text: str) -> None:
        """Something went wrong that does not stop the work."""


class Collecting(Listener):
    """Keeps the warnings in ``texts``."""

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
