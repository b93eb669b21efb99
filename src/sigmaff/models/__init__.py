"""Models: predictions and their σ from a potential, an ensemble of potentials, or dropout; and the model file."""

from sigmaff.models.dropout import MonteCarloDropout, MonteCarloDropoutConfig
from sigmaff.models.ensemble import Ensemble
from sigmaff.models.model import Model, Uncalibrated
from sigmaff.models.potential import Potential, PotentialConfig
from sigmaff.models.prediction import StructurePrediction

__all__ = [
    "Ensemble",
    "Model",
    "MonteCarloDropout",
    "MonteCarloDropoutConfig",
    "Potential",
    "PotentialConfig",
    "StructurePrediction",
    "Uncalibrated",
]
