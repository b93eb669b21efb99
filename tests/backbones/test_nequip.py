"""NequIP against the same network built from e3nn's modules, its size, its symmetry."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from ase import Atoms
from torch import Tensor, nn
from torch.nn import functional

from contract import CRYSTAL, ETHANOL, MIXED, WATER, displaced, graph_of
from sigmaff.backbones.irreps import Irrep
from sigmaff.backbones.nequip import NequIP, NequIPConfig, activation_scale
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import scatter_sum

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from e3nn import o3
    from e3nn.math import normalize2mom
    from e3nn.nn import FullyConnectedNet, Gate

ELEMENTS = (1, 6, 7, 8)
SMALL = NequIPConfig(n_features=4, n_layers=3, n_bessel=4, n_radial=6)
SMALL_2 = SMALL.model_copy(update={"l_max": 2})


def network(config: NequIPConfig, mean_neighbors: float = 6.5) -> NequIP:
    return NequIP(config, ELEMENTS, mean_neighbors).double()


def molecules() -> AtomicGraph:
    return graph_of(*MIXED, cutoff=4.0)


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class Reference(nn.Module):
    """The network of e3nn's modules, one edge for each direction of a pair."""

    def __init__(self, config: NequIPConfig, mean_neighbors: float) -> None:
        super().__init__()
        n = config.n_features
        self.config = config
        self.harmonics = o3.SphericalHarmonics(
            o3.Irreps.spherical_harmonics(config.l_max), normalize=True, normalization="component"
        )
        self.species = o3.Linear(f"{len(ELEMENTS)}x0e", f"{n}x0e")
        self.layers = nn.ModuleList()
        irreps = o3.Irreps(f"{n}x0e")
        for _ in range(config.n_layers):
            self.layers.append(ReferenceLayer(config, irreps, mean_neighbors))
            irreps = self.layers[-1].gate.irreps_out
        self.output = o3.Linear(irreps, f"{n // 2}x0e")
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, config.n_bessel + 1))

    def forward(self, graph: AtomicGraph) -> Tensor:
        vectors = torch.cat([graph.pair_vectors(), -graph.pair_vectors()])
        x = vectors.norm(dim=-1, keepdim=True) / self.config.cutoff
        p = self.config.cutoff_power
        envelope = 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1) - p * (p + 1) / 2 * x ** (p + 2)
        radial = 2 / self.config.cutoff**2 * torch.sin(self.frequencies * x) / x * envelope
        species = torch.stack([graph.atomic_numbers == number for number in ELEMENTS], dim=-1).to(x.dtype)
        features = self.species(species)
        for layer in self.layers:
            features = layer(features, species, self.harmonics(vectors), radial, graph.pair_index)
        return self.output(features)


class ReferenceLayer(nn.Module):
    def __init__(self, config: NequIPConfig, irreps: o3.Irreps, mean_neighbors: float) -> None:
        super().__init__()
        harmonics = o3.Irreps.spherical_harmonics(config.l_max)
        hidden = [o3.Irrep(degree, sign * (-1) ** degree) for degree in range(config.l_max + 1) for sign in (1, -1)]
        found = [
            (i, j, out)
            for out in hidden
            for i, (_, left) in enumerate(irreps)
            for j, (_, right) in enumerate(harmonics)
            if out in left * right
        ]
        outputs = [out for out in hidden if any(out == target for *_, target in found)]
        messages = o3.Irreps([(config.n_features, out) for *_, out in found])
        paths = [(i, j, number, "uvu", True) for number, (i, j, _) in enumerate(found)]
        self.mean_neighbors = mean_neighbors
        self.gate = reference_gate(outputs, config.n_features)
        self.message = o3.Linear(irreps, irreps)
        self.product = o3.TensorProduct(
            irreps, harmonics, messages, paths, shared_weights=False, internal_weights=False
        )
        widths = [config.n_bessel, config.n_radial, config.n_radial, self.product.weight_numel]
        self.radial = FullyConnectedNet(widths, functional.silu)
        updated = self.gate.irreps_in.simplify()
        self.update = o3.Linear(messages.simplify(), updated)
        self.own = o3.FullyConnectedTensorProduct(irreps, f"{len(ELEMENTS)}x0e", updated)

    def forward(self, features: Tensor, species: Tensor, harmonics: Tensor, radial: Tensor, pairs: Tensor) -> Tensor:
        sent = self.message(features)[pairs.flip(0).flatten()]
        messages = self.product(sent, harmonics, self.radial(radial))
        received = scatter_sum(messages, pairs.flatten(), len(features)) / math.sqrt(self.mean_neighbors)
        return self.gate(self.update(received) + self.own(features, species))


def reference_gate(outputs: list[o3.Irrep], n: int) -> Gate:
    scalars = [irrep for irrep in outputs if irrep.l == 0]
    gated = [irrep for irrep in outputs if irrep.l > 0]
    activations = [functional.silu if irrep.p == 1 else torch.tanh for irrep in scalars]
    gates = o3.Irreps(f"{len(gated) * n}x0e")
    return Gate(
        o3.Irreps([(n, irrep) for irrep in scalars]),
        activations,
        gates,
        [functional.silu],
        o3.Irreps([(n, irrep) for irrep in gated]),
    )


@torch.no_grad()
def copy_weights(ours: NequIP, reference: Reference) -> None:
    reference.species.weight.copy_(ours.species.flatten())
    reference.frequencies.copy_(ours.radial.frequencies)
    reference.output.weight.copy_(ours.output.flatten())
    for index, (mine, theirs) in enumerate(zip(ours.layers, reference.layers, strict=True)):
        theirs.message.weight.copy_(mine.message.flatten())
        theirs.radial.layer0.weight.copy_(ours.radial.input[index])
        theirs.radial.layer1.weight.copy_(ours.radial.hidden[index])
        theirs.radial.layer2.weight.copy_(ours.radial.outputs[index])
        received, own = mine.update_matrices()
        order = [theirs.update.irreps_in[path.i_in].ir for path in theirs.update.instructions]
        theirs.update.weight.copy_(torch.cat([received[Irrep(ir.l, ir.p)].flatten() for ir in order]))
        order = [theirs.own.irreps_out[path.i_out].ir for path in theirs.own.instructions]
        theirs.own.weight.copy_(torch.cat([own[Irrep(ir.l, ir.p)].transpose(0, 1).flatten() for ir in order]))
    for module in reference.modules():
        if isinstance(module, normalize2mom):  # theirs is the mean of a million random numbers
            module.cst = min((activation_scale(f) for f in (functional.silu, torch.tanh)), key=_distance(module.cst))


def _distance(value: float):
    return lambda other: abs(other - value)


@pytest.mark.parametrize("activation", [functional.silu, torch.tanh])
def test_activations_have_unit_second_moment(activation):
    assert activation_scale(activation) == pytest.approx(normalize2mom(activation).cst, rel=3e-3)


@pytest.mark.parametrize("config", [NequIPConfig(), SMALL, SMALL_2], ids=["default", "l=1", "l=2"])
def test_equals_e3nn(config: NequIPConfig):
    ours, reference = network(config), Reference(config, 6.5).double()
    assert n_parameters(ours) == n_parameters(reference)
    copy_weights(ours, reference)
    graph = graph_of(*MIXED, CRYSTAL, cutoff=4.0)
    results = []
    for model in (ours, reference):
        positions = graph.positions.clone().requires_grad_()
        embedding = model(graph.with_positions(positions))
        weights = torch.linspace(1.0, 2.0, embedding.numel(), dtype=torch.float64).view_as(embedding)
        results.append((embedding, torch.autograd.grad((weights * embedding).sum(), positions)[0]))
    assert float(results[0][1].abs().max()) > 1e-3
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def moved(graph: AtomicGraph, matrix: Tensor) -> AtomicGraph:
    return replace(graph, positions=graph.positions @ matrix.T, pair_shift=graph.pair_shift @ matrix.T)


def rotation(*, reflected: bool) -> Tensor:
    """A random element of O(3)."""
    matrix = o3.rand_matrix(dtype=torch.float64)
    return -matrix if reflected else matrix


def turn_of(irrep: Irrep, matrix: Tensor) -> Tensor:
    """The matrix that turns an irrep (e3nn's own is good to single precision), from harmonics of turned vectors."""
    vectors = torch.randn(40, 3, dtype=torch.float64)
    before, after = (o3.spherical_harmonics(irrep.l, v, normalize=True) for v in (vectors, vectors @ matrix.T))
    turn = torch.linalg.lstsq(before, after).solution.T
    torch.testing.assert_close(o3.Irrep(irrep.l, (-1) ** irrep.l).D_from_matrix(matrix), turn, rtol=0, atol=1e-5)
    return turn if irrep.p == (-1) ** irrep.l else turn * torch.linalg.det(matrix)


@torch.no_grad()
def features_of(model: NequIP, graph: AtomicGraph) -> list[dict[Irrep, Tensor]]:
    """What each layer gives."""
    found: list[dict[Irrep, Tensor]] = []
    hooks = [layer.register_forward_hook(lambda _m, _i, out: found.append(out)) for layer in model.layers]
    model(graph)
    for hook in hooks:
        hook.remove()
    return found


class TestSymmetry:
    @pytest.mark.parametrize("reflected", [False, True])
    @pytest.mark.parametrize("config", [SMALL, SMALL_2], ids=["l=1", "l=2"])
    def test_features_are_equivariant_irreps(self, config: NequIPConfig, reflected: bool):
        model, graph = network(config.model_copy(update={"n_layers": 4})), molecules()
        matrix = rotation(reflected=reflected)
        irreps: set[Irrep] = set()
        for before, after in zip(features_of(model, graph), features_of(model, moved(graph, matrix)), strict=True):
            for irrep, features in before.items():
                turn = turn_of(irrep, matrix)
                size = float(features.abs().max())
                assert size > 1e-8
                torch.testing.assert_close(turn @ features / size, after[irrep] / size, rtol=0, atol=1e-9)
            irreps |= set(before)
        assert len(irreps) == 2 * (config.l_max + 1)

    def test_features_of_a_small_cell_are_those_of_its_supercell(self):
        model = network(SMALL)
        small, large = (model(graph_of(CRYSTAL * repeat, cutoff=4.0)) for repeat in ((1, 1, 1), (2, 1, 3)))
        torch.testing.assert_close(small.repeat(6, 1), large, rtol=1e-10, atol=1e-10)


class TestNeighbours:
    @torch.no_grad()
    def test_a_lone_atom_is_one_whose_neighbour_leaves(self):
        """The influence of a neighbour at distance r − δ is of the order of δ³."""
        model = network(SMALL)
        lone = model(graph_of(Atoms("O"), cutoff=4.0))
        for gap in (0.02, 0.01):
            pair = graph_of(Atoms("OH", positions=[[0, 0, 0], [0, 0, 4.0 - gap]]), cutoff=4.0)
            assert pair.pair_index.shape[1] == 1
            difference = float((model(pair)[0] - lone[0]).abs().max())
            assert 0 < difference < 10 * gap**3
        assert float(lone.abs().max()) > 1e-3

    def test_messages_are_divided_by_the_root_of_the_mean_count(self):
        """With four times the neighbours, weights of messages twice as large give the same."""
        one, four = network(SMALL, 2.0), network(SMALL, 8.0)
        four.load_state_dict(one.state_dict())
        with torch.no_grad():
            for layer in four.layers:
                layer.update.mul_(2.0)
        torch.testing.assert_close(one(molecules()), four(molecules()), rtol=1e-12, atol=1e-12)

    def test_data_without_neighbours(self):
        graph = graph_of(Atoms("O"), Atoms("H"), cutoff=4.0)
        alone, other = network(SMALL, 0.0), network(SMALL, 5.0)
        other.load_state_dict(alone.state_dict())
        torch.testing.assert_close(alone(graph), other(graph))

    def test_an_unseen_element_has_no_features_of_its_own(self):
        """Sulphur sends nothing at first, so a hydrogen beside it is as one alone after the first layer."""
        model = network(SMALL)
        pair, lone = graph_of(Atoms("SH", [[0, 0, 0], [0, 0, 1.4]]), cutoff=4.0), graph_of(Atoms("H"), cutoff=4.0)
        scalars = [features_of(model, graph)[0][Irrep(0, 1)][-1] for graph in (pair, lone)]
        torch.testing.assert_close(*scalars)
        assert torch.equal(model(graph_of(Atoms("S"), cutoff=4.0)), torch.zeros(1, 2, dtype=torch.float64))
        assert bool(model(pair).isfinite().all())
        assert not torch.equal(model(pair)[0], torch.zeros(2, dtype=torch.float64))


class TestDropout:
    CONFIG = SMALL.model_copy(update={"dropout": 0.3, "l_max": 2, "n_features": 16})

    @pytest.mark.parametrize("reflected", [False, True])
    def test_keeps_equivariance(self, reflected: bool):
        """With one seed, of structures turned before their neighbours are searched."""
        model, matrix = network(self.CONFIG).train(), rotation(reflected=reflected).numpy()
        structures = (*MIXED, CRYSTAL)
        turned = [atoms.copy() for atoms in structures]
        for atoms in turned:
            atoms.set_cell(atoms.cell.array @ matrix.T)
            atoms.positions = atoms.positions @ matrix.T
        embeddings = []
        for version in (structures, turned):
            torch.manual_seed(5)
            embeddings.append(model(graph_of(*version, cutoff=4.0)))
        torch.testing.assert_close(*embeddings, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(model(graph_of(*structures, cutoff=4.0)), embeddings[0])

    def test_drops_whole_irreps_of_an_atom(self):
        graph = graph_of(*[displaced(ETHANOL, seed) for seed in range(40)], cutoff=4.0)
        plain = features_of(network(self.CONFIG).eval(), graph)[1]
        for irrep, features in features_of(network(self.CONFIG).train(), graph)[1].items():
            dropped = features == 0
            assert bool((dropped == dropped[:, :1]).all())
            assert float(dropped.double().mean()) == pytest.approx(0.3, abs=0.03)
            assert not bool((plain[irrep] == 0).any())

    def test_is_off_in_evaluation(self):
        dropping = network(self.CONFIG).eval()
        plain = network(self.CONFIG.model_copy(update={"dropout": 0.0}))
        plain.load_state_dict(dropping.state_dict())
        assert torch.equal(dropping(molecules()), plain(molecules()))

    def test_follows_the_activations_of_radial_networks(self):
        """Of the first hidden layer for all networks side by side, then of the second for each."""
        model, graph, shapes = network(self.CONFIG).train(), molecules(), []
        model.radial.dropout.register_forward_hook(lambda _m, _i, out: shapes.append(out.shape))
        model(graph)
        n_pairs, n_layers, width = graph.pair_index.shape[1], self.CONFIG.n_layers, self.CONFIG.n_radial
        assert shapes == [(n_pairs, n_layers * width), *[(n_pairs, width)] * n_layers]


def test_second_derivatives():
    """Against differences: training on forces takes derivatives of derivatives."""
    model = network(NequIPConfig(n_features=2, n_layers=2, n_bessel=2, n_radial=3))
    graph = graph_of(WATER, cutoff=4.0)

    def embed(positions: Tensor) -> Tensor:
        return model(graph.with_positions(positions))

    positions = graph.positions.clone().requires_grad_()
    assert torch.autograd.gradcheck(embed, positions)
    assert torch.autograd.gradgradcheck(embed, positions)
