"""The graph mixture density network against quadrature, torch.distributions and finite differences; and its limits."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional

from contract import BACKBONES, ETHANOL, EXACT, FINITE_DIFFERENCE, SINGLE, WATER, graph_of
from head_case import (
    bags,
    far_copies,
    numerical_forces,
    plain_embedding,
    potential_with,
    train_and_reload,
)
from sigmaff.backbones import BackboneConfig
from sigmaff.heads import GMDN, GMDNConfig
from sigmaff.heads.gmdn import GaussianMixture

close = torch.testing.assert_close
HEAD = GMDNConfig(n_components=4, n_hidden=8)
N_ATOMS = [1, 3, 2, 4, 2]
on_backbones = pytest.mark.parametrize(
    "backbone", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}"
)


def random_head(config: GMDNConfig = HEAD, n_features: int = 3) -> GMDN:
    """Weights large enough to tell components and structures apart."""
    head = GMDN(config, plain_embedding(n_features), (1,))
    head.set_precision(torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head.requires_grad_(False)


def random_features() -> Tensor:
    return torch.randn(sum(N_ATOMS), 3, dtype=torch.float64)


def mixture() -> GaussianMixture:
    return random_head()(random_features(), bags(N_ATOMS))


def drawn_from(distribution: GaussianMixture) -> Tensor:
    return as_torch(distribution).sample()


def as_torch(distribution: GaussianMixture) -> MixtureSameFamily:
    components = Normal(distribution.means, distribution.stds)
    return MixtureSameFamily(Categorical(logits=distribution.log_weights), components)


def test_density_integrates_to_one_with_these_moments():
    """By the trapezoidal rule, fine against the narrowest Gaussian and wide against all of them."""
    found = mixture()
    assert float(found.stds.max() / found.stds.min()) > 3
    for index in range(len(N_ATOMS)):
        low = float((found.means - 12.0 * found.stds)[index].min())
        high = float((found.means + 12.0 * found.stds)[index].max())
        energy = torch.arange(low, high, float(found.stds[index].min()) / 8.0, dtype=torch.float64)
        alone = GaussianMixture(**{name: value[index : index + 1] for name, value in found.tensors().items()})
        density = alone.log_density(energy).exp()
        mean = torch.trapezoid(energy * density, energy)
        assert float(torch.trapezoid(density, energy)) == pytest.approx(1.0, abs=1e-9)
        assert float(mean) == pytest.approx(float(found.mean[index]), abs=1e-8)
        variance = torch.trapezoid((energy - mean).square() * density, energy)
        assert float(variance) == pytest.approx(float(found.variance[index]), rel=1e-8)


def test_loss_and_moments_are_those_of_torch_distributions():
    found = mixture()
    expected = as_torch(found)
    target = found.mean + torch.linspace(-3.0, 3.0, len(N_ATOMS), dtype=torch.float64)
    close(random_head().energy_loss(found, target, n_train=5), -expected.log_prob(target).mean(), **EXACT)
    close((found.mean, found.variance), (expected.mean, expected.variance), **EXACT)


def test_large_energies_cost_no_digits_of_the_variance():
    """A readout of 10⁴ in float32 has an ulp of 10⁻³, which squared differences of means would not survive."""
    head, features = random_head(), random_features()
    exact = head(features, bags(N_ATOMS))
    head.linear.bias.fill_(1e4)
    head.set_precision(torch.float32)
    close(head(features.float(), bags(N_ATOMS)).variance.double(), exact.variance, **SINGLE)


@pytest.mark.parametrize("min_std", [1e-3, 0.05])
def test_the_floor_bounds_the_likelihood(min_std: float):
    """All Gaussians shrunk to nothing upon the labels: the loss is that of the floor, and its gradient is finite."""
    head = random_head(HEAD.model_copy(update={"min_std": min_std}))
    head.network[-1].weight.zero_()
    head.network[-1].bias[0] = -1e4  # the width s
    head.requires_grad_()
    found = head(random_features(), bags(N_ATOMS))
    loss = head.energy_loss(found, found.mean.detach(), n_train=5)
    assert loss.item() == pytest.approx(math.log(math.sqrt(2.0 * math.pi) * min_std), abs=1e-9)
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    close(found.variance.detach().sqrt(), torch.full((len(N_ATOMS),), min_std, dtype=torch.float64), **EXACT)


def test_training_statistics_centre_what_the_network_sees():
    """With them, embeddings in another unit and from another origin give the same mixture about another readout."""
    head, features, graph = random_head(), random_features(), bags([2] * 5)
    features = features[:10]
    head.linear.weight.zero_()
    head.initialize(features, graph.atomic_numbers, graph.structure_index)
    before = head(features, graph)
    other = 50.0 * features + torch.tensor([3.0, -100.0, 7.0], dtype=torch.float64)
    head.initialize(other, graph.atomic_numbers, graph.structure_index)
    close(head(other, graph).tensors(), before.tensors(), **EXACT)


def test_structures_that_are_all_the_same_have_no_spread():
    head, graph = random_head(), bags([2, 2])
    features = torch.tensor([[0.1, 2.0, -1.0], [0.3, 0.4, 0.5]] * 2, dtype=torch.float64)
    head.initialize(features, graph.atomic_numbers, graph.structure_index)
    assert float(head.pooled_spread) == 1.0
    assert bool(torch.isfinite(head(features, graph).variance).all())


def two_branches(features: Tensor) -> GaussianMixture:
    """Energies x + 1 or x − 1 by chance, the upper branch the likelier the larger y, with noise of 0.1."""
    x, y = features.T
    log_weights = torch.stack([functional.logsigmoid(3.0 * y), functional.logsigmoid(-3.0 * y)], dim=-1)
    means = torch.stack([x + 1.0, x - 1.0], dim=-1)
    weights = log_weights.exp()
    mean = (weights * means).sum(-1)
    return GaussianMixture(
        mean=mean,
        variance=0.01 + (weights * (means - mean.unsqueeze(-1)).square()).sum(-1),
        log_weights=log_weights,
        means=means,
        stds=torch.full_like(means, 0.1),
    )


def test_two_branches_of_energies_are_found():
    """On structures not seen: nearly the likelihood of the distribution that made the labels, its mean and its σ.

    The one Gaussian with this mean and σ is far from that likelihood.
    """
    n = 1000
    features = 2.0 * torch.rand(n, 2, dtype=torch.float64) - 1.0
    unseen = 2.0 * torch.rand(n, 2, dtype=torch.float64) - 1.0
    energies, unseen_energies = drawn_from(two_branches(features)), drawn_from(two_branches(unseen))
    graph = bags([1] * n)
    head = GMDN(GMDNConfig(n_components=3, n_hidden=16), plain_embedding(2), (1,))
    head.set_precision(torch.float64)
    head.initialize(features, graph.atomic_numbers, graph.structure_index)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(400):
        loss = head.energy_loss(head(features, graph), energies, n)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found, true = head(unseen, graph).detached(), two_branches(unseen)
    surprise, least = (float(-one.log_density(unseen_energies).mean()) for one in (found, true))
    of_one = float(-Normal(true.mean, true.variance.sqrt()).log_prob(unseen_energies).mean())
    assert surprise < least + 0.2 < of_one - 1.0
    assert float((found.mean - true.mean).abs().mean()) < 0.2
    assert float((found.variance.sqrt() - true.variance.sqrt()).abs().mean()) < 0.15


@on_backbones
def test_energies_are_invariant_under_permutation_and_forces_conserve_them(backbone: BackboneConfig):
    potential = potential_with(backbone, HEAD)
    order = np.random.default_rng(0).permutation(len(ETHANOL))
    one, other = potential.predict(graph_of(ETHANOL)), potential.predict(graph_of(ETHANOL[order]))
    close((other.energy, other.energy_std, other.forces), (one.energy, one.energy_std, one.forces[order]), **EXACT)
    close(potential.predict(graph_of(WATER)).forces, numerical_forces(potential, WATER), **FINITE_DIFFERENCE)
    assert one.node_energy is None
    assert one.forces_std is None
    assert one.node_energy_std is None
    assert one.provenance.kind == "aleatoric"


@on_backbones
def test_energies_are_not_extensive_for_far_copies(backbone: BackboneConfig):
    """The network sees a structure as a whole: neither its energy nor its σ grows with the number of copies."""
    potential = potential_with(backbone, HEAD)
    with torch.no_grad():
        for parameter in potential.head.network.parameters():
            parameter.normal_()
    one = potential.predict(graph_of(ETHANOL))
    for n in (2, 4):
        many = potential.predict(graph_of(far_copies(ETHANOL, n)))
        assert abs(float(many.energy - n * one.energy)) > 1e-3
        ratio = float(many.energy_std / one.energy_std)
        assert abs(ratio / n - 1.0) > 0.02
        assert abs(ratio / math.sqrt(n) - 1.0) > 0.02


@on_backbones
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trains_on_energies_and_forces_and_survives_its_file(
    backbone: BackboneConfig, dtype: torch.dtype, tmp_path: Path
):
    before, after = train_and_reload(potential_with(backbone, HEAD), dtype, tmp_path / "model.sigmaff")
    for name in ("energy", "forces", "energy_std"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
