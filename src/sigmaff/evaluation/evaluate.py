"""Run a model over labelled structures and keep true values, predictions and raw σ."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress
from torch import Tensor

from sigmaff.data import GraphDataset
from sigmaff.data.statistics import undetermined_energies
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray, Sample
from sigmaff.graph import AtomicGraph, Labels
from sigmaff.models import Model, Uncalibrated
from sigmaff.models.prediction import (
    NO_CALIBRATIONS,
    QUANTITIES,
    UNCALIBRATED,
    Calibration,
    Calibrations,
    ForceStdMethod,
    Prediction,
    Predictor,
    Provenance,
    Quantity,
    concatenate,
)
from sigmaff.progress import Listener

OPEN = 1e-6
"""eV; σ of compositions above this is more than rounding."""
RESOLUTION = 1e-5
"""Of σ of components, in units of its rms. It is the root of a difference: of float32's seven digits it keeps half."""


class LabelledGraphs(Protocol):
    """All that an evaluation knows about a data set."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int], /) -> tuple[AtomicGraph, Labels]: ...


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """True and predicted values and raw σ of a model on a data set. eV, Å; ``None``: no label, or no σ."""

    name: str
    structure_index: IntArray  # (n_atoms,) sorted
    atomic_numbers: IntArray  # (n_atoms,)
    positions: FloatArray  # (n_atoms, 3)
    energy: FloatArray | None  # (n_structures,) true
    energy_predicted: FloatArray  # (n_structures,)
    energy_std_raw: FloatArray | None  # (n_structures,) of the method, without that of compositions
    forces: FloatArray | None  # (n_atoms, 3) true
    forces_predicted: FloatArray  # (n_atoms, 3)
    forces_std_raw: FloatArray | None  # (n_atoms, 3)
    node_energy_std_raw: FloatArray | None = None  # (n_atoms,)
    component_std_raw: FloatArray | None = None  # (n_atoms,) energy σ of the connected part, per atom; see Prediction
    stress: FloatArray | None = None  # (n_structures, 6) true, eV/Å³, ASE's order; rows are NaN without a cell
    stress_predicted: FloatArray | None = None  # (n_structures, 6)
    stress_std_raw: FloatArray | None = None  # (n_structures, 6)
    undetermined: tuple[int, ...] = ()  # structures whose energies the training set does not determine
    composition_std: FloatArray | None = None  # (n_structures,) of reference energies; no calibration scales it
    energy_calibration: Calibration = UNCALIBRATED
    forces_calibration: Calibration = UNCALIBRATED
    stress_calibration: Calibration = UNCALIBRATED
    provenance: Provenance  # of the raw σ
    seconds_per_structure: float = 0.0  # spent in the model
    groups: tuple[str, ...] | None = None  # (n_structures,) what kind each is; None: the data do not say

    @property
    def n_structures(self) -> int:
        return self.energy_predicted.size

    @property
    def n_atoms(self) -> int:
        return self.atomic_numbers.size

    @property
    def atoms_per_structure(self) -> IntArray:
        """(n_structures,)"""
        return np.bincount(self.structure_index, minlength=self.n_structures)

    @property
    def energy_error(self) -> FloatArray | None:
        """Predicted minus true, (n_structures,)."""
        return None if self.energy is None else self.energy_predicted - self.energy

    @property
    def forces_error(self) -> FloatArray | None:
        """Predicted minus true, (n_atoms, 3)."""
        return None if self.forces is None else self.forces_predicted - self.forces

    @property
    def energy_std(self) -> FloatArray | None:
        """Calibrated σ, with that of compositions, (n_structures,)."""
        scaled = _reported(self.energy_std_raw, self.energy_calibration)
        return scaled if scaled is None or self.composition_std is None else np.hypot(scaled, self.composition_std)

    @property
    def forces_std(self) -> FloatArray | None:
        """Calibrated σ, (n_atoms, 3)."""
        return _reported(self.forces_std_raw, self.forces_calibration, self.component_std_raw)

    @property
    def forces_std_grown(self) -> FloatArray | None:
        """Raw σ with the growth of its calibration, before the factor, (n_atoms, 3); ``None`` without growth."""
        growth = self.forces_calibration.growth
        if growth is None or self.forces_std_raw is None or self.component_std_raw is None:
            return None
        return growth.apply(self.forces_std_raw, self.component_std_raw)

    @property
    def stress_std(self) -> FloatArray | None:
        """σ, (n_structures, 6): raw where stress was not calibrated."""
        return _reported(self.stress_std_raw, self.stress_calibration)

    @property
    def stress_error(self) -> FloatArray | None:
        """Predicted minus true, (n_structures, 6); ``None`` if no structure has both."""
        if self.stress is None or self.stress_predicted is None:
            return None
        error = self.stress_predicted - self.stress
        return None if np.isnan(error).all() else error

    @property
    def node_energy_std(self) -> FloatArray | None:
        """How unusual an atom's surroundings are, eV, (n_atoms,): raw, for colouring; see ``Prediction``."""
        return self.node_energy_std_raw

    def compared(self, quantity: Quantity) -> tuple[FloatArray, FloatArray, IntArray] | None:
        """Errors, raw σ and structure of each component, (n,) each; ``None`` without labels or without σ."""
        each = np.arange(self.n_structures)
        found: dict[Quantity, tuple[FloatArray | None, FloatArray | None, IntArray]] = {
            "energy": (self.energy_error, self.energy_std_raw, each),
            "forces": (self.forces_error, self.forces_std_raw, np.repeat(self.structure_index, 3)),
            "stress": (self.stress_error, self.stress_std_raw, np.repeat(each, 6)),
        }
        errors, std, structure = found[quantity]
        if errors is None or std is None:
            return None
        known = ~np.isnan(errors.ravel())  # structures without a cell have no stress
        return errors.ravel()[known], std.ravel()[known], structure[known]

    @property
    def samples(self) -> dict[Quantity, Sample]:
        """Errors and σ, pooled, for each quantity that has labels and a σ > 0."""
        calibrations = (self.energy_calibration, self.forces_calibration, self.stress_calibration)
        samples = {}
        for name, calibration in zip(QUANTITIES, calibrations, strict=True):
            found = self.compared(name)
            if found is not None and (found[1] > 0).any():
                errors, std, structure = found
                fixed = self.composition_std if name == "energy" else None
                grown = self.forces_std_grown if name == "forces" else None
                samples[name] = Sample(
                    quantity=name,
                    errors=errors[std > 0],
                    std_raw=std[std > 0],
                    structure=structure[std > 0],
                    calibration=calibration,
                    std_fixed=np.zeros_like(std[std > 0]) if fixed is None else fixed[std > 0],
                    std_grown=None if grown is None else grown.ravel()[std > 0],
                )
        return samples

    def with_calibrations(self, calibrations: Calibrations) -> "Evaluation":
        """The same predictions and raw σ beside other calibrations."""
        return replace(
            self,
            energy_calibration=calibrations.energy or UNCALIBRATED,
            forces_calibration=calibrations.forces or UNCALIBRATED,
            stress_calibration=calibrations.stress or UNCALIBRATED,
        )

    def structure_rms(self, vectors: FloatArray | None) -> FloatArray | None:
        """Root mean square over the atoms and components of each structure: (n_atoms, 3) -> (n_structures,)."""
        if vectors is None:
            return None
        squares = np.bincount(self.structure_index, np.square(vectors).sum(axis=1), self.n_structures)
        return np.sqrt(squares / (3 * self.atoms_per_structure))

    def per_atom(self, energies: FloatArray | None) -> FloatArray | None:
        """(n_structures,) divided by the number of atoms."""
        return None if energies is None else energies / self.atoms_per_structure


def evaluate(
    model: Model,
    dataset: GraphDataset,
    *,
    name: str,
    batch_size: int = 32,
    forces_std: ForceStdMethod = "auto",
    listener: Listener | None = None,
) -> Evaluation:
    """Errors and σ of a model on a data set, raw and with the model's calibrations.

    Elements that the model does not know have a σ, but no reference energy: without labels, their energy is NaN.

    Arguments:
        name: of the data set, for messages and reports.
        batch_size: structures predicted at once, at most; fewer if they are large.
        listener: callbacks for progress.
    """
    unseen = not set(dataset.structures.elements) <= set(model.elements)
    found = evaluate_predictor(
        Uncalibrated(model, unseen_elements=unseen),
        dataset,
        name=name,
        batch_size=dataset.batch_size(batch_size),
        forces_std=forces_std,
        calibrations=model.calibrations if forces_std != "energy" else model.calibrations._replace(forces=None),
        listener=listener,
    )
    if listener is not None and found.undetermined and not unseen:
        formulas = [dataset.structures.structures[index].get_chemical_formula() for index in found.undetermined]
        listener.warn(f"{name}, {len(formulas)} of {len(dataset)} structures: {undetermined_energies(formulas)}")
    return replace(found, groups=dataset.structures.groups)


def evaluate_predictor(
    predictor: Predictor,
    dataset: LabelledGraphs,
    *,
    name: str,
    batch_size: int = 32,
    forces_std: ForceStdMethod = "auto",
    calibrations: Calibrations = NO_CALIBRATIONS,
    listener: Listener | None = None,
) -> Evaluation:
    """As ``evaluate``, of anything that predicts raw σ; the calibrations are kept beside the raw σ."""
    if len(dataset) == 0:
        raise DataError(f"{name}: there is no structure to evaluate")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    listener = listener or Listener()
    graphs, labels, predictions, seconds = [], [], [], 0.0
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        graph, known = dataset.batch(range(start, stop))
        began = time.perf_counter()
        prediction = predictor.predict(graph, forces_std=forces_std, stress_std=known.stress is not None)
        predictions.append(prediction.with_each(lambda tensor, _: tensor.detach().cpu()))  # frees the device
        seconds += time.perf_counter() - began
        _require_raw(prediction, name)
        graphs.append(graph)
        labels.append(known)
        listener.advance(stop, len(dataset))
    evaluation = _compared(name, graphs, labels, predictions).with_calibrations(calibrations)
    evaluation = replace(evaluation, seconds_per_structure=seconds / len(dataset))
    _check(evaluation)
    return evaluation


def _compared(
    name: str, graphs: Sequence[AtomicGraph], labels: Sequence[Labels], predictions: list[Prediction]
) -> Evaluation:
    """Batches of labels and predictions as one evaluation."""
    prediction = concatenate(predictions)
    n_atoms = np.concatenate([graph.atoms_per_structure().cpu().numpy() for graph in graphs])
    sampled = (item.provenance for item in predictions if item.provenance.forces_std == "sampled")
    return Evaluation(
        name=name,
        structure_index=np.repeat(np.arange(n_atoms.size), n_atoms),
        atomic_numbers=np.concatenate([graph.atomic_numbers.cpu().numpy() for graph in graphs]),
        positions=np.concatenate([_float64(graph.positions) for graph in graphs]),
        energy=_joined([known.energy for known in labels]),
        energy_predicted=_float64(prediction.energy),
        energy_std_raw=_joined([prediction.energy_std]),
        composition_std=_joined([prediction.composition_std]),
        undetermined=_indices(prediction.undetermined),
        forces=_joined([known.forces for known in labels]),
        forces_predicted=_float64(prediction.forces),
        forces_std_raw=_resolved(_joined([prediction.forces_std])),
        node_energy_std_raw=_joined([prediction.node_energy_std]),
        component_std_raw=_joined([prediction.component_std]),
        stress=_voigt(_joined([known.stress for known in labels])),
        stress_predicted=_voigt(_joined([prediction.stress])),
        stress_std_raw=_resolved(_voigt(_joined([prediction.stress_std]))),
        provenance=next(sampled, prediction.provenance),  # "sampled" if one batch was
    )


def _require_raw(prediction: Prediction, name: str) -> None:
    if prediction.provenance.calibration is not None:
        raise SigmaffError(
            f"{name}: σ of this predictor is already calibrated ({prediction.provenance.calibration}); calibrating it "
            "again would rescale it twice. Pass the model to evaluate(), or Uncalibrated(model) to evaluate_predictor()"
        )


def _reported(
    std_raw: FloatArray | None, calibration: Calibration, component_std: FloatArray | None = None
) -> FloatArray | None:
    return None if std_raw is None else calibration.std(std_raw, component_std)


def _float64(tensor: Tensor) -> FloatArray:
    return tensor.detach().cpu().double().numpy()


def _joined(tensors: Sequence[Tensor | None]) -> FloatArray | None:
    """The batches of one quantity as one array; ``None`` if it is missing from one batch."""
    present = [_float64(tensor) for tensor in tensors if tensor is not None]
    return np.concatenate(present) if len(present) == len(tensors) else None


def _indices(mask: Tensor | None) -> tuple[int, ...]:
    return () if mask is None else tuple(mask.nonzero().flatten().tolist())


def _voigt(stress: FloatArray | None) -> FloatArray | None:
    """The six components of symmetric tensors: (n_structures, 3, 3) -> (n_structures, 6)."""
    return None if stress is None else full_3x3_to_voigt_6_stress(stress)


def _resolved(std: FloatArray | None) -> FloatArray | None:
    """σ with 0 in place of rounding, as of forces that vanish by symmetry. NaN: there is none."""
    if std is None or np.isnan(std).all():
        return std
    rounding = (std >= 0) & (std <= RESOLUTION * np.sqrt(np.nanmean(np.square(std))))
    return np.where(rounding, 0.0, std)


def _check(evaluation: Evaluation) -> None:
    """Raise an error that names the first structure with a value that is not finite or a σ below 0."""
    for key, values in vars(evaluation).items():
        if not isinstance(values, np.ndarray):
            continue
        if key == "energy_predicted" and evaluation.energy is None:
            continue  # an unknown element has a σ, but no energy
        wrong = ~np.isfinite(values)
        if key.startswith("stress"):
            wrong[np.isnan(values).all(axis=1)] = False  # a structure without a cell has no stress
        if key.endswith("std_raw"):
            wrong |= values < 0
        if wrong.any():
            row = int(np.argwhere(wrong)[0, 0])
            per_structure = key.startswith(("energy", "stress"))
            structure = row if per_structure else int(evaluation.structure_index[row])
            raise DataError(
                f"{evaluation.name}: {key} of structure {structure} is {values[wrong].flat[0]}; "
                "remove the structure or, if many have it, check the labels and the model"
            )
