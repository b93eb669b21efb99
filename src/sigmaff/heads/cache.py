"""Values that follow from the tensors of a module alone."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Cached(Generic[T]):
    """A value computed from tensors: on every call, or within ``prepared`` only after one of the tensors has changed.

    Arguments:
        compute: the value as training needs it, differentiable in the tensors.
        prepare: the value as prediction needs it, if that is another one.
    """

    def __init__(self, compute: Callable[[], T], prepare: Callable[[], T] | None = None) -> None:
        self._compute, self._prepare = compute, prepare or compute
        self._kept: tuple[tuple[int, ...], T] | None = None
        self._in_use: T | None = None

    def __call__(self) -> T:
        return self._compute() if self._in_use is None else self._in_use

    @contextmanager
    def prepared(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Within, the value is that of the last change of ``tensors``, and is not differentiated."""
        state = tuple(number for t in tensors for number in (t.data_ptr(), t._version))
        if self._kept is None or self._kept[0] != state:
            with torch.no_grad():
                self._kept = (state, self._prepare())
        self._in_use = self._kept[1]
        try:
            yield
        finally:
            self._in_use = None
