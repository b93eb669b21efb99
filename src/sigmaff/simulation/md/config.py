"""Settings of guarded molecular dynamics."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sigmaff.models.prediction import ForceStdMethod

Ensemble = Literal["nve", "nvt", "npt"]
Thermostat = Literal["langevin", "nose-hoover", "bussi"]
OnCrossing = Literal["stop", "rollback", "continue"]

THERMOSTATS: dict[Ensemble, tuple[Thermostat, ...]] = {
    "nve": (),
    "nvt": ("langevin", "nose-hoover", "bussi"),
    "npt": ("nose-hoover",),
}
"""That an ensemble can have, the default first. With a barostat: Martyna, Tobias and Klein's, with chains."""


class MDConfig(BaseModel):
    """How structures move, what is watched, and what is done about it. fs, K, GPa, eV, Å."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ensemble: Ensemble = Field(default="nvt", description="what is conserved: energy, or temperature, and pressure")
    thermostat: Thermostat | None = Field(default=None, description="null: langevin for nvt, nose-hoover for npt")
    temperature: tuple[float, ...] = Field(
        default=(300.0,),
        description="K; each start runs at each of these, with velocities drawn at it; "
        "none (nve alone): the start's own velocities",
    )
    pressure: float = Field(default=0.0, description="GPa, of npt")
    cell: Literal["isotropic", "full"] = Field(default="isotropic", description="how the cell of npt changes")
    timestep: float = Field(default=0.5, gt=0, description="fs")
    steps: int = Field(default=10_000, ge=0, description="of each replica")
    replicas: int = Field(default=1, ge=1, description="of each start at each temperature; they differ in velocities")
    damping: float = Field(default=100.0, gt=0, description="fs, time constant of the thermostat")
    pressure_damping: float = Field(default=1000.0, gt=0, description="fs, time constant of the barostat")
    seed: int = Field(default=0, ge=0, description="of velocities and thermostats")

    forces_std: ForceStdMethod = Field(default="auto", description="how σ of forces is computed, where it is")
    check_every: int = Field(default=10, ge=1, description="steps between looks at σ of forces, which costs most")
    stop_above: float | Literal["auto"] | None = Field(
        default=None,
        description="eV/Å; the largest force σ of an atom (norm of its components) that is let pass; "
        "auto: from calibration structures, by error_above and risk; null: no limit",
    )
    error_above: float | None = Field(default=None, gt=0, description="eV/Å; the force error that auto guards against")
    risk: float = Field(default=0.05, gt=0, lt=1, description="chance of such an error in a structure that is let pass")
    on_crossing: OnCrossing = Field(
        default="stop",
        description="stop the replica; or take it back and go on with other velocities; or note it and go on",
    )
    rollback: int = Field(default=100, ge=1, description="steps that a replica is taken back")
    max_rollbacks: int = Field(default=10, ge=0, description="times that a replica goes on after it was taken back")
    hottest: float = Field(default=10.0, gt=1, description="times the temperature asked for, above which it exploded")
    drift_every: int = Field(default=100, ge=1, description="steps between the frames that the drift monitor sees")
    false_alarm: float = Field(default=0.01, gt=0, lt=1, description="chance of an alarm in a replica without a drift")

    every: int = Field(default=10, ge=1, description="steps between frames and lines of the log that are written")
    checkpoint_every: int = Field(default=500, ge=1, description="steps between states to go on from")

    @field_validator("temperature", mode="before")
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
            raise ValueError(f"{self.ensemble} with {self.thermostat} is not there: {_choice(known)}")
        if self.stop_above == "auto" and self.error_above is None:
            raise ValueError("stop_above auto needs error_above: the force error in eV/Å to guard against")
        if isinstance(self.stop_above, float) and self.stop_above <= 0:
            raise ValueError("stop_above must be above 0 eV/Å")
        if self.stop_above is not None and self.forces_std == "none":
            raise ValueError("stop_above is a limit on σ of forces; forces_std none does not compute it")
        if self.on_crossing != "stop" and self.stop_above is None:
            raise ValueError(f"on_crossing {self.on_crossing} needs stop_above: without it nothing is crossed")
        return self

    @property
    def chosen_thermostat(self) -> Thermostat | None:
        return self.thermostat or next(iter(THERMOSTATS[self.ensemble]), None)

    def shows_forces_std(self, step: int) -> bool:
        """Whether force σ is computed at this step: where it is checked, written, or seen by the drift monitor."""
        return any(step % interval == 0 for interval in (self.check_every, self.every, self.drift_every))


def _choice(known: tuple[str, ...]) -> str:
    return f"choose {', '.join(known)}" if known else "leave the thermostat out"
