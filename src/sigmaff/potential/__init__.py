"""Potentials: backbone + head + scaling, their force σ, and their files."""

from sigmaff.potential.model_file import load, read_header, save
from sigmaff.potential.potential import Potential, PotentialConfig, Uncalibrated

__all__ = ["Potential", "PotentialConfig", "Uncalibrated", "load", "read_header", "save"]
