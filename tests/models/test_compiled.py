"""Every backbone compiled gives what it gives eagerly: energies, forces, and the gradients that training takes."""

import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import BACKBONES, ETHANOL, WATER, Case, graph_of
from sigmaff.backbones import BackboneConfig
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential

ONE_OF_EACH = {config.name: config for config in reversed(BACKBONES)}
ONE_BLOCK = {"schnet": {"n_interactions": 1}, "dimenet++": {"n_blocks": 1}, "nequip": {}}
"""Blocks of SchNet and DimeNet++ are all alike; the second layer of NequIP sees features that the first one makes."""
pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler


def compiled_and_eager(
    backbone: BackboneConfig, compiler: str = "inductor"
) -> tuple[Potential, list[tuple[Tensor, Tensor]]]:
    """Energies and forces of molecules and of an atom alone, which has no pair."""
    potential = Case(backbone=backbone, head=DeterministicConfig()).build()
    graph = potential.backbone.prepare(graph_of(ETHANOL, WATER, Atoms("O")))
    results = [model(graph) for model in (torch.compile(potential, dynamic=True, backend=compiler), potential)]
    return potential, [(distribution.mean, forces) for distribution, forces in results]


@pytest.mark.parametrize("backbone", ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())
@torch.no_grad()
def test_compiled_equals_eager(backbone: BackboneConfig):
    """All are traced and differentiated; machine code is made of one here, and of all in the slow test."""
    compiler = "inductor" if backbone.name == "schnet" else "aot_eager"
    _, results = compiled_and_eager(backbone.model_copy(update=ONE_BLOCK[backbone.name]), compiler)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}")
def test_compiled_gradients_equal_eager(backbone: BackboneConfig):
    """Of a loss with forces in it, with respect to the weights: derivatives of derivatives."""
    potential, results = compiled_and_eager(backbone)
    weights = [parameter for parameter in potential.parameters() if parameter.requires_grad]
    losses = [energy.square().sum() + forces.square().sum() for energy, forces in results]
    gradients = [torch.autograd.grad(loss, weights) for loss in losses]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)
