"""Stop a training cleanly: the loop ends between two steps after the first Ctrl-C, SIGTERM or SIGHUP."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second signal acts at once. Only the main thread gets signals."""
    stop = threading.Event()
    previous: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        stop.set()
        restore()

    def restore() -> None:
        while previous:
            signal.signal(*previous.popitem())

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # it is under nohup
                previous[number] = signal.signal(number, receive)
    try:
        yield stop
    finally:
        restore()
