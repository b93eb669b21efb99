"""ASE's optimizers under a watch: they stop where a σ leaves its range, and leave the last good structure."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from ase import Atoms
from ase.filters import Filter
from ase.mep.neb import BaseNEB
from ase.optimize.optimize import DEFAULT_MAX_STEPS, Optimizer

from sigmaff.errors import ConfigError, DataError, UncertaintyError, UncertaintyWarning
from sigmaff.simulation.calculator import Calculator
from sigmaff.simulation.limits import Above, Reading
from sigmaff.simulation.watch import Watch

Ending = Literal["converged", "steps", "crossing", "unphysical"]
"""Forces are small enough; all steps are done; a σ crossed its limit; a structure cannot be predicted."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an optimization ended."""

    ending: Ending
    step: int  # of the structure that is left: the last good one
    message: str = ""  # why it ended early, or which σ of the structure that is left is above its limit

    @property
    def is_good(self) -> bool:
        """It converged to a structure whose σ are below their limits."""
        return self.ending == "converged" and not self.message


def guarded(optimizer: Optimizer, *, stop_above: Above = "auto", warn_above: Above = None) -> "GuardedOptimizer":
    """An ASE optimizer that stops where a σ leaves its range, and leaves the last good structure.

    Arguments:
        optimizer: BFGS, FIRE, ... of a structure, of a cell filter, or of a NEB. Each structure or image that moves has
            an ``sf.Calculator``.
        stop_above: a force σ of an atom in eV/Å; ``Limits`` on several σ; "auto": twice the largest σ of the structures
            that the model was calibrated on; None: never.
        warn_above: the same choices, for one ``UncertaintyWarning``; calculators warn by themselves.

    Example:
        >>> from ase.build import molecule
        >>> from ase.optimize import BFGS
        >>> atoms = molecule("CH3CH2OH")
        >>> atoms.calc = sf.Calculator("model.sigmaff", warn_above=None)
        >>> outcome = sf.guarded(BFGS(atoms, logfile=None)).run(fmax=0.5, steps=3)
        >>> print(outcome.ending, outcome.step, outcome.message)
    """
    if type(optimizer).irun is not Optimizer.irun or type(optimizer).run is not Optimizer.run:
        name = type(optimizer).__name__
        raise ConfigError(f"{name} takes its steps where no watch can look: use BFGS, LBFGS, FIRE or the like")
    images = moving_images(optimizer)
    for number, image in enumerate(images):
        if not isinstance(image.calc, Calculator):
            which = "" if len(images) == 1 else f" of moving image {number}"
            raise ConfigError(f"the calculator{which} gives no σ to watch: set atoms.calc = sf.Calculator(model)")
    watch = Watch(images[0].calc.model, warn_above=warn_above, stop_above=stop_above, warn=_warn)
    return GuardedOptimizer(optimizer, images, watch)


def moving_images(optimizer: Optimizer) -> list[Atoms]:
    """The structure that an optimizer moves, or the images of a band without its ends."""
    target = optimizer.atoms
    if isinstance(target, BaseNEB):
        return list(target.images[1:-1])
    return [target.atoms if isinstance(target, Filter) else target]


class GuardedOptimizer:
    """An optimizer under a watch.

    A start above a limit may come back: it is stopped if its σ grows further, and once it is below, at the limit.
    """

    def __init__(self, optimizer: Optimizer, images: Sequence[Atoms], watch: Watch) -> None:
        self.optimizer, self.images, self.watch = optimizer, images, watch

    def run(
        self, fmax: float = 0.05, steps: int = DEFAULT_MAX_STEPS, *, each: Callable[[int], None] | None = None
    ) -> Outcome:
        """Optimize as the optimizer's own ``run``.

        Arguments:
            fmax: eV/Å, largest force at the end.
            steps: at most.
            each: called after each good step, with its number.
        """
        allowed, good, above, step = inf, _Places(self.images), None, self.optimizer.nsteps
        ending: Ending = "steps"
        try:
            for is_converged in self.optimizer.irun(fmax=fmax, steps=steps):
                found = self._look()
                share = 0.0 if found is None else found[1].share
                if found is not None and share > allowed:
                    return self._crossed(good, step, *found, came_back=allowed == 1.0)
                if share <= 1.0:
                    allowed = 1.0
                elif allowed == inf:
                    allowed = share  # the start
                ending = "converged" if is_converged else "steps"
                good, above, step = _Places(self.images), found, self.optimizer.nsteps
                if each is not None:
                    each(step)
        except (UncertaintyError, DataError) as error:
            good.restore()
            is_crossing = isinstance(error, UncertaintyError)
            return Outcome(ending="crossing" if is_crossing else "unphysical", step=step, message=str(error))
        message = "" if above is None else f"the end is outside: {self._words(*above)}"
        return Outcome(ending=ending, step=step, message=message)

    def _look(self) -> tuple[int, Reading] | None:
        """The σ farthest above its limit, with the number of its image."""
        found = []
        for number, image in enumerate(self.images):
            image.get_potential_energy()  # images may share a calculator, which has the results of one
            above = self.watch.look(image.calc.results)
            found += [] if above is None else [(number, above)]
        return max(found, key=lambda item: item[1].share, default=None)

    def _crossed(self, good: "_Places", step: int, number: int, above: Reading, *, came_back: bool) -> Outcome:
        good.restore()
        words = self._words(number, above)
        words = words if came_back else f"the start is outside, and σ grows: {words}"
        return Outcome(ending="crossing", step=step, message=f"step {self.optimizer.nsteps}: {words}")

    def _words(self, number: int, above: Reading) -> str:
        image = "" if len(self.images) == 1 else f"image {number + 1}: "
        return image + self.watch.words(above)


class _Places:
    """Positions and cells of some structures."""

    def __init__(self, images: Sequence[Atoms]) -> None:
        self.kept = [(image, image.positions.copy(), image.cell.copy()) for image in images]

    def restore(self) -> None:
        for image, positions, cell in self.kept:
            image.set_cell(cell, scale_atoms=False, apply_constraint=False)
            image.set_positions(positions, apply_constraint=False)


def _warn(text: str) -> None:
    warnings.warn(text, UncertaintyWarning, stacklevel=2)
