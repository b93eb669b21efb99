"""A prediction that does not fit into memory is refused before it begins."""

import pytest
import torch
from ase.build import bulk
from torch import Tensor

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig, memory

STATISTICS = DatasetStatistics(
    elements=(14,), reference_energies={14: 0.0}, scale=1.0, mean_neighbors=28.0, n_structures=9
)


def silicon(cutoff: float = 5.0) -> AtomicGraph:
    return build_graph(bulk("Si", cubic=True).repeat((4, 4, 4)), cutoff)


def test_bytes_of_a_pair_are_counted_exactly() -> None:
    """Of (Σ v²)³ over pair vectors v in float64: v, the two atoms of a pair, and one sum are kept."""

    def embed(graph: AtomicGraph) -> Tensor:
        vectors = graph.pair_vectors()
        return (vectors * vectors).sum().pow(3)

    graph = silicon().to(dtype=torch.float64)
    assert graph.pair_index.shape[1] > memory.SAMPLED_PAIRS
    assert memory.bytes_per_pair(embed, graph) == 3 * 8 + 2 * 8 + 8 / memory.SAMPLED_PAIRS


def test_a_prediction_without_memory_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SchNetConfig(cutoff=5.0, n_hidden=32, n_filters=32, n_interactions=2, n_gaussians=10)
    model = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), STATISTICS)
    graph, n_filters = silicon(), 32 * 2
    per_pair = memory.bytes_per_pair(model._embedded, model.prepare(graph))
    assert 3 * 4 * n_filters < per_pair < 20 * 4 * n_filters  # filters, their hidden layer and basis, messages
    needed = per_pair * graph.pair_index.shape[1]
    expected = model.predict(graph).energy
    monkeypatch.setattr(memory, "FEW_PAIRS", 1000)
    monkeypatch.setattr(memory, "available_memory", lambda: 1.01 * needed)
    assert torch.equal(model.predict(graph).energy, expected)
    monkeypatch.setattr(memory, "available_memory", lambda: 0.99 * needed)
    with pytest.raises(memory.MemoryShortError, match=r"512 atoms with .* pairs needs about .* GB of memory"):
        model.predict(graph)


def test_free_memory_is_that_of_the_system() -> None:
    free = memory.available_memory()
    assert free is None or 2**20 < free < 2**50
