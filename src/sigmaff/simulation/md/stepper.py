"""Integrators that pause where they need a prediction, so that one batched prediction serves many at once.

ASE's integrators call their calculator in the middle of a step. Here each runs in its own thread. Only one thread is
awake at a time: a thread sleeps from its question until its answer. So results do not depend on the order of threads.
"""

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms

FloatArray = npt.NDArray[np.float64]
Results = Mapping[str, Any]


class Stepper:
    """A thread that does one piece of work after another, and pauses where it needs results of a structure."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def proceed(self, message: Callable[[], object] | Results) -> Atoms | None:
        """Begin a piece of work, or continue it with the results that it asked for.

        Returns the structure that it needs results of next, or ``None`` when it is done.
        """
        self._inbox.put(message)
        reply = self._outbox.get()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def close(self) -> None:
        """End the thread, wherever it is."""
        self._inbox.put(None)
        self._thread.join()

    def ask(self, atoms: Atoms) -> Results:
        """Called by the work: wait for results."""
        self._outbox.put(atoms)
        reply = self._inbox.get()
        if reply is None:
            raise _Abandoned
        return reply

    def _run(self) -> None:
        while (work := self._inbox.get()) is not None:
            try:
                work()
                self._outbox.put(None)
            except _Abandoned:
                return
            except BaseException as error:  # raised where the work was begun
                self._outbox.put(error)


class _Abandoned(BaseException):
    """Nobody will answer any more."""


class AskingCalculator:
    """The methods that ASE's integrators call. Keeps results of the last structure; asks for those of others."""

    def __init__(self, ask: Callable[[Atoms], Results]) -> None:
        self._ask = ask
        self._place: FloatArray = np.zeros((0, 3))
        self.results: Results = {}

    def remember(self, atoms: Atoms, results: Results) -> None:
        self._place, self.results = _place(atoms), results

    def get_forces(self, atoms: Atoms) -> FloatArray:
        self._update(atoms)
        return np.array(self.results["forces"])

    def get_stress(self, atoms: Atoms) -> FloatArray:
        self._update(atoms)
        return np.array(self.results["stress"])

    def _update(self, atoms: Atoms) -> None:
        if not np.array_equal(_place(atoms), self._place):
            self.remember(atoms, self._ask(atoms))


def _place(atoms: Atoms) -> FloatArray:
    """Positions and lattice vectors, (n_atoms + 3, 3)."""
    return np.concatenate([atoms.positions, atoms.cell.array])
