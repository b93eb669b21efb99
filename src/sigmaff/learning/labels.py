"""Labels of a round: one file each, written by its worker, so that none is lost or computed twice."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from ase import Atoms

from sigmaff.data.labelling import EngineConfig, label
from sigmaff.errors import ConfigError, SigmaffError, in_words
from sigmaff.learning.directory import Context, Round, read_frames, write_frames
from sigmaff.learning.records import FreshErrors, SetAside, read_file, write_file
from sigmaff.simulation import bare_copy
from sigmaff.tasks import run_tasks

ATTEMPTS = 2
"""At a label, before its structure is set aside."""


def label_round(context: Context, round_: Round, structures: Sequence[Atoms]) -> None:
    """Compute the missing labels. A structure that fails is tried once more, then set aside."""
    engine, there = context.config.engine, Round(round_.number, round_.folder.resolve())
    while pending := [index for index in range(len(structures)) if _is_open(round_, index)]:
        work, pieces = partial(label_and_keep, there, engine), [(index, structures[index]) for index in pending]
        outcomes = run_tasks(work, pieces, context.workers(), time_limit=engine.time_limit)
        for done, outcome in enumerate(outcomes, len(structures) - len(pending) + 1):
            index = pending[outcome.index]
            if outcome.value is not None:
                raise SigmaffError(outcome.value)
            if outcome.error is not None:
                write_file(round_.errors(index), [*attempts(round_, index), outcome.error], force=True)
            elif not round_.label(index).exists():
                raise ConfigError(
                    f"a worker wrote {there.label(index)}, but it is missing here; workers must see this folder"
                )
            context.listener.advance(done, len(structures))


def label_and_keep(round_: Round, engine: EngineConfig, piece: tuple[int, Atoms]) -> str | None:
    """Compute a label on a worker and write it to disk there, so that it survives if the parent process dies.

    Returns a message if it cannot be written: that is no failure of the engine, and ends the campaign for now.
    """
    index, atoms = piece
    labelled = label(atoms, engine)
    try:
        keep_label(round_, index, labelled)
    except (OSError, SigmaffError) as error:
        return f"a label cannot be written: {in_words(error)}"
    return None


def keep_label(round_: Round, index: int, labelled: Atoms) -> None:
    """Write the structure with its label and origin, without predictions of a model."""
    bare = bare_copy(labelled)
    kept = ("origin", "temperature", "replica", "step", "pool_index", "method", "held_out")
    bare.info = {key: labelled.info[key] for key in kept if key in labelled.info}
    bare.info["label_id"] = round_.label_id(index)
    bare.calc = labelled.calc
    write_frames(round_.label(index), [bare])


def attempts(round_: Round, index: int) -> list[str]:
    """The error message of each failed attempt."""
    path = round_.errors(index)
    return read_file(path, list[str]) if path.exists() else []


def selected_in(round_: Round) -> Iterator[tuple[int, Atoms, Atoms | None]]:
    """Index, structure with predictions, structure with its label, if it has one."""
    for index, predicted in enumerate(read_frames(round_.selected)):
        path = round_.label(index)
        yield index, predicted, read_frames(path)[0] if path.exists() else None


def labelled_in(*rounds: Round) -> list[Atoms]:
    """The structures that have a label, in the order of their selection."""
    return [true for round_ in rounds for _, _, true in selected_in(round_) if true is not None]


def labels_so_far(round_: Round, hold_out_every: int) -> list[Atoms]:
    """All labelled structures up to a round; ``info["held_out"]`` tells which are never trained on.

    Rounds write down which they hold out. The start does not: of the structures that got a label, it holds out every
    n-th. So did the rounds of version 0.1. A label that is held out stays so when more are added.
    """
    labelled = labelled_in(*round_.so_far())
    for index, atoms in enumerate(labelled):
        atoms.info.setdefault("held_out", index % hold_out_every == hold_out_every - 1)
    return labelled


def drawn_in(atoms: Atoms) -> int | None:
    """The round from whose exploration a held-out structure was drawn at random; ``None`` for any other structure."""
    is_drawn = atoms.info["held_out"] and atoms.info.get("method") == "random"
    return int(atoms.info["label_id"].split("-")[0]) if is_drawn else None


def is_drawn(atoms: Atoms) -> bool:
    """Whether a structure was drawn at random to hold out. In version 0.1 none was."""
    return bool(atoms.info.get("held_out", False))


def fresh_errors(round_: Round, *, drawn: bool) -> FreshErrors | None:
    """Errors of the model of the round before on the labels of this one; ``None`` without labels.

    Arguments:
        drawn: of those drawn at random to hold out; else of those that were selected.
    """
    pairs = [(one, two) for _, one, two in selected_in(round_) if two is not None and is_drawn(one) == drawn]
    if not pairs:
        return None
    energy = [(one.get_potential_energy() - two.get_potential_energy()) / len(one) for one, two in pairs]
    forces = np.concatenate([one.get_forces() - two.get_forces() for one, two in pairs])
    stds = [one.arrays["forces_uncertainty"] for one, _ in pairs if "forces_uncertainty" in one.arrays]
    return FreshErrors(
        energy_mae_per_atom=float(np.mean(np.abs(energy))),
        forces_mae=float(np.mean(np.abs(forces))),
        forces_rmse=float(np.sqrt(np.mean(forces**2))),
        forces_std=float(np.sqrt(np.mean(np.concatenate(stds) ** 2))) if stds else None,
    )


def engine_calls(round_: Round) -> int:
    """Calls of the engine in a round, failures included; labels from a file count none."""
    return sum(
        len(attempts(round_, index)) + (true is not None and atoms.info.get("origin") != "given")
        for index, atoms, true in selected_in(round_)
    )


def set_aside(rounds: Sequence[Round]) -> list[SetAside]:
    """Structures that could not be labelled."""
    return [
        SetAside(label_id=round_.label_id(index), errors=errors)
        for round_ in rounds
        for index, _, true in selected_in(round_)
        if true is None and len(errors := attempts(round_, index)) >= ATTEMPTS
    ]


def _is_open(round_: Round, index: int) -> bool:
    return not round_.label(index).exists() and len(attempts(round_, index)) < ATTEMPTS
