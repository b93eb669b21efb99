"""Settings of guarded molecular dynamics."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from sigmaff.config import Settings
from sigmaff.data.labelling import EngineConfig
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.simulation.md.connectivity import Watched
from sigmaff.simulation.md.risk import fewest
from sigmaff.tasks import ClusterConfig

Ensemble = Literal["nve", "nvt", "npt"]
Thermostat = Literal["langevin", "nose-hoover", "bussi"]
OnCrossing = Literal["stop", "rollback", "continue"]
RiskKind = Literal["joint", "conditional"]

THERMOSTATS: dict[Ensemble, tuple[Thermostat, ...]] = {
    "nve": (),
    "nvt": ("langevin", "nose-hoover", "bussi"),
    "npt": ("nose-hoover",),
}
"""Thermostats of each ensemble, the default first. npt: barostat of Martyna, Tobias and Klein, with chains."""

Limit = float | Literal["auto"] | None
"""On the largest force σ of an atom, the norm of its components: eV/Å; from calibration structures; none."""

SafetyLimit = float | Literal["auto", "off"]
"""On energy σ per atom, or on the σ of an atom's share of the energy: eV; from known structures; none."""


def _is_guard(path: Path) -> Path:
    if path.suffix != ".json":
        raise ValueError("the limit of a guard is in its file guard.json")
    return path


GuardPath = Annotated[Path, AfterValidator(_is_guard)]
"""The file that ``sigmaff guard`` writes."""


class MotionConfig(Settings):
    """What a run is like: how structures move, and how often σ is looked at. fs, K, GPa."""

    model_config = ConfigDict(allow_inf_nan=False)

    ensemble: Ensemble = Field(default="nvt", description="constant energy, temperature, or also pressure")
    thermostat: Thermostat | None = Field(default=None, description="null: langevin for nvt, nose-hoover for npt")
    temperature: tuple[float, ...] = Field(
        default=(300.0,),
        description="K; each start runs at each of these, with random velocities; "
        "none (nve only): the velocities of the start",
    )
    pressure: float = Field(default=0.0, description="GPa; for npt")
    cell: Literal["isotropic", "full"] = Field(default="isotropic", description="cell changes in npt")
    timestep: float = Field(default=0.5, gt=0, description="fs")
    steps: int = Field(default=10_000, ge=0, description="steps of each replica")
    damping: float = Field(default=100.0, gt=0, description="fs, time constant of the thermostat")
    pressure_damping: float = Field(default=1000.0, gt=0, description="fs, time constant of the barostat")
    seed: int = Field(default=0, ge=0, description="seed of velocities and thermostats")
    hottest: float = Field(default=10.0, gt=1, description="stop a replica above this multiple of its temperature")
    forces_std: ForceStdMethod = Field(default="auto", description="how force σ is computed")
    check_every: int = Field(default=10, ge=1, description="steps between checks of force σ, the most expensive part")
    checkpoint_every: int = Field(default=500, ge=1, description="steps between checkpoints")

    @field_validator("temperature", mode="before", json_schema_input_type=float | tuple[float, ...])
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(temperature <= 0 for temperature in self.temperature):
            raise ValueError("temperature must be above 0 K")
        if not self.temperature and self.ensemble != "nve":
            raise ValueError(f"{self.ensemble} needs a temperature")
        known = THERMOSTATS[self.ensemble]
        if self.thermostat is not None and self.thermostat not in known:
            choice = f"choose {', '.join(known)}" if known else "leave the thermostat out"
            raise ValueError(f"{self.ensemble} with {self.thermostat} is not supported: {choice}")
        return self

    @property
    def chosen_thermostat(self) -> Thermostat | None:
        return self.thermostat or next(iter(THERMOSTATS[self.ensemble]), None)


class DynamicsConfig(MotionConfig):
    """Motion of many replicas and what is monitored, without the limit on σ. fs, K, GPa, eV, Å."""

    replicas: int = Field(default=1, ge=1, description="of each start at each temperature; they differ in velocities")
    error_above: float | None = Field(default=None, gt=0, description="eV/Å; force error to guard against with auto")
    risk: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="tolerated chance that one structure (not a run) is below the limit and has such an error",
    )
    on_crossing: OnCrossing = Field(
        default="stop", description="above the limit: stop; roll back and draw new velocities; or only record it"
    )
    rollback: int = Field(default=100, ge=1, description="steps that a replica is rolled back")
    max_rollbacks: int = Field(default=10, ge=0, description="rollbacks of a replica before it is stopped")
    connectivity: Watched = Field(
        default="isolated",
        description="isolated: stop a replica when an atom has lost all its neighbours within the cutoff of the model; "
        "bonds: also when a bond of the start breaks (closer than 1.25, farther than 1.6 sums of covalent radii); off",
    )
    drift_every: int = Field(default=100, ge=1, description="steps between looks of the drift monitor")
    false_alarm: float = Field(default=0.01, gt=0, lt=1, description="chance of an alarm in a stationary replica")

    every: int = Field(default=10, ge=1, description="steps between frames and log lines")

    def check_limit(self, name: str, limit: Limit) -> None:
        """Raise an error if the other settings contradict the limit on σ of this name."""
        if limit == "auto" and self.error_above is None:
            raise ValueError(f"{name} auto needs error_above: the force error in eV/Å to guard against")
        if isinstance(limit, float) and limit <= 0:
            raise ValueError(f"{name} must be above 0 eV/Å")
        if limit is not None and self.forces_std == "none":
            raise ValueError(f"{name} is a limit on σ of forces; forces_std none does not compute it")
        if self.on_crossing != "stop" and limit is None:
            raise ValueError(f"on_crossing {self.on_crossing} needs {name}: without it nothing is crossed")

    def is_looked_at(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether σ is looked at at each of these steps: for a check, a frame, or the drift monitor."""
        looked = np.zeros(len(steps), dtype=bool)
        for interval in (self.check_every, self.every, self.drift_every):
            looked |= steps % interval == 0
        return looked


class MDConfig(DynamicsConfig):
    """Settings of guarded molecular dynamics. fs, K, GPa, eV, Å."""

    stop_above: Limit | GuardPath = Field(
        default=None,
        description="eV/Å; stop a replica when the largest force σ of an atom (norm of its components) exceeds this; "
        "guard.json of sigmaff guard: a limit with a promise about runs; auto: with one about structures, from "
        "calibration structures, by error_above and risk; null: no limit",
    )
    stop_above_energy: SafetyLimit = Field(
        default="auto",
        description="eV/atom; stop a replica also when its energy σ per atom exceeds this; auto: twice the largest of "
        "the calibration structures or pilot runs that give stop_above, else off; off: no limit",
    )
    stop_above_atom: SafetyLimit = Field(
        default="auto",
        description="eV; stop a replica also when the σ of an atom's share of the energy exceeds this; auto: twice the "
        "largest of the calibration structures or pilot runs that give stop_above, else off; off: no limit",
    )
    risk_kind: RiskKind = Field(
        default="joint",
        description="of auto; joint: risk bounds the chance that a structure is below the limit and has such an error; "
        "conditional: the share of such errors among structures below the limit, with confidence",
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="of the promise of a conditional risk")

    @model_validator(mode="after")
    def _possible_limit(self) -> Self:
        limit = self.stop_above
        for name in ("stop_above_energy", "stop_above_atom"):
            if isinstance(given := getattr(self, name), float) and given <= 0:
                raise ValueError(f"{name} must be above 0")
        if isinstance(self.stop_above_atom, float) and self.forces_std == "none":
            raise ValueError("stop_above_atom is a limit on σ of atoms; forces_std none does not compute it")
        if isinstance(limit, Path):
            if self.on_crossing != "stop":
                raise ValueError("the promise of a guard is about runs that stop: leave on_crossing at stop")
            if self.error_above is not None:
                raise ValueError("error_above is a setting of sigmaff guard; a limit from its file has it already")
            if self.forces_std == "none":
                raise ValueError("stop_above is a limit on σ of forces; forces_std none does not compute it")
        elif limit is not None or not self._has_given_safety:
            self.check_limit("stop_above", limit)
        return self

    @property
    def _has_given_safety(self) -> bool:
        return isinstance(self.stop_above_energy, float) or isinstance(self.stop_above_atom, float)


class GuardConfig(MotionConfig):
    """Settings of a guard: pilot runs, their labels, and the promise. fs, K, GPa, eV, Å."""

    temperature: tuple[float, ...] = Field(
        default=(300.0,),
        max_length=1,
        description="K, with random velocities; none (nve only): the velocities of the start",
    )
    steps: int = Field(default=10_000, ge=0, description="steps of each run; later runs may be shorter")
    error_above: float = Field(gt=0, description="eV/Å; force error of an atom to guard against")
    risk: float = Field(
        default=0.05, gt=0, lt=1, description="tolerated share of runs that have such an error before they are stopped"
    )
    confidence: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="of the promise, over draws of the pilot runs; null: the promise holds on average over them",
    )
    pilots: int = Field(default=19, ge=1, description="pilot runs; at least 1/risk − 1, or more for a confidence")
    engine: EngineConfig = Field(default=EngineConfig(), description="engine that computes labels")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="where labels are computed")

    @model_validator(mode="after")
    def _possible_promise(self) -> Self:
        if self.forces_std == "none":
            raise ValueError("a guard is a limit on σ of forces; forces_std none does not compute it")
        if self.pilots < (needed := fewest(self.risk, self.confidence)):
            sure = "" if self.confidence is None else f" with a confidence of {self.confidence:g}"
            raise ValueError(
                f"{self.pilots} pilots cannot promise a risk of {self.risk:g}{sure}: at least {needed} can"
            )
        return self

    def motion(self) -> dict[str, Any]:
        """The settings that a run shares with its guard."""
        return self.model_dump(include=set(MotionConfig.model_fields))
