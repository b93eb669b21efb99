"""Learning-rate schedules: functions of the step, so that nothing has to be saved."""

import math
from typing import Annotated, Literal

from pydantic import Field

from sigmaff.config import Settings


class ExponentialSchedule(Settings):
    """min(1, (t + 1)/t_warm-up) · rate^(t / t_decay)."""

    name: Literal["exponential"] = "exponential"
    warmup_steps: int = Field(default=1000, ge=0, description="steps over which the learning rate rises from zero")
    decay_steps: float = Field(default=4e6, gt=0, description="steps after which it has fallen by decay_rate")
    decay_rate: float = Field(default=0.01, gt=0, le=1, description="factor reached after decay_steps")

    def factor(self, step: int, total_steps: int) -> float:
        """Factor on the learning rate of a step, counted from 0."""
        return _warmup(step, self.warmup_steps) * self.decay_rate ** (step / self.decay_steps)


class CosineSchedule(Settings):
    """min(1, (t + 1)/t_warm-up) · (f + (1 − f)(1 + cos(πt/T))/2) with T the steps of max_epochs."""

    name: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=1000, ge=0, description="steps over which the learning rate rises from zero")
    final_fraction: float = Field(default=0.01, ge=0, le=1, description="factor reached at the end of max_epochs")

    def factor(self, step: int, total_steps: int) -> float:
        """Factor on the learning rate of a step, counted from 0."""
        fallen = 0.5 * (1.0 + math.cos(math.pi * min(step / total_steps, 1.0)))
        return _warmup(step, self.warmup_steps) * (self.final_fraction + (1.0 - self.final_fraction) * fallen)


Schedule = Annotated[ExponentialSchedule | CosineSchedule, Field(discriminator="name")]


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
