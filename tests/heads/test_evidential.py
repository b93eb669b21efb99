"""Evidential regression against the hierarchical model it stands for, by quadrature and by sampling; and its limits."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from contract import AMMONIA, BACKBONES, ETHANOL, EXACT, FINITE_DIFFERENCE, WATER, Case, graph_of
from head_case import (
    bags,
    far_copies,
    numerical_forces,
    plain_embedding,
    potential_with,
    train_and_reload,
)
from sigmaff.backbones import BackboneConfig
from sigmaff.heads import DeterministicConfig, Evidential, EvidentialConfig
from sigmaff.heads.evidential import FLOOR, NormalInverseGamma

close = torch.testing.assert_close
PARAMETERS = [(0.3, 0.7, 1.6, 0.4), (-1.0, 2.5, 3.0, 1.2), (5.0, 0.2, 7.0, 0.05)]  # γ, v, α, β
on_backbones = pytest.mark.parametrize(
    "backbone", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}"
)


def distribution(gamma: float, v: float, alpha: float, beta: float) -> NormalInverseGamma:
    values = torch.tensor([gamma, v, alpha - 1.0, beta], dtype=torch.float64)
    mean, evidence, excess, scale = values.unsqueeze(-1).unbind()
    return NormalInverseGamma(mean=mean, evidence=evidence, excess=excess, scale=scale)


def identity_head(config: EvidentialConfig | None = None, dtype: torch.dtype = torch.float64) -> Evidential:
    """A head whose four readouts are the four features."""
    head = Evidential(config or EvidentialConfig(), plain_embedding(4), (1,))
    head.set_precision(dtype)
    with torch.no_grad():
        head.linear.weight.copy_(torch.eye(4))
    return head.requires_grad_(False)


def inverse_softplus(x: float) -> float:
    return math.log(math.expm1(x - FLOOR))


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_the_likelihood_is_the_marginal_of_the_hierarchical_model(parameters: tuple[float, float, float, float]):
    """∫∫ N(E | μ, s²) N(μ | γ, s²/v) Γ⁻¹(s² | α, β) dμ ds², by the trapezoidal rule in log s² and (μ − γ)√v/s."""
    gamma, v, alpha, beta = parameters
    log_variance = np.linspace(np.log(beta) - 15.0, np.log(beta) + 40.0, 4001)[:, None]
    variance = np.exp(log_variance)
    z = np.linspace(-12.0, 12.0, 601)
    mu_std = np.sqrt(variance / v)
    mu = gamma + mu_std * z
    prior = stats.norm.pdf(mu, gamma, mu_std) * mu_std * stats.invgamma.pdf(variance, alpha, scale=beta) * variance
    for energy in gamma + np.array([-3.0, -0.4, 0.0, 1.1]):
        joint = prior * stats.norm.pdf(energy, mu, np.sqrt(variance))
        density = np.trapezoid(np.trapezoid(joint, z, axis=1), log_variance[:, 0])
        found = distribution(*parameters).negative_log_likelihood(torch.tensor([energy]))
        assert float(found) == pytest.approx(-np.log(density), abs=1e-6)


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_the_likelihood_is_a_student_t(parameters: tuple[float, float, float, float]):
    gamma, v, alpha, beta = parameters
    energies = np.linspace(-8.0, 9.0, 18)
    expected = stats.t.logpdf(energies, 2.0 * alpha, gamma, np.sqrt(beta * (1.0 + v) / (v * alpha)))
    close(distribution(*parameters).negative_log_likelihood(torch.tensor(energies)), torch.tensor(-expected), **EXACT)


def test_much_evidence_makes_a_gaussian():
    """Of variance β/α; the terms of the likelihood are some 10⁹ here, and all but cancel."""
    alpha, beta = 1e8, 4e7
    energies = torch.tensor([-2.0, 0.1, 1.5])
    found = distribution(0.0, 1e12, alpha, beta).negative_log_likelihood(energies)
    expected = stats.norm.logpdf(energies.numpy(), 0.0, np.sqrt(beta / alpha))
    close(found, torch.tensor(-expected, dtype=torch.float64), rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("parameters", PARAMETERS[1:])
def test_variances_are_those_of_samples(parameters: tuple[float, float, float, float]):
    """Epistemic Var[μ], aleatoric E[s²], total Var[E]; each within five standard errors of its estimate."""
    gamma, v, alpha, beta = parameters
    generator = np.random.default_rng(0)
    n = 400_000
    variance = 1.0 / generator.gamma(alpha, 1.0 / beta, n)
    mu = generator.normal(gamma, np.sqrt(variance / v))
    energy = generator.normal(mu, np.sqrt(variance))
    samples = {"epistemic": (mu - gamma) ** 2, "aleatoric": variance, "total": (energy - gamma) ** 2}
    raw = torch.tensor([[gamma, *map(inverse_softplus, (v, alpha - 1.0, beta))]], dtype=torch.float64)
    for std, values in samples.items():
        head = identity_head(EvidentialConfig(std=std))
        found = head(raw, bags([1]))
        assert head.kind == std
        assert float(found.variance) == pytest.approx(values.mean(), abs=5.0 * values.std() / math.sqrt(n))
        assert float(found.mean) == gamma


def test_loss_is_likelihood_and_penalty():
    """Mean over structures of −log p + λ|E − γ|(2v + α)."""
    raw = torch.tensor([[0.5, 1.0, -0.3, 0.2], [-1.0, 0.1, 2.0, -2.0]], dtype=torch.float64)
    target = torch.tensor([0.9, -3.0], dtype=torch.float64)
    v, excess, beta = functional.softplus(raw[:, 1:]).numpy().T + FLOOR
    error, alpha = (target - raw[:, 0]).numpy(), 1.0 + excess
    penalty = np.abs(error) * (2.0 * v + alpha)
    likelihood = stats.t.logpdf(error, 2.0 * alpha, 0.0, np.sqrt(beta * (1.0 + v) / (v * alpha)))
    for strength in (0.0, 0.2, 3.0):
        head = identity_head(EvidentialConfig(regularization=strength))
        loss = head.energy_loss(head(raw, bags([1, 1])), target, n_train=2)
        assert loss.item() == pytest.approx(np.mean(strength * penalty - likelihood), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_readouts_have_finite_losses_and_gradients(dtype: torch.dtype):
    extremes = [-1e6, -100.0, 0.0, 100.0, 1e6]
    raw = torch.tensor(list(itertools.product([-1e6, 0.0, 1e6], extremes, extremes, extremes)), dtype=dtype)
    raw.requires_grad_()
    head = identity_head(dtype=dtype)
    found = head(raw, bags([1] * len(raw)))
    for value in (found.evidence, found.excess, found.scale):
        assert value.min().item() >= FLOOR * (1.0 - 1e-6)
    assert found.variance.dtype == dtype
    assert bool(torch.isfinite(found.variance).all())
    assert bool((found.variance > 0).all())
    for energy in (-1e4, 0.0, 1e4):
        loss = head.energy_loss(found, torch.full((len(raw),), energy, dtype=dtype), n_train=1)
        (gradient,) = torch.autograd.grad(loss, raw, retain_graph=True)
        assert math.isfinite(loss.item())
        assert bool(torch.isfinite(gradient).all())


def toy_structures(noise: float) -> tuple[Tensor, Tensor, list[int]]:
    """Features of structures of one to four atoms, and energies that are sums over these atoms, with noise."""
    generator = torch.Generator().manual_seed(2)
    n_atoms = [1 + index % 4 for index in range(200)]
    features = torch.randn(sum(n_atoms), 3, generator=generator, dtype=torch.float64)
    index = torch.arange(len(n_atoms)).repeat_interleave(torch.tensor(n_atoms))
    by_atom = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    energies = torch.zeros(len(n_atoms), dtype=torch.float64).index_add(0, index, by_atom)
    return features, energies + noise * torch.randn(len(n_atoms), generator=generator, dtype=torch.float64), n_atoms


def test_training_finds_energies_and_their_noise():
    """γ comes to the noiseless energies as near as noise allows, and −log p to the entropy of the noise."""
    features, energies, n_atoms = toy_structures(noise=0.3)
    graph = bags(n_atoms)
    head = Evidential(EvidentialConfig(regularization=0.01), plain_embedding(3), (1,))
    head.set_precision(torch.float64)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(300):
        loss = head.energy_loss(head(features, graph), energies, len(energies))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found, clean = head(features, graph).detached(), toy_structures(noise=0.0)[1]
    assert float((found.mean - clean).square().mean().sqrt()) < 0.1
    surprise = float(found.negative_log_likelihood(energies).mean())
    assert surprise == pytest.approx(float(stats.norm.entropy(0.0, 0.3)), abs=0.1)


def test_starts_from_a_trained_readout():
    for backbone in BACKBONES:
        plain = Case(backbone=backbone, head=DeterministicConfig()).build()
        if plain.head.linear.bias is not None:
            torch.nn.init.constant_(plain.head.linear.bias, 0.7)
        graph = graph_of(ETHANOL, WATER)
        before = plain.predict(graph)
        after = plain.with_head(EvidentialConfig()).predict(graph)
        close((after.energy, after.forces), (before.energy, before.forces), **EXACT)
        assert after.energy_std is not None


@on_backbones
def test_energies_are_extensive_and_forces_conserve_them(backbone: BackboneConfig):
    potential = potential_with(backbone, EvidentialConfig())
    far = AMMONIA.copy()
    far.positions += [20.0, 3.0, 0.0]
    pair, one, other = (potential.predict(graph_of(atoms)) for atoms in (WATER + far, WATER, AMMONIA))
    close(pair.energy, one.energy + other.energy, **EXACT)
    close(pair.node_energy, torch.cat([one.node_energy, other.node_energy]), **EXACT)
    close(one.forces, numerical_forces(potential, WATER), **FINITE_DIFFERENCE)
    assert one.forces_std is None
    assert one.node_energy_std is None


@on_backbones
def test_std_is_not_size_consistent_for_far_copies(backbone: BackboneConfig):
    """Each sum of readouts grows as n, and σ² is the quotient of what a softplus makes of them."""
    potential = potential_with(backbone, EvidentialConfig())
    graph = graph_of(ETHANOL)
    raw = potential.head.linear(potential.head.activation(potential.backbone(potential.backbone.prepare(graph)))).sum(0)
    one = float(potential.predict(graph).energy_std)
    for n in (2, 4, 8):
        ratio = float(potential.predict(graph_of(far_copies(ETHANOL, n))).energy_std) / one
        v, excess, beta = (functional.softplus(n * raw[1:]) + FLOOR).tolist()
        expected = potential.statistics.scale * math.sqrt(beta / (v * excess)) / one
        assert ratio == pytest.approx(expected, rel=1e-8)
        assert abs(ratio / n - 1.0) > 0.05
        assert abs(ratio / math.sqrt(n) - 1.0) > 0.05


@on_backbones
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trains_on_energies_and_forces_and_survives_its_file(
    backbone: BackboneConfig, dtype: torch.dtype, tmp_path: Path
):
    before, after = train_and_reload(
        potential_with(backbone, EvidentialConfig(std="total")), dtype, tmp_path / "model.sigmaff"
    )
    assert after.provenance.kind == "total"
    for name in ("energy", "forces", "node_energy", "energy_std"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
