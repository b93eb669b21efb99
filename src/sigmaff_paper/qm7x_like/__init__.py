"""Generate data sets: from SMILES to labelled structures, relaxed and out of equilibrium."""

from sigmaff_paper.qm7x_like.config import GenerateConfig
from sigmaff_paper.qm7x_like.molecules import draw_molecules, read_molecules, shipped_molecules
from sigmaff_paper.qm7x_like.run import generate
from sigmaff_paper.qm7x_like.structures import Failure, Product, make_structures

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
