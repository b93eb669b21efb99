"""The settings of a training. Schedules are functions of the step, so that nothing has to be saved."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from sigmaff.config import Settings
from sigmaff.heads import Head

MAY_CHANGE = {
    "patience",
    "time_limit_minutes",
    "validation_batch_size",
    "checkpoint_minutes",
    "tensorboard",
    "wandb",
    "mlflow",
    "compile",
    "threads",
    "accelerator",
    "devices",
    "n_nodes",
    "strategy",
}
"""Settings that may change when a run is resumed: they do not affect the weights."""


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


def _named(schedule: Any) -> Any:
    """A schedule without a name is exponential, as the default."""
    return {"name": "exponential"} | schedule if isinstance(schedule, dict) else schedule


Schedule = Annotated[ExponentialSchedule | CosineSchedule, Field(discriminator="name"), BeforeValidator(_named)]

SHORT_WARMUP = 0.1
"""Share of a training that a warm-up gets which would be longer than the training."""


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


UNWRITTEN = ("wandb", "mlflow", "group_weights", "without_dropout")


class TrainingConfig(Settings):
    """Settings of a training. Losses and gradients are in the model's normalised unit."""

    forces_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="ρ in the loss (1 − ρ)·energy + ρ·forces; 0 trains on energies and computes no forces; null is the "
        "head's own: 0.99, and 0.9 for the evidential head",
    )
    likelihood_unit: Literal["kcal/mol", "normalised"] = Field(
        default="kcal/mol",
        description="unit of energy in which errors of forces are weighed against a likelihood, which has no unit; "
        "normalised: rms force component times 1 Å; for heads that are trained on a likelihood (evidential, gmdn, "
        "svgp, variational lnk)",
    )
    stress_weight: float = Field(
        default=0.0,
        ge=0,
        description="weight in the loss of the stress, as strain derivative of the energy per atom; 0 leaves it out, "
        "else all structures must be periodic and have a stress",
    )
    group_weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="weights in the loss of structures by their group (config_type), as in {bulk: 1, surface: 5}; "
        "groups that are not named have 1. Weights are relative: their mean over training structures is made 1",
    )
    batch_size: int = Field(
        default=10, ge=1, description="structures per step, over all devices; an epoch is cut into equal batches"
    )
    max_epochs: int = Field(default=1000, ge=1, description="passes over the training set")
    patience: int | None = Field(
        default=None, ge=1, description="stop after this many epochs without a better validation loss; null never"
    )
    time_limit_minutes: float | None = Field(
        default=None, gt=0, description="stop after this total time, over all resumptions; null never"
    )
    validate_every: int = Field(default=1, ge=1, description="epochs from one validation to the next")
    validation_batch_size: int = Field(default=100, ge=1, description="structures per step of a validation")
    learning_rate: float = Field(default=1e-3, gt=0, description="of the backbone, at the top of the schedule")
    head_learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="learning rate of the head; null: for Gaussian processes (lnk, svgp) 0.001 if they begin solved, "
        "0.01 at their prior; else the backbone's",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay of AdamW")
    schedule: Schedule = Field(default=ExponentialSchedule(), description="schedule of the learning rates")
    ema_decay: float = Field(
        default=0.999,
        ge=0,
        lt=1,
        description="memory of the running average of the weights, which is validated and kept; "
        "it starts short, as min(ema_decay, (1 + step)/(10 + step)); 0 keeps the weights themselves",
    )
    gradient_clip: float | None = Field(
        default=10.0, gt=0, description="largest 2-norm of the gradient of all weights together; null is no limit"
    )
    freeze_backbone: bool = Field(default=False, description="train only the head")
    compile: bool | Literal["auto"] = Field(
        default="auto",
        description="compile the loss (steps 1.5 to 2 times faster after a minute or two of compiling); auto: from "
        "the step on by which eager steps took about as long as compiling takes",
    )
    without_dropout: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of max_epochs, at their end, that a network with dropout is trained with dropout off, as it "
        "predicts; not for mc_dropout, which predicts with dropout on",
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads of each process; null: no change")
    checkpoint_minutes: float = Field(
        default=10.0, gt=0, description="longest time within an epoch without a checkpoint; each epoch ends with one"
    )
    tensorboard: bool = Field(default=True, description="write TensorBoard events beside metrics.csv")
    wandb: bool = Field(default=False, description="log to Weights & Biases too (extra wandb; WANDB_PROJECT, ...)")
    mlflow: bool = Field(default=False, description="log to MLflow too (extra mlflow; MLFLOW_TRACKING_URI, ...)")
    accelerator: str = Field(default="auto", description="cpu, cuda, mps or auto, as in Lightning Fabric")
    devices: int = Field(default=1, ge=1, description="devices (processes, on CPUs) on each node")
    n_nodes: int = Field(default=1, ge=1, description="nodes; under SLURM as many as the job has")
    strategy: str = Field(default="auto", description="auto or ddp, as in Lightning Fabric")

    @model_serializer(mode="wrap")
    def _without_idle(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without loggers and weights that nobody asks for: as versions without these settings wrote it."""
        written: dict[str, Any] = serialize(self)
        return {name: value for name, value in written.items() if value or name not in UNWRITTEN}

    @property
    def packages(self) -> list[str]:
        """Modules of extras that a training with these settings needs."""
        return ["lightning_fabric", *(name for name in ("tensorboard", "wandb", "mlflow") if getattr(self, name))]

    def for_head(self, head: Head) -> Self:
        """A copy with the defaults of the head for values that are not set, and without those of no effect on it."""
        asked = {"forces_weight": head.forces_weight, "head_learning_rate": head.learning_rate}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if getattr(self, name) is None}
        if not head.has_likelihood_loss:
            changes["likelihood_unit"] = "normalised"
        return self.model_copy(update=changes)

    def for_steps(self, total_steps: int) -> Self:
        """A copy whose warm-up is shorter than the training."""
        if self.schedule.warmup_steps < total_steps:
            return self
        shorter = {"warmup_steps": max(1, int(SHORT_WARMUP * total_steps))}
        return self.model_copy(update={"schedule": self.schedule.model_copy(update=shorter)})

    def drops_in(self, epoch: int) -> bool:
        """Whether dropout is on in an epoch, counted from 0."""
        return epoch < round((1.0 - self.without_dropout) * self.max_epochs)

    def trajectory(self) -> dict[str, Any]:
        """The settings that decide the weights after every step and the choice of the best."""
        can_be_extended = isinstance(self.schedule, ExponentialSchedule) and not self.without_dropout
        may_change = MAY_CHANGE | ({"max_epochs"} if can_be_extended else set())
        return self.model_dump(mode="json", exclude=may_change)
