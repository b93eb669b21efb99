"""Labels of a round: one file each, written by its worker, so that none is lost or computed twice."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ase import Atoms

from sigmaff.data.labelling import EngineConfig, label
from sigmaff.errors import ConfigError
from sigmaff.files import write_json
from sigmaff.learning.directory import Directory, Round, read_frames, read_json, write_frames
from sigmaff.learning.records import SetAside
from sigmaff.progress import Listener
from sigmaff.simulation import bare_copy
from sigmaff.tasks import run_tasks

if TYPE_CHECKING:
    from distributed import Client

ATTEMPTS = 2
"""At a label, before its structure is set aside."""


def label_round(
    round_: Round,
    structures: Sequence[Atoms],
    engine: EngineConfig,
    workers: Callable[[], "Client"],
    listener: Listener,
) -> None:
    """Compute the missing labels. A structure that fails is tried once more, then set aside."""
    there = Round(round_.number, round_.path.resolve())
    while pending := [index for index in range(len(structures)) if _is_open(round_, index)]:
        done = len(structures) - len(pending)
        work, pieces = partial(label_and_keep, there, engine), [(index, structures[index]) for index in pending]
        for outcome in run_tasks(work, pieces, workers(), time_limit=engine.time_limit):
            index = pending[outcome.index]
            if outcome.error is not None:
                write_json(round_.errors(index), [*attempts(round_, index), outcome.error], force=True)
            elif not round_.label(index).exists():
                raise ConfigError(
                    f"a worker wrote {there.label(index)}, but it is missing here; workers must see this folder"
                )
            done += 1
            listener.advance(done, len(structures))


def label_and_keep(round_: Round, engine: EngineConfig, piece: tuple[int, Atoms]) -> None:
    """Compute a label on a worker and write it to disk there, so that it survives if the parent process dies."""
    index, atoms = piece
    keep_label(round_, index, label(atoms, engine))


def keep_label(round_: Round, index: int, labelled: Atoms) -> None:
    """Write the structure with its label and origin, without predictions of a model."""
    bare = bare_copy(labelled)
    kept = ("origin", "temperature", "replica", "step", "pool_index")
    bare.info = {key: labelled.info[key] for key in kept if key in labelled.info}
    bare.info["label_id"] = label_id(round_, index)
    bare.calc = labelled.calc
    write_frames(round_.label(index), [bare])


def label_id(round_: Round, index: int) -> str:
    return f"{round_.number:02d}-{index:04d}"


def attempts(round_: Round, index: int) -> list[str]:
    """The error message of each failed attempt."""
    path = round_.errors(index)
    return read_json(path) if path.exists() else []


def labelled_in(round_: Round) -> list[Atoms]:
    """The structures of a round that have a label, in the order of their selection."""
    n = len(read_frames(round_.selected))
    return [read_frames(round_.label(index))[0] for index in range(n) if round_.label(index).exists()]


def labelled_up_to(directory: Directory, number: int) -> list[Atoms]:
    return [atoms for k in range(number + 1) for atoms in labelled_in(directory.round(k))]


def engine_calls(round_: Round) -> int:
    """Calls of the engine in a round, failures included; labels from a file count none."""
    frames = read_frames(round_.selected)
    computed = sum(
        round_.label(index).exists() for index, atoms in enumerate(frames) if atoms.info.get("origin") != "given"
    )
    return computed + sum(len(attempts(round_, index)) for index in range(len(frames)))


def set_aside(directory: Directory, number: int) -> list[SetAside]:
    """Structures of all rounds up to this one that could not be labelled."""
    found = []
    for round_ in map(directory.round, range(number + 1)):
        for index in range(len(read_frames(round_.selected))):
            if not round_.label(index).exists() and len(errors := attempts(round_, index)) >= ATTEMPTS:
                found.append(SetAside(label_id=label_id(round_, index), errors=errors))
    return found


def _is_open(round_: Round, index: int) -> bool:
    return not round_.label(index).exists() and len(attempts(round_, index)) < ATTEMPTS
