"""Potentials: backbone + head + scaling, their force σ, and their files."""

from sigmaff.potential.potential import Potential, PotentialConfig

__all__ = ["Potential", "PotentialConfig"]
