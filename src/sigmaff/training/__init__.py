"""Training: settings and results. The loop is ``sigmaff.training.loop.train``, on Lightning Fabric."""

from sigmaff.training.config import CosineSchedule, ExponentialSchedule, TrainingConfig
from sigmaff.training.state import EpochRecord, TrainingDivergedError, TrainingResult
