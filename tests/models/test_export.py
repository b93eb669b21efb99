"""Every backbone leaves Python: energies and forces as one exported graph, for structures of any size."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

from contract import BACKBONES, CUTOFF, ETHANOL, WATER, Case, displaced, graph_of
from sigmaff.backbones import BackboneConfig
from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential


class EnergiesAndForces(nn.Module):
    """A potential as a function of tensors."""

    def __init__(self, potential: Potential, n_structures: int) -> None:
        super().__init__()
        self.potential = potential
        self.n_structures = n_structures

    def forward(
        self, positions: Tensor, numbers: Tensor, structure_index: Tensor, pair_index: Tensor, incoming: Tensor
    ) -> tuple[Tensor, Tensor]:
        graph = AtomicGraph(
            positions=positions,
            atomic_numbers=numbers,
            structure_index=structure_index,
            pair_index=pair_index,
            pair_shift=positions.new_zeros(pair_index.shape[1], 3),
            cell=None,
            n_structures=self.n_structures,
            incoming=incoming,
        )
        distribution, forces = self.potential(graph)
        return distribution.mean, forces


def tensors(graph: AtomicGraph) -> tuple[Tensor, ...]:
    graph = graph.with_incoming()
    assert graph.incoming is not None
    return graph.positions, graph.atomic_numbers, graph.structure_index, graph.pair_index, graph.incoming


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}")
def test_exported_equals_eager(backbone: BackboneConfig):
    """Traced on ethanol and water, run on three other ethanols: other numbers of atoms, pairs and neighbours."""
    potential = Case(backbone=backbone, head=DeterministicConfig()).build().requires_grad_(False)
    example = tensors(graph_of(ETHANOL, WATER, cutoff=CUTOFF))
    traced = make_fx(EnergiesAndForces(potential, 2), tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example)
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO}, {1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO})
    program = export(traced, example, dynamic_shapes=shapes).module()
    other = graph_of(displaced(ETHANOL, 1), displaced(ETHANOL + WATER, 2), cutoff=CUTOFF)
    distribution, forces = potential(other)
    energies, exported_forces = program(*tensors(other))
    torch.testing.assert_close(energies, distribution.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(exported_forces, forces, rtol=1e-10, atol=1e-10)
