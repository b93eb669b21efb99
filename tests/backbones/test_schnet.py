"""SchNet against PyTorch Geometric's with the same weights, its size, its dropout."""

import math
import warnings

import pytest
import torch
from ase.build import molecule
from torch import Tensor, nn

from contract import displaced
from sigmaff.backbones import SchNet, SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.graph.ops import ShiftedSoftplus
from sigmaff.heads import DeterministicConfig, HeadConfig
from sigmaff.models import Potential, PotentialConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn.models import SchNet as ReferenceSchNet
    from torch_geometric.nn.models.schnet import ShiftedSoftplus as ReferenceSoftplus

STATISTICS = DatasetStatistics(
    elements=(1, 6, 8), reference_energies={1: 0.0, 6: 0.0, 8: 0.0}, scale=1.0, mean_neighbors=8.0, n_structures=9
)
TOLERANCES = [(torch.float32, {"rtol": 1e-5, "atol": 1e-5}), (torch.float64, {"rtol": 1e-11, "atol": 1e-11})]


def potential_with(head: HeadConfig, backbone: SchNetConfig | None = None) -> Potential:
    return Potential(PotentialConfig(backbone=backbone or SchNetConfig(), head=head), STATISTICS)


def molecules(dtype: torch.dtype, cutoff: float = 10.0) -> AtomicGraph:
    names = ("CH3CH2OH", "H2O", "C6H6")
    return batch_graphs(
        [build_graph(displaced(molecule(name), seed), cutoff, dtype) for seed, name in enumerate(names)]
    )


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def both_directions(graph: AtomicGraph):
    """The graph as PyTorch Geometric wants it: every pair twice, with its length."""

    def edges(positions: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        edge_index = torch.cat([graph.pair_index, graph.pair_index.flip(0)], dim=1)
        return edge_index, (positions[edge_index[0]] - positions[edge_index[1]]).norm(dim=-1)

    return edges


@torch.no_grad()
def copy_weights(potential: Potential, reference: nn.Module) -> None:
    ours = potential.backbone
    reference.embedding.weight.copy_(ours.elements.weight)
    for index, (mine, theirs) in enumerate(zip(ours.interactions, reference.interactions, strict=True)):
        rows = slice(128 * index, 128 * (index + 1))
        theirs.mlp[0].weight.copy_(ours.filters.input.weight[rows])
        theirs.mlp[0].bias.copy_(ours.filters.input.bias[rows])
        theirs.mlp[2].weight.copy_(ours.filters.output_weight[index])
        theirs.mlp[2].bias.copy_(ours.filters.output_bias[index, 0])
        theirs.conv.lin1.weight.copy_(mine.message.weight)
        theirs.conv.lin2.load_state_dict(mine.update.state_dict())
        theirs.lin.load_state_dict(mine.output.state_dict())
    for module in reference.modules():
        if isinstance(module, ReferenceSoftplus):
            module.shift = math.log(2.0)  # theirs is rounded to single precision
    reference.lin1.load_state_dict(ours.output.state_dict())
    reference.lin2.load_state_dict(potential.head.linear.state_dict())


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"])
def test_equals_pytorch_geometric(dtype: torch.dtype, tolerance: dict[str, float]):
    potential = potential_with(DeterministicConfig())
    with torch.no_grad():
        for parameter in potential.parameters():  # biases start at zero: give all of them a value
            parameter.add_(0.02 * torch.randn_like(parameter))
    potential.set_precision(dtype)
    graph = molecules(dtype)
    reference = ReferenceSchNet(interaction_graph=both_directions(graph)).to(dtype)
    assert n_parameters(reference) == n_parameters(potential)
    copy_weights(potential, reference)
    positions = graph.positions.to(graph.dtype, copy=True).requires_grad_()
    energy = reference(graph.atomic_numbers, positions, graph.structure_index).squeeze(-1)
    forces = -torch.autograd.grad(energy.sum(), positions)[0]
    distribution, our_forces = potential(graph)
    assert float(forces.abs().max()) > 0.01
    torch.testing.assert_close(distribution.mean, energy, **tolerance)
    torch.testing.assert_close(our_forces, forces, **tolerance)


class TestDropout:
    CONFIG = SchNetConfig(cutoff=5.0, n_hidden=16, n_filters=8, n_interactions=3, n_gaussians=8, dropout=0.5)

    def test_follows_every_activation_and_nothing_else(self):
        """Filter networks (side by side in one layer), each interaction, and the output."""
        potential = potential_with(DeterministicConfig(), self.CONFIG)
        order: list[tuple[str, torch.Size]] = []
        for module in potential.modules():
            if isinstance(module, ShiftedSoftplus | nn.Dropout):
                module.register_forward_hook(lambda m, _, out: order.append((type(m).__name__, out.shape)))
        graph = molecules(torch.float32, 5.0)
        potential.head(potential.embed(graph), graph)
        pairs, atoms = graph.pair_index.shape[1], graph.n_atoms
        shapes = [torch.Size((pairs, 3 * 8)), *[torch.Size((atoms, 16))] * 3, torch.Size((atoms, 8))]
        assert order == [(name, shape) for shape in shapes for name in ("ShiftedSoftplus", "Dropout")]

    def test_zeroes_the_share_that_was_asked_for(self):
        activation = SchNet(self.CONFIG, (1, 6), 4.0).activation.train()
        out = activation(torch.full((100_000,), 2.0))
        assert float((out == 0).double().mean()) == pytest.approx(0.5, abs=0.01)
        assert float(out.mean()) == pytest.approx(float(ShiftedSoftplus()(torch.tensor(2.0))), rel=0.02)

    def test_is_off_in_evaluation(self):
        """The same weights without dropout give the same numbers."""
        potential = potential_with(DeterministicConfig(), self.CONFIG).eval()
        plain = potential_with(DeterministicConfig(), self.CONFIG.model_copy(update={"dropout": 0.0})).eval()
        plain.load_state_dict(potential.state_dict())
        graph = molecules(torch.float32, 5.0)
        for value, expected in zip(
            potential(graph)[0].tensors().values(), plain(graph)[0].tensors().values(), strict=True
        ):
            assert torch.equal(value, expected)
        assert torch.equal(potential(graph)[1], plain(graph)[1])

    def test_changes_energies_in_training(self):
        potential = potential_with(DeterministicConfig(), self.CONFIG).train()
        graph = molecules(torch.float32, 5.0)
        assert not torch.equal(potential(graph)[0].mean, potential(graph)[0].mean)
