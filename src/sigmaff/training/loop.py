"""The training loop, on Lightning Fabric: one process or many, interrupted or not, the same steps.

The batches of an epoch follow from (seed, epoch), the random numbers of a step from (seed, step, process):
nothing but weights, moments and counters has to be saved to resume a run exactly.
"""

import atexit
import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError, ModelFileError
from sigmaff.extras import require
from sigmaff.files import changes, folder_lock, refuse_changes
from sigmaff.heads.base import FORMER_DEFAULTS
from sigmaff.models import Potential
from sigmaff.models.dropout import dropouts
from sigmaff.progress import Listener
from sigmaff.training.batches import batch_share, derived_seed, epoch_batches
from sigmaff.training.checkpoint import (
    CHECKPOINT,
    as_begun,
    identify,
    optimizer_tensors,
    read_checkpoint,
    restore_optimizer,
    weights_digest,
    write_checkpoint,
)
from sigmaff.training.compiling import compile_step
from sigmaff.training.config import TrainingConfig
from sigmaff.training.ema import WeightAverage, assign
from sigmaff.training.interrupt import stop_signal
from sigmaff.training.logs import MetricsLog
from sigmaff.training.objective import LossTerms, Objective, freeze, load_batch
from sigmaff.training.state import EpochRecord, StoppedBecause, TrainingDivergedError, TrainingResult, TrainingState
from sigmaff.training.weights import with_mean_one

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    potential: Potential,
    train_set: GraphDataset,
    validation_set: GraphDataset,
    config: TrainingConfig,
    directory: Path,
    *,
    seed: int,
    listener: Listener | None = None,
    force: bool = False,
) -> TrainingResult:
    """Train a potential in place, to the averaged weights of the epoch with the lowest validation loss.

    Call it again with the same arguments to resume from the last checkpoint; a finished run returns at once. If the
    training fails, the potential keeps its weights. Each process of a distributed training runs this with the same
    arguments and a directory that all of them see.

    Arguments:
        directory: gets ``checkpoint.safetensors``, ``metrics.csv``, ``settings.json`` and what loggers write.
        seed: of the order of batches and of dropout.
        listener: progress callbacks; ``None`` is silent.
        force: overwrite the checkpoint of another run, which is an error otherwise.
    """
    config = (config if force else as_begun(config, directory / CHECKPOINT)).for_head(potential.head)
    fabric = _fabric(config)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_group)  # a later training of this process may still use the group
    directory.mkdir(parents=True, exist_ok=True)
    with (
        folder_lock(directory, wait=False) if fabric.is_global_zero else nullcontext(),
        stop_signal() as stop,
        _threads(config.threads),
        torch.random.fork_rng(devices=[fabric.device] if fabric.device.type == "cuda" else []),
        _prepared(potential),
    ):
        training = Training(fabric, potential, train_set, validation_set, config, directory, seed, stop)
        training.resume(force=force)
        if not fabric.is_global_zero:
            return training.run(Listener(), None)
        listener = listener or Listener()
        if (shorter := training.config.schedule.warmup_steps) != (asked := config.schedule.warmup_steps):
            listener.tell(f"warm-up: {shorter} steps instead of {asked}, as the training has {training.total_steps}")
        with closing(MetricsLog(directory, training.state.history, training.config, training.total_steps)) as log:
            return training.run(listener, log)


def _fabric(config: TrainingConfig) -> "Fabric":
    require("training", *config.packages)
    from lightning_fabric import Fabric

    try:
        return Fabric(
            accelerator=config.accelerator, devices=config.devices, num_nodes=config.n_nodes, strategy=config.strategy
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"training cannot run with accelerator {config.accelerator!r}, devices {config.devices} and strategy "
            f"{config.strategy!r}: {error}"
        ) from None


def _leave_group() -> None:
    """Leave the process group: a process that ends inside of it sometimes aborts."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Training:
    """One run: the potential, its data, its optimiser and its state."""

    def __init__(
        self,
        fabric: "Fabric",
        potential: Potential,
        train_set: GraphDataset,
        validation_set: GraphDataset,
        config: TrainingConfig,
        directory: Path,
        seed: int,
        stop: threading.Event,
    ) -> None:
        self.fabric, self.potential, self.seed, self.stop = fabric, potential, seed, stop
        self.train_set, self.validation_set = train_set, validation_set
        self.config = with_mean_one(config, train_set, validation_set)
        self.checkpoint = directory / CHECKPOINT
        self.began = 0.0  # by the clock
        self.saved = 0.0  # seconds of the run at its last checkpoint
        self.note = ""  # of the last validation
        self.tried_compiling = False
        self.n_batches = math.ceil(len(train_set) / config.batch_size)
        self.total_steps = self.n_batches * config.max_epochs
        self.config = config = config.for_steps(self.total_steps)
        self._check_start()
        self.state = TrainingState(compile_from=compile_step(potential, train_set, self.n_batches))
        self.identity = identify(potential, train_set, validation_set, config, seed)
        freeze(potential, train_set, config)
        self.objective = Objective(potential, config.model_copy(update={"compile": False}), len(train_set))
        self.module, self.optimizer = fabric.setup(self.objective, _optimizer(potential, config))
        trained = {name: weight for name, weight in potential.named_parameters() if weight.requires_grad}
        self.average = WeightAverage(trained, config.ema_decay)
        self.best: dict[str, Tensor] = {}  # none before the first validation

    def _check_start(self) -> None:
        """Raise errors before the first step, not after hours."""
        for dataset in (self.train_set, self.validation_set):
            load_batch(self.potential, dataset, torch.arange(1), self.config)

    def resume(self, *, force: bool) -> None:
        """Load the checkpoint of this run, if it exists."""
        if not self.checkpoint.exists():
            return
        try:
            tensors, state, identity = read_checkpoint(self.checkpoint)
            former = {name: was for name, was in FORMER_DEFAULTS.items() if name in self.identity}
            identity = former | {"starting weights": self.identity["starting weights"]} | identity
            best = tensors.get("best", {})
            if self.identity["starting weights"] == weights_digest(tensors["weights"] | best):
                self.identity |= {"starting weights": identity["starting weights"]}  # as this run returned them
            remedy = "undo the change to resume it, use another directory, or start anew here with --force"
            refuse_changes(self.checkpoint, changes(identity, self.identity), remedy)
        except (ConfigError, ModelFileError):
            if force:
                return
            raise
        self.potential.load_state_dict(tensors["weights"])
        assign(self.average.values, tensors["average"])
        self.best = best
        restore_optimizer(self.optimizer, tensors["moments"])
        self.state = state

    def run(self, listener: Listener, log: MetricsLog | None) -> TrainingResult:
        """Epochs until there is a reason to stop; then the best weights."""
        self.objective.warn = listener.warn
        self.began = time.monotonic() - self.state.seconds
        self.saved = self.state.seconds
        step = self.state.step
        listener.advance(step, self.total_steps, f"resuming from step {step} of {self.total_steps}" if step else "")
        if self.config.freeze_backbone and not step:
            self._keep(0, self._validate()[0])  # a head may begin with a solution
        while (reason := self.state.stopped_because(self.config)) is None:
            self._train_epoch(listener)
            record = self._close_epoch()
            self.state.history.append(record)
            self._keep(record.epoch, record.validation_loss)
            if log is not None:
                log.write(record)
            self.note = record.note or self.note
            listener.advance(self.state.step, self.total_steps, self.note)
            self._save()
            if any(self._agree(float(self.stop.is_set()))):
                raise self._interruption()
        assign(self.average.weights, self.best)
        return self._result(reason)

    def _keep(self, epoch: int, loss: float | None) -> None:
        """Keep the averaged weights if they are the best so far."""
        if loss is not None and (self.state.best_loss is None or loss < self.state.best_loss):
            self.state.best_epoch, self.state.best_loss = epoch, loss
            self.best = {name: value.clone() for name, value in self.average.values.items()}

    def _train_epoch(self, listener: Listener) -> None:
        """Train on the remaining batches of an epoch, up to the time limit."""
        state = self.state
        batches = epoch_batches(len(self.train_set), self.n_batches, self.seed, state.epoch)
        self.module.train()
        for part in dropouts(self.potential):
            part.train(self.config.drops_in(state.epoch))
        while state.batch < self.n_batches:
            self._compile_if_due(listener)
            loss = self._step(batches[state.batch])
            loss, state.seconds, stop = self._agree(loss, self._seconds(), float(self.stop.is_set()))
            state.loss_sum += loss
            state.batch += 1
            state.step += 1
            note = self.note or f"epoch {state.epoch + 1}, loss {loss:.4f}"
            listener.advance(state.step, self.total_steps, note)
            if stop or state.seconds - self.saved > 60 * self.config.checkpoint_minutes:
                self._save()
            if stop:
                raise self._interruption()
            if state.is_late(self.config):
                return

    def _compile_if_due(self, listener: Listener) -> None:
        """Compile at the step that the settings or the state say, always for the first batch of the training."""
        begins = {"auto": self.state.compile_from, True: 0, False: None}[self.config.compile]
        if self.tried_compiling or begins is None or self.state.step < begins:
            return
        self.tried_compiling = True
        listener.tell(f"compiling the loss, from step {self.state.step} on: this takes a minute or two")
        first = epoch_batches(len(self.train_set), self.n_batches, self.seed, 0)[0]
        share, _, _ = batch_share(first, self.train_set.n_atoms, self.fabric.global_rank, self.fabric.world_size)
        torch.manual_seed(derived_seed(self.seed, begins, self.fabric.global_rank))
        self.objective.compile_for(load_batch(self.potential, self.train_set, share, self.config))
        self.state.compiled_from = begins if self.objective.is_compiled else None

    def _interruption(self) -> KeyboardInterrupt:
        return KeyboardInterrupt(
            f"training stopped on request after step {self.state.step} of {self.total_steps}; "
            f"run the same command to resume from {self.checkpoint}"
        )

    def _step(self, indices: Tensor) -> float:
        """One optimiser step on this process's share of a batch. Return the loss of the share."""
        rank, n_processes = self.fabric.global_rank, self.fabric.world_size
        share, of_structures, of_atoms = batch_share(indices, self.train_set.n_atoms, rank, n_processes)
        batch = load_batch(self.potential, self.train_set, share, self.config)
        torch.manual_seed(derived_seed(self.seed, self.state.step, rank))
        terms = self.module(batch)
        loss = n_processes * self.objective.total(terms, of_structures, of_atoms)  # gradients are averaged
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(
            self.module, self.optimizer, max_norm=self.config.gradient_clip or math.inf, error_if_nonfinite=False
        )
        assert norm is not None
        value, size = torch.stack([loss.detach(), norm]).tolist()  # the one wait for a device
        self._check_finite(value, size, indices)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(group["top_lr"], self.state.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.state.step)
        return value

    def _rate(self, top: float, step: int) -> float:
        """The learning rate of a step. A resumed run may close an epoch before its first step."""
        return self.config.schedule.factor(step, self.total_steps) * top

    def _check_finite(self, loss: float, gradient_norm: float, indices: Tensor) -> None:
        if math.isfinite(loss) and math.isfinite(gradient_norm):
            return
        structures = self.train_set.structures
        frames = ", ".join(str(structures.frame_index[index]) for index in sorted(indices.tolist()))
        raise TrainingDivergedError(
            f"epoch {self.state.epoch + 1}, step {self.state.step + 1}: the loss is {loss}, the norm of its "
            f"gradient {gradient_norm}. The batch holds frames {frames} of {structures.source}: look there "
            "for wrong labels or atoms on top of each other, or lower the learning rate. "
            f"The last good weights are in {self.checkpoint}"
        )

    def _close_epoch(self) -> EpochRecord:
        """Validate if due, and record the epoch."""
        state = self.state
        train_loss = state.loss_sum / state.batch
        number = state.epoch + 1
        if state.batch == self.n_batches:
            state.epoch, state.batch, state.loss_sum = number, 0, 0.0
        is_last = number == self.config.max_epochs or state.is_late(self.config)
        validated = is_last or number % self.config.validate_every == 0
        loss, energy_mae, forces_mae = self._validate() if validated else (None, None, None)
        (state.seconds,) = self._agree(self._seconds())
        return EpochRecord(
            epoch=number,
            step=state.step,
            learning_rate=self._rate(self.optimizer.param_groups[0]["top_lr"], state.step - 1),
            train_loss=train_loss,
            validation_loss=loss,
            energy_mae=energy_mae,
            forces_mae=forces_mae,
            seconds=state.seconds,
        )

    @torch.no_grad()
    def _validate(self) -> tuple[float, float, float | None]:
        """Loss, energy MAE (eV) and forces MAE (eV/Å) of the averaged weights on the validation set."""
        rank, n_processes = self.fabric.global_rank, self.fabric.world_size
        n_batches = math.ceil(len(self.validation_set) / self.config.validation_batch_size)
        sums = np.zeros(7)
        self.module.eval()
        with self.average.applied():
            for indices in torch.arange(len(self.validation_set)).tensor_split(n_batches)[rank::n_processes]:
                batch = load_batch(self.potential, self.validation_set, indices, self.config)
                sums += _sums(self.objective(batch), batch.graph.n_structures, batch.graph.n_atoms)
        energy_loss, energy_mae, forces_loss, forces_mae, virial_loss, n_structures, n_atoms = self._agree(*sums)
        weight, scale = self.objective.forces_weight, self.potential.statistics.scale
        loss = (1.0 - weight) * energy_loss / n_structures + weight * forces_loss / n_atoms
        loss += self.config.stress_weight * virial_loss / n_structures
        if not math.isfinite(loss):
            raise TrainingDivergedError(
                f"step {self.state.step}: the validation loss is {loss}; look for wrong labels or atoms "
                f"on top of each other in {self.validation_set.structures.source}, or lower the learning rate"
            )
        return loss, scale * energy_mae / n_structures, scale * forces_mae / n_atoms if weight else None

    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _agree(self, *values: float) -> list[float]:
        """Means over all processes, so that all of them take the same decisions."""
        if self.fabric.world_size == 1:
            return list(values)
        mean = self.fabric.all_reduce(torch.tensor(values, dtype=torch.float64), reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean.tolist()

    def _save(self) -> None:
        self.saved = self.state.seconds
        if not self.fabric.is_global_zero:
            return
        tensors = {
            "weights": self.potential.state_dict(),
            "average": self.average.values,
            "best": self.best,
            "moments": optimizer_tensors(self.optimizer),
        }
        write_checkpoint(self.checkpoint, tensors, self.state, self.identity)

    def _result(self, reason: StoppedBecause) -> TrainingResult:
        assert self.state.best_epoch is not None
        assert self.state.best_loss is not None
        return TrainingResult(
            best_epoch=self.state.best_epoch,
            best_validation_loss=self.state.best_loss,
            history=tuple(self.state.history),
            seconds=self.state.seconds,
            stopped_because=reason,
            compiled_from=self.state.compiled_from,
            is_main_process=self.fabric.is_global_zero,
        )


def _sums(terms: LossTerms, n_structures: int, n_atoms: int) -> np.ndarray:
    """The terms of a batch as sums over its structures or atoms, in their order; then the numbers of both."""
    means = [0.0 if mean is None else float(mean) for mean in terms]
    counts = np.array([n_structures, n_structures, n_atoms, n_atoms, n_structures])
    return np.append(counts * means, [n_structures, n_atoms])


def _optimizer(potential: Potential, config: TrainingConfig) -> AdamW:
    """AdamW with a group for the backbone and one for the head."""
    rates = {"backbone": config.learning_rate, "head": config.head_learning_rate or config.learning_rate}
    parts = {"backbone": potential.backbone, "head": potential.head}
    trained = {name: [p for p in part.parameters() if p.requires_grad] for name, part in parts.items()}
    if not any(trained.values()):
        raise ConfigError("nothing to train: the backbone is frozen, and the head has no weights of its own")
    groups = [{"params": trained[name], "lr": rate, "top_lr": rate} for name, rate in rates.items() if trained[name]]
    return AdamW(groups, weight_decay=config.weight_decay, fused=True)


@contextmanager
def _threads(n_threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _prepared(potential: Potential) -> Iterator[None]:
    """Restore device and gradients of the potential afterwards; on an error also its weights."""
    device = potential.device
    before = {name: value.detach().clone() for name, value in potential.state_dict().items()}
    trainable = {name: weight.requires_grad for name, weight in potential.named_parameters()}
    try:
        yield
    except BaseException:
        potential.load_state_dict(before)
        raise
    finally:
        for name, weight in potential.named_parameters():
            weight.requires_grad_(trainable[name])
        potential.to(device).eval()
