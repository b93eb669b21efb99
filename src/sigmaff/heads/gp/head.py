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

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings, Stage, pooled
from sigmaff.heads.cache import Cached
from sigmaff.heads.gp import fit
from sigmaff.heads.gp.rows import Geometry, ValuesAndSlopes, factorized, prior_variance
from sigmaff.heads.kernels import MATERN52, RBF, StationaryKernel, squared_distances
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener

KERNELS: dict[str, StationaryKernel] = {"rbf": RBF, "matern52": MATERN52}


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
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "solve")

    def sized_for(self, train: Observations, seed: int, listener: Listener) -> Self:
        chosen, components = fit.draw(self, train, seed)
        return self.model_copy(update={"n_structures": len(chosen), "n_force_rows": len(components)})


class _Factors(NamedTuple):
    """What follows from the rows and the hyper-parameters alone."""

    cholesky: Tensor  # L with L Lᵀ = K + noise
    pulls: Tensor  # Σ t w over the force rows of each structure (n_structures, d)


class GP(Head):
    """Exact Gaussian process of summed embeddings. It is solved for, never trained; its algebra is float64.

    Its tensors are buffers. The mean needs K⁻¹ y alone, which is stored. σ needs a factorisation of K: it is computed
    at the first prediction and kept.
    """

    Config = GPConfig
    method = "gp"
    kind = "epistemic"
    force_std_methods = ("exact",)
    solve = fit.solve
    solved_in = torch.float64  # K⁻¹ y sums large numbers that nearly cancel

    def __init__(self, config: GPConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.kernel = KERNELS[config.kernel]
        n, m, d = config.n_structures, config.n_force_rows, embedding.n_features
        self.center = nn.Buffer(torch.zeros(d, dtype=torch.float64))
        self.spread = nn.Buffer(torch.ones(d, dtype=torch.float64))
        self.inputs = nn.Buffer(torch.zeros(n, d, dtype=torch.float64))
        self.tangents = nn.Buffer(torch.zeros(m, d, dtype=torch.float64))
        self.owners = nn.Buffer(torch.zeros(m, dtype=torch.int64))
        self.weights = nn.Buffer(torch.zeros(n + m, dtype=torch.float64))
        self.constant = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.scale = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.lengthscale = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.noise = nn.Buffer(torch.ones(2, dtype=torch.float64))  # variance/s² of an energy, of a force
        self._factors = Cached(self._compute_factors)

    def find_damage(self) -> str | None:
        inside = (self.owners >= 0) & (self.owners < len(self.inputs))
        return None if bool(inside.all()) else "a force belongs to no structure of the Gaussian process"

    def set_precision(self, dtype: torch.dtype) -> None:
        """Nothing of it runs in the network's precision."""

    def prepared(self) -> AbstractContextManager[None]:
        return self._factors.prepared(self.buffers())

    @property
    def rows(self) -> ValuesAndSlopes:
        """Those of the training set."""
        return ValuesAndSlopes(self.inputs, self.tangents, self.owners)

    @torch.no_grad()
    def set_rows(self, rows: ValuesAndSlopes, targets: Tensor, lengthscale: float, scale: float, noise: Tensor) -> None:
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

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        z = self._standardised(node_features, graph)
        along = pooled(self.embedding, tangents, graph) / self.spread
        owners = torch.arange(len(z), device=z.device).repeat(len(along))
        variance = self._variance(ValuesAndSlopes(z, along.flatten(0, 1), owners), self._factors())
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

    def _variance(self, rows: ValuesAndSlopes, factors: _Factors) -> Tensor:
        """Posterior variance of each of these rows."""
        cross = Geometry.between(self.rows, rows).covariance(self.kernel, self.lengthscale)
        explained = torch.linalg.solve_triangular(factors.cholesky, cross, upper=False).square().sum(0)
        return self.scale.square() * (prior_variance(rows, self.kernel, self.lengthscale) - explained)

    def _compute_factors(self) -> _Factors:
        weights = self.weights[len(self.inputs) :].unsqueeze(-1)
        return _Factors(
            cholesky=factorized(Geometry.between(self.rows, self.rows), self.kernel, self.lengthscale, self.noise),
            pulls=torch.zeros_like(self.inputs).index_add(0, self.owners, weights * self.tangents),
        )


def _values(z: Tensor) -> ValuesAndSlopes:
    """ValuesAndSlopes of values alone."""
    return ValuesAndSlopes(z, z.new_zeros(0, z.shape[1]), torch.zeros(0, dtype=torch.int64, device=z.device))
