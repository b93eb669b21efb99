"""Derivatives of embeddings: SchNet's own against automatic ones, and both sides of one matrix against each other."""

import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import AMMONIA, BACKBONES, CRYSTAL, CUTOFF, ETHANOL, WATER, displaced, graph_of
from sigmaff.backbones import (
    Backbone,
    BackboneConfig,
    CoordinatesConfig,
    DescriptorConfig,
    SchNetConfig,
    build_backbone,
)
from sigmaff.backbones.linear_response import AutomaticResponse, PlainResponse
from sigmaff.backbones.schnet_response import SchNetResponse
from sigmaff.graph import AtomicGraph

EXACT = {"rtol": 1e-10, "atol": 1e-10}
OTHERS: list[BackboneConfig] = [CoordinatesConfig(n_atoms=9), DescriptorConfig(cutoff=CUTOFF, n_radial=4)]
STRUCTURES = {
    "molecule": [ETHANOL],
    "sizes": [WATER, ETHANOL, AMMONIA],
    "several images of one pair": [CRYSTAL],
    "periodic and not": [WATER, CRYSTAL.repeat((1, 2, 1)), Atoms("O")],
    "isolated atom": [Atoms("O")],
    "isolated atoms": [Atoms("OH", positions=[[0, 0, 0], [0, 0, 50]]), Atoms("C")],
    "sparse": [displaced(Atoms("H40", positions=[[1.5 * k, 0, 0] for k in range(40)]), 0)],
}

close = torch.testing.assert_close


def backbone_with(config: BackboneConfig) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(config, (1, 6, 7, 8), 8.0).double().eval().requires_grad_(False)


def random_sides(backbone: Backbone, graph: AtomicGraph, *, all_layers: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Cotangents of embeddings, displacements of atoms and of images."""
    generator = torch.Generator().manual_seed(0)
    width = backbone.embedding.n_last + (sum(backbone.hidden_layers) if all_layers else 0)
    shapes = ((5, graph.n_atoms, width), (4, graph.n_atoms, 3), (4, *graph.pair_shift.shape))
    cotangents, directions, shifts = (torch.randn(shape, generator=generator).double() for shape in shapes)
    return cotangents, directions, shifts


@pytest.mark.parametrize("all_layers", [False, True], ids=["last", "all layers"])
@pytest.mark.parametrize("fill", [0.0, 6.0, 1e9], ids=["neighbours", "default", "matrices"])
@pytest.mark.parametrize("structures", STRUCTURES.values(), ids=STRUCTURES)
def test_schnet_is_automatic_differentiation(
    structures: list[Atoms], fill: float, all_layers: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sigmaff.backbones.schnet_response.MAX_FILL", fill)
    monkeypatch.setattr("sigmaff.backbones.schnet_response.MAX_GATHERED", 2000)
    backbone = backbone_with(SchNetConfig(cutoff=CUTOFF, n_hidden=12, n_filters=8, n_interactions=3))
    graph = backbone.prepare(graph_of(*structures))
    own = backbone.linear_response(graph, all_layers=all_layers)
    automatic = AutomaticResponse(backbone.all_layers if all_layers else backbone, graph)
    assert isinstance(own, SchNetResponse) == (graph.pair_index.shape[1] > 0)
    cotangents, directions, shifts = random_sides(backbone, graph, all_layers=all_layers)
    assert torch.equal(own.embeddings, automatic.embeddings)
    for found, expected in zip(own.pull_back(cotangents), automatic.pull_back(cotangents), strict=True):
        close(found, expected, **EXACT)
    close(own.push_forward(directions, shifts), automatic.push_forward(directions, shifts), **EXACT)


@pytest.mark.parametrize("all_layers", [False, True], ids=["last", "all layers"])
@pytest.mark.parametrize("config", [*BACKBONES, *OTHERS], ids=lambda config: config.name)
def test_both_directions_are_one_matrix(config: BackboneConfig, all_layers: bool):
    """c·(J v) = (Jᵀ c)·v."""
    backbone = backbone_with(config)
    graph = backbone.prepare(graph_of(ETHANOL) if config.name == "coordinates" else graph_of(WATER, CRYSTAL))
    response = backbone.linear_response(graph, all_layers=all_layers)
    cotangents, directions, shifts = random_sides(backbone, graph, all_layers=all_layers)
    by_position, by_shift = response.pull_back(cotangents)
    found = torch.einsum("kna,cna->kc", by_position, directions) + torch.einsum("kpa,cpa->kc", by_shift, shifts)
    close(found, torch.einsum("knf,cnf->kc", cotangents, response.push_forward(directions, shifts)), **EXACT)


@pytest.mark.parametrize("config", [*BACKBONES, *OTHERS], ids=lambda config: config.name)
def test_reverse_passes_alone_give_the_same(config: BackboneConfig):
    """For networks that torch.func does not go through; coordinates do not depend on shifts at all."""
    backbone = backbone_with(config)
    graph = backbone.prepare(graph_of(ETHANOL) if config.name == "coordinates" else graph_of(WATER, CRYSTAL))
    plain, automatic = PlainResponse(backbone, graph), AutomaticResponse(backbone, graph)
    cotangents, directions, shifts = random_sides(backbone, graph, all_layers=False)
    assert torch.equal(plain.embeddings, automatic.embeddings)
    for found, expected in zip(plain.pull_back(cotangents), automatic.pull_back(cotangents), strict=True):
        close(found, expected, **EXACT)
    close(plain.push_forward(directions, shifts), automatic.push_forward(directions, shifts), **EXACT)


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch):
    backbone, graph = backbone_with(BACKBONES[0]), graph_of(WATER, ETHANOL)
    cotangents, _, _ = random_sides(backbone, graph, all_layers=False)
    whole = AutomaticResponse(backbone, graph).pull_back(cotangents)[0]
    for kind in (SchNetResponse, AutomaticResponse):
        monkeypatch.setattr(kind, "n_at_once", 2)
        monkeypatch.setattr("sigmaff.backbones.linear_response.PULLED_PAIRS", 2 * graph.pair_index.shape[1])
        close(kind(backbone, graph).pull_back(cotangents)[0], whole, **EXACT)


def test_schnet_with_dropout_is_differentiated_automatically():
    """Slopes by hand know no masks."""
    backbone = backbone_with(SchNetConfig(cutoff=CUTOFF, n_hidden=8, n_filters=8, n_interactions=1, dropout=0.5))
    assert isinstance(backbone.linear_response(graph_of(WATER)), SchNetResponse)
    assert isinstance(backbone.train().linear_response(graph_of(WATER)), AutomaticResponse)
