"""Make the C allocator keep large blocks.

By default glibc maps a large array from the system when it is made and gives it back when it is freed, so every
operation on large temporaries pays page faults again, and they cost more than the arithmetic.
"""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from math import inf

M_TRIM_THRESHOLD = -1  # glibc's numbers of its own parameters
M_MMAP_THRESHOLD = -3
KEPT_FREE = 2**31 - 1
"""Bytes that may lie free at the top of the heap before any are given back: the largest C int."""
MMAP_THRESHOLDS = (2**30, 2**25)
"""Bytes from which a block is mapped by itself. Older glibc refuses more than the second."""

_returned_at = -inf  # when memory was last given back, in s of the monotonic clock


def keep_large_blocks() -> None:
    """Reuse large blocks within this process instead of returning them to the system. Once, at its start.

    Without glibc (musl, macOS, Windows) nothing happens. Memory in use stays the same; memory held stays at its peak
    until ``return_free_memory``.
    """
    if (mallopt := _from_libc("mallopt")) is None:
        return
    any(mallopt(M_MMAP_THRESHOLD, threshold) for threshold in MMAP_THRESHOLDS)  # the first that is accepted
    mallopt(M_TRIM_THRESHOLD, KEPT_FREE)


def return_free_memory(*, not_within: float = 0.0) -> None:
    """Give the memory that is free in this process back to the system: between the parts of long work.

    Objects that hold each other, as models do, are freed first. To find them takes some tenths of a second.

    Arguments:
        not_within: seconds after the last time in which nothing happens.
    """
    global _returned_at
    if time.monotonic() < _returned_at + not_within:
        return
    gc.collect()
    if (trim := _from_libc("malloc_trim")) is not None:
        trim(0)
    _returned_at = time.monotonic()


def _from_libc(name: str) -> Callable[..., int] | None:
    """A function of glibc; ``None`` where there is none."""
    if sys.platform != "linux":
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
