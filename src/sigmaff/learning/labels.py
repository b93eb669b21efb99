"""Labels of a round: one file each, written by the worker that computed it, so that none is lost or computed twice."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ase import Atoms

from sigmaff.data.labelling import EngineConfig, label
from sigmaff.errors import ConfigError
from sigmaff.files import write_json
from sigmaff.learning.directory import Directory, Round, read_frames, read_json, write_frames
from sigmaff.progress import Listener
from sigmaff.tasks import run_tasks

if TYPE_CHECKING:
    from distributed import Client

ATTEMPTS = 2
"""At a label, before its structure is set aside."""


def label_round(
    place: Round,
    structures: Sequence[Atoms],
    engine: EngineConfig,
    workers: Callable[[], "Client"],
    listener: Listener,
) -> None:
    """Label what has no label yet. What fails is tried once more, and then set aside."""
    there = Round(place.number, place.path.resolve())
    while pending := [index for index in range(len(structures)) if _is_open(place, index)]:
        done = len(structures) - len(pending)
        work, pieces = partial(label_and_keep, there, engine), [(index, structures[index]) for index in pending]
        for outcome in run_tasks(work, pieces, workers(), time_limit=engine.time_limit):
            index = pending[outcome.index]
            if outcome.error is not None:
                write_json(place.errors(index), [*attempts(place, index), outcome.error], force=True)
            elif not place.label(index).exists():
                raise ConfigError(
                    f"a worker wrote {there.label(index)}, and it is not here; workers must see this folder"
                )
            done += 1
            listener.advance(done, len(structures))


def label_and_keep(place: Round, engine: EngineConfig, piece: tuple[int, Atoms]) -> None:
    """On a worker: a label is in its file as soon as it is there, whatever has become of who asked for it."""
    index, atoms = piece
    keep_label(place, index, label(atoms, engine))


def keep_label(place: Round, index: int, labelled: Atoms) -> None:
    """The structure with its label, and where it comes from; nothing of what a model predicted."""
    bare = Atoms(labelled.numbers, labelled.positions, cell=labelled.cell, pbc=labelled.pbc)
    kept = ("origin", "temperature", "replica", "step", "pool_index")
    bare.info = {key: labelled.info[key] for key in kept if key in labelled.info}
    bare.info["label_id"] = label_id(place, index)
    bare.calc = labelled.calc
    write_frames(place.label(index), [bare])


def label_id(place: Round, index: int) -> str:
    return f"{place.number:02d}-{index:04d}"


def attempts(place: Round, index: int) -> list[str]:
    """What was wrong, of each attempt that failed."""
    path = place.errors(index)
    return read_json(path) if path.exists() else []


def labelled_in(place: Round) -> list[Atoms]:
    """The structures of a round that have a label, in the order of their selection."""
    n = len(read_frames(place.selected))
    return [read_frames(place.label(index))[0] for index in range(n) if place.label(index).exists()]


def labelled_up_to(directory: Directory, number: int) -> list[Atoms]:
    return [atoms for k in range(number + 1) for atoms in labelled_in(directory.round(k))]


def engine_calls(place: Round) -> int:
    """Times that the engine was asked in a round, failures included; labels that came with a file cost none."""
    frames = read_frames(place.selected)
    computed = sum(
        place.label(index).exists() for index, atoms in enumerate(frames) if atoms.info.get("origin") != "given"
    )
    return computed + sum(len(attempts(place, index)) for index in range(len(frames)))


def set_aside(directory: Directory, number: int) -> list[dict[str, Any]]:
    """Structures of all rounds up to this one that no label could be had of, and why."""
    found = []
    for place in map(directory.round, range(number + 1)):
        for index in range(len(read_frames(place.selected))):
            if not place.label(index).exists() and len(errors := attempts(place, index)) >= ATTEMPTS:
                found.append({"label_id": label_id(place, index), "errors": errors})
    return found


def _is_open(place: Round, index: int) -> bool:
    return not place.label(index).exists() and len(attempts(place, index)) < ATTEMPTS
