"""Predictions in data files: the names they have there, and how to tell them from labels.

A file that a model has written keeps its predictions under names of their own. Where a structure has no label, ASE's
``energy``, ``forces`` and ``stress`` hold the prediction too, so that viewers show it; ``sigmaff_energy`` beside them
has the same value. A label that is computed later has another one: no mark has to be removed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PREFIX = "sigmaff_"
ENERGY, FORCES, STRESS = (f"{PREFIX}{label}" for label in ("energy", "forces", "stress"))
"""Names of predictions in ``atoms.info`` and ``atoms.arrays``, in eV and Å."""
SAME = 1e-9
"""eV; a prediction and its copy under another name differ by less."""


def predicted_frames(frames: Sequence[Mapping[str, Any]], n_atoms: Sequence[int]) -> list[bool]:
    """Whether ASE's names hold predictions, for each structure of a file.

    The energy of a single atom is often exact: it counts as a prediction only if no larger structure has a label.

    Arguments:
        frames: all values of each structure by name.
        n_atoms: of each structure.
    """
    found = [_is_copied(stored) for stored in frames]
    if any(
        "energy" in stored and not copied and n > 1 for stored, copied, n in zip(frames, found, n_atoms, strict=True)
    ):
        return [copied and n > 1 for copied, n in zip(found, n_atoms, strict=True)]
    return found


def is_prediction(key: str, in_results: bool) -> bool:
    """Whether the value under a name is a prediction, in a structure whose results under ASE's names are or are not."""
    return key.startswith(PREFIX) or (in_results and key in ("energy", "forces", "stress"))


def _is_copied(stored: Mapping[str, Any]) -> bool:
    if "energy" not in stored or ENERGY not in stored:
        return False
    return bool(
        np.all(np.abs(np.asarray(stored["energy"], np.float64) - np.asarray(stored[ENERGY], np.float64)) < SAME)
    )
