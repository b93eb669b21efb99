"""The central types of output: what a model predicts, what its σ means, and how σ was calibrated."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy
import torch
from ase.data import chemical_symbols
from torch import Tensor

from sigmaff.data.statistics import undetermined_energies
from sigmaff.errors import SigmaffError, UndeterminedEnergyWarning
from sigmaff.graph import AtomicGraph
from sigmaff.models.force_growth import ForceGrowth, Values

FloatArray = npt.NDArray[np.float64]

Quantity = Literal["energy", "forces", "stress"]
QUANTITIES: tuple[Quantity, ...] = ("energy", "forces", "stress")
"""What has a σ that can be compared with errors, and a calibration of its own."""

ForceStdMethod = Literal["auto", "exact", "sampled", "energy", "none"]
"""How to compute force σ.

"exact": every coordinate. "sampled": from posterior function samples. "auto": the cheaper of the two for the largest
structure of the batch. "energy": from the energy σ of the structure (``EnergyForceStd``), for any method that has one.
It costs next to nothing and does not tell atoms of one element apart. "none": only the energy σ of whole structures, no
σ of single atoms; this costs least.
Ensembles and dropout (spread of members) and latent distances (one value per atom) have neither "exact" nor "sampled".
"""

StdKind = Literal["epistemic", "aleatoric", "total"]
STD_KINDS: dict[StdKind | None, str] = {
    "epistemic": "epistemic: what the model cannot know from its data, without the noise of labels",
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
ForceStdSource = Literal["exact", "sampled", "members", "by_atom", "energy"]
FORCE_STD_SOURCES: dict[ForceStdSource | None, str] = {
    "exact": "exact",
    "sampled": "estimated from posterior function samples",
    "members": "spread of the members of an ensemble, or of samples with dropout",
    "by_atom": "one value for each atom, the same for its three components",
    "energy": "from the energy σ of the structure, one value for each element",
    None: "not estimated",
}


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the σ of a prediction is."""

    method: str  # "deterministic", "lnk", ...
    kind: StdKind | None = None  # None: the method has no σ
    covariance: Covariance | None = None  # between the atoms of a structure
    forces_std: ForceStdSource | None = None
    calibration: str | None = None  # the methods; None: raw
    calibrated: tuple[Quantity, ...] = ()  # whose σ is calibrated; that of all others is raw


def _per(unit: Literal["structure", "atom"], *, std: Quantity | None = None, absolute: bool = False) -> dict[str, Any]:
    """What the first axis counts, which calibration rescales it, and whether it contains reference energies."""
    return {"per": unit, "calibration": std, "absolute": absolute}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Energies, forces and their standard deviations, in eV and Å. ``None`` means not estimated, never zero.

    Shapes are (n_structures, ...) or (n_atoms, ...), as the metadata of a field says: a number for each energy, 3
    components for forces, 3 × 3 for stress; members and samples are the last axis. Energies are float64.

    ``node_energy_std`` says how unusual an atom's surroundings are: σ of its share of the energy relative to the mean
    share of its element in the training set. It is raw, for colouring atoms, and no error bar of anything measurable.
    """

    energy: Tensor = field(metadata=_per("structure", absolute=True))
    forces: Tensor = field(metadata=_per("atom"))
    node_energy: Tensor | None = field(default=None, metadata=_per("atom", absolute=True))  # None: no sum over atoms
    energy_std: Tensor | None = field(default=None, metadata=_per("structure", std="energy"))
    forces_std: Tensor | None = field(default=None, metadata=_per("atom", std="forces"))
    node_energy_std: Tensor | None = field(default=None, metadata=_per("atom"))  # never calibrated
    unseen_std: Tensor | None = field(default=None, metadata=_per("structure"))
    """The part of raw energy σ that is due to surroundings unlike all that are known."""
    composition_std: Tensor | None = field(default=None, metadata=_per("structure"))
    """σ of reference energies that the compositions of the training set leave open. ``predict`` adds it to energy σ; no
    calibration scales it."""
    undetermined: Tensor | None = field(default=None, metadata=_per("structure"))
    """Whether nothing determines the constant in the energy of this composition: neither the training set nor
    reference energies of a known origin. Forces do not depend on it."""
    component_std: Tensor | None = field(default=None, metadata=_per("atom"))
    """Raw energy σ per atom of the connected part of the graph that holds the atom, less what unseen surroundings add:
    that is in force σ already. Calibrated force σ may grow with it (``ForceGrowth``); present where that needs it."""
    stress: Tensor | None = field(default=None, metadata=_per("structure"))  # eV/Å³, ASE's sign; NaN without a cell
    stress_std: Tensor | None = field(default=None, metadata=_per("structure", std="stress"))
    energy_members: Tensor | None = field(default=None, metadata=_per("structure", absolute=True))
    forces_members: Tensor | None = field(default=None, metadata=_per("atom"))
    provenance: Provenance

    def with_each(self, change: Callable[[Tensor, Mapping[str, Any]], Tensor]) -> "Prediction":
        """A copy with every tensor replaced by ``change(tensor, metadata of its field)``."""
        changed: dict[str, Any] = {
            item.name: change(value, item.metadata)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        return replace(self, **changed)


STD_FIELDS: dict[str, Quantity] = {
    item.name: quantity for item in fields(Prediction) if (quantity := item.metadata.get("calibration")) is not None
}
"""What calibration rescales, and that of which quantity."""


@dataclass(frozen=True, kw_only=True)
class StructurePrediction:
    """The prediction of one structure as numbers and NumPy arrays. ``None`` means not estimated, never zero."""

    energy: float  # eV
    forces: FloatArray  # (n_atoms, 3) eV/Å
    energy_std: float | None = None  # eV
    forces_std: FloatArray | None = None  # (n_atoms, 3) eV/Å
    node_energy: FloatArray | None = None  # (n_atoms,) eV
    node_energy_std: FloatArray | None = None  # (n_atoms,) eV; raw: how unusual an atom's surroundings are
    stress: FloatArray | None = None  # (3, 3) eV/Å³, ASE's sign; None without a periodic cell
    stress_std: FloatArray | None = None  # (3, 3) eV/Å³
    energy_undetermined: bool = False  # the training set does not determine energies of this composition
    provenance: Provenance


@runtime_checkable
class Predictor(Protocol):
    """All that evaluation, simulation, reports and the command line know about a model."""

    @property
    def cutoff(self) -> float: ...

    def predict(
        self, graph: AtomicGraph, /, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction: ...


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A map from a method's raw σ to error bars that hold on held-out data, for one quantity.

    The reported σ is ``scale`` times the raw one, to which ``growth`` was applied if there is any (forces only). The
    half-width of the central interval of coverage p is the reported σ times a multiplier: interpolated between the
    knots (``coverages``, ``multipliers``), both increasing from 0; without knots of Student's t with ``dof`` degrees of
    freedom; without these Gaussian.

    The fields without a place in ``repr`` came after the first release, and ``repr`` identifies the model of a
    simulation. They change no σ, except ``growth``, which has an identity of its own.
    """

    method: str
    scale: float
    n_samples: int  # errors it was fitted on
    coverages: tuple[float, ...] | None = None
    multipliers: tuple[float, ...] | None = None
    n_structures: int | None = field(default=None, repr=False)  # that the errors are of; None: not recorded
    scale_error: float | None = field(default=None, repr=False)  # standard error of ``scale``; None: not recorded
    dof: float | None = field(default=None, repr=False)
    growth: ForceGrowth | None = field(default=None, repr=False)  # of force σ with energy σ; None: there is none

    def std(self, raw: Values, component_std: Values | None = None) -> Values:
        """The reported σ of a raw one, for NumPy arrays and tensors; growth needs raw force σ and component σ."""
        if self.growth is None:
            scaled: Values = raw * self.scale
            return scaled
        if component_std is None:
            raise SigmaffError("this calibration of force σ needs the σ of connected parts: use Model.predict")
        grown: Values = self.growth.apply(raw, component_std) * self.scale
        return grown

    def multiplier(self, coverage: float | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Half-width of the central interval of this coverage, in units of the reported σ."""
        coverage = np.asarray(coverage, dtype=np.float64)
        if self.coverages is not None and self.multipliers is not None:
            return np.interp(coverage, self.coverages, self.multipliers, right=np.inf)
        upper = 0.5 + 0.5 * coverage
        quantile = (
            scipy.special.ndtri(upper)
            if self.dof is None
            else np.where(coverage < 1, scipy.special.stdtrit(self.dof, upper), np.inf)
        )
        return np.asarray(quantile, dtype=np.float64)

    def __str__(self) -> str:
        """Factor with its standard error, method and number of structures, for people."""
        error = "" if self.scale_error is None else f" ± {self.scale_error:.2g}"
        origin = f"{self.n_samples:,} errors" if self.n_structures is None else f"{self.n_structures:,} structures"
        growth = "" if self.growth is None else f"; {self.growth}"
        return f"raw σ × {self.scale:.4g}{error} ({self.method}, {origin}{growth})"


@dataclass(frozen=True, kw_only=True)
class EnergyForceStd:
    """σ of forces from the energy σ of the structure, without derivatives: a_z (u/ū)^b, with u = σ_E/n of n atoms.

    It is fitted on errors of held-out forces, so no calibration applies to it. u is intensive: σ of far copies of a
    structure is that of one. It is a mean over the structure: one strange molecule among many hardly moves it.
    """

    scales: dict[int, float]  # a by atomic number, eV/Å
    exponent: float  # b ≥ 0
    reference: float  # ū, eV per atom: the geometric mean of held-out structures
    n_structures: int  # that it was fitted on

    def std(self, energy_std: Tensor, graph: AtomicGraph) -> Tensor:
        """σ of each component, (n_atoms, 3), from raw energy σ (n_structures,). 0 where that is 0 and b is not.

        An element without held-out forces has the largest scale of all.
        """
        scales = energy_std.new_full((int(graph.atomic_numbers.max()) + 1,), max(self.scales.values()))
        for number, scale in self.scales.items():
            scales[number : number + 1] = scale  # no element of this number: nothing to set
        per_atom = energy_std / graph.atoms_per_structure().to(energy_std)
        growth = (per_atom / self.reference) ** self.exponent
        std = scales[graph.atomic_numbers] * growth[graph.structure_index]
        return std.unsqueeze(-1).expand(-1, 3).to(graph.dtype)

    def __str__(self) -> str:
        """For people."""
        scales = ", ".join(f"{chemical_symbols[number]} {scale:.3g}" for number, scale in self.scales.items())
        unit = f"(σ_E per atom / {self.reference:.3g} eV)^{self.exponent:.2f}"
        return f"{scales} eV/Å × {unit} ({self.n_structures:,} structures)"


UNCALIBRATED = Calibration(method="none", scale=1.0, n_samples=0)


class Calibrations(NamedTuple):
    """The calibration of each quantity; ``None``: its σ is raw."""

    energy: Calibration | None = None
    forces: Calibration | None = None
    stress: Calibration | None = None


NO_CALIBRATIONS = Calibrations()


def calibrated(prediction: Prediction, calibrations: Calibrations) -> Prediction:
    """The prediction with its σ rescaled, each by the calibration of its own quantity; others stay raw.

    Energy σ then gets that of the composition. Force σ from energy σ is fitted to errors as it is.
    """
    known = {name: item for name, item in calibrations._asdict().items() if item is not None}
    fitted = {"forces"} if prediction.provenance.forces_std == "energy" else set()
    known = {name: item for name, item in known.items() if name not in fitted}

    changed = {
        field: known[quantity].std(raw, prediction.component_std)
        for field, quantity in STD_FIELDS.items()
        if quantity in known and (raw := getattr(prediction, field)) is not None
    }
    energy_std = changed.get("energy_std", prediction.energy_std)
    if energy_std is not None and prediction.composition_std is not None:
        changed["energy_std"] = torch.hypot(energy_std, prediction.composition_std.to(energy_std))
    provenance = replace(
        prediction.provenance,
        calibration="+".join(sorted({calibration.method for calibration in known.values()})) or None,
        calibrated=tuple(name for name in QUANTITIES if name in known.keys() | fitted),
    )
    return replace(prediction, **changed, provenance=provenance)


def split_prediction(prediction: Prediction, graph: AtomicGraph) -> list[Prediction]:
    """One prediction for each structure of a batch."""
    last_atom = graph.atoms_per_structure().cumsum(0).tolist()

    def part(index: int, atoms: slice) -> Prediction:
        rows = {"structure": slice(index, index + 1), "atom": atoms}
        return prediction.with_each(lambda tensor, about: tensor[rows[about["per"]]])

    return [part(index, slice(*ends)) for index, ends in enumerate(pairwise([0, *last_atom]))]


def structure_prediction(prediction: Prediction) -> StructurePrediction:
    """The prediction of a single structure as NumPy arrays."""
    names = {item.name for item in fields(StructurePrediction)} - {"provenance", "energy_undetermined"}
    found: dict[str, Any] = {name: _array(name, getattr(prediction, name)) for name in names}
    return StructurePrediction(
        **found, energy_undetermined=is_undetermined(prediction), provenance=prediction.provenance
    )


def is_undetermined(prediction: Prediction) -> bool:
    """Whether the energy of a single structure is undetermined; false if that is not known."""
    return prediction.undetermined is not None and bool(prediction.undetermined[0])


def warn_of_undetermined(formulas: Iterable[str]) -> None:
    """Warn users of Python once of energies of these compositions, if there are any."""
    if names := list(formulas):
        warnings.warn(undetermined_energies(names), UndeterminedEnergyWarning, stacklevel=3)


def _array(name: str, tensor: Tensor | None) -> float | FloatArray | None:
    if tensor is None:
        return None
    if name.startswith("energy"):
        return tensor.item()
    array = tensor.double().cpu().numpy()
    if name.startswith("stress"):
        return None if np.isnan(array).any() else array[0]  # NaN: no cell, in a batch that has some
    return array


def concatenate(predictions: list[Prediction]) -> Prediction:
    """Join predictions of consecutive batches; a quantity that is missing from one is missing from the result."""
    joined: dict[str, Any] = {
        item.name: joined_or_none(torch.cat, [getattr(prediction, item.name) for prediction in predictions])
        for item in fields(Prediction)
        if "per" in item.metadata
    }
    return replace(predictions[0], **joined)


def joined_or_none(join: Callable[[list[Tensor]], Tensor], values: list[Tensor | None]) -> Tensor | None:
    """The tensors joined; ``None`` if one of them is missing."""
    present = [value for value in values if value is not None]
    return join(present) if len(present) == len(values) else None
