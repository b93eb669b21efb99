"""Data sets made on the spot: from SMILES to labelled structures at rest and out of equilibrium."""

from sigmaff.generate.config import GenerateConfig
from sigmaff.generate.molecules import draw_molecules, read_molecules, shipped_molecules
from sigmaff.generate.run import generate
from sigmaff.generate.structures import Failure, Product, make_structures

__all__ = [
    "Failure",
    "GenerateConfig",
    "Product",
    "draw_molecules",
    "generate",
    "make_structures",
    "read_molecules",
    "shipped_molecules",
]
