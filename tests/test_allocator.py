"""Page faults of repeated large allocations, counted by the kernel in a process of its own."""

import subprocess
import sys
import weakref
from math import inf

import pytest

from sigmaff import allocator

SCRIPT = """
import resource, sys
import numpy as np
from sigmaff.allocator import keep_large_blocks

mebibytes, n_blocks, n_calls = map(int, sys.argv[1:])
for _ in range(n_calls):
    keep_large_blocks()

def work(n):
    for _ in range(n):
        blocks = [np.ones(mebibytes * 2**17) for _ in range(n_blocks)]
        del blocks

work(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mebibytes: int, n_blocks: int, *, n_calls: int) -> int:
    command = [sys.executable, "-c", SCRIPT, str(mebibytes), str(n_blocks), str(n_calls)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is of glibc, on Linux")
@pytest.mark.parametrize(("mebibytes", "n_blocks"), [(8, 4), (40, 1)])
def test_large_blocks_are_reused(mebibytes: int, n_blocks: int) -> None:
    by_default = page_faults(mebibytes, n_blocks, n_calls=0)
    assert by_default > 50, "this allocator keeps blocks by itself: the test shows nothing"
    assert page_faults(mebibytes, n_blocks, n_calls=1) < by_default / 10
    assert page_faults(mebibytes, n_blocks, n_calls=2) < by_default / 10


HELD = """
import numpy as np, psutil
from sigmaff.allocator import keep_large_blocks, return_free_memory

def held():
    return psutil.Process().memory_info().rss / 2**20

keep_large_blocks()
before = held()
blocks = [np.ones(2**20) for _ in range(20)]
last = np.ones(2**10)  # above them, so that the top of the heap is not free
del blocks
freed = held()
return_free_memory()
print(freed - before, held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is of glibc, on Linux")
def test_free_memory_is_returned() -> None:
    output = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout
    freed, returned = map(float, output.split())
    assert freed > 150, "this allocator returns blocks by itself: the test shows nothing"
    assert returned < 10


class Knot:
    def __init__(self) -> None:
        self.itself = self


def test_memory_just_returned_is_left_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that hold each other live until it is returned."""
    now = 1000.0
    monkeypatch.setattr(allocator.time, "monotonic", lambda: now)
    monkeypatch.setattr(allocator, "_returned_at", -inf)  # other tests return memory by the real clock
    allocator.return_free_memory()
    knot = weakref.ref(Knot())
    now += 9.0
    allocator.return_free_memory(not_within=10.0)
    assert knot() is not None
    now += 1.0
    allocator.return_free_memory(not_within=10.0)
    assert knot() is None
