"""The LNK head against GPyTorch, against covariances written out in full, and against automatic differentiation."""

import math
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sklearn_kernels
from torch import Tensor, nn

from head_case import atoms_of, give_posterior
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.embedding import Embedding
from sigmaff.heads import LNK, EnergyDistribution, LNKConfig
from sigmaff.heads.kernels import MATERN52, RBF, SMOOTHING, StationaryKernel, squared_distances
from sigmaff.heads.lnk.draws import orthogonal
from sigmaff.heads.lnk.inducing import choose_inducing_points
from sigmaff.heads.lnk.kernel import JITTER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gpytorch

N_FEATURES = 5
EMBEDDING = Embedding(n_features=N_FEATURES, activation=nn.SiLU())
BLOCKS = Embedding(n_features=N_FEATURES, n_blocks=3, activation=nn.SiLU())
ELEMENTS = (1, 6, 8)
KERNELS = ("rbf", "matern52", "linear", "rbf+linear")
COVARIANCES = ("full", "diagonal")
ORACLE = {"rtol": 1e-6, "atol": 1e-6}
EXACT = {"rtol": 1e-9, "atol": 1e-10}
LENGTH, SCALE, LINEAR_SCALE = 2.3, 1.4, 0.6
ONE_STRUCTURE = torch.zeros(60, dtype=torch.int64)

close = torch.testing.assert_close


GRAPH = atoms_of([6, 1, 1, 8, 6, 1, 1, 8, 6, 7, 7], [4, 3, 1, 3])
"""The last structure holds an element that the model does not know."""


def embeddings(n: int) -> Tensor:
    return torch.randn(n, N_FEATURES, dtype=torch.float64)


def lnk(elements: tuple[int, ...] = ELEMENTS, **settings: object) -> LNK:
    """A head with inducing points on random embeddings, a random posterior, and kernel parameters that are not one."""
    fixed = {"embedding": "pre_activation", "n_inducing": 12, "n_samples": 8, "n_frequencies": 8}
    config = LNKConfig(**(fixed | settings))
    head = LNK(config, EMBEDDING, elements)
    head.set_precision(torch.float64)
    head.initialize(embeddings(60), torch.tensor(elements).repeat(60 // len(elements)), ONE_STRUCTURE)
    give_posterior(head)
    with torch.no_grad():
        head.kernel.log_scale.fill_(math.log(SCALE))
        head.kernel.log_lengthscale.fill_(math.log(LENGTH))
        if head.kernel.log_linear_scale is not None:
            head.kernel.log_linear_scale.fill_(math.log(LINEAR_SCALE))
    return head.eval()


def stationary(head: LNK, a: Tensor, b: Tensor) -> Tensor:
    """s² κ of all pairs of rows, from the textbook formulas, with Matérn's root smoothed so that it has derivatives."""
    squared = (a[:, None] - b[None]).square().sum(-1) / LENGTH**2
    if head.config.kernel == "matern52":
        root = (5.0 * squared + SMOOTHING).sqrt()
        return SCALE**2 * (1.0 + root + root.square() / 3.0) * torch.exp(-root)
    return SCALE**2 * torch.exp(-0.5 * squared)


def inducing_cholesky(head: LNK) -> Tensor:
    """L with L Lᵀ = K_ZZ + jitter."""
    points, kinds = head.kernel.inducing_points, head.kernel.inducing_elements
    gram = stationary(head, points, points) * (kinds[:, None] == kinds)
    return torch.linalg.cholesky(gram + JITTER * SCALE**2 * torch.eye(len(points), dtype=torch.float64))


def posterior_covariance(head: LNK, a: Tensor, b: Tensor, elements_a: Tensor, elements_b: Tensor) -> Tensor:
    """K_ab − K_aZ K⁻¹ K_Zb + K_aZ L⁻ᵀ S L⁻¹ K_Zb, with the features of the linear part beside L⁻¹ K_Zb.

    What an unknown element adds to the linear part is its prior. All structures have as many atoms of every element, so
    the projector on their composition (1, 1, 1) is a matrix of 1/3.
    """

    def features(h: Tensor, elements: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whitened = torch.zeros(0, len(h), dtype=torch.float64)
        if head.config.kernel != "linear":
            points, kinds = head.kernel.inducing_points, head.kernel.inducing_elements
            cross = stationary(head, points, h) * (kinds[:, None] == elements)
            whitened = torch.linalg.solve_triangular(inducing_cholesky(head), cross, upper=False)
        if "linear" not in head.config.kernel:
            return whitened, whitened, torch.zeros_like(h[:, :1])
        activated = (nn.functional.silu(h) - head.kernel.linear_center[elements]) * head.kernel.activation_scale
        n_elements, columns = head.kernel.n_elements, []
        known = (elements[:, None] == torch.arange(n_elements)).double()
        constants = known @ torch.full((n_elements, n_elements), 1.0 / n_elements, dtype=torch.float64)
        for index in range(n_elements):
            columns += [activated * known[:, index : index + 1], constants[:, index : index + 1]]
        unknown = LINEAR_SCALE * activated * (elements == n_elements)[:, None]
        return whitened, torch.cat([whitened, LINEAR_SCALE * torch.cat(columns, dim=1).T]), unknown

    whitened_a, all_a, unknown_a = features(a, elements_a)
    whitened_b, all_b, unknown_b = features(b, elements_b)
    covariance = all_a.T @ head.weight_cholesky @ head.weight_cholesky.T @ all_b + unknown_a @ unknown_b.T
    if head.config.kernel != "linear":
        prior = stationary(head, a, b) * (elements_a[:, None] == elements_b)
        covariance = covariance + prior - whitened_a.T @ whitened_b
    return covariance


def summed_covariance(head: LNK, graph: AtomicGraph, a: Tensor, b: Tensor) -> Tensor:
    """Covariance of the energies of each structure at two sets of embeddings, (n_structures,)."""
    kinds = head.element_index[graph.atomic_numbers]
    covariance = posterior_covariance(head, a, b, kinds, kinds)
    if head.covariance == "diagonal":
        covariance = covariance * torch.eye(len(a), dtype=torch.float64)
    member = nn.functional.one_hot(graph.structure_index, graph.n_structures).double()
    return torch.einsum("ib,ij,jb->b", member, covariance, member)


class TestKernels:
    @pytest.mark.parametrize(
        ("kernel", "reference"),
        [(RBF, sklearn_kernels.RBF()), (MATERN52, sklearn_kernels.Matern(nu=2.5))],
        ids=["rbf", "matern52"],
    )
    def test_values_are_those_of_scikit_learn(self, kernel: StationaryKernel, reference: sklearn_kernels.Kernel):
        a, b = embeddings(6), embeddings(7)
        np.testing.assert_allclose(kernel.value(squared_distances(a, b)), reference(a.numpy(), b.numpy()), rtol=1e-6)

    @pytest.mark.parametrize("kernel", [RBF, MATERN52], ids=["rbf", "matern52"])
    def test_derivatives_are_derivatives(self, kernel: StationaryKernel):
        u = torch.linspace(0.0, 9.0, 50, dtype=torch.float64)
        close(kernel.first_derivative(u), torch.func.vmap(torch.func.grad(kernel.value))(u), **EXACT)
        close(kernel.second_derivative(u), torch.func.vmap(torch.func.grad(kernel.first_derivative))(u), **EXACT)

    @pytest.mark.parametrize("kernel", [RBF, MATERN52], ids=["rbf", "matern52"])
    def test_frequencies_have_the_spectrum_of_the_kernel(self, kernel: StationaryKernel):
        """κ(h) is the mean of cos(ω·h) over the spectral density (Bochner)."""
        n = 200_000
        frequencies = kernel.draw_frequencies(n, 3, torch.Generator().manual_seed(0))
        h = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64) * torch.tensor([[0.2], [0.7], [1.5]])
        close(torch.cos(frequencies @ h.T).mean(0), kernel.value(h.square().sum(1)), rtol=0.0, atol=4.0 / math.sqrt(n))


class TestGPyTorch:
    """One element: then the LNK is a sparse variational Gaussian process, whitened, with a constant mean."""

    N_STRUCTURES = 9

    def setup_method(self):
        torch.manual_seed(4)
        self.head = lnk(elements=(6,), kernel="rbf", mean="constant")
        self.h = embeddings(self.N_STRUCTURES)
        self.model = reference_model(self.head)
        self.graph = atoms_of([6] * self.N_STRUCTURES, [1] * self.N_STRUCTURES)

    def reference(self) -> tuple[Tensor, Tensor]:
        """Mean and covariance; GPyTorch adds its jitter to the covariance of the points asked for too."""
        distribution = self.model(self.h)
        jitter = JITTER * SCALE**2 * torch.eye(self.N_STRUCTURES, dtype=torch.float64)
        return distribution.mean, distribution.covariance_matrix - jitter

    def test_mean_and_variance_of_atoms(self):
        mean, covariance = self.reference()
        distribution = self.head(self.h, self.graph)
        close(distribution.node_mean, mean, **ORACLE)
        close(distribution.variance, covariance.diagonal(), **ORACLE)

    @pytest.mark.parametrize("covariance", COVARIANCES)
    def test_energy_of_structures(self, covariance: str):
        self.head.covariance = covariance
        graph = atoms_of([6] * self.N_STRUCTURES, [4, 5])
        mean, matrix = self.reference()
        blocks = [matrix[:4, :4], matrix[4:, 4:]]
        sums = [block.sum() if covariance == "full" else block.trace() for block in blocks]
        distribution = self.head(self.h, graph)
        close(distribution.mean, torch.stack([mean[:4].sum(), mean[4:].sum()]), **ORACLE)
        close(distribution.variance, torch.stack(sums), **ORACLE)

    def test_divergence_of_the_posterior_from_the_prior(self):
        self.model(self.h)
        close(self.head.kl_divergence(), self.model.variational_strategy.kl_divergence(), **ORACLE)

    def test_loss_is_the_predictive_log_likelihood(self):
        n_train = 37
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.exp(2.0 * self.head.log_noise).detach()
        objective = gpytorch.mlls.PredictiveLogLikelihood(likelihood, self.model, num_data=n_train)
        target = torch.randn(self.N_STRUCTURES, dtype=torch.float64)
        expected = -objective(self.model(self.h), target)
        close(self.head.energy_loss(self.head(self.h, self.graph), target, n_train), expected, **ORACLE)

    def test_gradients_of_the_loss(self):
        """With respect to inducing points, posterior and kernel, in training mode."""
        target = torch.randn(self.N_STRUCTURES, dtype=torch.float64)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.exp(2.0 * self.head.log_noise).detach()
        objective = gpytorch.mlls.PredictiveLogLikelihood(likelihood, self.model, num_data=20)
        (-objective(self.model(self.h), target)).backward()
        head = self.head.train()
        head.energy_loss(head(self.h, self.graph), target, 20).backward()
        strategy = self.model.variational_strategy
        posterior = strategy._variational_distribution
        close(head.kernel.inducing_points.grad, strategy.inducing_points.grad, **ORACLE)
        close(head.weight_mean.grad, posterior.variational_mean.grad, **ORACLE)
        close(head.weight_cholesky.grad.tril(), posterior.chol_variational_covar.grad.tril(), **ORACLE)
        close(head.constant.grad, self.model.mean_module.constant.grad, **ORACLE)


def reference_model(head: LNK) -> gpytorch.models.ApproximateGP:
    """GPyTorch's sparse variational Gaussian process with the parameters of a head."""

    class Reference(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = head.kernel.inducing_points.detach().clone()
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            strategy = gpytorch.variational.VariationalStrategy(
                self, points, posterior, learn_inducing_locations=True, jitter_val=JITTER * SCALE**2
            )
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Reference().double()
    model.mean_module.constant.data.copy_(head.constant.detach())
    model.covar_module.outputscale = SCALE**2
    model.covar_module.base_kernel.lengthscale = LENGTH
    posterior = model.variational_strategy._variational_distribution
    posterior.variational_mean.data.copy_(head.weight_mean.detach())
    posterior.chol_variational_covar.data.copy_(head.weight_cholesky.detach())
    model.variational_strategy.variational_params_initialized.fill_(1)
    return model.train()


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("kernel", KERNELS)
class TestPosterior:
    def test_variance_is_that_of_the_covariance_written_out(self, kernel: str, covariance: str):
        head, h = lnk(kernel=kernel, covariance=covariance), embeddings(GRAPH.n_atoms)
        for context in (nullcontext(), head.prepared()):
            with context:
                close(head(h, GRAPH).variance, summed_covariance(head, GRAPH, h, h), **EXACT)

    def test_slope_variance_is_the_mixed_derivative_of_the_covariance(self, kernel: str, covariance: str):
        """Var(∂E along t) = ∂_a ∂_b Cov(E(h + a t), E(h + b t)) at a = b = 0."""
        head, h = lnk(kernel=kernel, covariance=covariance), embeddings(GRAPH.n_atoms)
        tangents = torch.randn(3, *h.shape, dtype=torch.float64)
        found = head.slope_variance(h, tangents, GRAPH)
        zero = torch.zeros((), dtype=torch.float64)
        expected = []
        for t in tangents:

            def covariance_between(a: Tensor, b: Tensor, t: Tensor = t) -> Tensor:
                return summed_covariance(head, GRAPH, h + a * t, h + b * t)

            expected.append(torch.func.jacfwd(torch.func.jacrev(covariance_between, argnums=0), argnums=1)(zero, zero))
        close(found, torch.stack(expected), rtol=1e-8, atol=1e-8)
        assert bool((found > 0).all())

    def test_atoms_of_other_elements_share_nothing(self, kernel: str, covariance: str):
        """Independent functions for each element: the variances of a carbon and an oxygen atom add.

        Constants of elements, too, if the compositions determine each of them.
        """
        head, h = lnk(kernel=kernel, covariance=covariance), embeddings(2)
        head.initialize(embeddings(60), torch.tensor(ELEMENTS).repeat(20), torch.arange(60) // 2)
        with torch.no_grad():  # a posterior that has not linked the elements
            head.weight_cholesky.copy_(torch.diag(head.weight_cholesky.diagonal()))
        apart = head(h, atoms_of([6, 8], [1, 1])).variance
        together = head(h, atoms_of([6, 8], [2])).variance
        close(together[0], apart.sum(), **EXACT)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("kernel", KERNELS)
class TestShares:
    """Of atoms in the energy. Only their sums are observed, so that constants of elements are free."""

    def test_variance_is_of_the_deviation_from_a_mean_atom(self, kernel: str, covariance: str):
        """A mean atom of the linear part has a mean activated embedding, that of the stationary part is the mean over
        the inducing points of the element."""
        head, h = lnk(kernel=kernel, covariance=covariance), embeddings(GRAPH.n_atoms)
        kinds = head.element_index[GRAPH.atomic_numbers]
        expected = deviation_variance(head, h, kinds)
        for context in (nullcontext(), head.prepared()):
            with context:
                close(head.node_variance(h, GRAPH), expected, **EXACT)

    def test_do_not_depend_on_constants_of_elements(self, kernel: str, covariance: str):
        """Each may get any constant: an energy of a composition that no structure has can say nothing about a share."""
        head, h = lnk(kernel=kernel, covariance=covariance), embeddings(GRAPH.n_atoms)
        before = head.node_variance(h, GRAPH)
        if "linear" in kernel:
            with torch.no_grad():
                constants = head.kernel.n_inducing + (N_FEATURES + 1) * torch.arange(1, 4) - 1
                head.weight_cholesky[constants] *= 1e3
            assert bool((head(h, GRAPH).variance > 1e3).any())
        close(head.node_variance(h, GRAPH), before, **EXACT)


def deviation_variance(head: LNK, h: Tensor, kinds: Tensor) -> Tensor:
    """Of each atom's share less the mean share of its element, from covariances written out in full."""
    kernel, unknown = head.kernel, kinds == head.kernel.n_elements
    weights, points = head.weight_cholesky @ head.weight_cholesky.T, kernel.inducing_points
    rows = torch.zeros(len(h), 0, dtype=torch.float64)
    prior = torch.zeros(len(h), dtype=torch.float64)
    if head.config.kernel != "linear":
        cross = stationary(head, points, h) * (kernel.inducing_elements[:, None] == kinds)
        whitened = torch.linalg.solve_triangular(inducing_cholesky(head), cross, upper=False).T
        prior = stationary(head, h, h).diagonal() - whitened.square().sum(1)
        means = [inducing_cholesky(head)[kernel.inducing_elements == kind].mean(0) for kind in range(kernel.n_elements)]
        rows = whitened - torch.stack([*means, torch.zeros(kernel.n_inducing, dtype=torch.float64)])[kinds]
    if "linear" in head.config.kernel:
        activated = (nn.functional.silu(h) - kernel.linear_center[kinds]) * kernel.activation_scale * LINEAR_SCALE
        prior = prior + activated.square().sum(1) * unknown
        for kind in range(kernel.n_elements):
            rows = torch.cat([rows, activated * (kinds == kind)[:, None], torch.zeros(len(h), 1).double()], dim=1)
    return torch.einsum("ip,pq,iq->i", rows, weights, rows) + prior


class TestCompositions:
    def test_that_were_not_seen_get_no_variance_from_constants(self):
        """Water and its pairs determine 2 H + O, and nothing across it."""
        head = lnk(elements=(1, 8), kernel="linear")
        numbers, structures = torch.tensor([1, 8, 1] * 20), torch.arange(60) // 6
        head.initialize(embeddings(60), numbers, structures)
        water = torch.tensor([2.0, 1.0], dtype=torch.float64)
        close(head.kernel.composition_projector, torch.outer(water, water) / 5.0, **EXACT)
        mean_atoms = torch.zeros(3, N_FEATURES, dtype=torch.float64)
        with torch.no_grad():
            head.kernel.linear_center.copy_(nn.functional.silu(mean_atoms[:1]).expand_as(head.kernel.linear_center))
        graph = atoms_of([1, 8, 8], [3])  # (1, 2) = 4/5 of water and a part across it
        explained = head.weight_cholesky @ head.weight_cholesky.T
        constants = (N_FEATURES + 1) * torch.arange(1, 3) - 1
        along = LINEAR_SCALE * 0.8 * water
        close(head(mean_atoms, graph).variance[0], along @ explained[constants][:, constants] @ along, **EXACT)

    def test_that_are_independent_determine_every_constant(self):
        head = lnk(kernel="linear")
        head.initialize(embeddings(60), torch.tensor(ELEMENTS).repeat(20), torch.arange(60) // 2)
        close(head.kernel.composition_projector, torch.eye(3, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_of_several_embeddings_of_an_atom_a_stationary_kernel_compares_the_sum(kernel: str):
    """A head of a backbone with three blocks says of their features what one of a single block says of their sum."""
    single = lnk(kernel=kernel, mean="constant")
    several = LNK(single.config, BLOCKS, ELEMENTS).eval()
    several.load_state_dict(single.state_dict())
    h = torch.randn(GRAPH.n_atoms, 3, N_FEATURES, dtype=torch.float64)
    tangents = torch.randn(2, *h.shape, dtype=torch.float64)
    ours, expected = several(h.flatten(1), GRAPH), single(h.sum(1), GRAPH)
    close(ours.mean, expected.mean, **EXACT)
    close(ours.variance, expected.variance, **EXACT)
    close(
        several.slope_variance(h.flatten(1), tangents.flatten(2), GRAPH),
        single.slope_variance(h.sum(1), tangents.sum(2), GRAPH),
        **EXACT,
    )


@pytest.mark.parametrize("kernel", ["linear", "rbf+linear"])
def test_the_linear_part_is_a_last_layer_on_every_block(kernel: str):
    """It acts on what a readout acts on: whatever the readout of any backbone says is in the span of the kernel."""
    head = LNK(LNKConfig(kernel=kernel, n_inducing=12), BLOCKS, ELEMENTS)
    head.set_precision(torch.float64)
    h = torch.randn(60, 3 * N_FEATURES, dtype=torch.float64)
    graph = atoms_of([*ELEMENTS] * 20, [1] * 60)
    head.initialize(h, graph.atomic_numbers, graph.structure_index)
    target = head.readout(nn.functional.silu(h)).squeeze(-1)
    basis = head.kernel.basis(h, head.element_index[graph.atomic_numbers])[:, head.kernel.n_inducing :]
    found = torch.linalg.lstsq(basis, target.unsqueeze(-1), driver="gelsd").solution
    close((basis @ found).squeeze(-1), target, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_far_from_all_data_the_prior_comes_back(kernel: str):
    variance = lnk(kernel=kernel)(embeddings(1) + 1e3, atoms_of([6], [1])).variance
    close(variance, torch.full_like(variance, SCALE**2), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("kernel", KERNELS)
class TestSampledFunctions:
    N_SAMPLES = 1000

    def test_have_the_posterior_variance(self, kernel: str):
        """Of energies, within five standard errors of the Monte-Carlo estimate and the error of the random features."""
        head = lnk(kernel=kernel, n_samples=self.N_SAMPLES, n_frequencies=2000)
        h = embeddings(GRAPH.n_atoms)
        deviations = head.energy_deviations(h, GRAPH)
        assert deviations.shape == (self.N_SAMPLES, GRAPH.n_structures)
        expected = head(h, GRAPH).variance
        standard_error = expected * math.sqrt(2.0 / self.N_SAMPLES)
        features_error = 0.0 if kernel == "linear" else 4.0 * SCALE**2 / math.sqrt(2000)
        assert bool(((deviations.square().mean(0) - expected).abs() < 5.0 * standard_error + features_error).all())
        assert bool((deviations.mean(0).abs() < 5.0 * (expected / self.N_SAMPLES).sqrt()).all())

    def test_are_the_same_functions_every_time(self, kernel: str):
        head, h = lnk(kernel=kernel), embeddings(GRAPH.n_atoms)
        assert torch.equal(head.energy_deviations(h, GRAPH), head.energy_deviations(h, GRAPH))


@pytest.mark.parametrize("numbers", [[6, 1, 8], [6, 1, 15]], ids=["seen", "unseen"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_of_samples_are_their_derivatives(kernel: str, numbers: list[int]):
    """Those of a linear kernel have a closed form, for elements that the model knows and for others."""
    head, h, graph = lnk(kernel=kernel).eval(), embeddings(6), atoms_of(numbers * 2, [4, 2])
    expected = torch.autograd.functional.jacobian(lambda x: head.energy_deviations(x, graph).sum(-1), h)
    close(head.deviation_slopes(h, graph), expected, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        head.weight_cholesky.mul_(2.0)  # values that were kept follow the parameters
    expected = torch.autograd.functional.jacobian(lambda x: head.energy_deviations(x, graph).sum(-1), h)
    close(head.deviation_slopes(h, graph), expected, rtol=1e-10, atol=1e-10)


class TestOrthogonalDraws:
    def test_have_unit_covariance(self):
        """Mean of w wᵀ over many seeds; its standard error is below 1/√(seeds · samples)."""
        n_seeds, n_weights, n_samples = 4000, 5, 3
        drawn = [orthogonal(n_weights, n_samples, torch.Generator().manual_seed(seed)) for seed in range(n_seeds)]
        w = torch.cat(drawn, dim=1)
        error = 5.0 * math.sqrt(2.0 / w.shape[1])
        close(w @ w.T / w.shape[1], torch.eye(n_weights).double(), rtol=0.0, atol=error)
        close(w.mean(1), torch.zeros(n_weights).double(), rtol=0.0, atol=error)

    @pytest.mark.parametrize("n_blocks", [1, 3])
    def test_as_many_as_weights_are_exact(self, n_blocks: int):
        w = orthogonal(7, 7 * n_blocks, torch.Generator().manual_seed(0))
        close(w @ w.T / w.shape[1], torch.eye(7).double(), rtol=0.0, atol=1e-12)

    def test_are_orthogonal_within_a_block(self):
        w = orthogonal(7, 10, torch.Generator().manual_seed(0))
        close(w[:, :7].T @ w[:, :7], 7.0 * torch.eye(7).double(), rtol=0.0, atol=1e-12)
        close(w[:, 7:].T @ w[:, 7:], 7.0 * torch.eye(3).double(), rtol=0.0, atol=1e-12)


class TestLoss:
    def test_is_the_likelihood_and_a_share_of_the_divergence(self):
        """−log N(y; μ, σ² + noise) averaged over structures + KL/N, each from torch.distributions."""
        head = lnk(kernel="rbf+linear")
        mean, variance, target = torch.randn(5), torch.rand(5) + 0.1, torch.randn(5)
        distribution = EnergyDistribution(node_mean=mean.double(), mean=mean.double(), variance=variance.double())
        std = (variance.double() + torch.exp(2.0 * head.log_noise)).sqrt()
        likelihood = torch.distributions.Normal(mean.double(), std).log_prob(target.double()).mean()
        n_weights = len(head.weight_mean)
        posterior = torch.distributions.MultivariateNormal(head.weight_mean, scale_tril=head.weight_cholesky)
        prior = torch.distributions.MultivariateNormal(
            torch.zeros(n_weights, dtype=torch.float64), torch.eye(n_weights, dtype=torch.float64)
        )
        divergence = torch.distributions.kl_divergence(posterior, prior)
        close(head.energy_loss(distribution, target, 20), divergence / 20 - likelihood, **EXACT)

    def test_gradient_descent_finds_a_function(self):
        """Energies of structures that are sums of a smooth function of their atoms' embeddings, learnt to a third."""
        head = lnk(kernel="rbf", mean="constant", n_inducing=30).train()
        h = embeddings(90)
        graph = atoms_of([1, 6, 8] * 30, [2] * 45)
        target = torch.sin(h[:, 0]).view(45, 2).sum(1)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            loss = head.energy_loss(head(h, graph), target, 45)
            loss.backward()
            optimizer.step()
        error = head.eval()(h, graph).mean.detach() - target
        assert float(error.abs().mean()) < 0.33 * float((target - target.mean()).abs().mean())


class TestMean:
    def test_backbone_ignores_the_process(self):
        head, h = lnk(mean="backbone"), embeddings(GRAPH.n_atoms)
        close(head(h, GRAPH).node_mean, head.readout(nn.functional.silu(h)).squeeze(-1), rtol=0.0, atol=0.0)

    def test_residual_adds_the_process_to_the_readout(self):
        head, h = lnk(mean="residual", kernel="rbf"), embeddings(GRAPH.n_atoms)
        kinds = head.element_index[GRAPH.atomic_numbers]
        cross = stationary(head, h, head.kernel.inducing_points) * (kinds[:, None] == head.kernel.inducing_elements)
        process = cross @ torch.linalg.solve(inducing_cholesky(head).T, head.weight_mean)
        close(head(h, GRAPH).node_mean, head.readout(nn.functional.silu(h)).squeeze(-1) + process, **EXACT)

    def test_constant_is_per_atom(self):
        head, h = lnk(mean="constant"), embeddings(GRAPH.n_atoms)
        with torch.no_grad():
            head.weight_mean.zero_()
        close(head(h, GRAPH).mean, 0.4 * GRAPH.atoms_per_structure().double(), **EXACT)


@pytest.mark.parametrize("kernel", KERNELS)
def test_new_inducing_points_leave_nothing_of_the_old(kernel: str):
    """Prepared for prediction, then initialised again on data with other shares of the elements."""
    head, h = lnk(kernel=kernel), embeddings(GRAPH.n_atoms)
    with head.prepared():
        head(h, GRAPH)
    head.initialize(embeddings(60) + 0.5, torch.tensor([1] * 10 + [6] * 48 + [8] * 2), ONE_STRUCTURE)
    fresh = LNK(head.config, EMBEDDING, ELEMENTS)
    fresh.set_precision(torch.float64)
    fresh.load_state_dict(head.state_dict())
    with head.prepared():
        close(head(h, GRAPH).tensors(), fresh.eval()(h, GRAPH).tensors(), **EXACT)
        close(head.node_variance(h, GRAPH), fresh.node_variance(h, GRAPH), **EXACT)


class TestInducingPoints:
    def setup_method(self):
        torch.manual_seed(2)
        self.h = embeddings(200)
        self.kinds = torch.tensor([0] * 120 + [1] * 60 + [2] * 20)

    def test_are_distinct_embeddings_of_their_own_element(self):
        points, kinds = choose_inducing_points(torch.cat([self.h, self.h]), self.kinds.repeat(2), 40)
        assert len(points.unique(dim=0)) == 40
        assert set(kinds.tolist()) == {0, 1, 2}
        for point, kind in zip(points, kinds, strict=True):
            source = (self.h == point).all(1).nonzero()
            assert len(source) == 1
            assert self.kinds[source] == kind

    def test_are_invariant_under_permutation_of_atoms(self):
        order = torch.randperm(200)
        points, kinds = choose_inducing_points(self.h, self.kinds, 30)
        again, kinds_again = choose_inducing_points(self.h[order], self.kinds[order], 30)
        assert torch.equal(points, again)
        assert torch.equal(kinds, kinds_again)

    def test_cover_the_embeddings_better_than_chance(self):
        """The farthest embedding is nearer to a chosen point than to random ones."""
        points, kinds = choose_inducing_points(self.h, self.kinds, 40)
        first, chosen = self.h[:120], points[kinds == 0]
        drawn = [first[torch.randperm(120)[: len(chosen)]] for _ in range(9)]
        radius, *chance = [torch.cdist(first, centers).min(1).values.max() for centers in (chosen, *drawn)]
        assert radius < min(chance)

    def test_are_shared_out_by_the_root_of_the_counts(self):
        _, kinds = choose_inducing_points(self.h, self.kinds, 40)
        counts = torch.bincount(kinds).double()
        expected = torch.tensor([120.0, 60.0, 20.0], dtype=torch.float64).sqrt()
        close(counts / 40, expected / expected.sum(), rtol=0.0, atol=1.5 / 40)

    def test_too_many_for_the_data_is_an_error(self):
        with pytest.raises(ConfigError, match="only 200 distinct atomic environments"):
            choose_inducing_points(self.h, self.kinds, 201)

    def test_too_few_for_the_elements_is_an_error(self):
        with pytest.raises(ConfigError, match="3 elements need at least one"):
            choose_inducing_points(self.h, self.kinds, 2)

    def test_all_of_the_data_can_be_inducing_points(self):
        points, _ = choose_inducing_points(self.h, self.kinds, 200)
        assert len(points.unique(dim=0)) == 200


def test_the_process_passes_through_its_inducing_points():
    """At an inducing point nothing is left of the prior: the variance is that of the weights alone."""
    head = lnk(kernel="rbf", elements=(6,))
    with torch.no_grad():
        head.weight_cholesky.mul_(1e-3)
    graph = atoms_of([6] * 12, [1] * 12)
    variance = head(head.kernel.inducing_points.detach(), graph).variance.detach()
    assert float(variance.max()) < 1e-4 * SCALE**2


def test_expanded_distances_are_those_of_differences() -> None:
    """Of centred float64 rows, near duplicates among them: to 1e-14 of the squared spread, and never below zero."""
    points = 30.0 * torch.randn(40, 64, dtype=torch.float64)
    points = torch.cat([points, points + 1e-9 * torch.randn_like(points), points])
    expected = (points[:, None] - points).square().sum(-1)
    spread = float(points.square().sum(-1).max())
    found = squared_distances(points, points)
    assert float((found - expected).abs().max()) < 1e-14 * spread
    assert float(found.min()) >= 0.0
