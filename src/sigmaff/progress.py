"""Progress of long work: the callbacks that every long function takes."""


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
