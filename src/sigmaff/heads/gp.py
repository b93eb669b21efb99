"""The exact Gaussian process on the summed embedding of a structure, from energies and forces.

    E = c + f(z),      z = (Σ_i h_i − center) / spread,      f ~ GP(0, s² κ(|z − z'|²/ℓ²)),      F = −(∂z/∂x)ᵀ ∇f

Energies are values of f, and forces its slopes along tangents t = −∂z/∂x: both are rows of one covariance matrix K. In
this module K is that of s = 1, and noise variances are relative to s².

| symbol | here |
|---|---|
| z of training structures | ``inputs`` (n_structures, d) |
| t of training forces, and the structures they belong to | ``tangents`` (n_force_rows, d), ``owners`` (n_force_rows,) |
| K⁻¹ y of energies, of forces | ``weights`` (n_structures + n_force_rows,) |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, NoReturn

import torch
from pydantic import Field
from torch import Tensor

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.heads.base import EnergyDistribution, Fit, Head, HeadSettings
from sigmaff.heads.kernels import MATERN52, RBF, StationaryKernel, squared_distances
from sigmaff.heads.pooling import pooled

KERNELS: dict[str, StationaryKernel] = {"rbf": RBF, "matern52": MATERN52}
JITTER = 1e-10
"""Added to the diagonal of K, relative to each row's prior variance."""


class GPConfig(HeadSettings):
    """Hyper-parameters of the exact Gaussian process."""

    name: Literal["gp"] = "gp"
    kernel: Literal["rbf", "matern52"] = Field(
        default="matern52", description="covariance of the summed embeddings of two structures"
    )
    n_structures: int = Field(
        default=150,
        ge=2,
        le=20_000,
        description="training structures that it is made of, drawn at random if there are more; time and memory grow "
        "as the third and second power of the number of energies and forces",
    )
    n_force_rows: int = Field(
        default=4000,
        ge=0,
        le=60_000,
        description="force components of these structures that it is made of, drawn at random if there are more",
    )

    @property
    def trained(self) -> Fit:
        return "solved"


class Rows(NamedTuple):
    """Linear observations of a function: its values at all inputs, then its slopes along tangents at some of them."""

    inputs: Tensor  # (n, d)
    tangents: Tensor  # (m, d)
    owners: Tensor  # (m,) input at which each tangent is

    def __len__(self) -> int:
        return self.inputs.shape[0] + self.tangents.shape[0]


class Geometry(NamedTuple):
    """What the covariance of two sets of rows needs of them, whatever the kernel and its length."""

    squares: Tensor  # |z − z'|² (n, n')
    along_first: Tensor  # t·(z − z') (m, n')
    along_second: Tensor  # t'·(z' − z) (n, m')
    products: Tensor  # t·t' (m, m')
    owners: tuple[Tensor, Tensor]

    @classmethod
    def between(cls, first: Rows, second: Rows) -> "Geometry":
        return cls(
            squares=squared_distances(first.inputs, second.inputs),
            along_first=_along(first, second.inputs),
            along_second=_along(second, first.inputs).T,
            products=first.tangents @ second.tangents.T,
            owners=(first.owners, second.owners),
        )

    def covariance(self, kernel: StationaryKernel, lengthscale: Tensor) -> Tensor:
        """Covariance of all first with all second rows, (n + m, n' + m')."""
        first, second = self.owners
        u = self.squares / lengthscale.square()
        slope = 2.0 / lengthscale.square() * kernel.first_derivative(u)
        curvature = 4.0 / lengthscale**4 * kernel.second_derivative(u)
        crossed = self.along_first[:, second] * self.along_second[first]
        slopes = curvature[first][:, second] * crossed - slope[first][:, second] * self.products
        upper = torch.cat([kernel.value(u), slope[:, second] * self.along_second], dim=1)
        lower = torch.cat([slope[first] * self.along_first, slopes], dim=1)
        return torch.cat([upper, lower])


class _Factors(NamedTuple):
    """What follows from the rows and the hyper-parameters alone."""

    cholesky: Tensor  # L with L Lᵀ = K + noise
    pulls: Tensor  # Σ t w over the force rows of each structure (n_structures, d)


class GP(Head):
    """Exact Gaussian process of summed embeddings. It is solved for, never trained; its algebra is float64.

    Its tensors are buffers, K⁻¹ y among them, so that a mean takes no factorisation; that of K, which σ takes, is made
    once when it is first asked for.
    """

    method = "gp"
    kind = "epistemic"
    forces_ways = ("exact",)

    def __init__(self, config: GPConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.kernel = KERNELS[config.kernel]
        n, m, d = config.n_structures, config.n_force_rows, embedding.n_features
        self.center: Tensor
        self.spread: Tensor
        self.inputs: Tensor
        self.tangents: Tensor
        self.owners: Tensor
        self.weights: Tensor
        self.constant: Tensor
        self.scale: Tensor
        self.lengthscale: Tensor
        self.noise: Tensor
        self.register_buffer("center", torch.zeros(d, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(d, dtype=torch.float64))
        self.register_buffer("inputs", torch.zeros(n, d, dtype=torch.float64))
        self.register_buffer("tangents", torch.zeros(m, d, dtype=torch.float64))
        self.register_buffer("owners", torch.zeros(m, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(n + m, dtype=torch.float64))
        self.register_buffer("constant", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("lengthscale", torch.ones((), dtype=torch.float64))
        self.register_buffer("noise", torch.ones(2, dtype=torch.float64))  # variance/s² of an energy, of a force
        self._prepared: tuple[tuple[int, ...], _Factors] | None = None
        self._in_use: _Factors | None = None

    def find_damage(self) -> str | None:
        inside = (self.owners >= 0) & (self.owners < len(self.inputs))
        return None if bool(inside.all()) else "a force belongs to no structure of the Gaussian process"

    def set_precision(self, dtype: torch.dtype) -> None:
        """Nothing of it runs in the network's precision."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        state = tuple(number for t in self.buffers() for number in (t.data_ptr(), t._version))
        if self._prepared is None or self._prepared[0] != state:
            with torch.no_grad():
                self._prepared = (state, self._compute_factors())
        self._in_use = self._prepared[1]
        try:
            yield
        finally:
            self._in_use = None

    @property
    def rows(self) -> Rows:
        """Those of the training set."""
        return Rows(self.inputs, self.tangents, self.owners)

    @torch.no_grad()
    def solve(self, rows: Rows, targets: Tensor, lengthscale: float, scale: float, noise: Tensor) -> None:
        """Take standardised training rows with their targets (energies less the constant, then forces)."""
        for buffer, value in zip((self.inputs, self.tangents, self.owners), rows, strict=True):
            buffer.copy_(value)
        self.lengthscale.fill_(lengthscale)
        self.scale.fill_(scale)
        self.noise.copy_(noise)
        factor = self._compute_factors().cholesky
        self.weights.copy_(torch.cholesky_solve(targets.unsqueeze(-1), factor).squeeze(-1))

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        """Only the mean is differentiated: nothing is trained on σ."""
        z = self._standardised(node_features, graph)
        factors = self._factors()
        return EnergyDistribution(
            mean=self.constant + self._mean(z, factors), variance=self._variance(_values(z.detach()), factors)
        )

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> NoReturn:
        raise TypeError("the exact Gaussian process is solved for (sigmaff.training.exact_gp), not trained")

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        z = self._standardised(node_features, graph)
        along = pooled(self.embedding, tangents, graph) / self.spread
        owners = torch.arange(len(z), device=z.device).repeat(len(along))
        variance = self._variance(Rows(z, along.flatten(0, 1), owners), self._factors())
        return variance[len(z) :].view(len(along), len(z))

    def _standardised(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        return (pooled(self.embedding, node_features, graph) - self.center) / self.spread

    def _mean(self, z: Tensor, factors: _Factors) -> Tensor:
        """k(z, rows) · weights; the force rows of a structure act through the sum of their weighted tangents."""
        inverse = self.lengthscale.square().reciprocal()
        u = squared_distances(z, self.inputs) * inverse
        along = (self.inputs * factors.pulls).sum(-1) - z @ factors.pulls.T
        of_forces = (2.0 * inverse * self.kernel.first_derivative(u) * along).sum(-1)
        return self.kernel.value(u) @ self.weights[: len(self.inputs)] + of_forces

    def _variance(self, rows: Rows, factors: _Factors) -> Tensor:
        """Posterior variance of each of these rows."""
        cross = Geometry.between(self.rows, rows).covariance(self.kernel, self.lengthscale)
        explained = torch.linalg.solve_triangular(factors.cholesky, cross, upper=False).square().sum(0)
        return self.scale.square() * (prior_variance(rows, self.kernel, self.lengthscale) - explained)

    def _factors(self) -> _Factors:
        return self._compute_factors() if self._in_use is None else self._in_use

    def _compute_factors(self) -> _Factors:
        weights = self.weights[len(self.inputs) :].unsqueeze(-1)
        return _Factors(
            cholesky=factorized(Geometry.between(self.rows, self.rows), self.kernel, self.lengthscale, self.noise),
            pulls=torch.zeros_like(self.inputs).index_add(0, self.owners, weights * self.tangents),
        )


def factorized(geometry: Geometry, kernel: StationaryKernel, lengthscale: Tensor, noise: Tensor) -> Tensor:
    """Cholesky factor of K + noise of one set of rows; ``noise`` (2,) are variances of values and of slopes."""
    covariance = geometry.covariance(kernel, lengthscale)
    n, m = len(geometry.squares), len(geometry.products)
    of_rows = torch.cat([noise[:1].expand(n), noise[1:].expand(m)]) + JITTER * covariance.diagonal()
    return torch.linalg.cholesky(covariance + torch.diag(of_rows))


def prior_variance(rows: Rows, kernel: StationaryKernel, lengthscale: Tensor) -> Tensor:
    """κ(0) of values, −2κ'(0) |t|²/ℓ² of slopes, (n + m,)."""
    zero = lengthscale.new_zeros(())
    slopes = -2.0 * kernel.first_derivative(zero) * rows.tangents.square().sum(-1) / lengthscale.square()
    return torch.cat([kernel.value(zero).expand(len(rows.inputs)), slopes])


def _values(z: Tensor) -> Rows:
    """Rows of values alone."""
    return Rows(z, z.new_zeros(0, z.shape[1]), torch.zeros(0, dtype=torch.int64, device=z.device))


def _along(rows: Rows, points: Tensor) -> Tensor:
    """t·(z − p) for the tangents t at inputs z, and all points p: (m, n_points)."""
    return (rows.tangents * rows.inputs[rows.owners]).sum(-1, keepdim=True) - rows.tangents @ points.T
