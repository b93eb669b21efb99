"""The Localized Neural Kernel: one sparse Gaussian process on the embedding of every atom, summed over atoms.

    f(h, e) = w · φ(h, e) + r(h, e),      w ~ N(μ, C Cᵀ),      r ~ GP(0, k − φ·φ)
    E = Σ_i mean(h_i) + Σ_i f(h_i, e_i)

Beside f stands what no label says anything about (``UnseenSurroundings``), with a mean of zero.

| symbol | here |
|---|---|
| h | ``node_features`` (n_atoms, d) |
| φ, k | ``LocalKernel.basis``, ``LocalKernel`` |
| μ, C | ``weight_mean`` (p,), ``weight_cholesky`` (p, p) or, of all layers, ``weight_directions`` (p, r) |
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import ClassVar, NamedTuple

import torch
from ase.data import chemical_symbols
from torch import Tensor, nn

from sigmaff.errors import SigmaffError
from sigmaff.graph import AtomicGraph, ElementGroups, Embedding, Layout
from sigmaff.heads.base import EnergyDistribution, Head, HeadForceStdMethod, HeadSettings
from sigmaff.heads.cache import Cached
from sigmaff.heads.kernels import MATERN52, RBF, StationaryKernel
from sigmaff.heads.lnk import fit, start
from sigmaff.heads.lnk.config import LNKConfig
from sigmaff.heads.lnk.draws import Draws, draw
from sigmaff.heads.lnk.factor import Factor, LowRankFactor, TriangularFactor
from sigmaff.heads.lnk.inducing import place_points
from sigmaff.heads.lnk.kernel import LocalKernel
from sigmaff.heads.lnk.unseen import Place, UnseenSurroundings

KERNELS: dict[str, tuple[StationaryKernel | None, bool]] = {  # stationary part, linear part
    "rbf": (RBF, False),
    "matern52": (MATERN52, False),
    "linear": (None, True),
    "rbf+linear": (RBF, True),
}


class _Factors(NamedTuple):
    """Values that follow from the parameters alone."""

    mean: Tensor  # μ, as it acts on the kernel's rows (p,)
    energy: Factor  # C
    slopes: Factor  # C of slopes, if force labels informed it
    of_elements: list[tuple[Tensor, Tensor]] | None  # of each: its weights (q,), a factor (q, q) of their covariance


class LabelNoise(NamedTuple):
    """Variance of the noise of labels that the posterior assumes, in the normalised unit."""

    energy: float
    forces: float | None  # None: force labels do not inform the variance


class LNK(Head):
    """Sparse Gaussian process of atom embeddings. Its algebra is always float64."""

    Config: ClassVar[type[HeadSettings]] = LNKConfig
    method = "lnk"
    kind = "epistemic"
    force_std_methods: tuple[HeadForceStdMethod, ...] = ("exact", "sampled")
    has_likelihood_loss = True
    solve, start, refit = fit.solve, start.start, start.refit

    def __init__(self, config: LNKConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.covariance = config.covariance
        if config.covariance == "diagonal":  # one function shared by all atoms cannot have it
            self.force_std_methods = ("exact",)
        self.learning_rate = config.learning_rate
        self.n_samples = config.n_samples
        self.embedding = embedding
        n_surroundings = embedding.n_surroundings
        self.unseen = UnseenSurroundings(n_surroundings, len(elements)) if n_surroundings else None
        self.readout = None if config.mean == "constant" else embedding.readout()
        stationary, linear = KERNELS[config.kernel]
        n_elements = len(elements) if config.by_element else 1
        self.kernel = LocalKernel(
            stationary,
            linear,
            n_inducing=config.n_inducing,
            n_elements=n_elements,
            centred=config.by_element,
            embedding=embedding,
            compared=config.embedding,
        )
        n_weights = self.kernel.n_weights
        self.weight_mean = nn.Parameter(torch.zeros(n_weights, dtype=torch.float64))
        rank = min(config.n_directions, n_weights) if config.wants_layers else None
        full = torch.eye(n_weights if rank is None else 0, dtype=torch.float64)
        self.weight_cholesky = nn.Parameter(full) if rank is None else None
        self.weight_directions = None if rank is None else nn.Buffer(full.new_zeros(n_weights, rank))
        self.weight_shrinkage = None if rank is None else nn.Buffer(full.new_zeros(rank))
        self.constant = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_noise = nn.Parameter(torch.full((), -2.0, dtype=torch.float64))
        index = _element_index(elements) if config.by_element else torch.zeros(len(chemical_symbols), dtype=torch.int64)
        self.element_index = nn.Buffer(index, persistent=False)
        self.kind_index = nn.Buffer(_element_index(elements), persistent=False)
        solved = config.fit == "closed_form"
        self.energy_noise = nn.Buffer(torch.zeros((), dtype=torch.float64)) if solved else None
        self.force_weight = nn.Buffer(torch.zeros((), dtype=torch.float64)) if solved else None
        self.slope_scale = nn.Buffer(torch.ones((), dtype=torch.float64)) if solved else None
        tempered = solved and config.variance_labels == "energy+forces"
        self.slope_cholesky = nn.Buffer(torch.eye(n_weights, dtype=torch.float64)) if tempered else None
        self._factors = Cached(self._compute_factors, self._compute_factors_by_element)
        self._linear_draws = Cached(self._compute_linear_draws)
        self._kept_draws: Draws | None = None

    @property
    def n_weights(self) -> int:
        return self.kernel.n_weights

    @property
    def label_noise(self) -> LabelNoise:
        """Of the posterior: chosen by ``solve``, or trained with a variational posterior, which sees energies alone."""
        if self.energy_noise is None or self.force_weight is None:
            return LabelNoise(math.exp(2.0 * self.log_noise.item()), None)
        energy, weight = self.energy_noise.item(), self.force_weight.item()
        if energy == 0.0:
            raise SigmaffError("the noise of labels of this model is unknown; solve for its head again")
        return LabelNoise(energy, energy / weight if weight > 0 else None)

    def draw(self) -> None:
        self._draws()

    def _draws(self) -> Draws:
        """Drawn at the first use, and kept."""
        device = self.weight_mean.device
        if self._kept_draws is None or self._kept_draws.phases.device != device:
            config = self.config
            drawn = draw(self.kernel, self.unseen, config.n_samples, config.n_frequencies, config.draws)
            self._kept_draws = drawn.to(device)
        return self._kept_draws

    def find_damage(self) -> str | None:
        known = torch.arange(self.kernel.n_elements, device=self.kernel.inducing_elements.device)
        if torch.isin(self.kernel.inducing_elements, known).all():
            return None
        return "an inducing point belongs to no element of the model"

    def set_precision(self, dtype: torch.dtype) -> None:
        if self.readout is not None:
            self.readout.to(dtype)

    def take_readout(self, readout: nn.Linear) -> None:
        self.kernel.compared.take_readout(readout)
        if self.readout is not None:
            self.readout.load_state_dict(readout.state_dict())

    def initialize(self, node_features: Tensor, atomic_numbers: Tensor, structure_index: Tensor) -> None:
        """Place the inducing points on training embeddings."""
        features, kinds = self._learned(node_features.detach()), self.kind_index[atomic_numbers]
        self.kernel.initialize(features, self.element_index[atomic_numbers], structure_index)
        if self.kernel.stationary is not None:
            compared, directions = self.kernel.compared(features), self.kernel.compared.readout_directions(features)
            points = place_points(self.config.points, compared, directions, kinds, self.config.n_inducing)
            self.kernel.place(points)
        if self.unseen is not None:
            surroundings = self.embedding.surroundings(node_features.detach()).double()
            self.unseen.learn(surroundings, kinds)

    def basis(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """φ of each atom, (n_atoms, p), and the variance that it leaves out, (n_atoms,)."""
        features, elements = self._learned(node_features), self.element_index[graph.atomic_numbers]
        basis = self.kernel.basis(features, elements)
        return basis, self.kernel.node_residual(features, elements, basis)

    def _learned(self, node_features: Tensor) -> Tensor:
        return self.embedding.learned(node_features).double()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        unseen = nullcontext() if self.unseen is None else self.unseen.prepared()
        with self.kernel.prepared(), self._factors.prepared(self._posterior_tensors()), unseen:
            yield

    def _posterior_tensors(self) -> list[Tensor]:
        """All that mean and variance follow from, but for unseen surroundings."""
        factors = (self.weight_cholesky, self.weight_directions, self.weight_shrinkage, self.slope_cholesky)
        own = (self.weight_mean, *factors, self.slope_scale)
        return [*self.kernel.tensors(), *(tensor for tensor in own if tensor is not None)]

    def _compute_factors(self) -> _Factors:
        energy = self._weight_factor()
        slopes = energy if self.slope_cholesky is None else TriangularFactor.of(self.slope_cholesky)
        return _Factors(self.kernel.unwhiten(self.weight_mean), energy, slopes, None)

    def _weight_factor(self) -> Factor:
        if self.weight_directions is None or self.weight_shrinkage is None:
            assert self.weight_cholesky is not None
            return TriangularFactor.of(self.weight_cholesky)
        return LowRankFactor(self.weight_directions, self.weight_shrinkage)

    def spread(self, rows: Tensor) -> Tensor:
        """Rows of energies (..., p) times C: their products are covariances, (..., p)."""
        return self._factors().energy.of_rows(rows)

    def _compute_factors_by_element(self) -> _Factors:
        factors = self._compute_factors()
        blocks = [
            (columns, torch.linalg.qr(factors.energy.part(columns).T, mode="r")[1].T)
            for columns in self.kernel.columns_of_elements()
        ]
        return factors._replace(of_elements=blocks)

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        """Derivatives of the mean are always there; those of the variance only in training, which alone needs them."""
        features, elements = self._learned(node_features), self.element_index[graph.atomic_numbers]
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self.training or self.config.mean != "backbone")):
            rows = self.kernel.rows(features, elements)
        node_mean = self._node_mean(node_features, rows)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.training):
            variance, unseen = self._variance(features, elements, rows, graph), None
            if (place := self._place(node_features, graph)) is not None:
                unseen = place.variance(graph)
                variance = variance + unseen
        return EnergyDistribution(
            node_mean=node_mean,
            mean=graph.sum_of_structures(node_mean),
            variance=variance,
            unseen=unseen,
        )

    def node_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor | None:
        """Of the deviation of a share from the mean share of its element. ``None`` if elements are not told apart."""
        if not self.kernel.has_centers:
            return None
        features, elements = self._learned(node_features), self.element_index[graph.atomic_numbers]
        basis = self.kernel.basis(features, elements)
        explained = self._node_quadratic(self.kernel.deviations(basis, elements), elements, graph.layout)
        variance = explained + self.kernel.node_residual(features, elements, basis)
        place = self._place(node_features, graph)
        return variance if place is None else variance + place.node_variance()

    def _surroundings(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """Of atoms, and their elements, as ``unseen`` takes them."""
        return self.embedding.surroundings(node_features).double(), self.kind_index[graph.atomic_numbers]

    def _place(self, node_features: Tensor, graph: AtomicGraph) -> Place | None:
        """Of atoms among known surroundings, if those count."""
        if self.unseen is None:
            return None
        return self.unseen.again_at(*self._surroundings(node_features, graph), graph.layout)

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Minus log-likelihood of energies, noise once per structure, plus KL(q(w) ‖ p(w)) shared by the n_train.

        Of the predictive distribution, or its expectation over the process (``objective``: elbo).
        """
        if distribution.variance is None:
            raise TypeError("the LNK is trained on a distribution with a variance")
        noise, misfit = torch.exp(2.0 * self.log_noise), (target.double() - distribution.mean).square()
        if self.config.objective == "elbo":
            misfit, variance = misfit + distribution.variance, noise
        else:
            variance = distribution.variance + noise
        likelihood = -0.5 * (misfit / variance + variance.log() + math.log(2.0 * math.pi))
        return self.kl_divergence() / n_train - likelihood

    def kl_divergence(self) -> Tensor:
        """KL(N(μ, C Cᵀ) ‖ N(0, 1)) of the whitened weights."""
        assert self.weight_cholesky is not None
        cholesky = self.weight_cholesky.tril()
        quadratic = cholesky.square().sum() + self.weight_mean.square().sum() - self.weight_mean.numel()
        return 0.5 * quadratic - cholesky.diagonal().abs().log().sum()

    def energy_deviations(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Pathwise samples: a prior draw f₀, its value at the inducing points taken back, and C ε of the weights.

        f − mean(f) = f₀(h) + φ(h) · (C ε − L⁻¹ f₀(Z))
        """
        features, elements = self._learned(node_features), self.element_index[graph.atomic_numbers]
        weights = self._factors().slopes.of_draws(self._draws().posterior)
        deviations = features.new_zeros(graph.n_atoms, self.n_samples)
        if self.kernel.stationary is not None:
            at_inducing = self._prior_functions(self.kernel.inducing_points, self.kernel.inducing_elements)
            weights = torch.cat(
                [
                    weights[: self.kernel.n_inducing] - self.kernel.constants().whitening @ at_inducing,
                    weights[self.kernel.n_inducing :],
                ]
            )
            deviations = self._prior_functions(self.kernel.compared(features), elements)
        deviations = deviations + self.kernel.basis(features, elements) @ weights
        if self.kernel.linear and self.kernel.has_unseen(elements):
            deviations = deviations + self.kernel.unseen_features(features, elements) @ self._draws().unseen
        deviations = self._slope_factor() * deviations
        if self.unseen is not None and (waves := self._draws().waves) is not None:
            deviations = deviations + self.unseen.at(*self._surroundings(node_features, graph)).sampled(waves)
        return graph.sum_of_structures(deviations).T

    def deviation_slopes(self, node_features: Tensor, graph: AtomicGraph) -> Tensor:
        """Of a linear kernel: the slope of the activation times the weights of the atom's element."""
        if self.kernel.stationary is not None:
            return super().deviation_slopes(node_features, graph)
        with self._linear_draws.prepared(self._posterior_tensors()):
            weights = self._linear_draws()
        dtype = node_features.dtype if graph.layout is None else graph.dtype
        learned = self.embedding.learned(node_features)
        activated = torch.func.vjp(self.kernel.activated, learned)[1](torch.ones_like(learned))[0]
        slopes = weights.to(dtype)[:, self.element_index[graph.atomic_numbers]] * activated.to(dtype)
        place, waves = self._place(node_features, graph), self._draws().waves
        unseen = None if place is None or waves is None else place.sampled_slopes(waves, dtype)
        return self.embedding.joined(slopes, unseen)

    def _compute_linear_draws(self) -> Tensor:
        """What samples weigh the activated embedding of an element by, (n_samples, n_elements + 1, n_linear)."""
        draws, constants = self._draws(), self.kernel.constants()
        known = self._factors().slopes.of_draws(draws.posterior).unflatten(0, (self.kernel.n_elements, -1))[:, :-1]
        weights = torch.cat([known, draws.unseen.unsqueeze(0)]).movedim(-1, 0)
        return self._slope_factor() * constants.linear_scale * self.kernel.activation_scale * weights

    def slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        if self.covariance == "diagonal":
            return self._diagonal_slope_variance(node_features, tangents, graph)
        summed, residual = self.slope_rows(node_features, tangents, graph)
        weighed = self._slope_factor() * self._factors().slopes.of_rows(summed)
        return residual + weighed.square().sum(-1)

    def _slope_factor(self) -> Tensor | float:
        """Of σ of slopes: errors of forces may be larger or smaller than those of energies say."""
        return 1.0 if self.slope_scale is None else self.slope_scale.sqrt()

    def rows(self, node_features: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """Σ_i φ_i of each structure, (n_structures, p), and the variance that it leaves out, (n_structures,)."""
        features, elements = self._learned(node_features), self.element_index[graph.atomic_numbers]
        summed = graph.sum_of_structures(self.kernel.basis(features, elements))
        residual = self.kernel.residual(features, elements, summed, graph)
        place = self._place(node_features, graph)
        return summed, residual if place is None else residual + place.variance(graph)

    def slope_rows(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> tuple[Tensor, Tensor]:
        """The same for slopes along tangents (c, n_atoms, n_features): (c, n_structures, p), (c, n_structures)."""
        features, learned = self._learned(node_features), self._learned(tangents)
        elements = self.element_index[graph.atomic_numbers]
        index, n_structures = graph.structure_index, graph.n_structures
        summed = self.kernel.basis_slopes(features, learned, elements, index, n_structures)
        residual = self._slope_factor() ** 2 * self.kernel.slope_residual(features, learned, elements, summed, graph)
        if (place := self._place(node_features, graph)) is not None:
            residual = residual + place.slope_variance(self.embedding.surroundings(tangents).double(), graph)
        return summed, residual

    def hidden_slope_variance(self, node_features: Tensor, graph: AtomicGraph) -> Tensor | None:
        place = self._place(node_features, graph)
        return None if place is None else place.hidden_slope_variance(graph)

    def _diagonal_slope_variance(self, node_features: Tensor, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        features, tangents = self._learned(node_features), self._learned(tangents)
        elements = self.element_index[graph.atomic_numbers]
        each = torch.arange(graph.n_atoms, device=features.device)
        slopes = self.kernel.basis_slopes(features, tangents, elements, each, graph.n_atoms)
        residual = self.kernel.node_slope_residual(features, tangents, elements, slopes)
        by_atom = residual + self.spread(slopes).square().sum(-1)
        return by_atom.new_zeros(len(by_atom), graph.n_structures).index_add(1, graph.structure_index, by_atom)

    def _node_mean(self, node_features: Tensor, rows: Tensor) -> Tensor:
        readout = self.constant
        if self.readout is not None:
            last = self.embedding.last(node_features).to(self.readout.weight.dtype)
            readout = self.readout(self.embedding.activation(last)).squeeze(-1)
        return readout if self.config.mean == "backbone" else readout + rows @ self._factors().mean

    def _variance(self, features: Tensor, elements: Tensor, rows: Tensor, graph: AtomicGraph) -> Tensor:
        """Variance of the energy of each structure."""
        if self.covariance == "diagonal":
            return graph.sum_of_structures(self._node_variance(features, rows, elements))
        summed = self.kernel.whiten(graph.sum_of_structures(rows))
        explained = self.spread(summed).square().sum(-1)
        return explained + self.kernel.residual(features, elements, summed, graph)

    def _node_variance(self, features: Tensor, rows: Tensor, elements: Tensor) -> Tensor:
        """Of the shares themselves, which a diagonal covariance adds up."""
        basis = self.kernel.whiten(rows)
        explained = self.spread(basis).square().sum(-1)
        return explained + self.kernel.node_residual(features, elements, basis)

    def _node_quadratic(self, basis: Tensor, elements: Tensor, layout: Layout | None) -> Tensor:
        """φ_i·C Cᵀ·φ_i of each atom, φ centred. Prepared, it uses that φ vanishes but in the columns of its element."""
        factors = self._factors()
        if factors.of_elements is None:
            return factors.energy.of_rows(basis).square().sum(-1)
        if self.kernel.n_elements == 1:
            (columns, factor) = factors.of_elements[0]
            return (basis[:, columns] @ factor).square().sum(-1) * self.kernel.one_hot[elements][:, 0]
        groups = ElementGroups(elements, self.kernel.n_elements + 1, layout)
        parts = []
        for element, rows in zip(groups.present, groups.of(basis), strict=True):
            if element == self.kernel.n_elements:
                parts.append(torch.zeros_like(rows[:, 0]))
            else:
                columns, factor = factors.of_elements[element]
                parts.append((rows[:, columns] @ factor).square().sum(-1))
        return groups.joined(parts)

    def _prior_functions(self, features: Tensor, elements: Tensor) -> Tensor:
        """Draws of the stationary prior, (n_atoms, n_samples); elements have independent draws."""
        draws = self._draws()
        waves = self.kernel.fourier_features(features, draws.frequencies, draws.phases)
        by_element = torch.einsum("nf,efs->ens", waves, draws.prior)
        return by_element[elements, torch.arange(len(elements), device=elements.device)]


def _element_index(elements: tuple[int, ...]) -> Tensor:
    """Position of an atomic number among the model's elements; one past the end for all others."""
    index = torch.full((len(chemical_symbols),), len(elements), device="cpu")
    index[list(elements)] = torch.arange(len(elements), device="cpu")
    return index
