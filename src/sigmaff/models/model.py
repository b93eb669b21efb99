"""The base class of models: everything that can be saved, loaded, calibrated and used for prediction."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from torch import Tensor, nn

from sigmaff.data import (
    DatasetStatistics,
    ElectronicState,
    GraphDataset,
    LabelledStructures,
    require_elements,
    require_state,
)
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.graph import AtomicGraph
from sigmaff.models.force_growth import connected_parts
from sigmaff.models.prediction import (
    Calibration,
    Calibrations,
    EnergyForceStd,
    ForceStdMethod,
    Prediction,
    StdKind,
    StructurePrediction,
    calibrated,
    split_prediction,
    structure_prediction,
    warn_of_undetermined,
)
from sigmaff.models.record import RunRecord
from sigmaff.models.std_range import StdRange

if TYPE_CHECKING:
    from sigmaff.models.potential import Potential


TINY = torch.finfo(torch.float64).tiny


class Model(nn.Module, ABC):
    """Raw predictions, and the calibrations that turn their σ into error bars."""

    def __init__(self) -> None:
        super().__init__()
        self.energy_calibration: Calibration | None = None
        self.forces_calibration: Calibration | None = None
        self.stress_calibration: Calibration | None = None
        self.energy_force_std: EnergyForceStd | None = None
        self.std_range: StdRange | None = None  # of reported σ on held-out structures
        self._compositions: Compositions | None = None  # of the last prediction
        self.record = RunRecord()
        self.file: Path | None = None  # that it was read from

    @property
    @abstractmethod
    def potentials(self) -> list["Potential"]:
        """The networks that it consists of: one, or the members of an ensemble."""

    @property
    @abstractmethod
    def n_passes(self) -> int:
        """How many times a prediction runs a network."""

    @property
    def cutoff(self) -> float:
        """Radius in Å within which graphs for this model hold all pairs."""
        return max(potential.cutoff for potential in self.potentials)

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers that it was trained on, in order."""
        return self.potentials[0].elements

    @property
    def electrons(self) -> ElectronicState:
        """Total charge and spin of the structures that it was trained on, as far as they state them."""
        return self.potentials[0].statistics.electrons

    @property
    def kind(self) -> StdKind | None:
        """What its σ is; ``None`` if it has none. Repeated predictions add an epistemic σ to that of the potentials."""
        kinds = {potential.kind for potential in self.potentials}
        return "epistemic" if kinds <= {None, "epistemic"} else "total"

    @property
    def calibrations(self) -> Calibrations:
        """Of energies, forces and stress; ``None`` for each whose σ is raw."""
        return Calibrations(self.energy_calibration, self.forces_calibration, self.stress_calibration)

    @calibrations.setter
    def calibrations(self, fitted: Calibrations) -> None:
        """The range of σ is that of the former ones, and is dropped."""
        self.energy_calibration, self.forces_calibration, self.stress_calibration = fitted
        self.std_range = None

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return self.potentials[0].dtype

    @property
    def device(self) -> torch.device:
        return self.potentials[0].device

    def predict_raw(
        self,
        graph: AtomicGraph,
        *,
        forces_std: ForceStdMethod = "auto",
        stress_std: bool = True,
        unseen_elements: bool = False,
    ) -> Prediction:
        """Energies, forces and the method's own σ in eV and Å, before calibration; as in evaluation mode.

        Beside it ``composition_std``, the σ of reference energies, which is no matter of the method, and
        ``undetermined``.

        Elements that the model was not trained on have no reference energy: an error, or with ``unseen_elements`` an
        energy that is NaN, beside forces that mean nothing and a σ that should say so.
        """
        if torch.is_inference_mode_enabled():
            raise SigmaffError("forces are derivatives: predict under torch.no_grad(), not torch.inference_mode()")
        was_training = self.training
        try:
            if was_training:
                self.eval()
            with torch.no_grad():
                way: ForceStdMethod = "none" if forces_std == "energy" else forces_std
                prediction = self.compute(graph, way, stress_std=stress_std, unseen_elements=unseen_elements)
                if forces_std == "energy":
                    prediction = self._with_energy_force_std(prediction, graph)
                prediction = self._with_composition(prediction, graph)
                return self._without_energies(prediction, graph) if unseen_elements else prediction
        finally:
            if was_training:
                self.train()

    def _with_energy_force_std(self, prediction: Prediction, graph: AtomicGraph) -> Prediction:
        if prediction.energy_std is None:
            raise ConfigError(f"forces_std 'energy' needs an energy σ; {prediction.provenance.method} has none")
        if self.energy_force_std is None:
            raise ConfigError(
                "this model does not know its force σ from energy σ: calibrate it again on 20 or more structures with "
                "forces (sigmaff calibrate), or choose another forces_std"
            )
        std = self.energy_force_std.std(prediction.energy_std, graph.to(device=self.device, dtype=self.dtype))
        return replace(prediction, forces_std=std, provenance=replace(prediction.provenance, forces_std="energy"))

    def with_component_std(self, prediction: Prediction, graph: AtomicGraph) -> Prediction:
        """Add ``component_std`` to a raw prediction with σ of forces and energies.

        Structures that fall into several parts cost another prediction, without force σ; others nothing.
        """
        if prediction.forces_std is None or prediction.energy_std is None:
            return prediction
        parts, order = connected_parts(graph)
        of_parts = prediction
        if parts.n_structures > graph.n_structures:
            of_parts = self.predict_raw(parts, forces_std="none", unseen_elements=True)
        std = of_parts.energy_std
        assert std is not None
        if of_parts.unseen_std is not None:  # it is in force σ, and must not enter twice
            std = (std.square() - of_parts.unseen_std.square()).clamp(min=0.0) / std.clamp(min=TINY)
        per_atom = std / parts.atoms_per_structure().to(std)
        by_atom = per_atom.new_empty(len(order))
        by_atom[order.to(std.device)] = per_atom[parts.structure_index.to(std.device)]
        return replace(prediction, component_std=by_atom)

    def _with_composition(self, prediction: Prediction, graph: AtomicGraph) -> Prediction:
        """Add ``undetermined`` and, to a prediction with energy σ, ``composition_std``."""
        last = self._compositions
        if last is None or not last.is_of(graph, self):
            last = self._compositions = Compositions.of(graph, self)  # the next step of a simulation has the same
        std = None if prediction.energy_std is None else last.std
        return replace(prediction, composition_std=std, undetermined=last.undetermined)

    @abstractmethod
    def compute(
        self, graph: AtomicGraph, forces_std: ForceStdMethod, *, stress_std: bool, unseen_elements: bool
    ) -> Prediction:
        """As ``predict_raw``, called in evaluation mode, without gradients of weights; references not known are 0."""

    def _without_energies(self, prediction: Prediction, graph: AtomicGraph) -> Prediction:
        """NaN in place of the energies that depend on references that do not exist."""
        numbers = graph.atomic_numbers.to(self.device)
        unseen = ~torch.isin(numbers, torch.tensor(self.elements, device=self.device))
        lost = torch.zeros_like(prediction.energy, dtype=torch.bool)
        lost[graph.structure_index.to(self.device)[unseen]] = True

        def masked(tensor: Tensor, about: Mapping[str, Any]) -> Tensor:
            if not about["absolute"]:
                return tensor
            mask = lost if about["per"] == "structure" else unseen
            return tensor.masked_fill(mask.view(-1, *[1] * (tensor.ndim - 1)), torch.nan)

        return prediction.with_each(masked)

    @overload
    def predict(
        self, structures: AtomicGraph, /, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        structures: Sequence[Atoms],
        /,
        *,
        forces_std: ForceStdMethod = "auto",
        stress_std: bool = True,
        batch_size: int = 32,
    ) -> list[StructurePrediction]: ...

    @overload
    def predict(
        self,
        structures: Atoms,
        /,
        *,
        forces_std: ForceStdMethod = "auto",
        stress_std: bool = True,
        batch_size: int = 32,
    ) -> StructurePrediction: ...

    def predict(
        self,
        structures: AtomicGraph | Atoms | Sequence[Atoms],
        /,
        *,
        forces_std: ForceStdMethod = "auto",
        stress_std: bool = True,
        batch_size: int = 32,
    ) -> Prediction | StructurePrediction | list[StructurePrediction]:
        """Energies, forces and σ in eV and Å. ``provenance.calibrated`` names the quantities whose σ is calibrated.

        Arguments:
            structures: an ASE structure gives one ``StructurePrediction`` (NumPy), a sequence a list of them, and an
                ``AtomicGraph`` one ``Prediction`` (tensors) for the whole batch.
            forces_std: how to compute force σ; see ``ForceStdMethod``.
            stress_std: whether to compute stress σ of periodic structures too, where force σ has derivatives.
            batch_size: structures predicted at once, at most; fewer if they are large.
        """
        if isinstance(structures, AtomicGraph):
            raw = self.predict_raw(structures, forces_std=forces_std, stress_std=stress_std)
            if self.forces_calibration is not None and self.forces_calibration.growth is not None:
                raw = self.with_component_std(raw, structures)
            return calibrated(raw, self.calibrations)
        if isinstance(structures, Atoms):
            return self.predict([structures], forces_std=forces_std, stress_std=stress_std)[0]
        if not structures:
            return []
        given = LabelledStructures(
            structures=tuple(structures),
            energy=None,
            forces=None,
            source="structures",
            frame_index=np.arange(len(structures)),
        )
        require_elements(given, self.elements)
        require_state(given, self.electrons)
        dataset = GraphDataset(given, self.cutoff, self.dtype)
        found: list[StructurePrediction] = []
        for indices in torch.arange(len(dataset)).split(dataset.batch_size(batch_size)):
            graph, _ = dataset.batch(indices)
            prediction = self.predict(graph, forces_std=forces_std, stress_std=stress_std)
            found += map(structure_prediction, split_prediction(prediction, graph))
        pairs = zip(structures, found, strict=True)
        warn_of_undetermined(atoms.get_chemical_formula() for atoms, one in pairs if one.energy_undetermined)
        return found


@dataclass(frozen=True)
class Compositions:
    """What follows from the compositions of structures and the statistics of a model alone."""

    atomic_numbers: Tensor
    structure_index: Tensor
    statistics: DatasetStatistics
    std: Tensor  # (n_structures,) of reference energies, eV
    undetermined: Tensor  # (n_structures,)

    @classmethod
    def of(cls, graph: AtomicGraph, model: Model) -> "Compositions":
        numbers, structure = graph.atomic_numbers.cpu().numpy(), graph.structure_index.cpu().numpy()
        counts = np.zeros((graph.n_structures, len(chemical_symbols)))
        np.add.at(counts, (structure, numbers), 1.0)
        statistics = model.potentials[0].statistics
        found = statistics.composition_std(counts), statistics.is_undetermined(counts)
        tensors = (torch.as_tensor(values, device=model.device) for values in found)
        return cls(graph.atomic_numbers, graph.structure_index, statistics, *tensors)

    def is_of(self, graph: AtomicGraph, model: Model) -> bool:
        return (
            self.statistics is model.potentials[0].statistics
            and self.std.device == model.device
            and len(self.std) == graph.n_structures
            and torch.equal(self.atomic_numbers, graph.atomic_numbers)
            and torch.equal(self.structure_index, graph.structure_index)
        )


@dataclass(frozen=True)
class Uncalibrated:
    """A model seen as a predictor of its method's own σ, before calibration."""

    model: Model
    unseen_elements: bool = False

    @property
    def cutoff(self) -> float:
        return self.model.cutoff

    def predict(
        self, graph: AtomicGraph, /, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        raw = self.model.predict_raw(
            graph, forces_std=forces_std, stress_std=stress_std, unseen_elements=self.unseen_elements
        )
        return self.model.with_component_std(raw, graph)
