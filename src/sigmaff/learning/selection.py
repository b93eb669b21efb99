"""Which structures are worth a label: a batch of candidates, chosen by name of a method.

| method | takes, one by one | where |
|---|---|---|
| max_det | the largest variance of energy, given those chosen before | ``covariance.py`` |
| k_centre | the farthest from those chosen before | ``covariance.py`` |
| variance_reduction | the largest share of the force variance of all candidates | ``variance_reduction.py`` |
| sigma | the largest force σ of an atom | here |
| random | any | here |

The first three look at what was chosen before: near-copies are not chosen twice. They divide the gain of a label by
its cost, (number of atoms)^``cost_power``. A power of 0 counts all labels alike; so does a pool of equal sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms

from sigmaff.errors import DataError
from sigmaff.learning.config import SelectConfig, SelectionMethod
from sigmaff.learning.covariance import energy_covariance, has_covariance, is_linear, k_centre, max_det
from sigmaff.learning.variance_reduction import by_variance_reduction
from sigmaff.models import Model


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A structure that was chosen."""

    index: int  # among the candidates
    forces_std: float | None  # eV/Å, largest of an atom
    variance_left: float | None = None  # share of its energy variance that earlier choices leave; None: not computed
    variance_share: float | None = None  # of force components, that its label takes away; None: not computed


def select(
    model: Model,
    candidates: Sequence[Atoms],
    config: SelectConfig,
    *,
    limit: float | None,
    rng: np.random.Generator,
) -> list[Pick]:
    """At most ``config.n`` of the candidates, in the order of choice.

    Arguments:
        candidates: with the model's σ of forces (``predict_structures``), which sigma and a window need.
        limit: on the largest force σ of an atom, eV/Å: the unit of the window of σ; ``None``: no window.
    """
    if config.method == "random":
        return [_pick(candidates, index) for index in rng.permutation(len(candidates))[: config.n].tolist()]
    compared, method = in_window(candidates, config, limit), possible_method(model, config.method)
    if method == "sigma" or not compared:
        order = sorted(compared, key=lambda index: _known_std(candidates[index]), reverse=True)
        return [_pick(candidates, index) for index in order[: config.n]]
    if method == "variance_reduction":
        compared = np.sort(rng.permutation(compared)[: config.max_candidates]).tolist()
    among = [candidates[index] for index in compared]
    sizes = torch.tensor([len(atoms) for atoms in among], dtype=torch.float64, device=model.device)
    cost = sizes**config.cost_power
    if method == "variance_reduction":
        shares = by_variance_reduction(model.potentials[0], among, config.n, cost)
        return [_pick(candidates, compared[index], variance_share=share) for index, share in shares]
    batch = max_det if method == "max_det" else k_centre
    choices = batch(energy_covariance(model, among), config.n, cost)
    return [_pick(candidates, compared[index], variance_left=left) for index, left in choices]


def possible_method(model: Model, method: SelectionMethod) -> SelectionMethod:
    """The method, or sigma if the model does not have what it needs."""
    possible = is_linear(model) if method == "variance_reduction" else has_covariance(model)
    return method if possible or method == "random" else "sigma"


def replaced_method(model: Model, method: SelectionMethod) -> str | None:
    """Words on a method that this model cannot select by; ``None`` if it can."""
    if possible_method(model, method) == method:
        return None
    lacks = "has no covariance of energies" if method != "variance_reduction" else "is not linear in its weights"
    return f"the model {lacks}, which {method} needs: selecting by largest force σ (sigma) instead"


def largest_std(atoms: Atoms) -> float | None:
    """Largest force σ of an atom, the norm of its components, eV/Å; ``None`` where it was not computed."""
    std = atoms.arrays.get("forces_uncertainty")
    return None if std is None else float(np.linalg.norm(std, axis=1).max())


def in_window(candidates: Sequence[Atoms], config: SelectConfig, limit: float | None) -> list[int]:
    """The candidates that qualify, by largest force σ of an atom."""
    if limit is None:
        return list(range(len(candidates)))
    lower, upper = config.lower * limit, config.upper * limit
    return [index for index, atoms in enumerate(candidates) if lower <= _known_std(atoms) <= upper]


def _known_std(atoms: Atoms) -> float:
    if (std := largest_std(atoms)) is None:
        raise DataError("the model gives no σ of forces to select by; select at random, or use a model that has it")
    return std


def _pick(
    candidates: Sequence[Atoms], index: int, *, variance_left: float | None = None, variance_share: float | None = None
) -> Pick:
    return Pick(
        index=index,
        forces_std=largest_std(candidates[index]),
        variance_left=variance_left,
        variance_share=variance_share,
    )
