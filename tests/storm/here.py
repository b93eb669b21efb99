"""A stand-in for Dask: one worker, in this process, so that the layer sees its file operations and kills it too."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import distributed


class HereFuture:
    """Work that is done when it is asked for, and whose errors are the worker's."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.value = work, None
        self.is_done = False

    def result(self) -> Any:
        if not self.is_done:
            self.value, self.is_done = self.work(), True
        return self.value

    def exception(self) -> None:
        self.result()

    def release(self) -> None: ...


class HereClient:
    """Takes work and puts it off."""

    loop = None

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, function: Callable[[Any], Any], argument: Any, *, pure: bool) -> HereFuture:
        return HereFuture(lambda: function(argument))

    def ncores(self) -> dict[str, int]:
        return {"here": 1}

    def close(self) -> None: ...


def _in_turn(futures: Iterable[HereFuture], loop: None = None) -> Iterator[HereFuture]:
    for future in futures:
        future.result()
        yield future


def without_dask() -> None:
    """For the rest of this process."""
    distributed.Client = distributed.LocalCluster = HereClient
    distributed.as_completed = _in_turn
    distributed.Security = type("NoSecurity", (), {"temporary": staticmethod(lambda: None)})
