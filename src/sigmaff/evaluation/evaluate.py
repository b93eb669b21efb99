"""Run a model over labelled structures and keep true values, predictions and raw σ."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from sigmaff.data import GraphDataset
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.calibration import CalibrationMethod, fit_calibration
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray, Quantity, Sample
from sigmaff.graph import AtomicGraph, Labels
from sigmaff.models import Model, Uncalibrated
from sigmaff.models.prediction import (
    UNCALIBRATED,
    Calibration,
    ForceStdMethod,
    Prediction,
    Predictor,
    Provenance,
    concatenate,
)
from sigmaff.progress import Listener

RESOLUTION = 1e-5
"""Of force σ, in units of its rms. A σ is the root of a difference: of the seven digits of float32 it keeps half."""


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
    energy_std_raw: FloatArray | None  # (n_structures,)
    forces: FloatArray | None  # (n_atoms, 3) true
    forces_predicted: FloatArray  # (n_atoms, 3)
    forces_std_raw: FloatArray | None  # (n_atoms, 3)
    node_energy_std_raw: FloatArray | None = None  # (n_atoms,)
    stress_error: FloatArray | None = None  # (n_structures, 3, 3) predicted minus true, eV/Å³
    energy_calibration: Calibration = UNCALIBRATED
    forces_calibration: Calibration = UNCALIBRATED
    provenance: Provenance  # of the raw σ
    seconds_per_structure: float = 0.0  # spent in the model

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
        """Calibrated σ, (n_structures,)."""
        return _scaled(self.energy_std_raw, self.energy_calibration)

    @property
    def forces_std(self) -> FloatArray | None:
        """Calibrated σ, (n_atoms, 3)."""
        return _scaled(self.forces_std_raw, self.forces_calibration)

    @property
    def node_energy_std(self) -> FloatArray | None:
        """Calibrated σ of each atom's share of the energy, (n_atoms,); it shares the energy's calibration."""
        return _scaled(self.node_energy_std_raw, self.energy_calibration)

    @property
    def samples(self) -> dict[Quantity, Sample]:
        """Errors and σ, pooled, for each quantity that has labels and a σ > 0."""
        n, components = np.arange(self.n_structures), np.repeat(self.structure_index, 3)
        quantities: tuple[tuple[Quantity, FloatArray | None, FloatArray | None, IntArray, Calibration], ...] = (
            ("energy", self.energy_error, self.energy_std_raw, n, self.energy_calibration),
            ("forces", self.forces_error, self.forces_std_raw, components, self.forces_calibration),
        )
        samples = {}
        for name, errors, std, structure, calibration in quantities:
            if errors is not None and std is not None and (std > 0).any():
                kept = std.ravel() > 0
                samples[name] = Sample(
                    quantity=name,
                    errors=errors.ravel()[kept],
                    std_raw=std.ravel()[kept],
                    structure=structure[kept],
                    calibration=calibration,
                )
        return samples

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
    return evaluate_predictor(
        Uncalibrated(model, unseen_elements=unseen),
        dataset,
        name=name,
        batch_size=dataset.batch_size(batch_size),
        forces_std=forces_std,
        energy_calibration=model.energy_calibration or UNCALIBRATED,
        forces_calibration=model.forces_calibration or UNCALIBRATED,
        listener=listener,
    )


def evaluate_predictor(
    predictor: Predictor,
    dataset: LabelledGraphs,
    *,
    name: str,
    batch_size: int = 32,
    forces_std: ForceStdMethod = "auto",
    energy_calibration: Calibration = UNCALIBRATED,
    forces_calibration: Calibration = UNCALIBRATED,
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
        prediction = predictor.predict(graph, forces_std=forces_std)
        predictions.append(prediction.with_each(lambda tensor, _: tensor.detach().cpu()))  # frees the device
        seconds += time.perf_counter() - began
        _require_raw(prediction, name)
        graphs.append(graph)
        labels.append(known)
        listener.advance(stop, len(dataset))
    evaluation = replace(
        _compared(name, graphs, labels, predictions),
        energy_calibration=energy_calibration,
        forces_calibration=forces_calibration,
        seconds_per_structure=seconds / len(dataset),
    )
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
        forces=_joined([known.forces for known in labels]),
        forces_predicted=_float64(prediction.forces),
        forces_std_raw=_resolved(_joined([prediction.forces_std])),
        node_energy_std_raw=_joined([prediction.node_energy_std]),
        stress_error=_difference(_joined([prediction.stress]), _joined([known.stress for known in labels])),
        provenance=next(sampled, prediction.provenance),  # "sampled" if one batch was
    )


def _require_raw(prediction: Prediction, name: str) -> None:
    if prediction.provenance.calibration is not None:
        raise SigmaffError(
            f"{name}: σ of this predictor is already calibrated ({prediction.provenance.calibration}); calibrating it "
            "again would rescale it twice. Pass the model to evaluate(), or Uncalibrated(model) to evaluate_predictor()"
        )


def calibrate_evaluation(
    evaluation: Evaluation, method: CalibrationMethod = "auto"
) -> tuple[Calibration | None, Calibration | None]:
    """Calibrations of energies and of force components, fitted on held-out structures.

    ``None`` for a quantity without labels or without σ.
    """
    pairs = (
        ("energies", evaluation.energy_error, evaluation.energy_std_raw),
        ("forces", evaluation.forces_error, evaluation.forces_std_raw),
    )
    if all(error is None or std is None for _, error, std in pairs):
        labelled = " and ".join(name for name, error, _ in pairs if error is not None) or "neither"
        with_std = " and ".join(name for name, _, std in pairs if std is not None) or "neither"
        raise DataError(
            f"{evaluation.name}: calibration needs labels and a σ for energies or for forces; "
            f"labelled: {labelled}; σ from method {evaluation.provenance.method!r}: {with_std}"
        )
    energy, forces = (
        None if error is None or std is None else _fit(f"{evaluation.name}, {quantity}", error, std, method)
        for quantity, error, std in pairs
    )
    return energy, forces


def _fit(where: str, error: FloatArray, std_raw: FloatArray, method: CalibrationMethod) -> Calibration:
    try:
        return fit_calibration(error, std_raw, method)
    except DataError as problem:
        raise DataError(f"{where}: {problem}") from None


def _scaled(std_raw: FloatArray | None, calibration: Calibration) -> FloatArray | None:
    return None if std_raw is None else std_raw * calibration.scale


def _float64(tensor: Tensor) -> FloatArray:
    return tensor.detach().cpu().double().numpy()


def _joined(tensors: Sequence[Tensor | None]) -> FloatArray | None:
    """The batches of one quantity as one array; ``None`` if it is missing from one batch."""
    present = [_float64(tensor) for tensor in tensors if tensor is not None]
    return np.concatenate(present) if len(present) == len(tensors) else None


def _resolved(std: FloatArray | None) -> FloatArray | None:
    """σ with 0 in place of rounding, as of forces that vanish by symmetry."""
    if std is None:
        return None
    rounding = (std >= 0) & (std <= RESOLUTION * np.sqrt(np.square(std).mean()))
    return np.where(rounding, 0.0, std)


def _difference(predicted: FloatArray | None, true: FloatArray | None) -> FloatArray | None:
    """``None`` if a structure has no label or no prediction."""
    if predicted is None or true is None or not np.isfinite(predicted).all():
        return None
    return predicted - true


def _check(evaluation: Evaluation) -> None:
    """Raise an error that names the first structure with a value that is not finite or a σ below 0."""
    for key, values in vars(evaluation).items():
        if not isinstance(values, np.ndarray):
            continue
        if key == "energy_predicted" and evaluation.energy is None:
            continue  # an unknown element has a σ, but no energy
        wrong = ~np.isfinite(values)
        if key.endswith("std_raw"):
            wrong |= values < 0
        if wrong.any():
            row = int(np.argwhere(wrong)[0, 0])
            per_structure = key.startswith("energy")
            structure = row if per_structure else int(evaluation.structure_index[row])
            raise DataError(
                f"{evaluation.name}: {key} of structure {structure} is {values[wrong].flat[0]}; "
                "remove the structure or, if many have it, check the labels and the model"
            )
