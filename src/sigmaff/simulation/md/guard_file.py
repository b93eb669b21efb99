"""``guard.json``: the limit of a guard, what it promises, and the kind of run that it is for."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ase import Atoms
from pydantic import BaseModel, ConfigDict

from sigmaff.errors import ConfigError, DataError
from sigmaff.files import RunFile, changes, digest
from sigmaff.simulation.md.config import MotionConfig
from sigmaff.simulation.md.pilots import Promise
from sigmaff.simulation.md.safety import KnownStd
from sigmaff.simulation.md.threshold import Threshold

NOT_OF_THE_KIND = {"seed", "steps", "checkpoint_every"}


class Kind(BaseModel):
    """What runs must have in common for the promise of one to hold for the other."""

    model_config = ConfigDict(frozen=True)

    motion: dict[str, Any]  # settings
    steps: int
    model: str  # digest
    starts: str  # digest
    formulas: tuple[str, ...]  # of the starts

    @classmethod
    def of(cls, config: MotionConfig, structures: Sequence[Atoms], *, model: str, starts: str) -> "Kind":
        """Arguments: model, starts: their digests."""
        formulas = tuple(sorted({atoms.get_chemical_formula() for atoms in structures}))
        return cls(motion=_motion(config), steps=config.steps, model=model, starts=starts, formulas=formulas)

    def differences(self, other: "Kind") -> list[str]:
        """Why the promise for runs of this kind does not hold for the others; other starts are no reason."""
        known = _motion(MotionConfig())  # the default of a setting that the version of the file did not know
        found = changes(known | self.motion | {"model": self.model}, other.motion | {"model": other.model})
        if other.steps > self.steps:
            found.append(f"steps: was {self.steps}, now {other.steps}; only shorter runs are covered")
        if new := Counter(other.formulas) - Counter(self.formulas):
            found.append(f"no pilot run started from {', '.join(sorted(new))}")
        return found

    def __str__(self) -> str:
        temperature = "".join(f" at {value:g} K" for value in self.motion["temperature"])
        return (
            f"{self.motion['ensemble']}{temperature}, {self.steps} steps of {self.motion['timestep']:g} fs or fewer, "
            f"σ checked every {self.motion['check_every']}, starts drawn alike"
        )


def _motion(config: MotionConfig) -> dict[str, Any]:
    names = set(MotionConfig.model_fields) - NOT_OF_THE_KIND
    return config.model_dump(mode="json", include=names) | {"thermostat": config.chosen_thermostat}


class GuardFile(RunFile):
    """The guard that a directory belongs to; its promise once all is done."""

    kind: Kind
    settings: dict[str, Any]  # that decide pilot runs and labels, beside the kind
    promise: Promise | None = None
    statement: str = ""
    known: KnownStd | None = None  # for the safety stops of later runs; None: a guard of an older version

    def identity(self) -> dict[str, Any]:
        return {**self.kind.model_dump(mode="json"), **self.settings}


def guarded(path: Path, kind: Kind) -> tuple[Threshold, KnownStd | None, str]:
    """The limit of a guard for runs of this kind, the σ of its pilot runs, and the digest of its promise.

    Runs of another kind raise an error.
    """
    try:
        content = path.read_bytes()
        file = GuardFile.model_validate_json(content)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: sigmaff guard makes it") from None
    except ValueError:
        raise DataError(f"{path} is damaged, or no file of sigmaff guard") from None
    if file.promise is None:
        raise ConfigError(f"{path} has no limit yet: run its sigmaff guard to the end")
    if found := file.kind.differences(kind):
        raise ConfigError(f"the promise of {path} is not about these runs ({'; '.join(found)}); make a guard for them")
    others = (
        ". The starts are not those of the guard: the promise holds if both were drawn from the same distribution"
        if kind.starts != file.kind.starts
        else ""
    )
    threshold = Threshold(value=file.promise.limit, statement=file.statement + others)
    return threshold, file.known, digest([file.promise.model_dump_json().encode()])
