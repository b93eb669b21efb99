"""Structures in motion: the ASE calculator, and its results in files."""

from sigmaff.simulation.calculator import Calculator
from sigmaff.simulation.results import snapshot, store_results

__all__ = ["Calculator", "snapshot", "store_results"]
