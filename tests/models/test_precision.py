"""A float32 network is as accurate on a structure of any extent, with its float64 copy as the oracle."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms

from contract import BACKBONES, CRYSTAL, ETHANOL, LNK, Case, graph_of
from sigmaff.backbones import BackboneConfig
from sigmaff.models import Potential

TOLERANCE = 1e-5
"""Of float32 networks, relative to the largest number of an array."""


def both_precisions(backbone: BackboneConfig) -> tuple[Potential, Potential]:
    """A float32 network, and its copy in float64."""
    single = Case(backbone=backbone, head=LNK).build().eval()
    single.set_precision(torch.float32)
    double = copy.deepcopy(single)
    double.set_precision(torch.float64)
    return single, double


def far_apart() -> Atoms:
    """Two molecules, 1 µm from each other."""
    other = ETHANOL.copy()
    other.positions += [1e4, 300.0, -70.0]
    return ETHANOL + other


def astray() -> Atoms:
    """A crystal whose atoms are in cells far away from each other."""
    atoms = CRYSTAL.copy()
    atoms.positions += 997 * np.arange(len(atoms))[:, None] * atoms.cell.array.sum(0)
    return atoms


@pytest.mark.parametrize("atoms", [far_apart(), astray()], ids=["far apart", "astray"])
@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}")
def test_extent_costs_no_precision(backbone: BackboneConfig, atoms: Atoms):
    single, double = (
        potential.predict(graph_of(atoms, cutoff=potential.cutoff, dtype=potential.dtype), forces_std="exact")
        for potential in both_precisions(backbone)
    )
    assert single.forces.dtype == torch.float32
    for name in ("energy", "forces", "stress", "energy_std", "forces_std", "stress_std"):
        found, expected = getattr(single, name), getattr(double, name)
        assert (found is None) == (expected is None)
        if expected is not None:
            atol = TOLERANCE * float(expected.abs().max())
            torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=atol)
