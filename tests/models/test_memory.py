"""A prediction that does not fit into memory is refused before it begins."""

import pytest
import torch
from ase.build import bulk
from torch import Tensor, nn

from contract import BACKBONES, CRYSTAL, ETHANOL, LNK, Case, graph_of
from sigmaff.backbones import BackboneConfig, SchNetConfig, schnet
from sigmaff.backbones.base import Backbone
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, Embedding, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig, memory
from sigmaff.models.prediction import ForceStdMethod

STATISTICS = DatasetStatistics(
    elements=(14,), reference_energies={14: 0.0}, scale=1.0, mean_neighbors=28.0, n_structures=9
)


def silicon(cutoff: float = 5.0) -> AtomicGraph:
    return build_graph(bulk("Si", cubic=True).repeat((4, 4, 4)), cutoff)


class Cubes(Backbone):
    """(Σ v²)³ over pair vectors v."""

    def forward(self, graph: AtomicGraph) -> Tensor:
        vectors = graph.pair_vectors()
        return (vectors * vectors).sum().pow(3)


def test_bytes_of_a_pair_are_counted_exactly() -> None:
    """In float64: v, the two atoms of a pair, and one sum are kept."""
    backbone = Cubes(5.0, Embedding(n_features=1, activation=nn.Identity()))
    graph = silicon().to(dtype=torch.float64)
    assert graph.pair_index.shape[1] > memory.SAMPLED_PAIRS
    assert memory.bytes_per_pair(backbone.bytes_held, graph) == 3 * 8 + 2 * 8 + 8 / memory.SAMPLED_PAIRS


def test_a_prediction_without_memory_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SchNetConfig(cutoff=5.0, n_hidden=32, n_filters=32, n_interactions=2, n_gaussians=10)
    model = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), STATISTICS)
    graph, n_filters = silicon(), 32 * 2
    per_pair = memory.bytes_per_pair(model._bytes_held, model.prepare(graph))
    assert per_pair == 2 * 4 * n_filters  # filters and their slopes
    needed = per_pair * graph.pair_index.shape[1]
    monkeypatch.setattr(memory, "MANY_PAIRS", 1000)
    expected = model.predict(graph).energy
    monkeypatch.setattr(memory, "available_memory", lambda: 1.01 * needed)
    assert torch.equal(model.predict(graph).energy, expected)
    monkeypatch.setattr(memory, "available_memory", lambda: 0.99 * needed)
    with pytest.raises(memory.MemoryShortError, match=r"512 atoms with .* pairs needs about .* GB of memory"):
        model.predict(graph)


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda config: config.name)
@pytest.mark.parametrize("forces_std", ["none", "sampled"])
def test_large_structures_are_predicted_with_the_same_numbers(
    backbone: BackboneConfig, forces_std: ForceStdMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters of SchNet are then computed in blocks, the last one smaller."""
    potential = Case(backbone=backbone, head=LNK).build()
    graph = graph_of(ETHANOL, CRYSTAL, cutoff=potential.cutoff)
    expected = potential.predict(graph, forces_std=forces_std)
    monkeypatch.setattr(memory, "MANY_PAIRS", 0)
    monkeypatch.setattr(schnet, "PAIRS_AT_ONCE", graph.pair_index.shape[1] // 3 + 1)
    found = potential.predict(graph, forces_std=forces_std)
    for name in ("energy", "energy_std", "forces", "forces_std", "stress", "stress_std", "node_energy_std"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, equal_nan=True, msg=name)


def test_free_memory_is_that_of_the_system() -> None:
    free = memory.available_memory()
    assert free is None or 2**20 < free < 2**50
