"""DimeNet++ against PyTorch Geometric's with the same weights, its basis, its dropout."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from scipy.special import eval_legendre, spherical_jn
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.nn import functional

from contract import displaced, graph_of
from sigmaff.backbones import DimeNetPP, DimeNetPPConfig
from sigmaff.backbones.dimenet import Angles
from sigmaff.backbones.spherical_basis import RadialBasis, SphericalBasis, bessel_zeros, envelope, legendre
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn.models import DimeNetPlusPlus, dimenet_utils

STATISTICS = DatasetStatistics(
    elements=(1, 6, 8, 14),
    reference_energies=dict.fromkeys((1, 6, 8, 14), 0.0),
    scale=1.0,
    mean_neighbors=8.0,
    n_structures=9,
)
CUTOFF = 5.0
SMALL = DimeNetPPConfig(
    cutoff=4.0, n_hidden=12, n_blocks=2, n_directional=6, n_basis=4, n_output=10, n_spherical=4, n_radial=3
)
MOLECULES = tuple(displaced(molecule(name), seed) for seed, name in enumerate(("CH3CH2OH", "H2O", "C6H6")))


def potential_with(config: DimeNetPPConfig) -> Potential:
    """In float64, with biases that are not zero, as they are at the start."""
    potential = Potential(PotentialConfig(backbone=config, head=DeterministicConfig()), STATISTICS)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    potential.set_precision(torch.float64)
    return potential.eval()


class TestBasis:
    DISTANCES = np.linspace(0.01, 1.0, 200)

    def test_zeros(self):
        zeros = bessel_zeros(7, 6)
        orders = np.arange(7)[:, None]
        assert np.abs(spherical_jn(orders, zeros)).max() < 1e-14
        np.testing.assert_allclose(zeros[0], np.pi * np.arange(1, 7))
        assert (np.diff(zeros) > 3).all()  # neighbouring zeros of one function are at least about π apart
        assert (np.diff(zeros) < 4.5).all()  # and none was left out
        np.testing.assert_allclose(zeros[1, 0], 4.493409457909064, rtol=1e-14)  # tan z = z

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-7), (torch.float64, 1e-13)])
    def test_spherical_bessel_functions(self, dtype: torch.dtype, tolerance: float):
        """At all distances, in the network's precision; orthonormal in x² dx but for the angular factor."""
        x = torch.as_tensor(self.DISTANCES, dtype=dtype)
        values = SphericalBasis(7, 6)(x, torch.ones_like(x)).numpy()
        orders, zeros = np.arange(7)[:, None], bessel_zeros(7, 6)
        angular = (-1.0) ** orders * np.sqrt((2 * orders + 1) / (4 * np.pi))
        norm = np.sqrt(2) / np.abs(spherical_jn(orders + 1, zeros))
        expected = angular * norm * spherical_jn(orders, zeros * x.double().numpy()[:, None, None])
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * np.abs(expected).max())

    def test_precision_outlives_a_cast_of_the_network(self):
        x = torch.as_tensor(self.DISTANCES)
        basis = SphericalBasis(7, 6)
        expected = basis(x, torch.ones_like(x))
        torch.testing.assert_close(basis.float().double()(x, torch.ones_like(x)), expected, rtol=0, atol=0)

    def test_radial_functions_are_orthonormal_up_to_the_envelope(self):
        """√2 sin(nπx)/x in x² dx on [0, 1]: Simpson's rule on a fine grid."""
        x = torch.linspace(1e-9, 1.0, 2001, dtype=torch.float64)
        values = RadialBasis(6).double()(x, torch.full_like(x, 2**0.5)).detach()
        weights = torch.ones_like(x)
        weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
        torch.testing.assert_close(
            (values * weights[:, None]).T @ values / 6000, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6
        )

    def test_legendre_polynomials(self):
        cosine = torch.linspace(-1, 1, 50, dtype=torch.float64)
        values = legendre(cosine, torch.ones(1, dtype=torch.float64), 7)
        expected = eval_legendre(np.arange(7), cosine.numpy()[:, None])
        np.testing.assert_allclose(values, expected, atol=1e-14)

    @pytest.mark.parametrize("exponent", [3, 5])
    def test_envelope_ends_with_two_derivatives(self, exponent: int):
        x = torch.ones((), dtype=torch.float64, requires_grad=True)
        value = envelope(x, exponent)
        slope = torch.autograd.grad(value, x, create_graph=True)[0]
        curvature = torch.autograd.grad(slope, x)[0]
        torch.testing.assert_close(torch.stack([value, slope, curvature]), x.new_zeros(3), rtol=0, atol=1e-12)
        assert float(envelope(torch.tensor(0.01), exponent)) == pytest.approx(100, rel=1e-4)


def zeros_in_double_precision(n: int, k: int) -> np.ndarray:
    """Of j_l, by changes of sign on a grid and Newton's method; the reference rounds its own to single precision."""
    zeros = np.empty((n, k))
    for order in range(n):
        fine = np.linspace(order + 0.5, np.pi * (k + order + 0.5), 10_000)
        values = spherical_jn(order, fine)
        left = fine[:-1][np.signbit(values[:-1]) != np.signbit(values[1:])][:k]
        for _ in range(5):
            left = left - spherical_jn(order, left) / spherical_jn(order, left, derivative=True)
        zeros[order] = left
    return zeros


class Reference:
    """PyTorch Geometric's layers with a potential's weights, on the edges and angles of a graph."""

    def __init__(self, potential: Potential) -> None:
        config = potential.backbone.config
        self.model = DimeNetPlusPlus(
            hidden_channels=config.n_hidden,
            out_channels=1,
            num_blocks=config.n_blocks,
            int_emb_size=config.n_directional,
            basis_emb_size=config.n_basis,
            out_emb_channels=config.n_output,
            num_spherical=config.n_spherical,
            num_radial=config.n_radial,
            cutoff=config.cutoff,
        ).double()
        copy_weights(potential, self.model)

    def energy(self, graph: AtomicGraph, positions: Tensor) -> Tensor:
        model = self.model
        end, start = graph.pair_index.T.flatten(), graph.pair_index.flip(0).T.flatten()
        vectors = graph.with_positions(positions).pair_vectors()
        vectors = torch.stack([-vectors, vectors], dim=1).flatten(0, 1)  # from start to end
        outer, inner = consecutive(start, end)
        distance = vectors.norm(dim=-1)
        across = torch.linalg.cross(vectors[outer], vectors[inner]).norm(dim=-1)
        angle = torch.atan2(across, (vectors[outer] * vectors[inner]).sum(-1))
        radial, spherical = model.rbf(distance), model.sbf(distance, angle, inner)
        messages = model.emb(graph.atomic_numbers, radial, end, start)
        total = model.output_blocks[0](messages, radial, end, num_nodes=graph.n_atoms)
        for interaction, output in zip(model.interaction_blocks, model.output_blocks[1:], strict=True):
            messages = interaction(messages, radial, spherical, inner, outer)
            total = total + output(messages, radial, end, num_nodes=graph.n_atoms)
        return total.new_zeros(graph.n_structures).index_add(0, graph.structure_index, total.squeeze(-1))


def consecutive(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Edges j→i and k→j, all of them but those that go straight back."""
    follows = start[:, None] == end[None, :]
    index = torch.arange(len(start))
    follows[index, index ^ 1] = False
    outer, inner = follows.nonzero(as_tuple=True)
    return outer, inner


@torch.no_grad()
def copy_weights(potential: Potential, reference: nn.Module) -> None:
    ours: DimeNetPP = potential.backbone
    filters, outputs = ours.filters, ours.outputs
    reference.rbf.freq.copy_(filters.radial_basis.frequencies)
    reference.emb.emb.weight.copy_(ours.edges.elements.weight)
    reference.emb.lin_rbf.load_state_dict(ours.edges.radial.state_dict())
    reference.emb.lin.load_state_dict(ours.edges.linear.state_dict())
    for index, (mine, theirs) in enumerate(zip(ours.interactions, reference.interaction_blocks, strict=True)):
        theirs.lin_rbf1.weight.copy_(filters.radial_first[index].T)
        theirs.lin_rbf2.weight.copy_(filters.radial_second[index].T)
        theirs.lin_sbf1.weight.copy_(filters.angular[index].T)
        theirs.lin_sbf2.weight.copy_(mine.angular.weight)
        theirs.lin_ji.weight.copy_(mine.own_and_sent.weight.chunk(2)[0])
        theirs.lin_ji.bias.copy_(mine.own_and_sent.bias.chunk(2)[0])
        theirs.lin_kj.weight.copy_(mine.own_and_sent.weight.chunk(2)[1])
        theirs.lin_kj.bias.copy_(mine.own_and_sent.bias.chunk(2)[1])
        theirs.lin_down.weight.copy_(mine.down.weight)
        theirs.lin_up.weight.copy_(mine.up.weight)
        theirs.lin.load_state_dict(mine.skip.state_dict())
        residuals = [*mine.before_skip, *mine.after_skip]
        for residual, layer in zip(residuals, [*theirs.layers_before_skip, *theirs.layers_after_skip], strict=True):
            layer.lin1.load_state_dict(residual.layers[0].state_dict())
            layer.lin2.load_state_dict(residual.layers[2].state_dict())
    readouts = potential.head.linear.weight.chunk(len(reference.output_blocks), dim=1)
    for index, (block, readout) in enumerate(zip(reference.output_blocks, readouts, strict=True)):
        block.lin_rbf.weight.copy_(filters.output[index].T)
        block.lin_up.weight.copy_(outputs.up[index].T)
        for layer, weight, bias in zip(block.lins, outputs.weight, outputs.bias, strict=True):
            layer.weight.copy_(weight[index].T)
            layer.bias.copy_(bias[index, 0])
        block.lin.weight.copy_(readout)


@pytest.mark.parametrize(
    "basis",
    [{"n_spherical": 4, "n_radial": 2}, pytest.param({}, marks=pytest.mark.slow)],  # the reference's is slow to derive
    ids=["small basis", "as published"],
)
def test_equals_pytorch_geometric(basis: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    """Molecules, and a crystal whose atoms have several images of one neighbour."""
    monkeypatch.setattr(dimenet_utils, "Jn_zeros", zeros_in_double_precision)
    potential = potential_with(DimeNetPPConfig(**basis))
    reference = Reference(potential)
    graph = graph_of(*MOLECULES, displaced(bulk("Si", cubic=True), 3), cutoff=CUTOFF)
    positions = graph.positions.clone().requires_grad_()
    energy = reference.energy(graph, positions)
    forces = -torch.autograd.grad(energy.sum(), positions)[0]
    distribution, our_forces = potential(graph)
    assert sum(p.numel() for p in reference.model.parameters()) == sum(p.numel() for p in potential.parameters())
    assert float(forces.abs().max()) > 0.01
    torch.testing.assert_close(distribution.mean, energy, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(our_forces, forces, rtol=1e-10, atol=1e-10)


class TestSlots:
    def test_empty_ones_carry_nothing(self):
        """An atom alone, and atoms with few neighbours beside some with many: each as if the others were not there."""
        potential = potential_with(SMALL)
        structures = (Atoms("O"), *MOLECULES)
        graph = graph_of(*structures, cutoff=SMALL.cutoff)
        counts = torch.bincount(graph.pair_index.flatten(), minlength=graph.n_atoms)
        assert counts.min() == 0
        assert counts.max() > 3 * counts[counts > 0].min()
        alone = [potential.backbone(graph_of(atoms, cutoff=SMALL.cutoff)) for atoms in structures]
        torch.testing.assert_close(potential.backbone(graph), torch.cat(alone), rtol=1e-12, atol=1e-12)

    def test_more_of_them_change_nothing(self):
        potential = potential_with(SMALL)
        graph = graph_of(*MOLECULES, cutoff=SMALL.cutoff).with_incoming()
        wider = replace(graph, incoming=functional.pad(graph.incoming, (2, 3), value=2 * graph.pair_index.shape[1]))
        expected, expected_forces = potential(graph)
        distribution, forces = potential(wider)
        torch.testing.assert_close(distribution.mean, expected.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(forces, expected_forces, rtol=1e-12, atol=1e-12)

    def test_a_cell_smaller_than_the_cutoff_equals_a_larger_one(self):
        """Every atom sees images of itself and several of each neighbour; in the larger cell they are other atoms."""
        potential = potential_with(SMALL)
        cell = displaced(bulk("Si"), 5)
        large = cell.repeat((2, 3, 2))
        small_graph, large_graph = (graph_of(atoms, cutoff=SMALL.cutoff) for atoms in (cell, large))
        assert (small_graph.pair_index[0] == small_graph.pair_index[1]).any()
        (energy, forces), (large_energy, large_forces) = potential(small_graph), potential(large_graph)
        torch.testing.assert_close(12 * energy.mean, large_energy.mean, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(forces.repeat(12, 1), large_forces, rtol=1e-11, atol=1e-11)


def saved_numbers(backbone: DimeNetPP, graph: AtomicGraph) -> int:
    """How many numbers the embeddings hold on to for their derivatives, each counted once."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    kept = graph.with_positions(graph.positions.clone().requires_grad_())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(kept)
    return sum(storages.values())


def test_memory_hardly_grows_with_angles():
    """One crystal with 4, 16 and 28 neighbours of each atom gives the numbers kept for each atom, edge and angle.

    A list of triplets keeps at least the 64 features of each, four times. Ours keeps Legendre polynomials.
    """
    backbone = DimeNetPP(DimeNetPPConfig(), (14,), 10.0).double()
    neighbours = np.array([4, 16, 28])
    graphs = [graph_of(bulk("Si", cubic=True).repeat(2), cutoff=cutoff) for cutoff in (3.0, 4.2, 5.0)]
    assert [2 * graph.pair_index.shape[1] / graph.n_atoms for graph in graphs] == neighbours.tolist()
    kept = [saved_numbers(backbone, graph) / graph.n_atoms for graph in graphs]
    of_atom, of_edge, of_angle = np.linalg.solve(np.vander(neighbours, 3, increasing=True), kept)
    assert of_atom > 0
    assert of_edge > 0
    assert 7 <= of_angle < 40


def test_weights_start_orthogonal():
    """With the mean square of Glorot's rule, 2 / (n_in + n_out), each map of a stack by itself."""
    backbone = DimeNetPP(DimeNetPPConfig(), (1, 6, 8), 8.0)
    own, sent = backbone.interactions[0].own_and_sent.weight.chunk(2)
    for weight in (
        own,
        sent,
        backbone.interactions[1].down.weight,
        backbone.outputs.up[3],
        backbone.filters.angular[2],
    ):
        short = weight if weight.shape[0] < weight.shape[1] else weight.T
        square = short @ short.T
        torch.testing.assert_close(square, square[0, 0] * torch.eye(len(square)), rtol=0, atol=1e-5)
        assert float(weight.detach().square().mean()) == pytest.approx(2 / sum(weight.shape), rel=1e-4)


def test_derivatives_of_forces():
    """By positions and by all weights, against finite differences: training differentiates twice."""
    potential = potential_with(SMALL)
    graph = potential.backbone.prepare(graph_of(MOLECULES[1], cutoff=SMALL.cutoff))
    names = [name for name, _ in potential.named_parameters()]

    def forces(positions: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(potential, dict(zip(names, weights, strict=True)), (graph.with_positions(positions),))[1]

    weights = [parameter.detach().clone().requires_grad_() for parameter in potential.parameters()]
    assert gradcheck(forces, (graph.positions.clone().requires_grad_(), *weights), fast_mode=True)


class TestDropout:
    CONFIG = SMALL.model_copy(update={"dropout": 0.4})

    def test_places(self):
        """After activated layers; in the sum over angles after both products and the last layer, and nowhere else."""
        backbone = DimeNetPP(self.CONFIG, (1, 6, 8), 8.0)
        drops: list[tuple[str, tuple[int, ...]]] = []
        for module in backbone.modules():
            if isinstance(module, nn.Dropout | nn.Dropout1d):
                module.register_forward_hook(lambda m, _, out: drops.append((type(m).__name__, tuple(out.shape))))
        graph = backbone.prepare(graph_of(*MOLECULES, dtype=torch.float32, cutoff=4.0))
        backbone.embedding.activation(backbone(graph))
        pairs, (atoms, slots) = graph.pair_index.shape[1], graph.incoming.shape
        edge = ("Dropout", (2 * pairs, 12))
        angle = ("Dropout1d", (atoms * slots, slots, 4))
        step = [edge, angle, edge, edge, *[edge] * 2, edge, *[edge] * 4]  # product, angles, own, up, residuals, skip
        embedding = [("Dropout", (pairs, 12)), edge]
        output = [("Dropout", (3, atoms, 10))] * 2 + [("Dropout", (atoms, 30))]
        assert drops == [*embedding, *step, *step, *output]

    def test_follows_the_mode_and_the_seed(self):
        backbone = DimeNetPP(self.CONFIG, (1, 6, 8), 8.0)
        plain = DimeNetPP(SMALL, (1, 6, 8), 8.0)
        plain.load_state_dict(backbone.state_dict())
        graph = graph_of(*MOLECULES, dtype=torch.float32, cutoff=4.0)
        assert torch.equal(backbone.eval()(graph), plain.train()(graph))
        backbone.train()
        first, second = (torch.random.manual_seed(3) and backbone(graph) for _ in range(2))
        assert torch.equal(first, second)
        assert not torch.equal(first, backbone(graph))

    def test_drops_each_angle_by_itself(self):
        """A sum of terms t that stay with probability 1 − p has the mean Σ t and the variance p / (1 − p) Σ t²."""
        graph = graph_of(displaced(molecule("CH4"), 2), cutoff=4.0).with_incoming()
        vectors = graph.pair_vectors()
        angles = Angles.of(graph, vectors / vectors.norm(dim=-1, keepdim=True), 4)
        features = torch.randn(2 * len(vectors), 5, dtype=torch.float64)
        filters = torch.randn(len(vectors), 4, 5, dtype=torch.float64)
        draws = torch.stack([angles.gather(features, filters, nn.Dropout1d(0.4)) for _ in range(4000)])
        of_slots = torch.einsum("abcl,acln->abcn", angles.legendre, filters[graph.incoming // 2])
        terms = (of_slots * features[graph.incoming].unsqueeze(1)).flatten(0, 1)[angles.reverse_slot]
        error = draws.std(0) / 4000**0.5
        assert ((draws.mean(0) - terms.sum(1)).abs() < 5 * error).all()
        torch.testing.assert_close(draws.var(0), 0.4 / 0.6 * terms.square().sum(1), rtol=0.15, atol=0)
