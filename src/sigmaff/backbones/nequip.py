"""NequIP: E(3)-equivariant convolutions (Batzner et al., Nat. Commun. 13, 2453, 2022)."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.backbones.irreps import CoupledHarmonics, Irrep, Path, Triple, paths_between, reachable
from sigmaff.backbones.radial_table import RadialTable
from sigmaff.graph import AtomicGraph, Embedding, Layout
from sigmaff.graph.neighbors import MIN_DISTANCE
from sigmaff.graph.ops import polynomial_cutoff, scatter_sum, slot_sum

SCALAR = Irrep(0, 1)


class NequIPConfig(BackboneSettings):
    """Hyper-parameters of NequIP; the defaults are the paper's for small molecules with l = 1."""

    name: Literal["nequip"] = "nequip"
    cutoff: float = Field(
        default=4.0, gt=MIN_DISTANCE, le=100, description="radius within which atoms are neighbours, Å"
    )
    n_features: int = Field(default=32, ge=2, le=1024, description="channels of each irreducible representation")
    l_max: int = Field(default=1, ge=1, le=3, description="highest degree of features and spherical harmonics")
    n_layers: int = Field(default=4, ge=1, le=16, description="message-passing steps")
    n_bessel: int = Field(default=8, ge=1, le=256, description="radial basis functions, with trainable frequencies")
    n_radial: int = Field(default=64, ge=1, le=1024, description="width of the two hidden layers of radial networks")
    cutoff_power: int = Field(default=6, ge=2, le=64, description="power p of the polynomial envelope at the cutoff")
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="dropout rate after activations of radial networks, and of whole irreps after convolutions",
    )


class NequIP(Backbone):
    """Features of an atom are ``n_features`` channels of each irrep of O(3). Messages couple them with harmonics.

    Features of one irrep of degree l have the shape (n_atoms, 2l + 1, channels). All weights are drawn from a standard
    normal distribution and divided by the root of their fan-in where they are used.
    """

    Config = NequIPConfig
    compiles_samples = "one by one"

    def __init__(self, config: NequIPConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        embedding = Embedding(n_features=config.n_features // 2, activation=nn.Identity(), readout_bias=False)
        super().__init__(config.cutoff, embedding)
        self.config = config
        self.hidden_layers = (config.n_features,) * config.n_layers
        self.elements = nn.Buffer(torch.tensor(elements, dtype=torch.int64), persistent=False)
        self.species = nn.Parameter(torch.randn(len(elements), config.n_features))
        self.harmonics = CoupledHarmonics(config.l_max)
        layers: list[Layer] = []
        for number in range(1, config.n_layers + 1):
            inputs = layers[-1].outputs if layers else (SCALAR,)
            layers.append(Layer(config, inputs, len(elements), mean_neighbors, last=number == config.n_layers))
        self.layers = nn.ModuleList(layers)
        self.radial: RadialNetwork | TabulatedRadial = RadialNetwork(config, [layer.n_weights for layer in layers])
        self.output = nn.Parameter(torch.randn(config.n_features, self.embedding.n_features))

    def forward(self, graph: AtomicGraph) -> Tensor:
        return self._embeddings(self._scalars(graph)[-1])

    def all_layers(self, graph: AtomicGraph) -> Tensor:
        scalars = self._scalars(graph)
        return torch.cat([self._embeddings(scalars[-1]), *scalars], dim=-1)

    def tabulate(self) -> float:
        assert isinstance(self.radial, RadialNetwork)
        self.radial = TabulatedRadial(self.radial)
        return self.radial.table.error

    def _embeddings(self, scalars: Tensor) -> Tensor:
        return scalars @ self.output / math.sqrt(self.config.n_features)

    def _scalars(self, graph: AtomicGraph) -> list[Tensor]:
        """Even scalars after each layer."""
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1, keepdim=True)
        harmonics = self.harmonics(vectors / distance)
        species = (graph.atomic_numbers.unsqueeze(-1) == self.elements).to(vectors.dtype)
        species = species / math.sqrt(max(1, len(self.elements)))
        features, scalars = {SCALAR: (species @ self.species).unsqueeze(1)}, []
        for layer, weights in zip(self.layers, self.radial(distance), strict=True):
            features = layer(features, species, harmonics, weights, graph.pair_index, graph.layout)
            scalars.append(features[SCALAR].squeeze(1))
        return scalars


class RadialNetwork(nn.Module):
    """Message weights of all layers as functions of distance: an MLP without biases on Bessel functions with envelope.

    They are the same in both directions, so they are computed once per pair. The last map is scaled where a layer
    sums its messages, not here.
    """

    def __init__(self, config: NequIPConfig, n_weights: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        n, width = config.n_layers, config.n_radial
        self.cutoff, self.power = config.cutoff, config.cutoff_power
        self.n_used = [used for _, used in n_weights]
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, config.n_bessel + 1))
        self.input = nn.Parameter(torch.randn(n, config.n_bessel, width))
        self.hidden = nn.Parameter(torch.randn(n, width, width))
        self.outputs = nn.ParameterList([torch.randn(width, count) for count, _ in n_weights])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, distance: Tensor) -> list[Tensor]:
        """(n_pairs, 1) -> for each layer, (n_pairs, n_used)."""
        n_layers, n_bessel, width = self.input.shape
        envelope = polynomial_cutoff(distance / self.cutoff, self.power)
        basis = bessel_basis(distance, self.frequencies, self.cutoff) * envelope
        flat = self.input.transpose(0, 1).reshape(n_bessel, -1)
        hidden = self.dropout(functional.silu(basis @ flat / math.sqrt(n_bessel)))
        hidden = hidden.view(-1, n_layers, width).transpose(0, 1) * (SILU / math.sqrt(width))
        layers = [self.dropout(functional.silu(part)) for part in (hidden @ self.hidden).unbind()]
        return [part @ w[:, :n] for part, w, n in zip(layers, self.outputs, self.n_used, strict=True)]


class TabulatedRadial(nn.Module):
    """The same weights from a table, for prediction."""

    def __init__(self, network: RadialNetwork) -> None:
        super().__init__()
        exact = deepcopy(network).double().eval()
        self.n_used = network.n_used
        self.table = RadialTable(
            lambda distance: torch.cat(exact(distance.unsqueeze(-1)), dim=-1), network.cutoff, network.input.dtype
        )

    def forward(self, distance: Tensor) -> list[Tensor]:
        return list(self.table(distance.squeeze(-1)).split(self.n_used, dim=-1))


class Layer(nn.Module):
    """One convolution and its gate.

    x_i -> gate(L₂ Σ_j w(d_ij) ∘ (L₁ x_j ⊗ Y(r_ij)) + L_z(i) x_i), with linear maps L of the channels of each irrep.
    L_z differs between elements. The last layer has the same weights as the others but computes only even scalars,
    because nothing else is read from it.
    """

    def __init__(
        self, config: NequIPConfig, inputs: Sequence[Irrep], n_elements: int, mean_neighbors: float, *, last: bool
    ) -> None:
        super().__init__()
        n = config.n_features
        self.n_channels, self.n_elements = n, n_elements
        self.inputs, self.outputs = tuple(inputs), reachable(inputs, config.l_max)
        self.computed = self.outputs[:1] if last else self.outputs
        self.paths = paths_between(inputs, self.outputs, config.l_max)
        self.used = [path for path in self.paths if path.target in self.computed]
        self.n_weights = len(self.paths) * n, len(self.used) * n
        self.message = nn.Parameter(torch.randn(len(inputs), n, n))
        self.update = nn.Parameter(torch.randn(sum(map(math.prod, self._update_shapes().values()))))
        self.own = nn.Parameter(torch.randn(sum(map(math.prod, self._own_shapes().values()))))
        self.dropout = nn.Dropout(config.dropout)
        self.scale = SILU / (n * math.sqrt(config.n_radial) * math.sqrt(mean_neighbors if mean_neighbors > 0 else 1.0))

    def forward(
        self,
        features: Mapping[Irrep, Tensor],
        species: Tensor,
        harmonics: Mapping[Triple, Tensor],
        weights: Tensor,
        pair_index: Tensor,
        layout: Layout | None = None,
    ) -> dict[Irrep, Tensor]:
        """``species`` is one-hot divided by √n_elements; ``harmonics`` are of both directions of each pair."""
        messages = self._messages(features, harmonics, weights, pair_index)
        own, (update, _) = self.own_features(features, species), self.update_matrices()
        updated = {}
        for irrep, message in messages.items():
            n_atoms, n_paths = species.shape[0], message.shape[2]
            received = self._received(message, pair_index, layout, n_atoms).flatten(2).flatten(0, 1)
            matrix = update[irrep] * (self.scale / math.sqrt(n_paths))
            flat = torch.addmm(own[irrep], received, matrix) if irrep in own else received @ matrix
            updated[irrep] = flat.view(n_atoms, irrep.dim, -1)
        return self._gate(updated)

    def _received(self, message: Tensor, pair_index: Tensor, layout: Layout | None, n_atoms: int) -> Tensor:
        """Sum over the edges that end at each atom."""
        if layout is None:
            return scatter_sum(message, pair_index.flatten(), n_atoms)
        edge = layout.pair + (layout.side > 0) * pair_index.shape[1]
        return slot_sum(message, edge, layout.side.abs(), pair_index.flatten())

    def own_features(self, features: Mapping[Irrep, Tensor], species: Tensor) -> dict[Irrep, Tensor]:
        """L_z(i) x_i of the computed irreps that are also inputs, (n_atoms · (2l + 1), width)."""
        mapped = {}
        for irrep, matrices in self.update_matrices()[1].items():
            if irrep in self.computed:
                by_element = features[irrep].unsqueeze(2) * species[:, None, :, None]
                matrix = matrices.flatten(0, 1) / math.sqrt(self.n_channels)
                mapped[irrep] = by_element.flatten(2).flatten(0, 1) @ matrix
        return mapped

    def update_matrices(self) -> tuple[dict[Irrep, Tensor], dict[Irrep, Tensor]]:
        """L₂ of the outputs, (paths · channels, width), and L_z of those that are inputs, (elements, channels, width).

        The width is the number of channels. For even scalars the channels of all gates follow.
        """
        return _cut(self.update, self._update_shapes()), _cut(self.own, self._own_shapes())

    def _update_shapes(self) -> dict[Irrep, tuple[int, int]]:
        n_paths = Counter(path.target for path in self.paths)
        return {irrep: (n_paths[irrep] * self.n_channels, self._width(irrep)) for irrep in self.outputs}

    def _own_shapes(self) -> dict[Irrep, tuple[int, int, int]]:
        shared = [irrep for irrep in self.outputs if irrep in self.inputs]
        return {irrep: (self.n_elements, self.n_channels, self._width(irrep)) for irrep in shared}

    def _width(self, irrep: Irrep) -> int:
        n_gates = sum(other.l > 0 for other in self.outputs) if irrep == SCALAR else 0
        return (1 + n_gates) * self.n_channels

    def _messages(
        self, features: Mapping[Irrep, Tensor], harmonics: Mapping[Triple, Tensor], weights: Tensor, pair_index: Tensor
    ) -> dict[Irrep, Tensor]:
        """Messages of edges, (n_edges, 2l + 1, paths, channels): first to first atoms of pairs, then to second ones."""
        products = self._products(features, harmonics, pair_index.flip(0).flatten())
        parts = {irrep: [products[path] for path in self.used if path.target == irrep] for irrep in self.computed}
        split = weights.unflatten(1, (-1, 1, self.n_channels)).split([len(part) for part in parts.values()], dim=1)
        messages = {}
        for (irrep, part), weight in zip(parts.items(), split, strict=True):
            both = torch.stack(part, dim=2).unflatten(0, (2, pair_index.shape[1]))
            messages[irrep] = (both * weight.transpose(1, 2)).flatten(0, 1)
        return messages

    def _products(
        self, features: Mapping[Irrep, Tensor], harmonics: Mapping[Triple, Tensor], starts: Tensor
    ) -> dict[Path, Tensor]:
        """L₁ x ⊗ Y by path, (n_edges, 2l + 1, channels). Irreps of one degree are computed together."""
        products, used = {}, {path.source for path in self.used}
        for degree in range(self.inputs[-1].l + 1):
            sources = [irrep for irrep in self.inputs if irrep.l == degree and irrep in used]
            first = self.inputs.index(sources[0])
            x = torch.stack([features[irrep] for irrep in sources])
            sent = torch.bmm(x.flatten(1, 2), self.message[first : first + len(sources)]).view(x.shape)[:, starts]
            for triple in {path.triple: None for path in self.used if path.source.l == degree}:
                for source, product in zip(sources, _product(sent, harmonics.get(triple)).unbind(), strict=True):
                    target = Irrep(triple[2], source.p * (-1) ** triple[1])
                    products[Path(source, triple[1], target)] = product
        return products

    def _gate(self, updated: dict[Irrep, Tensor]) -> dict[Irrep, Tensor]:
        """silu of even scalars, tanh of odd ones; other irreps times silu of one even scalar each."""
        n = self.n_channels
        n_gates = sum(irrep.l > 0 for irrep in updated)
        scalars, *gates = (functional.silu(updated[SCALAR][..., : (1 + n_gates) * n]) * SILU).split(n, dim=-1)
        gated = {SCALAR: scalars}
        for irrep in list(updated)[1:]:
            gated[irrep] = updated[irrep] * gates.pop(0) if irrep.l > 0 else torch.tanh(updated[irrep]) * TANH
        if self.dropout.p == 0:
            return gated
        return {irrep: part * self.dropout(torch.ones_like(part[:, :1])) for irrep, part in gated.items()}


def _product(x: Tensor, harmonics: Tensor | None) -> Tensor:
    """Σ_a H_eac x_pea: (parities, n, 2l + 1, channels) and (n, 2l + 1, 2l' + 1) -> (parities, n, 2l' + 1, channels)."""
    if harmonics is None:  # degree 0
        return x
    terms = [(row.unsqueeze(-1), part.unsqueeze(2)) for row, part in zip(harmonics.unbind(1), x.unbind(2), strict=True)]
    total = terms[0][0] * terms[0][1]
    for row, part in terms[1:]:
        total = torch.addcmul(total, row, part)
    return total


def _cut(flat: Tensor, shapes: Mapping[Irrep, tuple[int, ...]]) -> dict[Irrep, Tensor]:
    parts = flat.split([math.prod(shape) for shape in shapes.values()])
    return {irrep: part.view(shape) for (irrep, shape), part in zip(shapes.items(), parts, strict=True)}


def bessel_basis(distance: Tensor, frequencies: Tensor, cutoff: float) -> Tensor:
    """(2/r) sin(b_k d/r) / d for a cutoff r: (n, 1) -> (n, n_bessel)."""
    return (2.0 / cutoff) * torch.sin(frequencies * (distance / cutoff)) / distance


def activation_scale(activation: Callable[[Tensor], Tensor]) -> float:
    """Factor c such that c · activation(x) has second moment 1 for standard normal x, by quadrature."""
    points, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(120))
    return float((weights @ activation(points).square() / weights.sum()) ** -0.5)


SILU, TANH = activation_scale(functional.silu), activation_scale(torch.tanh)
