"""Features of hidden layers: what they are, and that rotations and the order of atoms do not change them."""

import numpy as np
import pytest
import torch
from ase import Atoms
from scipy.spatial.transform import Rotation

from contract import BACKBONES, CUTOFF, ETHANOL, WATER, graph_of
from sigmaff.backbones import BackboneConfig, NequIP, SchNet, build_backbone

EXACT = {"rtol": 1e-9, "atol": 1e-10}
close = torch.testing.assert_close


def all_layers(config: BackboneConfig, *structures: Atoms) -> torch.Tensor:
    torch.manual_seed(0)
    backbone = build_backbone(config, (1, 6, 8), 8.0).double().eval().requires_grad_(False)
    return backbone.all_layers(backbone.prepare(graph_of(*structures)))


@pytest.mark.parametrize("config", BACKBONES, ids=lambda config: config.name)
def test_follow_the_embeddings(config: BackboneConfig):
    backbone = build_backbone(config, (1, 6, 8), 8.0).double().eval().requires_grad_(False)
    graph = backbone.prepare(graph_of(ETHANOL, WATER))
    features, n_last = backbone.all_layers(graph), backbone.embedding.n_last
    assert torch.equal(features[:, :n_last], backbone(graph))
    assert features.shape == (graph.n_atoms, n_last + sum(backbone.hidden_layers))
    n_steps = {"schnet": 2, "nequip": 2, "dimenet++": 0}[config.name]  # the embeddings of DimeNet++ are its layers
    assert len(backbone.hidden_layers) == n_steps
    if isinstance(backbone, SchNet):
        close(backbone.output(features[:, -backbone.hidden_layers[-1] :]), features[:, :n_last])
    if isinstance(backbone, NequIP):
        n_channels = backbone.hidden_layers[-1]
        close(features[:, -n_channels:] @ backbone.output / n_channels**0.5, features[:, :n_last])


@pytest.mark.parametrize("config", BACKBONES, ids=lambda config: config.name)
def test_are_invariant(config: BackboneConfig):
    """Under rotation, reflection, translation and the order of atoms."""
    expected = all_layers(config, ETHANOL)
    order = np.random.default_rng(0).permutation(len(ETHANOL))
    moved = ETHANOL[order]
    moved.positions = -moved.positions @ Rotation.random(random_state=1).as_matrix() + [3.0, -1.0, 2.0]
    close(all_layers(config, moved), expected[order], **EXACT)


@pytest.mark.parametrize(
    "config", [config for config in BACKBONES if config.name != "dimenet++"], ids=lambda config: config.name
)
def test_see_one_more_shell_of_neighbours_at_each_step(config: BackboneConfig):
    """Along a chain with bonds near the cutoff: after step t an atom feels those up to t bonds away."""
    chain = Atoms("H4", positions=[[0.9 * CUTOFF * k, 0, 0] for k in range(4)])
    widths = (config.n_hidden,) * 2 if config.name == "schnet" else (config.n_features,) * 2
    for atom, seen in ((1, [True, True]), (2, [False, True]), (3, [False, False])):
        moved = chain.copy()
        moved.positions[atom, 1] += 0.3
        change = (all_layers(config, moved) - all_layers(config, chain))[0]
        hidden = change[-sum(widths) :].split(widths)
        assert [bool(part.abs().max() > 1e-12) for part in hidden] == seen
