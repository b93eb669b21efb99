"""Potentials: backbone + head + scaling, and their force σ."""

from sigmaff.potential.model import Model, Uncalibrated
from sigmaff.potential.potential import Potential, PotentialConfig

__all__ = ["Model", "Potential", "PotentialConfig", "Uncalibrated"]
