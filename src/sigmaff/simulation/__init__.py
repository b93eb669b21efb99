"""Structures in motion: the ASE calculator, and its results in files."""

from sigmaff.simulation.calculator import Calculator
from sigmaff.simulation.predict import output_format, predict_structures, write_structures
from sigmaff.simulation.results import bare_copy, snapshot, store_results
