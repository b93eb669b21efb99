"""The graph mixture density network against quadrature, torch.distributions and finite differences; and its limits."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
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
from sigmaff.heads.gmdn import FIRST_WIDTH, GaussianMixture, Networks

close = torch.testing.assert_close
HEAD = GMDNConfig(n_components=4, n_hidden=8)
SEPARATE = GMDNConfig(components="separate", n_components=4, n_hidden=8, n_layers=2)
with_both = pytest.mark.parametrize("config", [HEAD, SEPARATE], ids=lambda config: config.components)
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


def mixture(config: GMDNConfig = HEAD) -> GaussianMixture:
    return random_head(config)(random_features(), bags(N_ATOMS))


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


@with_both
def test_loss_and_moments_are_those_of_torch_distributions(config: GMDNConfig):
    found = mixture(config)
    expected = as_torch(found)
    target = found.mean + torch.linspace(-3.0, 3.0, len(N_ATOMS), dtype=torch.float64)
    close(random_head().energy_loss(found, target, n_train=5), -expected.log_prob(target).mean(), **EXACT)
    close((found.mean, found.variance), (expected.mean, expected.variance), **EXACT)


def by_hand(head: GMDN, network: int, pooled: Tensor) -> Tensor:
    """One output of ``Networks``, by torch.nn."""
    assert isinstance(head.network, Networks)
    values = pooled
    for layer, (weight, bias) in enumerate(zip(head.network.weights, head.network.biases, strict=True)):
        values = functional.linear(functional.silu(values) if layer else values, weight[network].T, bias[network, 0])
    return values.squeeze(-1)


@pytest.mark.parametrize("n_layers", [0, 1, 3])
def test_separate_components_are_networks_of_the_pooled_embedding(n_layers: int):
    """f_c, g_c and k_c of the docstring, evaluated one by one."""
    config = SEPARATE.model_copy(update={"n_layers": n_layers})
    head, features, graph = random_head(config), random_features(), bags(N_ATOMS)
    head.initialize(features, graph.atomic_numbers, graph.structure_index)
    pooled = torch.stack([features[graph.structure_index == index].sum(0) for index in range(len(N_ATOMS))])
    pooled = (pooled - pooled.mean(0)) / (pooled - pooled.mean(0)).square().mean().sqrt()
    logits, means, widths = (
        torch.stack([by_hand(head, 4 * kind + component, pooled) for component in range(4)], dim=-1)
        for kind in range(3)
    )
    found = head(features, graph)
    close(found.log_weights.exp(), torch.softmax(logits, -1), **EXACT)
    close(found.means, means, **EXACT)
    close(found.stds, torch.log1p(widths.exp() * math.expm1(FIRST_WIDTH)) + config.min_std, **EXACT)


def test_separate_components_share_nothing():
    """Each parameter of a component moves its own Gaussian alone, up to the sum of the weights."""
    head, features, graph = random_head(SEPARATE).requires_grad_(), random_features(), bags(N_ATOMS)
    assert isinstance(head.network, Networks)
    head(features, graph).means[:, 1].sum().backward()
    moved = [parameter.grad.flatten(1).abs().sum(1) > 0 for parameter in head.network.parameters()]
    assert all(of_network.nonzero().flatten().tolist() == [4 + 1] for of_network in moved)
    assert [name for name, _ in head.named_parameters() if not name.startswith("network.")] == []


def test_files_of_versions_without_separate_components_have_the_same_tensors():
    head = GMDN(GMDNConfig(), plain_embedding(3), (1,))
    names = {f"{layer}.{kind}" for layer in ("linear", "network.0", "network.2") for kind in ("weight", "bias")}
    assert set(head.state_dict()) == names | {"pooled_mean", "pooled_spread"}
    assert set(GMDNConfig().model_dump()) == {"name", "n_components", "n_hidden", "min_std"}


def test_large_energies_cost_no_digits_of_the_variance():
    """A readout of 10⁴ in float32 has an ulp of 10⁻³, which squared differences of means would not survive."""
    head, features = random_head(), random_features()
    exact = head(features, bags(N_ATOMS))
    assert head.linear is not None
    head.linear.bias.fill_(1e4)
    head.set_precision(torch.float32)
    close(head(features.float(), bags(N_ATOMS)).variance.double(), exact.variance, **SINGLE)


@pytest.mark.parametrize("min_std", [1e-3, 0.05])
def test_the_floor_bounds_the_likelihood(min_std: float):
    """All Gaussians shrunk to nothing upon the labels: the loss is that of the floor, and its gradient is finite."""
    head = random_head(HEAD.model_copy(update={"min_std": min_std}))
    assert isinstance(head.network, nn.Sequential)
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
    assert head.linear is not None
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


@pytest.mark.parametrize("components", ["shared", "separate"])
def test_two_branches_of_energies_are_found(components: str):
    """On structures not seen: nearly the likelihood of the distribution that made the labels, its mean and its σ.

    The one Gaussian with this mean and σ is far from that likelihood.
    """
    n = 1000
    features = 2.0 * torch.rand(n, 2, dtype=torch.float64) - 1.0
    unseen = 2.0 * torch.rand(n, 2, dtype=torch.float64) - 1.0
    energies, unseen_energies = drawn_from(two_branches(features)), drawn_from(two_branches(unseen))
    graph = bags([1] * n)
    config = GMDNConfig.model_validate({"components": components, "n_components": 3, "n_hidden": 16})
    head = GMDN(config, plain_embedding(2), (1,))
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


@pytest.mark.parametrize("seed", range(5))
def test_every_component_begins_within_sight_of_the_energies(seed: int):
    """The likelihood has no gradient left for a Gaussian that misses them by many σ, and slopes alone are right
    wherever it is: a training with forces once left 0.9 of the weight on such a one."""
    torch.manual_seed(seed)
    head, pooled = GMDN(GMDNConfig(components="separate"), plain_embedding(8), (1,)), torch.randn(300, 8)
    with torch.no_grad():
        found = head(pooled, bags([1] * 300))
    energies = torch.linspace(-2.0, 2.0, 9)[:, None, None]  # units of the rms force component times 1 Å
    assert ((energies - found.means) / found.stds).abs().max() < 6.0


@with_both
@on_backbones
def test_energies_are_invariant_under_permutation_and_forces_conserve_them(
    backbone: BackboneConfig, config: GMDNConfig
):
    potential = potential_with(backbone, config)
    order = np.random.default_rng(0).permutation(len(ETHANOL))
    one, other = potential.predict(graph_of(ETHANOL)), potential.predict(graph_of(ETHANOL[order]))
    close((other.energy, other.energy_std, other.forces), (one.energy, one.energy_std, one.forces[order]), **EXACT)
    close(potential.predict(graph_of(WATER)).forces, numerical_forces(potential, WATER), **FINITE_DIFFERENCE)
    assert one.node_energy is None
    assert one.forces_std is None
    assert one.node_energy_std is None
    assert one.provenance.kind == "aleatoric"


@with_both
@on_backbones
def test_energies_are_not_extensive_for_far_copies(backbone: BackboneConfig, config: GMDNConfig):
    """The network sees a structure as a whole: neither its energy nor its σ grows with the number of copies."""
    potential = potential_with(backbone, config)
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


@with_both
@on_backbones
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trains_on_energies_and_forces_and_survives_its_file(
    backbone: BackboneConfig, dtype: torch.dtype, config: GMDNConfig, tmp_path: Path
):
    before, after = train_and_reload(potential_with(backbone, config), dtype, tmp_path / "model.sigmaff")
    for name in ("energy", "forces", "energy_std"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
