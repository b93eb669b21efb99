"""A listener that remembers."""

from sigmaff.progress import Listener


class Remembering(Listener):
    """Keeps all calls."""

    def __init__(self) -> None:
        self.advances: list[tuple[int, int]] = []

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.advances.append((done, total))
