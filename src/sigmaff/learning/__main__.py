"""Train the model of one round on several devices: ``python -m sigmaff.learning JOB``.

Lightning Fabric starts the helpers of a training by running the command of its process once more. That must not be the
command of a campaign, so the training has its own. It reports its progress as lines of JSON, and ends when the process
that started it ends.
"""

import json
import os
import sys
import threading
from pathlib import Path

from sigmaff.errors import SigmaffError
from sigmaff.learning.train import MADE, RoundTraining, train_here
from sigmaff.models.file import save
from sigmaff.progress import Listener


class JsonLinesListener(Listener):
    """Writes each callback to standard output as a line of JSON.

    One system call each, so that lines of several processes stay apart.
    """

    def stage(self, text: str) -> None:
        self.write("stage", text)

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.write("advance", done, total, note)

    def warn(self, text: str) -> None:
        self.write("warn", text)

    def write(self, call: str, *arguments: str | int) -> None:
        os.write(sys.stdout.fileno(), f"{json.dumps({'call': call, 'arguments': arguments})}\n".encode())


def main(path: Path) -> int:
    """Train the job of a file, in this process or as its helper; the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    is_helper = "LOCAL_RANK" in os.environ  # Fabric sets it for those it starts
    listener = JsonLinesListener()
    try:
        training = RoundTraining.model_validate_json(path.read_text(encoding="utf-8"))
        trained = train_here(training, training.data(), Listener() if is_helper else listener)
    except SigmaffError as error:
        listener.write("error", str(error))
        return 1
    if trained is not None:
        model, record = trained
        model.record = record
        save(model, path.parent / MADE, force=True)
    return 0


def _end_with_parent() -> None:
    """End this process when the one that started it ends: the system then closes standard input."""
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin, whose lock would be held as Python shuts down
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
