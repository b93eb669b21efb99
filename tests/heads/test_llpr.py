"""Last-layer prediction rigidity against its formula, written out with NumPy."""

import numpy as np
import pytest
import torch

from contract import AMMONIA, BACKBONES, CUTOFF, ETHANOL, WATER, Case, displaced, labelled
from sigmaff.backbones import BackboneConfig
from sigmaff.data import GraphDataset
from sigmaff.heads import DeterministicConfig, LLPRConfig
from sigmaff.models import Potential
from sigmaff.models.solve import solve_head

FRAMES = [displaced(atoms, seed) for atoms in (ETHANOL, AMMONIA, WATER) for seed in range(30)]


def dataset(start: int, stop: int) -> GraphDataset:
    return GraphDataset(labelled(FRAMES).subset(range(start, stop)), CUTOFF, torch.float64)


def last_layer_features(potential: Potential, data: GraphDataset) -> np.ndarray:
    """Σ_i a(h_i), and the number of atoms, which a bias multiplies."""
    graph, _ = data.batch(range(len(data)))
    activated = potential.backbone.embedding.activation(potential.backbone(potential.backbone.prepare(graph)))
    rows = np.zeros((graph.n_structures, activated.shape[1] + 1))
    np.add.at(rows, graph.structure_index.numpy(), np.hstack([activated.detach(), np.ones((len(activated), 1))]))
    return rows


@pytest.mark.parametrize("backbone", BACKBONES[:3], ids=lambda config: config.name)
def test_is_the_formula(backbone: BackboneConfig):
    """σ² = α² fᵀ (FᵀF + ς²)⁻¹ f, on energies alone, with the ς that the fit chose, up to α.

    Features are scaled alike before ς² is added: activations to a mean square of one, the bias not.
    """
    potential = Case(backbone=backbone, head=DeterministicConfig()).build()
    train, held_out, test = dataset(0, 40), dataset(40, 60), dataset(60, 90)
    fitted, result = solve_head(potential, LLPRConfig(variance_labels="energy"), train, held_out)
    assert result.force_weight == 0.0
    scale = np.append(np.full(fitted.head.embedding.n_features, float(fitted.head.kernel.activation_scale)), 1.0)
    rows, asked = (last_layer_features(potential, data) * scale for data in (train, test))
    inverse = np.linalg.inv(rows.T @ rows + result.noise * np.eye(rows.shape[1]))
    expected = np.sqrt(np.einsum("ni,ij,nj->n", asked, inverse, asked))
    graph, _ = test.batch(range(len(test)))
    prediction = fitted.predict(graph)
    ratio = prediction.energy_std.numpy() / expected
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    backbone_alone = potential.predict(graph)
    assert torch.equal(prediction.energy, backbone_alone.energy)
    torch.testing.assert_close(prediction.forces, backbone_alone.forces, rtol=1e-12, atol=1e-12)


def test_elements_share_their_weights():
    """An atom of another element with the same embedding is as well known as one that was trained on."""
    head = Case(backbone=BACKBONES[0], head=LLPRConfig(n_samples=4)).build().head
    assert int(head.element_index.max()) == 0
    assert head.kernel.n_weights == head.embedding.n_features + 1
