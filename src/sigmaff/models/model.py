"""What every model is that can be saved, loaded, calibrated and put to work."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from sigmaff.errors import SigmaffError
from sigmaff.graph import AtomicGraph
from sigmaff.models.prediction import Calibration, ForcesStd, Prediction, calibrated
from sigmaff.models.record import RunRecord


class Model(nn.Module, ABC):
    """Raw predictions, and the calibrations that turn their σ into error bars."""

    def __init__(self) -> None:
        super().__init__()
        self.energy_calibration: Calibration | None = None
        self.forces_calibration: Calibration | None = None
        self.record = RunRecord()

    @property
    @abstractmethod
    def cutoff(self) -> float:
        """Radius in Å within which graphs for this model hold all pairs."""

    @property
    @abstractmethod
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers that it was trained on, in order."""

    @property
    @abstractmethod
    def kind(self) -> Literal["epistemic", "aleatoric", "total"] | None:
        """What its σ is; ``None`` where it has none."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    def predict_raw(
        self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto", unseen_elements: bool = False
    ) -> Prediction:
        """Energies, forces and the method's own σ in eV and Å, before calibration; as in evaluation mode.

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
                prediction = self.compute(graph, forces_std, unseen_elements=unseen_elements)
                return self._without_energies(prediction, graph) if unseen_elements else prediction
        finally:
            if was_training:
                self.train()

    @abstractmethod
    def compute(self, graph: AtomicGraph, forces_std: ForcesStd, *, unseen_elements: bool) -> Prediction:
        """As ``predict_raw``, called in evaluation mode, without gradients of weights; references not known are 0."""

    def _without_energies(self, prediction: Prediction, graph: AtomicGraph) -> Prediction:
        """NaN in place of the energies that depend on references that do not exist."""
        numbers = graph.atomic_numbers.to(self.device)
        unseen = ~torch.isin(numbers, torch.tensor(self.elements, device=self.device))
        lost = torch.zeros_like(prediction.energy, dtype=torch.bool)
        lost[graph.structure_index.to(self.device)[unseen]] = True
        node_energy, members = prediction.node_energy, prediction.energy_members
        return replace(
            prediction,
            energy=prediction.energy.masked_fill(lost, torch.nan),
            node_energy=None if node_energy is None else node_energy.masked_fill(unseen, torch.nan),
            energy_members=None if members is None else members.masked_fill(lost[:, None], torch.nan),
        )

    def predict(self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto") -> Prediction:
        """Energies, forces and calibrated σ in eV and Å."""
        raw = self.predict_raw(graph, forces_std=forces_std)
        return calibrated(raw, self.energy_calibration, self.forces_calibration)


@dataclass(frozen=True)
class Uncalibrated:
    """A model seen as a predictor of its method's own σ, before calibration."""

    model: Model
    unseen_elements: bool = False

    @property
    def cutoff(self) -> float:
        return self.model.cutoff

    def predict(self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto") -> Prediction:
        return self.model.predict_raw(graph, forces_std=forces_std, unseen_elements=self.unseen_elements)
