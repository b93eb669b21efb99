"""The central types of output: what a model predicts, what its σ means, and how σ was calibrated."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor

from sigmaff.graph import AtomicGraph

ForcesStd = Literal["auto", "exact", "sampled", "none"]
"""How force σ is computed: every coordinate exactly, from posterior function samples, or whichever of the two is
cheaper for the largest structure of the batch. "none": no σ of single atoms at all, neither of forces nor of energies,
only that of the whole structure's energy, which costs least.
A prediction may also come with force σ from the spread of its members (ensembles and dropout), or with one number for
each atom in place of one for each component (latent distances): these methods know no other way, and take "auto"."""


StdKind = Literal["epistemic", "aleatoric", "total"]
STD_KINDS: dict[StdKind | None, str] = {
    "epistemic": "epistemic: what the model cannot know for want of data, without the noise of labels",
    "aleatoric": "aleatoric: the noise of labels, without what the model cannot know",
    "total": "total: what the model cannot know, and the noise of labels",
    None: "none: the method gives no σ",
}
Covariance = Literal["full", "diagonal"]
COVARIANCES: dict[Covariance | None, str] = {
    "full": "full: errors of the atoms of a structure may be correlated",
    "diagonal": "diagonal: errors of atoms are taken as independent",
    None: "–",
}
ForceStdSource = Literal["exact", "sampled", "members", "by_atom"]
FORCE_STD_SOURCES: dict[ForceStdSource | None, str] = {
    "exact": "exact",
    "sampled": "estimated from posterior function samples",
    "members": "spread of the members of an ensemble, or of samples with dropout",
    "by_atom": "one value for each atom, the same for its three components",
    None: "not estimated",
}


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the σ of a prediction is."""

    method: str  # "deterministic", "lnk", ...
    kind: StdKind | None = None  # None: the method has no σ
    covariance: Covariance | None = None  # between the atoms of a structure
    forces_std: ForceStdSource | None = None
    calibration: str | None = None  # None: raw


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Energies, forces and their standard deviations, in eV and Å. ``None`` means not estimated, never zero."""

    energy: Tensor  # (n_structures,) float64
    forces: Tensor  # (n_atoms, 3)
    node_energy: Tensor | None = None  # (n_atoms,) float64; None where energies are not sums over atoms
    energy_std: Tensor | None = None  # (n_structures,)
    forces_std: Tensor | None = None  # (n_atoms, 3)
    node_energy_std: Tensor | None = None  # (n_atoms,)
    stress: Tensor | None = None  # (n_structures, 3, 3) eV/Å³, ASE's sign, for structures with a periodic cell
    stress_std: Tensor | None = None  # (n_structures, 3, 3)
    energy_members: Tensor | None = None  # (n_structures, n_members) of an ensemble, or of samples
    forces_members: Tensor | None = None  # (n_atoms, 3, n_members)
    provenance: Provenance


@runtime_checkable
class Predictor(Protocol):
    """All that evaluation, simulation, reports and the command line know of a model."""

    @property
    def cutoff(self) -> float: ...

    def predict(self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto") -> Prediction: ...


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A map from a method's raw σ to error bars that hold on held-out data, for one quantity.

    The reported σ is ``scale`` times the raw one. The half-width of the central interval of coverage p is the
    reported σ times a multiplier: Gaussian where ``coverages`` is ``None``, else interpolated between the knots
    (``coverages``, ``multipliers``), both increasing from 0.
    """

    method: str
    scale: float
    n_samples: int  # errors it was fitted on
    coverages: tuple[float, ...] | None = None
    multipliers: tuple[float, ...] | None = None

    def multiplier(self, coverage: float | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Half-width of the central interval of this coverage, in units of the reported σ."""
        coverage = np.asarray(coverage, dtype=np.float64)
        if self.coverages is None or self.multipliers is None:
            return np.asarray(ndtri(0.5 + 0.5 * coverage), dtype=np.float64)
        return np.interp(coverage, self.coverages, self.multipliers, right=np.inf)


UNCALIBRATED = Calibration(method="none", scale=1.0, n_samples=0)


def calibrated(prediction: Prediction, energy: Calibration | None, forces: Calibration | None) -> Prediction:
    """The prediction with its σ rescaled.

    Energy and per-atom energy share one calibration; so do forces and stress, both slopes of the energy.
    """
    if energy is None and forces is None:
        return prediction

    def scaled(std: Tensor | None, calibration: Calibration | None) -> Tensor | None:
        return std if std is None or calibration is None else std * calibration.scale

    methods = sorted({calibration.method for calibration in (energy, forces) if calibration is not None})
    return replace(
        prediction,
        energy_std=scaled(prediction.energy_std, energy),
        node_energy_std=scaled(prediction.node_energy_std, energy),
        forces_std=scaled(prediction.forces_std, forces),
        stress_std=scaled(prediction.stress_std, forces),
        provenance=replace(prediction.provenance, calibration="+".join(methods)),
    )


def split_prediction(prediction: Prediction, graph: AtomicGraph) -> list[Prediction]:
    """One prediction for each structure of a batch."""
    n_atoms = graph.atoms_per_structure().tolist()
    first_atom = [sum(n_atoms[:index]) for index in range(graph.n_structures)]

    def part(values: Tensor | None, start: int, count: int) -> Tensor | None:
        return None if values is None else values[start : start + count]

    return [
        replace(
            prediction,
            energy=prediction.energy[index : index + 1],
            forces=prediction.forces[start : start + count],
            node_energy=part(prediction.node_energy, start, count),
            energy_std=part(prediction.energy_std, index, 1),
            forces_std=part(prediction.forces_std, start, count),
            node_energy_std=part(prediction.node_energy_std, start, count),
            stress=part(prediction.stress, index, 1),
            stress_std=part(prediction.stress_std, index, 1),
            energy_members=part(prediction.energy_members, index, 1),
            forces_members=part(prediction.forces_members, start, count),
        )
        for index, (start, count) in enumerate(zip(first_atom, n_atoms, strict=True))
    ]


def concatenate(predictions: list[Prediction]) -> Prediction:
    """Join predictions of consecutive batches; a σ that one of them lacks, the whole lacks."""

    def joined(name: str) -> Tensor | None:
        values = [getattr(prediction, name) for prediction in predictions]
        return None if any(value is None for value in values) else torch.cat(values)

    return replace(
        predictions[0],
        energy=torch.cat([p.energy for p in predictions]),
        forces=torch.cat([p.forces for p in predictions]),
        node_energy=joined("node_energy"),
        energy_std=joined("energy_std"),
        forces_std=joined("forces_std"),
        node_energy_std=joined("node_energy_std"),
        stress=joined("stress"),
        stress_std=joined("stress_std"),
        energy_members=joined("energy_members"),
        forces_members=joined("forces_members"),
    )
