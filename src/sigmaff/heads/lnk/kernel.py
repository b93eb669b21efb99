"""The kernel of the LNK in weight space: features φ of an atom's embedding, and the variance that they leave out.

    k(h, e; h', e') = δ(e, e') [ s² κ(|x − x'|²/ℓ²) + s_lin² α² (a(h) − ā_e)·(a(h') − ā_e) ] + s_lin² P(e, e')
                    = φ(h, e)·φ(h', e') + residual

The stationary part κ compares x(h) (``Comparison``). It is whitened by its inducing points, φ = L⁻¹ k(Z, x), and
leaves a residual. The linear part acts on what the readout of the backbone acts on, the activated embedding a(h), and
is exact. It is centred: ā_e is the mean over the training atoms of an element, so that the share of such a mean atom is
a constant of its element. Constants vary only as the training compositions determine them: P projects on the span of
these compositions. What they leave open is a matter of reference energies (``DatasetStatistics.reference_std``), not of
embeddings. Where all elements are compared as if of one, ā = 0 and P = 1.

Features of hidden layers, if the head takes them, follow the activated embedding as they are. Then α differs between
the layers, so that training energies vary alike by all of them, and s_lin² is shared out over the layers.

In this module ``features`` are embeddings (n_atoms, n_learned) in float64, with those of hidden layers, if the head
takes them, ``elements`` index the model's elements, and ``tangents`` (c, n_atoms, n_learned) are c directions in
embedding space. All elements that the model has not
seen are index ``n_elements``: they have no column in φ, so all their prior variance is residual.
"""

import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import forward_slope, is_traced, scatter_sum
from sigmaff.heads.cache import Cached
from sigmaff.heads.comparison import Compared, Comparison
from sigmaff.heads.kernels import StationaryKernel, squared_distances
from sigmaff.heads.lnk.inducing import Points

JITTER = 1e-8
"""Added to the diagonal of K_ZZ, relative to the kernel's scale."""
RANK = 1e-9
"""Singular value of the compositions, over the largest, below which they do not determine a direction."""
MAX_PAIRS = 2**24
"""Pairs of atoms whose covariance is held in memory at once."""


class Constants(NamedTuple):
    """What follows from the parameters alone."""

    inverse_length: Tensor  # 1/ℓ
    variance: Tensor  # s²
    inducing: Tensor  # (Z − center)/ℓ (m, d)
    squares: Tensor  # their squared norms (m,)
    amplitude: Tensor  # s² δ(e, e_z) (n_elements + 1, m)
    whitening: Tensor  # L⁻¹ with L Lᵀ = K_ZZ (m, m)
    mean_inducing: Tensor  # mean φ of the inducing points of each element (n_elements + 1, m)
    linear_scale: Tensor  # s_lin
    has_centers: bool | None = None  # see ``LocalKernel.has_centers``; None: not looked at


class LocalKernel(nn.Module):
    def __init__(
        self,
        stationary: StationaryKernel | None,
        linear: bool,
        *,
        n_inducing: int,
        n_elements: int,
        centred: bool,
        embedding: Embedding,
        compared: Compared = "pre_activation",
    ) -> None:
        super().__init__()
        self.stationary = stationary
        self.linear = linear
        self.n_elements = n_elements
        self.n_inducing = 0 if stationary is None else n_inducing
        self.n_linear = embedding.n_learned if linear else 0
        self.n_weights = self.n_inducing + (n_elements * (self.n_linear + 1) if linear else 0)
        self.embedding = embedding
        self.activation = embedding.activation
        self.compared = Comparison(compared if stationary is not None else "pre_activation", embedding)
        n_features = embedding.n_features
        self.inducing_points = nn.Parameter(torch.zeros(self.n_inducing, n_features, dtype=torch.float64))
        self.log_linear_scale = nn.Parameter(torch.zeros((), dtype=torch.float64)) if linear else None
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_lengthscale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.inducing_elements = nn.Buffer(torch.zeros(self.n_inducing, dtype=torch.int64))
        scale_shape = (embedding.n_learned,) if embedding.hidden_layers else ()
        self.activation_scale = nn.Buffer(torch.ones(scale_shape, dtype=torch.float64))
        self.center = nn.Buffer(torch.zeros(n_features, dtype=torch.float64))
        center, projector = torch.zeros(n_elements + 1, self.n_linear), torch.eye(n_elements)
        self.linear_center = nn.Buffer(center.double(), persistent=centred) if linear else None
        self.composition_projector = nn.Buffer(projector.double(), persistent=centred) if linear else None
        self.centred = centred
        self.one_hot = nn.Buffer(torch.eye(n_elements + 1, dtype=torch.float64), persistent=False)
        self.constants = Cached(self._compute_constants, self._prepare_constants)

    @torch.no_grad()
    def initialize(self, features: Tensor, elements: Tensor, structure_index: Tensor) -> None:
        """What follows from training embeddings, but for inducing points.

        The linear part gets the mean of each element, and the span of the compositions.
        """
        activated = self.activated(features)
        self.center.copy_(self.compared(features).mean(0))
        self.activation_scale.copy_(self.embedding.last(activated).square().sum(-1).mean().rsqrt())
        if self.centred and self.linear_center is not None and self.composition_projector is not None:
            one_hot = self.one_hot[elements][:, : self.n_elements]
            self.linear_center[:-1] = _means(one_hot.T, activated)
            n_structures = int(structure_index.max()) + 1
            self.composition_projector.copy_(_projector(scatter_sum(one_hot, structure_index, n_structures)))
        if self.embedding.hidden_layers:
            self.activation_scale.mul_(self._layer_scales(features, elements, structure_index))

    @torch.no_grad()
    def place(self, points: Points) -> None:
        """Take over inducing points, and their lengthscale."""
        self.inducing_points.copy_(points.points)
        self.inducing_elements.copy_(points.elements if self.centred else torch.zeros_like(points.elements))
        if points.lengthscale is not None:
            self.log_lengthscale.copy_(points.lengthscale.log())

    def _layer_scales(self, features: Tensor, elements: Tensor, structure_index: Tensor) -> Tensor:
        """Of each column, so that the energy rows of all layers vary alike; that of the embedding is one."""
        n_structures = int(structure_index.max()) + 1
        place = structure_index * self.n_elements + elements
        summed = scatter_sum(self._linear_features(features, elements), place, n_structures * self.n_elements)
        rows = summed.unflatten(0, (n_structures, self.n_elements))
        widths = [self.embedding.n_last, *self.embedding.hidden_layers]
        parts = (rows - rows.mean(0)).split(widths, dim=-1)
        spread = torch.stack([part.square().sum((-1, -2)).mean() for part in parts])
        varies = spread > torch.finfo(spread.dtype).eps * spread.max()
        if not varies.any():
            return torch.ones_like(self.activation_scale)
        scales = torch.where(varies, (spread[varies][0] / spread).sqrt(), 0.0)
        return scales.repeat_interleave(torch.tensor(widths, device=scales.device))

    @property
    def has_centers(self) -> bool:
        """Whether the mean of each element is known; files of format 3 and older do not have it."""
        known = self.constants().has_centers
        return self._find_centers() if known is None else known

    def _find_centers(self) -> bool:
        return self.centred and (self.linear_center is None or bool(self.linear_center.any()))

    def activated(self, features: Tensor) -> Tensor:
        """What the linear part acts on: the activated embedding and hidden layers, (..., n_learned)."""
        if not self.embedding.hidden_layers:
            return self.activation(features)
        last = self.embedding.last(features)
        return torch.cat([self.activation(last), features[..., last.shape[-1] :]], dim=-1)

    def basis(self, features: Tensor, elements: Tensor) -> Tensor:
        """φ, (n_atoms, n_weights): a function with weights w ~ N(0, 1) on it has covariance φ·φ'."""
        return self.whiten(self.rows(features, elements))

    def deviations(self, basis: Tensor, elements: Tensor) -> Tensor:
        """φ of each atom less the mean φ of its element: over training atoms, for the stationary part inducing points.

        On a mean atom the linear part is the constant of its element alone.
        """
        stationary = basis[:, : self.n_inducing] - self.constants().mean_inducing[elements]
        if not self.linear:
            return stationary
        linear = basis[:, self.n_inducing :].unflatten(-1, (self.n_elements, -1)).clone()
        linear[..., -1] = 0.0
        return torch.cat([stationary, linear.flatten(-2)], dim=-1)

    def rows(self, features: Tensor, elements: Tensor) -> Tensor:
        """k(h, Z) and the linear features: φ before whitening, which is linear and so can follow a sum over atoms."""
        parts, constants = [], self.constants()
        if self.stationary is not None:
            value = self.stationary.value(self._distances(self.compared(features), constants))
            parts.append(value * constants.amplitude[elements])
        if self.composition_projector is not None:
            linear = self._by_element(self._linear_features(features, elements), elements)
            known = functional.pad(self.composition_projector, (0, 0, 0, 1))[elements]  # of unseen elements: 0
            parts.append(constants.linear_scale * torch.cat([linear, known.unsqueeze(-1)], dim=-1).flatten(-2))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def whiten(self, rows: Tensor) -> Tensor:
        """L⁻¹ on the stationary part of rows (..., n_weights)."""
        if self.stationary is None:
            return rows
        whitened = rows[..., : self.n_inducing] @ self.constants().whitening.T
        if self.n_weights == self.n_inducing:
            return whitened
        return torch.cat([whitened, rows[..., self.n_inducing :]], dim=-1)

    def unwhiten(self, weights: Tensor) -> Tensor:
        """The weights (n_weights,) that act on rows as these act on φ."""
        if self.stationary is None:
            return weights
        return torch.cat([self.constants().whitening.T @ weights[: self.n_inducing], weights[self.n_inducing :]])

    def basis_slopes(
        self, features: Tensor, tangents: Tensor, elements: Tensor, structure_index: Tensor, n_structures: int
    ) -> Tensor:
        """Derivatives of φ along the tangents, summed over atoms of a structure, (c, n_structures, n_weights)."""
        parts, constants = [], self.constants()
        if self.stationary is not None:
            compared, moved = self.compared(features), self.compared.slopes(features, tangents)
            along = (moved * compared).sum(-1, keepdim=True) - moved @ self.inducing_points.T  # t·(h − z)
            slope = self.stationary.first_derivative(self._distances(compared, constants)) * along
            scaled = 2.0 * constants.inverse_length.square() * slope * constants.amplitude[elements]
            parts.append(_sums(scaled, structure_index, n_structures) @ constants.whitening.T)
        if self.linear:
            slopes = constants.linear_scale * self._linear_slopes(features, tangents, elements)
            place = structure_index * (self.n_elements + 1) + elements
            by_element = _sums(slopes, place, n_structures * (self.n_elements + 1)).unflatten(1, (n_structures, -1))
            known = by_element[:, :, : self.n_elements]
            parts.append(torch.cat([known, torch.zeros_like(known[..., :1])], dim=-1).flatten(-2))  # of constants: 0
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def node_residual(self, features: Tensor, elements: Tensor, basis: Tensor) -> Tensor:
        """k(h_i, h_i) − φ_i·φ_i, (n_atoms,)."""
        residual = basis.new_zeros(basis.shape[0])
        if self.stationary is not None:
            prior = self.constants().variance * self.stationary.value(basis.new_zeros(()))
            residual = prior - basis[:, : self.n_inducing].square().sum(-1)
        if self.has_unseen(elements):
            residual = residual + self.unseen_features(features, elements).square().sum(-1)
        return residual

    def residual(self, features: Tensor, elements: Tensor, summed_basis: Tensor, graph: AtomicGraph) -> Tensor:
        """Σ_ij k(h_i, h_j) − |Σ_i φ_i|² over the atoms of each structure, (n_structures,)."""
        residual = features.new_zeros(graph.n_structures)
        if self.stationary is not None:
            explained = summed_basis[:, : self.n_inducing].square().sum(-1)
            residual = self._pair_sum(features, elements, graph) - explained
        if self.has_unseen(elements):
            unseen = graph.sum_of_structures(self.unseen_features(features, elements))
            residual = residual + unseen.square().sum(-1)
        return residual

    def node_slope_residual(self, features: Tensor, tangents: Tensor, elements: Tensor, slopes: Tensor) -> Tensor:
        """Residual variance of the slope of each atom's own function, (c, n_atoms)."""
        residual = tangents.new_zeros(tangents.shape[:2])
        if self.stationary is not None:
            at_zero = self.stationary.first_derivative(tangents.new_zeros(()))
            scale = -2.0 * at_zero * torch.exp(2.0 * (self.log_scale - self.log_lengthscale))
            moved = self.compared.slopes(features, tangents)
            residual = scale * moved.square().sum(-1) - slopes[..., : self.n_inducing].square().sum(-1)
        if self.has_unseen(elements):
            residual = residual + self._unseen_slopes(features, tangents, elements).square().sum(-1)
        return residual

    def slope_residual(
        self, features: Tensor, tangents: Tensor, elements: Tensor, summed_slopes: Tensor, graph: AtomicGraph
    ) -> Tensor:
        """Σ_ij t_i·(∂∂'k)(h_i, h_j)·t_j − |Σ_i ∂φ_i|² over the atoms of each structure, (c, n_structures)."""
        residual = features.new_zeros(tangents.shape[0], graph.n_structures)
        if self.stationary is not None:
            residual = self._slope_pair_sum(features, tangents, elements, graph)
            residual = residual - summed_slopes[..., : self.n_inducing].square().sum(-1)
        if self.has_unseen(elements):
            slopes = self._unseen_slopes(features, tangents, elements)
            unseen = slopes.new_zeros(len(slopes), graph.n_structures, slopes.shape[-1])
            residual = residual + unseen.index_add(1, graph.structure_index, slopes).square().sum(-1)
        return residual

    def has_unseen(self, elements: Tensor) -> bool:
        """Never in training, nor in compiled code."""
        return not self.training and not is_traced(elements) and bool((elements == self.n_elements).any())

    def unseen_features(self, features: Tensor, elements: Tensor) -> Tensor:
        """Features of the linear part of atoms of unseen elements, to be weighed by w ~ N(0, 1), (n_atoms, n_linear).

        Without a constant: that of an unseen element is its reference energy.
        """
        if not self.linear:
            return features.new_zeros(features.shape[0], 1)
        unseen = self.one_hot[elements][:, -1:]
        return unseen * self.constants().linear_scale * self._linear_features(features, elements)

    def _unseen_slopes(self, features: Tensor, tangents: Tensor, elements: Tensor) -> Tensor:
        if not self.linear:
            return tangents.new_zeros(*tangents.shape[:2], 1)
        unseen = self.one_hot[elements][:, -1:]
        return unseen * self.constants().linear_scale * self._linear_slopes(features, tangents, elements)

    def _slope_pair_sum(self, features: Tensor, tangents: Tensor, elements: Tensor, graph: AtomicGraph) -> Tensor:
        """Σ_ij t_i·(∂∂'k)(h_i, h_j)·t_j of the stationary part, (c, n_structures)."""
        assert self.stationary is not None
        h, t = graph.pad(self.compared(features) - self.center), graph.pad(self.compared.slopes(features, tangents))
        kind = graph.pad(self.one_hot[elements])
        inverse = self.constants().inverse_length.square()
        u = squared_distances(h, h) * inverse
        same = kind @ kind.transpose(-1, -2)  # δ(e_i, e_j), 0 where there is no atom
        first = -2.0 * inverse * same * self.stationary.first_derivative(u)
        second = -4.0 * inverse.square() * same * self.stationary.second_derivative(u)
        crossed = t @ h.transpose(-1, -2)  # t_i · h_j
        own = crossed.diagonal(dim1=-2, dim2=-1)
        along_first = own.unsqueeze(-1) - crossed  # t_i · (h_i − h_j)
        along_second = crossed.transpose(-1, -2) - own.unsqueeze(-2)  # t_j · (h_i − h_j)
        pairs = first * (t @ t.transpose(-1, -2)) + second * along_first * along_second
        return self.constants().variance * pairs.sum((-1, -2))

    def columns_of_elements(self) -> list[Tensor]:
        """For each element the columns of φ in which its atoms may differ from zero."""
        n_linear = (self.n_weights - self.n_inducing) // self.n_elements
        linear = torch.arange(self.n_elements, device=self.center.device).repeat_interleave(n_linear)
        owner = torch.cat([self.inducing_elements, linear])
        return [(owner == element).nonzero().squeeze(-1) for element in range(self.n_elements)]

    def readout_columns(self) -> Tensor | None:
        """The columns of φ that belong to the embedding and to constants; ``None`` if there are no others."""
        if not self.embedding.hidden_layers:
            return None
        column = torch.arange(self.n_weights, device=self.center.device).unflatten(0, (self.n_elements, -1))
        return torch.cat([column[:, : self.embedding.n_last], column[:, -1:]], dim=1).flatten()

    def fourier_features(self, features: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
        """s cos(ω·h/ℓ + b): with weights N(0, 2/D) a draw from the stationary prior, (n_atoms, D).

        features: as ``compared`` gives them.
        """
        scaled = (features - self.center) @ frequencies.T * self.constants().inverse_length
        return torch.exp(self.log_scale) * torch.cos(scaled + phases)

    def prepared(self) -> AbstractContextManager[None]:
        """Within, constants are computed only after a parameter has changed, and not differentiated."""
        return self.constants.prepared(self.tensors())

    def tensors(self) -> list[Tensor]:
        """All that the constants follow from."""
        return [t for t in (*self._parameters.values(), *self._buffers.values()) if t is not None]

    def _prepare_constants(self) -> Constants:
        return self._compute_constants()._replace(has_centers=self._find_centers())

    def _compute_constants(self) -> Constants:
        inverse_length = torch.exp(-self.log_lengthscale)
        variance = torch.exp(2.0 * self.log_scale)
        inducing = (self.inducing_points - self.center) * inverse_length
        amplitude = variance * self.one_hot[:, self.inducing_elements]
        identity = torch.eye(self.n_inducing, dtype=inducing.dtype, device=inducing.device)
        whitening = cholesky = identity
        if self.stationary is not None:
            value = self.stationary.value(squared_distances(inducing, inducing))
            cholesky = torch.linalg.cholesky(value * amplitude[self.inducing_elements] + JITTER * variance * identity)
            whitening = torch.linalg.solve_triangular(cholesky, identity, upper=False)
        return Constants(
            inverse_length=inverse_length,
            variance=variance,
            inducing=inducing,
            squares=inducing.square().sum(-1),
            amplitude=amplitude,
            whitening=whitening,
            mean_inducing=_means(self.one_hot[:, self.inducing_elements], cholesky),
            linear_scale=variance
            if self.log_linear_scale is None
            else torch.exp(self.log_linear_scale) / math.sqrt(1 + len(self.embedding.hidden_layers)),
        )

    def _distances(self, features: Tensor, constants: Constants) -> Tensor:
        """|h − z|²/ℓ², (n_atoms, m), as ``squared_distances`` has it. features: as ``compared`` gives them."""
        scaled = (features - self.center) * constants.inverse_length
        products = scaled @ constants.inducing.T
        return (scaled.square().sum(-1, keepdim=True) + constants.squares - 2.0 * products).clamp(min=0.0)

    def _pair_sum(self, features: Tensor, elements: Tensor, graph: AtomicGraph) -> Tensor:
        """Σ_ij k(h_i, h_j) of the stationary part, in blocks of rows."""
        assert self.stationary is not None
        constants = self.constants()
        h = graph.pad((self.compared(features) - self.center) * constants.inverse_length)
        kind = graph.pad(self.one_hot[elements])  # zero where there is no atom
        total = features.new_zeros(graph.n_structures)
        for rows, kind_of_rows in graph.row_blocks(h, kind, MAX_PAIRS):
            same = kind_of_rows @ kind.transpose(-1, -2)  # δ(e_i, e_j)
            total = total + (same * self.stationary.value(squared_distances(rows, h))).sum((-1, -2))
        return constants.variance * total

    def _linear_features(self, features: Tensor, elements: Tensor) -> Tensor:
        """Activated embedding, scaled to a norm near one, less the mean of its element, (n_atoms, n_linear)."""
        assert self.linear_center is not None
        return self.activation_scale * (self.activated(features) - self.linear_center[elements])

    def _linear_slopes(self, features: Tensor, tangents: Tensor, elements: Tensor) -> Tensor:
        """Activations act on each feature alone."""
        ones = torch.ones_like(features)
        return forward_slope(lambda h: self._linear_features(h, elements), (features,), (ones,)) * tangents

    def _by_element(self, values: Tensor, elements: Tensor) -> Tensor:
        """Place an atom's values in the row of its element: (..., n_atoms, d) -> (..., n_atoms, n_elements, d)."""
        known = self.one_hot[elements][..., : self.n_elements]
        return known.unsqueeze(-1) * values.unsqueeze(-2)


def _means(kinds: Tensor, values: Tensor) -> Tensor:
    """Mean of the rows (m, d) of each kind, given one-hot (n_kinds, m); 0 for a kind without rows."""
    return kinds @ values / kinds.sum(1, keepdim=True).clamp(min=1.0)


def _sums(values: Tensor, index: Tensor, n: int) -> Tensor:
    """Of values with the same index: (c, m, d) -> (c, n, d)."""
    return values.new_zeros(len(values), n, values.shape[-1]).index_add(1, index, values)


def _projector(counts: Tensor) -> Tensor:
    """Projector on the span of compositions (n_structures, n_elements)."""
    span = torch.linalg.pinv(counts, rtol=RANK)
    return span @ counts
