"""The sparse Gaussian process on structures: against GPyTorch, and the properties that it lacks by design."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from contract import (
    AMMONIA,
    BACKBONES,
    ETHANOL,
    EXACT,
    STATISTICS,
    WATER,
    Case,
    displaced,
    graph_of,
    predicted,
)
from head_case import far_copies, give_posterior
from sigmaff.backbones import BackboneConfig, CoordinatesConfig, SchNetConfig
from sigmaff.data import GraphDataset, compute_statistics
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.embedding import Embedding
from sigmaff.heads import SVGP, DeterministicConfig, SVGPConfig
from sigmaff.heads.lnk.kernel import JITTER
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.solve import LabelledObservations
from sigmaff.training import TrainingConfig
from sigmaff.training.loop import _optimizer, train
from training_case import CONFIG, labelled_structures

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gpytorch

N_FEATURES = 5
ELEMENTS = (1, 6, 8)
SIZES = (4, 3, 1, 2, 6)
ORACLE = {"rtol": 1e-6, "atol": 1e-6}
LENGTH, SCALE = 4.1, 1.4
SCHNET = SchNetConfig(cutoff=4.5, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12)

close = torch.testing.assert_close


def structures(sizes: tuple[int, ...]) -> AtomicGraph:
    """A graph that is nothing but structures: all that this head looks at."""
    n_atoms = sum(sizes)
    return AtomicGraph(
        positions=torch.zeros(n_atoms, 3, dtype=torch.float64),
        atomic_numbers=torch.full((n_atoms,), 6),
        structure_index=torch.repeat_interleave(torch.tensor(sizes)),
        pair_index=torch.zeros(2, 0, dtype=torch.int64),
        pair_shift=torch.zeros(0, 3, dtype=torch.float64),
        cell=None,
        n_structures=len(sizes),
    )


def embeddings(n: int, n_blocks: int = 1) -> Tensor:
    return torch.randn(n, n_blocks * N_FEATURES, dtype=torch.float64)


def sums(h: Tensor, sizes: tuple[int, ...] = SIZES) -> Tensor:
    return torch.stack([part.sum(0) for part in h.split(sizes)])


def svgp(n_blocks: int = 1, **settings: object) -> SVGP:
    """A head with inducing points on random structures, a random posterior, and kernel parameters that are not one."""
    fixed = {"embedding": "pre_activation", "n_inducing": 12, "n_samples": 8, "n_frequencies": 8}
    config = SVGPConfig(**(fixed | settings))
    head = SVGP(config, Embedding(n_features=N_FEATURES, n_blocks=n_blocks, activation=nn.SiLU()), ELEMENTS)
    head.initialize(embeddings(60, n_blocks), torch.full((60,), 6), torch.arange(30).repeat_interleave(2))
    give_posterior(head.process)
    with torch.no_grad():
        head.process.kernel.log_scale.fill_(math.log(SCALE))
        head.process.kernel.log_lengthscale.fill_(math.log(LENGTH))
    return head.eval()


def reference_of(head: SVGP) -> gpytorch.models.ApproximateGP:
    """GPyTorch's sparse variational Gaussian process with the parameters of a head."""
    points = head.process.kernel.inducing_points.detach().clone()

    class Reference(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(
                gpytorch.variational.VariationalStrategy(self, points, posterior, jitter_val=JITTER * SCALE**2)
            )
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Reference().double()
    model.mean_module.constant.data.copy_(head.process.constant.detach())
    model.covar_module.outputscale = SCALE**2
    model.covar_module.base_kernel.lengthscale = LENGTH
    posterior = model.variational_strategy._variational_distribution
    posterior.variational_mean.data.copy_(head.process.weight_mean.detach())
    posterior.chol_variational_covar.data.copy_(head.process.weight_cholesky.detach())
    model.variational_strategy.variational_params_initialized.fill_(1)
    return model.train()


class TestAgainstGPyTorch:
    """Asked about the sums of embeddings, with the same inducing points, posterior and hyper-parameters."""

    def setup_method(self):
        torch.manual_seed(1)
        self.head, self.h, self.graph = svgp(), embeddings(sum(SIZES)), structures(SIZES)
        self.model = reference_of(self.head)

    def test_mean_and_variance(self):
        expected = self.model(sums(self.h))
        distribution = self.head(self.h, self.graph)
        close(distribution.mean, expected.mean, **ORACLE)
        close(distribution.variance, expected.variance - JITTER * SCALE**2, **ORACLE)  # its jitter is in its answers
        assert distribution.node_mean is None

    def test_loss(self):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.exp(2.0 * self.head.process.log_noise).detach()
        objective = gpytorch.mlls.PredictiveLogLikelihood(likelihood, self.model, num_data=37)
        target = torch.randn(len(SIZES), dtype=torch.float64)
        found = self.head.energy_loss(self.head(self.h, self.graph), target, 37)
        close(found, -objective(self.model(sums(self.h)), target), **ORACLE)

    def test_slope_variance(self):
        """The mixed derivative of the posterior covariance along the summed tangents."""
        tangents = torch.randn(2, *self.h.shape, dtype=torch.float64)
        found = self.head.slope_variance(self.h, tangents, self.graph)
        points, model = sums(self.h), self.model
        for direction, of_direction in zip(tangents, found, strict=True):
            along = sums(direction)
            for point, t, value in zip(points, along, of_direction, strict=True):
                steps = torch.zeros(2, dtype=torch.float64)

                def between(steps: Tensor, point: Tensor = point, t: Tensor = t) -> Tensor:
                    return model(point + steps[:, None] * t).covariance_matrix[0, 1]

                expected = torch.autograd.functional.hessian(between, steps)[0, 1]
                close(value, expected, rtol=1e-5, atol=1e-6)


def test_embeddings_of_several_blocks_are_compared_by_their_sum():
    head, h = svgp(n_blocks=3), embeddings(sum(SIZES), n_blocks=3)
    single = svgp()
    single.load_state_dict(head.state_dict())
    folded = h.unflatten(-1, (3, N_FEATURES)).sum(-2)
    graph = structures(SIZES)
    close(head(h, graph).tensors(), single(folded, graph).tensors(), **EXACT)


def test_sampled_functions_have_the_posterior_variance():
    head, graph = svgp(n_samples=1000, n_frequencies=2000), structures(SIZES)
    h = embeddings(sum(SIZES))
    deviations, expected = head.energy_deviations(h, graph), head(h, graph).variance
    error = 5.0 * expected * math.sqrt(2.0 / 1000) + 4.0 * SCALE**2 / math.sqrt(2000)
    assert bool(((deviations.square().mean(0) - expected).abs() < error).all())


def test_gradient_descent_finds_a_function():
    """A smooth function of the sum, learnt to a third of its spread."""
    head = svgp(n_inducing=30).train()
    h, graph = embeddings(120), structures((3,) * 40)
    target = torch.sin(0.5 * sums(h, (3,) * 40)[:, 0])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        head.energy_loss(head(h, graph), target, 40).backward()
        optimizer.step()
    error = head.eval()(h, graph).mean.detach() - target
    assert float(error.abs().mean()) < 0.33 * float((target - target.mean()).abs().mean())


def test_more_inducing_points_than_structures_is_an_error():
    head = SVGP(SVGPConfig(n_inducing=11), Embedding(n_features=N_FEATURES, activation=nn.SiLU()), ELEMENTS)
    with pytest.raises(ConfigError, match=r"only 10 distinct structures.*at most 10"):
        head.initialize(embeddings(60), torch.full((60,), 6), torch.arange(10).repeat_interleave(6))


def test_trains_on_a_backbone_without_weights(tmp_path: Path):
    """Through the training loop, from one epoch to twenty: force errors on other structures fall by half."""
    backbone = CoordinatesConfig(n_atoms=9)
    train_set, validation_set = (
        GraphDataset(labelled_structures(n, seed), backbone.cutoff) for n, seed in ((60, 1), (20, 2))
    )
    head = SVGPConfig(n_inducing=40, n_samples=1, n_frequencies=1)
    potential = Potential(PotentialConfig(backbone=backbone, head=head), compute_statistics(train_set))
    potential.head.initialize(*LabelledObservations(potential, train_set).embeddings())
    config = CONFIG.model_copy(update={"max_epochs": 20, "batch_size": 10, "head_learning_rate": 0.03})
    result = train(potential, train_set, validation_set, config, tmp_path, seed=7)
    assert result.history[-1].forces_mae < 0.5 * result.history[0].forces_mae


@pytest.mark.parametrize(("freeze", "last"), [(False, "joint"), (True, "head")])
def test_says_how_it_is_trained(freeze: bool, last: str):
    assert SVGPConfig(freeze_backbone=freeze).stages == ("backbone", last)


def potential_on(backbone: BackboneConfig, kernel: str = "rbf") -> Potential:
    """float64, with a random posterior."""
    head = SVGPConfig(kernel=kernel, n_inducing=10, n_samples=400, n_frequencies=1000)
    potential = Potential(PotentialConfig(backbone=backbone, head=head), STATISTICS)
    potential.set_precision(torch.float64)
    graph = graph_of(*[displaced(atoms, seed) for atoms in (ETHANOL, AMMONIA, WATER) for seed in range(4)])
    with torch.no_grad():
        potential.head.initialize(potential.embed(graph), graph.atomic_numbers, graph.structure_index)
        give_posterior(potential.head.process)
    return potential.eval()


@pytest.mark.parametrize("backbone", [SCHNET, CoordinatesConfig(n_atoms=9)], ids=lambda config: config.name)
class TestInAPotential:
    def test_forces_conserve_energy(self, backbone: BackboneConfig):
        potential, graph = potential_on(backbone), graph_of(ETHANOL, WATER)
        forces = potential.predict(graph, forces_std="none").forces
        for atom, axis in [(0, 0), (5, 2), (10, 1)]:
            step = torch.zeros_like(graph.positions)
            step[atom, axis] = 1e-4
            there, back = (
                potential.predict(graph.with_positions(graph.positions + sign * step), forces_std="none").energy.sum()
                for sign in (1.0, -1.0)
            )
            assert float(forces[atom, axis]) == pytest.approx(float(back - there) / 2e-4, rel=1e-5, abs=1e-6)

    def test_sampled_force_std_is_near_the_exact(self, backbone: BackboneConfig):
        values = predicted(potential_on(backbone), graph_of(ETHANOL, WATER))
        exact, sampled = values["forces_std_exact"], values["forces_std_sampled"]
        assert float((sampled / exact - 1.0).square().mean().sqrt()) < 0.2

    def test_a_saved_potential_is_the_same_potential(self, backbone: BackboneConfig, tmp_path: Path):
        potential, graph = potential_on(backbone), graph_of(ETHANOL, WATER)
        save(potential, tmp_path / "model.sigmaff")
        loaded = load(tmp_path / "model.sigmaff")
        close(predicted(loaded, graph), predicted(potential, graph), rtol=0.0, atol=0.0)

    def test_nothing_of_an_earlier_posterior_is_kept(self, backbone: BackboneConfig):
        potential, graph = potential_on(backbone), graph_of(WATER)
        before = potential.predict(graph)
        with torch.no_grad():
            potential.head.process.weight_cholesky.mul_(2.0)
        after = potential.predict(graph)
        assert bool((after.energy_std > before.energy_std).all())
        assert bool((after.forces_std >= before.forces_std).all())


class TestWhatItLacks:
    """It sees structures as wholes."""

    def test_std_is_not_size_consistent_for_far_copies(self):
        """Each copy takes the sum farther from all training structures: σ comes to the prior's, and stays there."""
        potential = potential_on(SCHNET)
        prior = 0.7 * math.exp(potential.head.process.kernel.log_scale.item())
        std = [
            float(potential.predict(graph_of(far_copies(ETHANOL, n)), forces_std="none").energy_std)
            for n in (1, 2, 4, 64)
        ]
        assert std[-1] == pytest.approx(prior, rel=1e-3)
        for n, value in zip((2, 4, 64), std[1:], strict=True):
            assert abs(value / (n * std[0]) - 1.0) > 0.05
            assert abs(value / (math.sqrt(n) * std[0]) - 1.0) > 0.05

    def test_energies_are_not_extensive_for_far_molecules(self):
        potential, far = potential_on(SCHNET), AMMONIA.copy()
        far.positions += [20.0, 3.0, 0.0]
        one, other, both = (
            float(potential.predict(graph_of(atoms), forces_std="none").energy)
            for atoms in (ETHANOL, AMMONIA, ETHANOL + far)
        )
        assert abs(both - one - other) > 1e-2

    def test_raw_coordinates_are_not_invariant_under_rotation(self):
        """And on an invariant backbone it has the same."""
        graph = graph_of(ETHANOL)
        quarter = torch.tensor([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]], dtype=torch.float64)
        turned = replace(graph, positions=graph.positions @ quarter.T)
        for backbone, same in ((SCHNET, True), (CoordinatesConfig(n_atoms=9), False)):
            potential = potential_on(backbone)
            before, after = (potential.predict(g, forces_std="none") for g in (graph, turned))
            for name in ("energy", "energy_std"):
                change = float((getattr(after, name) - getattr(before, name)).abs())
                assert change < 1e-9 if same else change > 1e-3, name


def test_a_process_learns_at_a_rate_of_its_own_unless_told_another() -> None:
    """The rate that the optimiser gets; a plain readout takes that of the backbone."""
    process = SVGPConfig(n_inducing=8, n_samples=16, n_frequencies=64)
    at_prior = process.model_copy(update={"start": "prior"})
    untold, told = TrainingConfig(learning_rate=2e-3), TrainingConfig(learning_rate=2e-3, head_learning_rate=5e-4)
    for head, config, expected in (
        (process, untold, 1e-3),
        (at_prior, untold, 1e-2),
        (process, told, 5e-4),
        (DeterministicConfig(), untold, 2e-3),
    ):
        potential = Case(backbone=BACKBONES[0], head=head).build()
        groups = _optimizer(potential, config.for_head(potential.head)).param_groups
        assert [group["lr"] for group in groups] == [2e-3, expected]
