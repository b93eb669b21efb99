"""The Localized Neural Kernel: one sparse Gaussian process on the embedding of every atom, summed over atoms.

    f(h, e) = w · φ(h, e) + r(h, e),      w ~ N(μ, C Cᵀ),      r ~ GP(0, k − φ·φ)
    E = Σ_i mean(h_i) + Σ_i f(h_i, e_i)

| symbol | here |
|---|---|
| h | ``node_features`` (n_atoms, d) |
| φ, k | ``LocalKernel.basis``, ``LocalKernel`` |
| μ, C | ``weight_mean`` (p,), ``weight_cholesky`` (p, p) |
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Self

import torch
from ase.data import chemical_symbols
from pydantic import Field
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Fit, ForcesWay, Head, HeadSettings
from sigmaff.heads.kernels import MATERN52, RBF, StationaryKernel
from sigmaff.heads.lnk.kernel import LocalKernel

KERNELS: dict[str, tuple[StationaryKernel | None, bool]] = {  # stationary part, linear part
    "rbf": (RBF, False),
    "matern52": (MATERN52, False),
    "linear": (None, True),
    "rbf+linear": (RBF, True),
}
DRAW_SEED = 0


class LNKConfig(HeadSettings):
    """Hyper-parameters of the Localized Neural Kernel."""

    name: Literal["lnk"] = "lnk"
    kernel: Literal["rbf", "linear", "rbf+linear", "matern52"] = Field(
        default="linear",
        description="covariance of the embeddings of two atoms of one element: that of a last layer of random weights "
        "(linear), one that falls off with distance (rbf; the paper's; matern52), or the sum of both",
    )
    by_element: bool = Field(
        default=True, description="whether atoms of different elements are independent, or compared as if of one"
    )
    covariance: Literal["full", "diagonal"] = Field(
        default="full",
        description="variance of an energy: over all pairs of atoms (full: σ of n far copies grows as n), or over each "
        "atom by itself (diagonal: as √n; the paper's)",
    )
    mean: Literal["constant", "backbone", "residual"] = Field(
        default="residual",
        description="predicted energy: a constant plus the Gaussian process (constant; the paper's), the backbone's "
        "own readout unchanged (backbone), or the readout plus the Gaussian process of what it misses (residual)",
    )
    fit: Literal["closed_form", "variational"] = Field(
        default="closed_form",
        description="closed_form: train the backbone, freeze it, solve for the posterior; variational: gradient "
        "descent on the predictive log-likelihood (the paper's)",
    )
    freeze_backbone: bool = Field(
        default=True,
        description="variational fit only: train the backbone first and keep it (the paper's fixed-LNK), or go on "
        "training it together with the process (the paper's LNK)",
    )
    variance_labels: Literal["energy", "energy+forces"] = Field(
        default="energy+forces",
        description="closed form only: labels that reduce the variance; force rows enter with a weight chosen on "
        "held-out data, which may be zero",
    )
    selection: Literal["held_out", "marginal_likelihood"] = Field(
        default="held_out",
        description="closed form only: what chooses lengthscale, scales, noise and the weight of force rows: the "
        "likelihood of held-out energies and forces, or that of the training set",
    )
    n_inducing: int = Field(
        default=100,
        ge=1,
        le=20_000,
        description="inducing points of a kernel that falls off with distance, shared out over the elements",
    )
    n_samples: int = Field(default=64, ge=1, le=1024, description="posterior functions drawn for sampled force σ")
    n_frequencies: int = Field(
        default=512, ge=1, le=8192, description="random Fourier features of each of these functions"
    )

    @property
    def trained(self) -> Fit:
        if self.fit == "closed_form":
            return "solved"
        return "after_backbone" if self.freeze_backbone else "from_backbone"

    def n_draws(self, n_features: int, n_elements: int) -> int:
        of_sample = (n_elements + 1) * (self.n_frequencies + n_features + 1) + self.n_inducing
        return self.n_samples * of_sample + self.n_frequencies * n_features

    def without_draws(self) -> Self:
        return self.model_copy(update={"n_samples": 1, "n_frequencies": 1})


class _Factors(NamedTuple):
    """What follows from the parameters alone."""

    mean: Tensor  # μ, as it acts on the kernel's rows (p,)
    cholesky: Tensor  # C (p, p)
    of_elements: list[tuple[Tensor, Tensor]] | None  # of each: its weights (q,), a factor (q, q) of their covariance


class LNK(Head):
    """Sparse Gaussian process of atom embeddings. Its algebra is float64, whatever the network's precision."""

    method = "lnk"
    kind = "epistemic"
    forces_ways: tuple[ForcesWay, ...] = ("exact", "sampled")
    learning_rate = 1e-2

    def __init__(self, config: LNKConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.covariance = config.covariance
        if config.covariance == "diagonal":  # one function shared by all atoms cannot have it
            self.forces_ways = ("exact",)
        self.n_samples = config.n_samples
        self.embedding = embedding
        self.readout = None if config.mean == "constant" else embedding.readout()
        stationary, linear = KERNELS[config.kernel]
        n_elements = len(elements) if config.by_element else 1
        self.kernel = LocalKernel(
            stationary,
            linear,
            n_inducing=config.n_inducing,
            n_features=embedding.n_features,
            n_elements=n_elements,
            activation=embedding.activation,
        )
        n_weights = self.kernel.n_weights
        self.weight_mean = nn.Parameter(torch.zeros(n_weights, dtype=torch.float64))
        self.weight_cholesky = nn.Parameter(torch.eye(n_weights, dtype=torch.float64))
        self.constant = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_noise = nn.Parameter(torch.full((), -2.0, dtype=torch.float64))
        self.element_index: Tensor
        index = _element_index(elements) if config.by_element else torch.zeros(len(chemical_symbols), dtype=torch.int64)
        self.register_buffer("element_index", index, persistent=False)
        self._draw_functions(embedding.n_features, n_elements, stationary or RBF)
        self._prepared: tuple[tuple[int, ...], _Factors] | None = None
        self._in_use: _Factors | None = None

    def _draw_functions(self, n_features: int, n_elements: int, kernel: StationaryKernel) -> None:
        """The random numbers behind the sampled functions: the same for every model of the same sizes."""
        generator = torch.Generator("cpu").manual_seed(DRAW_SEED)
        n_samples, n_frequencies = self.config.n_samples, self.config.n_frequencies

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

        self.phases: Tensor
        self.frequencies: Tensor
        self.prior_draws: Tensor
        self.posterior_draws: Tensor
        phases = 2.0 * math.pi * torch.rand(n_frequencies, generator=generator, dtype=torch.float64, device="cpu")
        self.register_buffer("phases", phases, persistent=False)
        frequencies = kernel.draw_frequencies(n_frequencies, n_features, generator)
        self.register_buffer("frequencies", frequencies, persistent=False)
        prior_draws = normal(n_elements + 1, n_frequencies, n_samples) * math.sqrt(2.0 / n_frequencies)
        self.register_buffer("prior_draws", prior_draws, persistent=False)
        self.register_buffer("posterior_draws", normal(self.kernel.n_weights, n_samples), persistent=False)
        self.unseen_draws: Tensor
        self.register_buffer("unseen_draws", normal(n_features + 1, n_samples), persistent=False)

    def find_damage(self) -> str | None:
        known = torch.arange(self.kernel.n_elements, device=self.kernel.inducing_elements.device)
        if torch.isin(self.kernel.inducing_elements, known).all():
            return None
        return "an inducing point belongs to no element of the model"

    def set_precision(self, dtype: torch.dtype) -> None:
        if self.readout is not None:
            self.readout.to(dtype)

    def take_readout(self, readout: nn.Linear) -> None:
        if self.readout is not None:
            self.readout.load_state_dict(readout.state_dict())

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Place the inducing points on training embeddings."""
        self.kernel.initialize(self.compared(node_features.detach()), self.element_index[atomic_numbers])

    def compared(self, node_features: Tensor) -> Tensor:
        """The embeddings that the kernel compares, as it computes with them."""
        return self.embedding.compared(node_features.double())

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with self.kernel.prepared():
            own = (self.weight_mean, self.weight_cholesky)
            state = self.kernel.parameter_state() + tuple(n for p in own for n in (p.data_ptr(), p._version))
            if self._prepared is None or self._prepared[0] != state:
                with torch.no_grad():
                    self._prepared = (state, self._compute_factors(by_element=True))
            self._in_use = self._prepared[1]
            try:
                yield
            finally:
                self._in_use = None

    def _factors(self) -> _Factors:
        return self._compute_factors(by_element=False) if self._in_use is None else self._in_use

    def _compute_factors(self, *, by_element: bool) -> _Factors:
        cholesky = self.weight_cholesky.tril()
        blocks = None
        if by_element:
            blocks = [
                (columns, torch.linalg.qr(cholesky[columns].T, mode="r")[1].T)
                for columns in self.kernel.columns_of_elements()
            ]
        return _Factors(self.kernel.unwhiten(self.weight_mean), cholesky, blocks)

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        """Derivatives of the mean are always there; those of the variance only in training, which alone needs them."""
        elements = self.element_index[graph.atomic_numbers]
        features = self.compared(node_features)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self.training or self.config.mean != "backbone")):
            rows = self.kernel.rows(features, elements)
        node_mean = self._node_mean(node_features, rows)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.training):
            variance = self._variance(features, elements, rows, graph)
        return EnergyDistribution(
            node_mean=node_mean,
            mean=scatter_sum(node_mean, graph.structure_index, graph.n_structures),
            variance=variance,
        )

    def node_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        elements = self.element_index[graph.atomic_numbers]
        features = self.compared(node_features)
        return self._node_variance(features, self.kernel.rows(features, elements), elements)

    def energy_loss(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative predictive log-likelihood, noise once per structure, plus KL(q(w) ‖ p(w)) shared by the n_train."""
        if distribution.variance is None:
            raise TypeError("the LNK is trained on a distribution with a variance")
        variance = distribution.variance + torch.exp(2.0 * self.log_noise)
        misfit = (target.double() - distribution.mean).square() / variance
        likelihood = -0.5 * (misfit + variance.log() + math.log(2.0 * math.pi))
        return self.kl_divergence() / n_train - likelihood.mean()

    def kl_divergence(self) -> Tensor:
        """KL(N(μ, C Cᵀ) ‖ N(0, 1)) of the whitened weights."""
        cholesky = self.weight_cholesky.tril()
        quadratic = cholesky.square().sum() + self.weight_mean.square().sum() - self.weight_mean.numel()
        return 0.5 * quadratic - cholesky.diagonal().abs().log().sum()

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Pathwise samples: a prior draw f₀, its value at the inducing points taken back, and C ε of the weights.

        f − mean(f) = f₀(h) + φ(h) · (C ε − L⁻¹ f₀(Z))
        """
        elements = self.element_index[graph.atomic_numbers]
        features = self.compared(node_features)
        weights = self._factors().cholesky @ self.posterior_draws
        deviations = features.new_zeros(graph.n_atoms, self.n_samples)
        if self.kernel.stationary is not None:
            at_inducing = self._prior_functions(self.kernel.inducing_points, self.kernel.inducing_elements)
            weights = torch.cat(
                [
                    weights[: self.kernel.n_inducing] - self.kernel.constants().whitening @ at_inducing,
                    weights[self.kernel.n_inducing :],
                ]
            )
            deviations = self._prior_functions(features, elements)
        deviations = deviations + self.kernel.basis(features, elements) @ weights
        if self.kernel.linear and self.kernel.has_unseen(elements):
            deviations = deviations + self.kernel.unseen_features(features, elements) @ self.unseen_draws
        return scatter_sum(deviations, graph.structure_index, graph.n_structures).T

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        elements = self.element_index[graph.atomic_numbers]
        features, tangents = self.compared(node_features), self.compared(tangents)
        slopes = self.kernel.basis_slopes(features, tangents, elements)
        cholesky = self._factors().cholesky
        if self.covariance == "diagonal":
            residual = self.kernel.node_slope_residual(features, tangents, elements, slopes)
            by_atom = residual + (slopes @ cholesky).square().sum(-1)
            return by_atom.new_zeros(len(by_atom), graph.n_structures).index_add(1, graph.structure_index, by_atom)
        shape = (len(slopes), graph.n_structures, slopes.shape[-1])
        summed = slopes.new_zeros(shape).index_add(1, graph.structure_index, slopes)
        residual = self.kernel.slope_residual(features, tangents, elements, summed, graph)
        return residual + (summed @ cholesky).square().sum(-1)

    def _node_mean(self, node_features: Tensor, rows: Tensor) -> Tensor:
        readout = self.constant
        if self.readout is not None:
            readout = self.readout(self.embedding.activation(node_features)).squeeze(-1)
        return readout if self.config.mean == "backbone" else readout + rows @ self._factors().mean

    def _variance(self, features: Tensor, elements: Tensor, rows: Tensor, graph: AtomicGraph) -> Tensor:
        """Variance of the energy of each structure."""
        if self.covariance == "diagonal":
            return scatter_sum(self._node_variance(features, rows, elements), graph.structure_index, graph.n_structures)
        summed = self.kernel.whiten(scatter_sum(rows, graph.structure_index, graph.n_structures))
        explained = (summed @ self._factors().cholesky).square().sum(-1)
        return explained + self.kernel.residual(features, elements, summed, graph)

    def _node_variance(self, features: Tensor, rows: Tensor, elements: Tensor) -> Tensor:
        basis = self.kernel.whiten(rows)
        explained = self._node_quadratic(basis, elements, self._factors())
        return explained + self.kernel.node_residual(features, elements, basis)

    def _node_quadratic(self, basis: Tensor, elements: Tensor, factors: _Factors) -> Tensor:
        """φ_i·C Cᵀ·φ_i of each atom. Prepared, it uses that φ_i vanishes but in the columns of the atom's element."""
        if factors.of_elements is None:
            return (basis @ factors.cholesky).square().sum(-1)
        result = basis.new_zeros(len(basis))
        for element, (columns, factor) in enumerate(factors.of_elements):
            atoms = (elements == element).nonzero().squeeze(-1)
            result[atoms] = (basis[atoms][:, columns] @ factor).square().sum(-1)
        return result

    def _prior_functions(self, features: Tensor, elements: Tensor) -> Tensor:
        """Draws of the stationary prior, (n_atoms, n_samples); elements have independent draws."""
        waves = self.kernel.fourier_features(features, self.frequencies, self.phases)
        by_element = torch.einsum("nf,efs->ens", waves, self.prior_draws)
        return by_element[elements, torch.arange(len(elements), device=elements.device)]


def _element_index(elements: tuple[int, ...]) -> Tensor:
    """Position of an atomic number among the model's elements; one past the end for all others."""
    index = torch.full((len(chemical_symbols),), len(elements), device="cpu")
    index[list(elements)] = torch.arange(len(elements), device="cpu")
    return index
