"""Training on several devices, in a process of its own.

Lightning Fabric starts the helpers of a training by running the command of its process once more. That must not be the
command of a campaign, so the training gets one: ``python -m sigmaff.learning JOB``. It reports its progress as lines of
JSON, and ends when the process that started it ends.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sigmaff.errors import SigmaffError
from sigmaff.files import atomic_write
from sigmaff.models import Model
from sigmaff.models.file import load, save
from sigmaff.models.record import RunRecord
from sigmaff.progress import Listener

JOB, MADE, LOG = "devices.json", "made.sigmaff", "devices.log"


def train_on_devices(job: str, folder: Path, listener: Listener) -> tuple[Model, RunRecord]:
    """Run the command on a job (JSON); its model and record."""
    if not (folder / MADE).exists():
        with atomic_write(folder / JOB, force=True) as temporary:
            temporary.write_text(job, encoding="utf-8")
        _run(folder, listener)
    model = load(folder / MADE)
    return model, model.record


def _run(folder: Path, listener: Listener) -> None:
    command = [sys.executable, "-m", "sigmaff.learning", str(folder / JOB)]
    error = None
    with (
        (folder / LOG).open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            call, arguments = _call(line)
            if call == "error":
                (error,) = arguments
            elif call is not None:
                getattr(listener, call)(*arguments)
    if error is not None:
        raise SigmaffError(error)
    if process.returncode or not (folder / MADE).exists():
        raise SigmaffError(f"the training on several devices ended without a model; {folder / LOG} may say why")


def _call(line: str) -> tuple[str | None, list[Any]]:
    """The callback of a line; ``None`` for lines that libraries print."""
    try:
        content = json.loads(line)
        return content["call"], content["arguments"]
    except (ValueError, LookupError, TypeError):
        return None, []


class JsonLinesListener(Listener):
    """Writes each callback to an open file as a line of JSON.

    One system call each, so that lines of several processes stay apart.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def stage(self, text: str) -> None:
        self.write("stage", text)

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.write("advance", done, total, note)

    def warn(self, text: str) -> None:
        self.write("warn", text)

    def write(self, call: str, *arguments: str | int) -> None:
        os.write(self.descriptor, f"{json.dumps({'call': call, 'arguments': arguments})}\n".encode())


def command(path: Path, train: Callable[[str, Listener], tuple[Model, RunRecord] | None]) -> int:
    """Train the job of a file, in this process or as its helper; the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    is_helper = "LOCAL_RANK" in os.environ  # Fabric sets it for those it starts
    listener = JsonLinesListener(sys.stdout.fileno())
    try:
        trained = train(path.read_text(encoding="utf-8"), Listener() if is_helper else listener)
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
