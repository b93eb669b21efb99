"""Several predictions of the same structures as one, with σ from their spread."""

import torch
from torch import Tensor

from sigmaff.models.prediction import ForcesStd, Prediction, Provenance


def combine(predictions: list[Prediction], method: str, forces_std: ForcesStd) -> Prediction:
    """Mean, and by the law of total variance Var = Var(means) + Mean(variances), the first of them unbiased.

    ``method`` names what made the predictions; theirs, if they have a σ of their own, is added to it. As of a single
    potential, "none" asks for the σ of energies of structures alone.
    """
    first = predictions[0]
    energies = torch.stack([prediction.energy for prediction in predictions], dim=-1)
    forces = torch.stack([prediction.forces for prediction in predictions], dim=-1)
    node_energies = _stacked([prediction.node_energy for prediction in predictions])
    stresses = _stacked([prediction.stress for prediction in predictions])
    own, of_atoms = first.provenance, forces_std != "none"
    return Prediction(
        energy=energies.mean(-1),
        forces=forces.mean(-1),
        node_energy=None if node_energies is None else node_energies.mean(-1),
        energy_std=_total_std(energies, [prediction.energy_std for prediction in predictions]),
        forces_std=_total_std(forces, [prediction.forces_std for prediction in predictions]) if of_atoms else None,
        node_energy_std=_total_std(node_energies, [p.node_energy_std for p in predictions]) if of_atoms else None,
        stress=None if stresses is None else stresses.mean(-1),
        stress_std=_total_std(stresses, [prediction.stress_std for prediction in predictions]) if of_atoms else None,
        energy_members=energies,
        forces_members=forces,
        provenance=Provenance(
            method=method if own.kind is None else f"{method} of {own.method}",
            kind="epistemic" if own.kind in (None, "epistemic") else "total",
            covariance=own.covariance,
            forces_std="members" if of_atoms else None,
        ),
    )


def _stacked(values: list[Tensor | None]) -> Tensor | None:
    """Along a new last axis; what one lacks, the whole lacks."""
    present = [value for value in values if value is not None]
    return torch.stack(present, dim=-1) if len(present) == len(values) else None


def _total_std(means: Tensor | None, stds: list[Tensor | None]) -> Tensor | None:
    if means is None:
        return None
    variance = means.var(-1, unbiased=True)
    own = _stacked(stds)
    return (variance if own is None else variance + own.square().mean(-1)).sqrt()
