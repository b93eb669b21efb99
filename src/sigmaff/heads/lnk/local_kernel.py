"""The kernel of the LNK in weight space: features φ of an atom's embedding, and what they leave unexplained.

    k(h, e; h', e') = δ(e, e') [ s² κ(|h − h'|²/ℓ²) + s_lin² (a(h)·a(h') + 1) ]  =  φ(h, e)·φ(h', e') + residual

The stationary part κ is whitened by its inducing points, φ = L⁻¹ k(Z, h), and leaves a residual; the linear part, on
the activated embedding a(h), is exact. In this module ``features`` are embeddings (n_atoms, d) in float64, ``elements``
index the model's elements, and ``tangents`` (c, n_atoms, d) are c directions in embedding space.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph
from sigmaff.heads.lnk.inducing import choose_inducing_points
from sigmaff.heads.lnk.kernels import StationaryKernel, squared_distances
from sigmaff.ops import scatter_sum

JITTER = 1e-8
"""Added to the diagonal of K_ZZ, relative to the kernel's scale."""
LENGTHSCALE_FACTOR = 3.0
"""Initial ℓ in units of the mean distance between inducing points of one element."""
MAX_PAIRS = 2**24
"""Pairs of atoms whose covariance is held in memory at once."""


class _Constants(NamedTuple):
    """What follows from the parameters of the stationary part alone."""

    inducing: Tensor  # (Z − center)/ℓ (m, d)
    squares: Tensor  # their squared norms (m,)
    amplitude: Tensor  # s² δ(e, e_z) (n_elements, m)
    whitening: Tensor  # L⁻¹ with L Lᵀ = K_ZZ (m, m)


class LocalKernel(nn.Module):
    def __init__(
        self,
        stationary: StationaryKernel | None,
        linear: bool,
        *,
        n_inducing: int,
        n_features: int,
        n_elements: int,
        activation: nn.Module,
    ) -> None:
        super().__init__()
        self.stationary = stationary
        self.n_elements = n_elements
        self.n_inducing = 0 if stationary is None else n_inducing
        self.n_weights = self.n_inducing + (n_elements * (n_features + 1) if linear else 0)
        self.activation = activation
        self.inducing_points = nn.Parameter(torch.zeros(self.n_inducing, n_features, dtype=torch.float64))
        self.log_linear_scale = nn.Parameter(torch.zeros((), dtype=torch.float64)) if linear else None
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_lengthscale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.inducing_elements: Tensor
        self.activation_scale: Tensor
        self.center: Tensor
        self.register_buffer("inducing_elements", torch.zeros(self.n_inducing, dtype=torch.int64))
        self.register_buffer("activation_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("center", torch.zeros(n_features, dtype=torch.float64))
        self.one_hot: Tensor
        self.register_buffer("one_hot", torch.eye(n_elements, dtype=torch.float64), persistent=False)
        self._prepared: tuple[tuple[int, ...], _Constants] | None = None

    @torch.no_grad()
    def initialize(self, features: Tensor, elements: Tensor) -> None:
        """Inducing points on training embeddings; length and scale of the kernel from their distances."""
        self.center.copy_(features.mean(0))
        self.activation_scale.copy_(self.activation(features).square().sum(-1).mean().rsqrt())
        if self.stationary is None:
            return
        points, labels = choose_inducing_points(features, elements, self.n_inducing)
        self.inducing_points.copy_(points)
        self.inducing_elements.copy_(labels)
        pairs = (labels[:, None] == labels).triu(diagonal=1)
        if pairs.any():
            distances = squared_distances(points - self.center, points - self.center)[pairs].sqrt()
            self.log_lengthscale.copy_((LENGTHSCALE_FACTOR * distances.mean()).log())

    def basis(self, features: Tensor, elements: Tensor) -> Tensor:
        """φ, (n_atoms, n_weights): a function with weights w ~ N(0, 1) on it has covariance φ·φ'."""
        parts = []
        if self.stationary is not None:
            constants = self._constants()
            value = self.stationary.value(self._distances(features, constants))
            parts.append((value * constants.amplitude[elements]) @ constants.whitening.T)
        if self.log_linear_scale is not None:
            parts.append(torch.exp(self.log_linear_scale) * self._spread(self._linear_features(features), elements))
        return torch.cat(parts, dim=-1)

    def basis_slopes(self, features: Tensor, tangents: Tensor, elements: Tensor) -> Tensor:
        """Derivatives of φ along the tangents, (c, n_atoms, n_weights)."""
        parts = []
        if self.stationary is not None:
            along = (tangents * features).sum(-1, keepdim=True) - tangents @ self.inducing_points.T  # t·(h − z)
            constants = self._constants()
            slope = self.stationary.first_derivative(self._distances(features, constants)) * along
            scaled = 2.0 * torch.exp(-2.0 * self.log_lengthscale) * slope * constants.amplitude[elements]
            parts.append(scaled @ constants.whitening.T)
        if self.log_linear_scale is not None:
            slopes = self._spread(self._linear_slopes(features, tangents), elements)
            parts.append(torch.exp(self.log_linear_scale) * slopes)
        return torch.cat(parts, dim=-1)

    def node_residual(self, basis: Tensor) -> Tensor:
        """k(h_i, h_i) − φ_i·φ_i of the stationary part, (n_atoms,)."""
        if self.stationary is None:
            return basis.new_zeros(len(basis))
        prior = torch.exp(2.0 * self.log_scale) * self.stationary.value(basis.new_zeros(()))
        return prior - basis[:, : self.n_inducing].square().sum(-1)

    def residual(self, features: Tensor, elements: Tensor, basis: Tensor, graph: AtomicGraph) -> Tensor:
        """Σ_ij (k(h_i, h_j) − φ_i·φ_j) over the atoms of each structure, (n_structures,)."""
        if self.stationary is None:
            return features.new_zeros(graph.n_structures)
        summed = scatter_sum(basis[:, : self.n_inducing], graph.structure_index, graph.n_structures)
        return self._pair_sum(features, elements, graph) - summed.square().sum(-1)

    def node_slope_residual(self, tangents: Tensor, slopes: Tensor) -> Tensor:
        """Residual variance of the slope of each atom's own function, (c, n_atoms)."""
        if self.stationary is None:
            return tangents.new_zeros(tangents.shape[:2])
        at_zero = self.stationary.first_derivative(tangents.new_zeros(()))
        prior = -2.0 * at_zero * torch.exp(2.0 * (self.log_scale - self.log_lengthscale)) * tangents.square().sum(-1)
        return prior - slopes[..., : self.n_inducing].square().sum(-1)

    def slope_residual(
        self, features: Tensor, tangents: Tensor, elements: Tensor, summed_slopes: Tensor, graph: AtomicGraph
    ) -> Tensor:
        """Σ_ij t_i·(∂∂'k)(h_i, h_j)·t_j − |Σ_i ∂φ_i|² over the atoms of each structure, (c, n_structures)."""
        if self.stationary is None:
            return features.new_zeros(tangents.shape[0], graph.n_structures)
        h, t, kind = graph.pad(features - self.center), graph.pad(tangents), graph.pad(self.one_hot[elements])
        inverse = torch.exp(-2.0 * self.log_lengthscale)
        u = squared_distances(h, h) * inverse
        same = kind @ kind.transpose(-1, -2)  # δ(e_i, e_j), 0 where there is no atom
        first = -2.0 * inverse * same * self.stationary.first_derivative(u)
        second = -4.0 * inverse.square() * same * self.stationary.second_derivative(u)
        crossed = t @ h.transpose(-1, -2)  # t_i · h_j
        own = crossed.diagonal(dim1=-2, dim2=-1)
        along_first = own.unsqueeze(-1) - crossed  # t_i · (h_i − h_j)
        along_second = crossed.transpose(-1, -2) - own.unsqueeze(-2)  # t_j · (h_i − h_j)
        pairs = first * (t @ t.transpose(-1, -2)) + second * along_first * along_second
        prior = torch.exp(2.0 * self.log_scale) * pairs.sum((-1, -2))
        return prior - summed_slopes[..., : self.n_inducing].square().sum(-1)

    def columns_of_elements(self) -> list[Tensor]:
        """For each element the columns of φ in which its atoms may differ from zero."""
        n_linear = (self.n_weights - self.n_inducing) // self.n_elements
        linear = torch.arange(self.n_elements, device=self.center.device).repeat_interleave(n_linear)
        owner = torch.cat([self.inducing_elements, linear])
        return [(owner == element).nonzero().squeeze(-1) for element in range(self.n_elements)]

    def fourier_features(self, features: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
        """s cos(ω·h/ℓ + b): with weights N(0, 2/D) a draw from the stationary prior, (n_atoms, D)."""
        scaled = (features - self.center) @ frequencies.T * torch.exp(-self.log_lengthscale)
        return torch.exp(self.log_scale) * torch.cos(scaled + phases)

    def whitening(self) -> Tensor:
        """L⁻¹ with L Lᵀ = K_ZZ, (m, m)."""
        return self._constants().whitening

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute once for many predictions what needs no structure. Not for use inside torch.func's transforms."""
        state = self._parameter_state()
        if self.stationary is not None and (self._prepared is None or self._prepared[0] != state):
            self._prepared = (state, self._compute_constants(self.stationary))

    def _constants(self) -> _Constants:
        """The prepared ones, unless a parameter has changed since or is being trained."""
        if not self.training and self._prepared is not None and self._prepared[0] == self._parameter_state():
            return self._prepared[1]
        assert self.stationary is not None
        return self._compute_constants(self.stationary)

    def _parameter_state(self) -> tuple[int, ...]:
        """Changes with every change of a parameter, in place or not."""
        parameters = (self.inducing_points, self.inducing_elements, self.log_scale, self.log_lengthscale)
        return tuple(number for p in parameters for number in (p.data_ptr(), p._version))

    def _compute_constants(self, stationary: StationaryKernel) -> _Constants:
        inducing = (self.inducing_points - self.center) * torch.exp(-self.log_lengthscale)
        same = torch.arange(self.n_elements, device=inducing.device)[:, None] == self.inducing_elements
        amplitude = torch.exp(2.0 * self.log_scale) * same.to(inducing.dtype)
        covariance = stationary.value(squared_distances(inducing, inducing)) * amplitude[self.inducing_elements]
        identity = torch.eye(self.n_inducing, dtype=inducing.dtype, device=inducing.device)
        cholesky = torch.linalg.cholesky(covariance + JITTER * torch.exp(2.0 * self.log_scale) * identity)
        return _Constants(
            inducing=inducing,
            squares=inducing.square().sum(-1),
            amplitude=amplitude,
            whitening=torch.linalg.solve_triangular(cholesky, identity, upper=False),
        )

    def _distances(self, features: Tensor, constants: _Constants) -> Tensor:
        """|h − z|²/ℓ², (n_atoms, m), as ``squared_distances`` has it."""
        scaled = (features - self.center) * torch.exp(-self.log_lengthscale)
        products = scaled @ constants.inducing.T
        return (scaled.square().sum(-1, keepdim=True) + constants.squares - 2.0 * products).clamp(min=0.0)

    def _pair_sum(self, features: Tensor, elements: Tensor, graph: AtomicGraph) -> Tensor:
        """Σ_ij k(h_i, h_j) of the stationary part, in blocks of rows."""
        assert self.stationary is not None
        h = graph.pad((features - self.center) * torch.exp(-self.log_lengthscale))
        kind = graph.pad(self.one_hot[elements])  # zero where there is no atom
        block = max(1, MAX_PAIRS // (h.shape[0] * h.shape[1]))
        total = features.new_zeros(graph.n_structures)
        for rows, kind_of_rows in zip(h.split(block, dim=1), kind.split(block, dim=1), strict=True):
            same = kind_of_rows @ kind.transpose(-1, -2)  # δ(e_i, e_j)
            total = total + (same * self.stationary.value(squared_distances(rows, h))).sum((-1, -2))
        return torch.exp(2.0 * self.log_scale) * total

    def _linear_features(self, features: Tensor) -> Tensor:
        """Activated embedding, scaled to a norm near one, and a one for the constant."""
        activated = self.activation_scale * self.activation(features)
        return torch.cat([activated, torch.ones_like(activated[..., :1])], dim=-1)

    def _linear_slopes(self, features: Tensor, tangents: Tensor) -> Tensor:
        def slope(tangent: Tensor) -> Tensor:
            return torch.func.jvp(self._linear_features, (features,), (tangent,))[1]

        return torch.func.vmap(slope)(tangents)

    def _spread(self, values: Tensor, elements: Tensor) -> Tensor:
        """Place an atom's values in the columns of its element: (..., n_atoms, d) -> (..., n_atoms, n_elements · d)."""
        return (self.one_hot[elements].unsqueeze(-1) * values.unsqueeze(-2)).flatten(-2)
