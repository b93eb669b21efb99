"""Estimates of how long jobs take, from the speed that was measured on one core."""

import math

from sigmaff.heads import HEADS
from sigmaff.runs.jobs import Job
from sigmaff.runs.model_jobs import ModelJob, TrainJob
from sigmaff.training import TrainingConfig
from sigmaff_paper.experiments.selection import Cell
from sigmaff_paper.experiments.settings import HOUR, MEAN_ATOMS
from sigmaff_paper.tables.md17 import N_ATOMS

BASIS = 10
"""Structures of a step of which ``HOUR`` tells the speed."""
STEP_OVERHEAD = {"schnet": 0.011, "dimenet++": 0.010, "nequip": 0.005}
"""Seconds of a step, however few structures it has: from steps of one structure (benchmarks/backbone_speed.py)."""
PREDICTION_SHARE = 1 / 3
"""Time of a prediction over that of a step, for each structure."""
FORCE_STD_PASSES = 2
"""Predictions that take as long as one with analytic force σ, for each atom."""
SOLVE_EPOCHS = 17
"""Epochs of training that take as long as the solve of a process on a trained network."""


def expected_hours(job: Job) -> float | None:
    """Return the hours of one core that a job is expected to take at most; ``None`` at scale quick.

    Patience may end a training of scale paper earlier. Copies, counts and timings take minutes and count as nothing.
    """
    cell = Cell.of(job)
    if job.name.startswith("quick/"):
        return None
    if cell is None or not isinstance(job, ModelJob):
        return 0.0
    config, n_atoms = job.config, N_ATOMS.get(cell.molecule, MEAN_ATOMS)
    is_trained = isinstance(job, TrainJob) and not (job.after and config.model.head.takes_backbone)
    trainings = [config.training] if is_trained else []
    if isinstance(job, TrainJob) and config.head_training is not None:
        trainings.append(config.head_training)
    n_train = config.data.split.n_train or 0
    seconds = sum(_training_seconds(each, n_train, cell.backbone, n_atoms) for each in trainings)
    if isinstance(job, TrainJob) and HEADS[config.model.head.name].force_std_methods:
        seconds += SOLVE_EPOCHS * n_train * _structure_seconds(cell.backbone, n_atoms)
    return (seconds + _testing_seconds(job, cell.backbone, n_atoms)) / 3600


def step_seconds(backbone: str, batch_size: float, n_atoms: int) -> float:
    """Return the time of a training step of one core.

    Arguments:
        batch_size: structures of a step, on average.
        n_atoms: of each structure.
    """
    return STEP_OVERHEAD[backbone] * (1 - batch_size / BASIS) + batch_size * _structure_seconds(backbone, n_atoms)


def _structure_seconds(backbone: str, n_atoms: int) -> float:
    """In steps of ``BASIS`` structures."""
    return 3600 * n_atoms**1.5 / HOUR[backbone].structures


def _training_seconds(training: TrainingConfig, n_train: int, backbone: str, n_atoms: int) -> float:
    n_batches = math.ceil(n_train / training.batch_size)
    return training.max_epochs * n_batches * step_seconds(backbone, n_train / n_batches, n_atoms)


def _testing_seconds(job: ModelJob, backbone: str, n_atoms: int) -> float:
    """Of the calibration, the test and the other sets, with σ of forces."""
    config, split = job.config, job.config.data.split
    n_structures = split.n_validation + (split.n_test or 0) + sum(o.n_structures or 0 for o in config.ood.values())
    n_passes = 1
    if config.mc_dropout is not None:
        n_passes = config.mc_dropout.n_samples
    elif config.ensemble is not None:
        n_passes = config.ensemble.size
    elif HEADS[config.model.head.name].force_std_methods and config.test_forces_std:
        n_passes = FORCE_STD_PASSES * n_atoms
    return n_structures * n_passes * PREDICTION_SHARE * _structure_seconds(backbone, n_atoms)
