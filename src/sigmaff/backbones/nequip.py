"""NequIP: E(3)-equivariant convolutions (Batzner et al., Nat. Commun. 13, 2453, 2022)."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.base import Backbone
from sigmaff.backbones.irreps import Irrep, coupling, ladder, paths_between, reachable, spherical_harmonics
from sigmaff.graph import AtomicGraph
from sigmaff.ops import scatter_sum
from sigmaff.readout import Embedding

MAX_ATOMIC_NUMBER = 118
SCALAR = Irrep(0, 1)


class NequIPConfig(BaseModel):
    """Hyper-parameters of NequIP; the defaults are those of the small molecules of the paper, with l = 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["nequip"] = "nequip"
    cutoff: float = Field(default=4.0, gt=0, le=100, description="radius in Å within which atoms see each other")
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
    """Features of an atom are ``n_features`` copies of each irrep of O(3); messages couple them with harmonics.

    Features are laid out (n_atoms, rows, channels): one row for each component of each irrep. All weights are drawn
    from a standard normal distribution, and scaled by the root of their fan-in where they are used.
    """

    def __init__(self, config: NequIPConfig, elements: tuple[int, ...], mean_neighbors: float) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        self.max_atomic_number = MAX_ATOMIC_NUMBER
        self.embedding = Embedding(
            n_features=max(1, config.n_features // 2), activation=nn.Identity(), readout_bias=False
        )
        self.elements: Tensor
        self.register_buffer("elements", torch.tensor(elements, dtype=torch.int64), persistent=False)
        self.harmonics = Harmonics(config.l_max)
        self.species = nn.Parameter(torch.randn(len(elements), config.n_features))
        self.layers = nn.ModuleList(_layers(config, len(elements), mean_neighbors))
        self.radial = RadialNetwork(config, [(layer.n_paths, layer.n_paths_kept) for layer in self.layers])
        self.output = nn.Parameter(torch.randn(config.n_features, self.embedding.n_features))

    def forward(self, graph: AtomicGraph) -> Tensor:
        vectors = graph.pair_vectors()
        distance = vectors.norm(dim=-1, keepdim=True)
        harmonics = self.harmonics(vectors / distance)
        species = (graph.atomic_numbers.unsqueeze(-1) == self.elements).to(vectors.dtype)
        features = (species @ self.species / math.sqrt(max(1, len(self.elements)))).unsqueeze(1)
        for layer, weights in zip(self.layers, self.radial(distance), strict=True):
            features = layer(features, species, harmonics, weights, graph.pair_index)
        return features.squeeze(1) @ self.output / math.sqrt(self.config.n_features)


class Harmonics(nn.Module):
    """Spherical harmonics of both directions of every pair: Y_l(−r) = (−1)ˡ Y_l(r)."""

    def __init__(self, l_max: int) -> None:
        super().__init__()
        self.l_max = l_max
        for degree in range(1, l_max + 1):
            self.register_buffer(f"ladder_{degree}", torch.as_tensor(ladder(degree)), persistent=False)
        degrees = torch.repeat_interleave(torch.arange(l_max + 1), 2 * torch.arange(l_max + 1) + 1)
        self.signs: Tensor
        self.register_buffer("signs", (-1.0) ** degrees, persistent=False)

    def forward(self, unit: Tensor) -> Tensor:
        """(n_pairs, 3) -> (2 n_pairs, (l_max + 1)²): first all pairs as they are, then all reversed."""
        ladders = [self.get_buffer(f"ladder_{degree}") for degree in range(1, self.l_max + 1)]
        forth = spherical_harmonics(unit, ladders)
        return torch.cat([forth, forth * self.signs.to(unit.dtype)])


class RadialNetwork(nn.Module):
    """Weights of messages of all layers by distance: an MLP without biases on Bessel functions under an envelope.

    They are the same in both directions, so they are computed once per pair. The last map is not scaled by its fan-in
    and activation here: the layers' coupling constants hold that factor.
    """

    def __init__(self, config: NequIPConfig, n_paths: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        n, width = config.n_layers, config.n_radial
        self.cutoff, self.power = config.cutoff, config.cutoff_power
        self.n_used = [kept * config.n_features for _, kept in n_paths]
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, config.n_bessel + 1))
        self.input = nn.Parameter(torch.randn(n, config.n_bessel, width))
        self.hidden = nn.Parameter(torch.randn(n, width, width))
        self.outputs = nn.ParameterList([torch.randn(width, count * config.n_features) for count, _ in n_paths])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, distance: Tensor) -> list[Tensor]:
        """(n_pairs, 1) -> for each layer, (n_pairs, paths that are used · n_features)."""
        n_layers, n_bessel, width = self.input.shape
        basis = bessel_basis(distance, self.frequencies, self.cutoff) * envelope(distance / self.cutoff, self.power)
        flat = self.input.transpose(0, 1).reshape(n_bessel, -1)
        hidden = self.dropout(functional.silu(basis @ flat / math.sqrt(n_bessel)))
        hidden = hidden.view(-1, n_layers, width).transpose(0, 1) * (SILU / math.sqrt(width))
        hidden = self.dropout(functional.silu(hidden @ self.hidden))
        return [h @ w[:, :n] for h, w, n in zip(hidden.unbind(), self.outputs, self.n_used, strict=True)]


class Layer(nn.Module):
    """One convolution and its gate.

    x_i -> gate(L₂ Σ_j w(d_ij) ∘ (L₁ x_j ⊗ Y(r_ij)) + L_z(i) x_i), with linear maps L of the channels of each irrep, the last
    one for each element. Of the outputs only those of the first ``n_kept`` irreps are computed.
    """

    def __init__(
        self,
        config: NequIPConfig,
        inputs: Sequence[Irrep],
        n_elements: int,
        mean_neighbors: float,
        *,
        last: bool,
    ) -> None:
        super().__init__()
        n = config.n_features
        self.inputs, self.outputs = tuple(inputs), reachable(inputs, config.l_max)
        self.n_gates = sum(irrep.l > 0 for irrep in self.outputs)
        self.kept = self.outputs[:1] if last else self.outputs
        self.last = last
        paths = paths_between(inputs, self.outputs, config.l_max)
        self.fan_in = [sum(path.target == target for path in paths) for target in range(len(self.outputs))]
        self.n_paths, self.n_paths_kept = len(paths), sum(self.fan_in[: len(self.kept)])
        self.n_channels, self.n_elements = n, n_elements
        self.message = nn.Parameter(torch.randn(len(inputs), n, n))
        self.update = nn.Parameter(torch.randn(sum(math.prod(shape) for shape in self.update_shapes())))
        self.dropout = nn.Dropout(config.dropout)
        scale = 1.0 / (n * math.sqrt(max(mean_neighbors, 0.0) or 1.0) * math.sqrt(config.n_radial)) * SILU
        self.coupling: Tensor
        constants = scale * coupling_constants(self.inputs, self.outputs, len(self.kept), config.l_max)
        self.register_buffer("coupling", torch.as_tensor(constants), persistent=False)

    def update_shapes(self) -> list[tuple[int, int]]:
        """Of the maps to each output: rows are channels of its paths, then, if it is an input too, of the elements."""
        n = self.n_channels
        return [
            ((count + self.n_elements * (irrep in self.inputs)) * n, (1 + self.n_gates * (irrep == SCALAR)) * n)
            for count, irrep in zip(self.fan_in, self.outputs, strict=True)
        ]

    def forward(
        self, features: Tensor, species: Tensor, harmonics: Tensor, weights: Tensor, pair_index: Tensor
    ) -> Tensor:
        received = self._received(features, harmonics, weights, pair_index)
        own = dict(zip(self.inputs, _split(features, self.inputs), strict=True))
        species = species[:, None, :, None] / math.sqrt(max(1, self.n_elements) * self.n_channels)
        updated = []
        for irrep, summed, matrix in zip(self.kept, received, self._matrices(), strict=False):
            if irrep in own:
                summed = torch.cat([summed, (own[irrep].unsqueeze(2) * species).flatten(2)], dim=-1)
            updated.append(summed @ matrix)
        return self._gate(updated)

    def _received(self, features: Tensor, harmonics: Tensor, weights: Tensor, pair_index: Tensor) -> list[Tensor]:
        """Sums over neighbours, for each output: (n_atoms, 2l + 1, paths · channels)."""
        n_atoms, rows, n = features.shape
        parts = zip(_split(features, self.inputs), self.message.unbind(), strict=True)
        message = torch.cat([part @ matrix for part, matrix in parts], dim=1)
        matrix = (harmonics @ self.coupling.to(harmonics.dtype)).unflatten(-1, (-1, rows))
        mixed = matrix @ message[pair_index.flip(0).flatten()]  # (2 n_pairs, components and paths of outputs, channels)
        mixed = mixed.unflatten(0, (2, pair_index.shape[1]))
        sums, row, path = [], 0, 0
        for irrep, count in zip(self.kept, self.fan_in, strict=False):
            part = mixed[:, :, row : row + irrep.dim * count].unflatten(2, (irrep.dim, count))
            weight = weights[:, path * n : (path + count) * n].view(-1, 1, count, n)
            sums.append(scatter_sum((part * weight).flatten(0, 1), pair_index.flatten(), n_atoms).flatten(2))
            row, path = row + irrep.dim * count, path + count
        return sums

    def _matrices(self) -> list[Tensor]:
        shapes = self.update_shapes()
        parts = self.update.split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _gate(self, updated: list[Tensor]) -> Tensor:
        """Even scalars by silu, odd ones by tanh; other irreps are multiplied by silu of an even scalar of their own."""
        n = self.n_channels
        scalars = functional.silu(updated[0][..., :n] if self.last else updated[0]) * SILU
        gates = iter(scalars.split(n, dim=-1))
        gated = [next(gates)]
        for irrep, part in zip(self.kept[1:], updated[1:], strict=True):
            gated.append(part * next(gates) if irrep.l > 0 else torch.tanh(part) * TANH)
        if self.dropout.p:
            gated = [part * self.dropout(torch.ones_like(part[:, :1])) for part in gated]
        return torch.cat(gated, dim=1)


def coupling_constants(
    inputs: Sequence[Irrep], outputs: Sequence[Irrep], n_kept: int, l_max: int
) -> npt.NDArray[np.float64]:
    """C with message = (Y C) features, for one channel: ((l_max + 1)², rows of messages · rows of inputs).

    Rows of messages are ordered by output, then by its components, then by path. Those of an output with k paths are
    divided by √k.
    """
    first_row = np.cumsum([0, *(irrep.dim for irrep in inputs)])
    blocks = []
    for target, out in enumerate(outputs[:n_kept]):
        paths = [path for path in paths_between(inputs, outputs, l_max) if path.target == target]
        block = np.zeros((out.dim, len(paths), first_row[-1], (l_max + 1) ** 2))
        for number, (source, degree, _) in enumerate(paths):
            rows = slice(first_row[source], first_row[source + 1])
            constants = coupling(inputs[source].l, degree, out.l) / math.sqrt(len(paths))
            block[:, number, rows, degree**2 : (degree + 1) ** 2] = np.moveaxis(constants, 2, 0).transpose(0, 1, 2)
        blocks.append(block.reshape(-1, (l_max + 1) ** 2))
    return np.concatenate(blocks).T.copy()


def bessel_basis(distance: Tensor, frequencies: Tensor, cutoff: float) -> Tensor:
    """(2/r) sin(b_k d/r) / d for a cutoff r: (n, 1) -> (n, n_bessel)."""
    return (2.0 / cutoff) * torch.sin(frequencies * (distance / cutoff)) / distance


def envelope(x: Tensor, power: int) -> Tensor:
    """1 − (p+1)(p+2)/2 xᵖ + p(p+2) xᵖ⁺¹ − p(p+1)/2 xᵖ⁺²: value, slope and curvature vanish at x = 1, and beyond."""
    p = power
    x = x.clamp(max=1.0)
    return 1.0 - x**p * ((p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2)))


def _layers(config: NequIPConfig, n_elements: int, mean_neighbors: float) -> list[Layer]:
    """Layers in a row, from even scalars to even scalars."""
    layers, inputs = [], (SCALAR,)
    for index in range(config.n_layers):
        layer = Layer(config, inputs, n_elements, mean_neighbors, last=index == config.n_layers - 1)
        layers.append(layer)
        inputs = layer.outputs
    return layers


def _split(features: Tensor, irreps: Sequence[Irrep]) -> tuple[Tensor, ...]:
    return features.split([irrep.dim for irrep in irreps], dim=1)


def _normalisation(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    return float((weights @ values**2 / weights.sum()) ** -0.5)


_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
SILU = _normalisation(_POINTS / (1.0 + np.exp(-_POINTS)), _WEIGHTS)
TANH = _normalisation(np.tanh(_POINTS), _WEIGHTS)
"""Factors that give an activation of a standard normal variable the second moment 1."""
