"""Combine several predictions of the same structures into one, with σ from their spread."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sigmaff.models.prediction import ForceStdMethod, Prediction, Provenance, joined_or_none

QUANTITIES = ("energy", "forces", "stress")


def combine(predictions: list[Prediction], method: str, forces_std: ForceStdMethod, *, stress_std: bool) -> Prediction:
    """Mean, and by the law of total variance Var = Var(means) + Mean(variances), the first of them unbiased.

    Shares of atoms have a mean and no σ: members divide the same energy among its atoms as they like.

    Arguments:
        method: name of what made the predictions; their own method is added to it if they have a σ of their own.
        forces_std: "none" leaves out all σ except that of the energies of structures, as for a single potential.
        stress_std: whether stress has a σ; without that of the members there is none.
    """
    own, of_atoms = predictions[0].provenance, forces_std != "none"
    members = {name: _stacked(predictions, name) for name in (*QUANTITIES, "node_energy")}
    values: dict[str, Any] = {name: None if stack is None else stack.mean(-1) for name, stack in members.items()}
    wanted = {"energy": True, "forces": of_atoms, "stress": of_atoms and stress_std}
    for name in (name for name in QUANTITIES if wanted[name]):
        values[f"{name}_std"] = _total_std(members[name], _stacked(predictions, f"{name}_std"))
    return Prediction(
        **values,
        energy_members=members["energy"],
        forces_members=members["forces"],
        provenance=Provenance(
            method=method if own.kind is None else f"{method} of {own.method}",
            kind="epistemic" if own.kind in (None, "epistemic") else "total",
            covariance=own.covariance,
            forces_std="members" if of_atoms else None,
        ),
    )


def _stacked(predictions: list[Prediction], name: str) -> Tensor | None:
    """One quantity of all predictions along a new last axis; ``None`` if it is missing from one."""
    return joined_or_none(partial(torch.stack, dim=-1), [getattr(prediction, name) for prediction in predictions])


def _total_std(means: Tensor | None, stds: Tensor | None) -> Tensor | None:
    if means is None:
        return None
    variance = means.var(-1, unbiased=True)
    return (variance if stds is None else variance + stds.square().mean(-1)).sqrt()
