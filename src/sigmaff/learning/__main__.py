"""Train the model of one round on several devices: ``python -m sigmaff.learning JOB``."""

import sys
from pathlib import Path

from sigmaff.learning.subprocess_training import command
from sigmaff.learning.train import RoundTraining, train_here
from sigmaff.models import Model
from sigmaff.models.record import RunRecord
from sigmaff.progress import Listener


def train(job: str, listener: Listener) -> tuple[Model, RunRecord] | None:
    training = RoundTraining.model_validate_json(job)
    return train_here(training, training.data(), listener)


if __name__ == "__main__":
    sys.exit(command(Path(sys.argv[1]), train))
