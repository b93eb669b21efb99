"""An engine for the wells of ``md_case``, with errors of the model that are known: they grow with the displacement."""

from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator

from md_case import SITES, Wells
from sigmaff.progress import Listener
from sigmaff.simulation.md import GuardConfig

CUBIC = 0.5  # Å⁻²


class Anharmonic(Calculator):
    """F_i = −k d_i (1 + c |d_i|²): the force error of an atom of ``Wells`` is k c |d|³, its σ is k |d|.

    log: gets a line for each call. fail_beyond: Å; larger displacements have no label.
    """

    implemented_properties = ("energy", "forces")

    def __init__(self, log: str, fail_beyond: float = np.inf) -> None:
        super().__init__()
        self.log, self.fail_beyond = Path(log), fail_beyond

    def calculate(self, atoms: Atoms | None = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
        super().calculate(atoms, properties, system_changes)
        assert atoms is not None
        with self.log.open("a") as file:
            file.write("called\n")
        away = atoms.positions - atoms.positions.mean(0) - (SITES - SITES.mean(0))
        square = (away**2).sum(axis=1, keepdims=True)
        if np.sqrt(square.max()) > self.fail_beyond:
            raise ArithmeticError("too far for the engine")
        stiffness = Wells().stiffness
        energy = stiffness * (0.5 * square + 0.25 * CUBIC * square**2).sum()
        self.results = {"energy": float(energy), "forces": -stiffness * away * (1.0 + CUBIC * square)}


def settings(folder: Path, scheduler: str, *, fail_beyond: float = np.inf, **changes: Any) -> GuardConfig:
    """Nine runs of 30 steps. An error above 0.1 eV/Å is a displacement of more than 0.37 Å, a σ of 1.5 eV/Å."""
    engine = {"calculator": "guard_case:Anharmonic", "arguments": {"log": str(folder / "calls")}}
    engine["arguments"] |= {} if fail_beyond == np.inf else {"fail_beyond": fail_beyond}
    content = {
        "temperature": 900.0,
        "timestep": 8.0,
        "steps": 30,
        "check_every": 3,
        "error_above": 0.1,
        "risk": 0.2,
        "pilots": 9,
        "engine": engine,
        "cluster": {"scheduler": scheduler},
    }
    return GuardConfig.model_validate(content | changes)


def n_calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


class Interrupted(Listener):
    """Interrupts a guard at its n-th callback of a stage."""

    def __init__(self, stage: str, n: int) -> None:
        self.name, self.left, self.here = stage, n, False

    def stage(self, text: str) -> None:
        self.here = self.name in text
        self._count()

    def advance(self, done: int, total: int, note: str = "") -> None:
        self._count()

    def _count(self) -> None:
        self.left -= self.here
        if self.here and self.left < 0:
            raise KeyboardInterrupt
