"""The training of one round on several devices: ``python -m sigmaff.learning JOB``, see ``devices``."""

import sys
from pathlib import Path
from typing import Any

from sigmaff.learning.subprocess_training import command
from sigmaff.learning.train import Making, make_here
from sigmaff.models import Model
from sigmaff.progress import Listener


def make(job: str, listener: Listener) -> tuple[Model, dict[str, Any]] | None:
    making = Making.model_validate_json(job)
    return make_here(making, making.data(), listener)


if __name__ == "__main__":
    sys.exit(command(Path(sys.argv[1]), make))
