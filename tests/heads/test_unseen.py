"""What is not known about surroundings that no training structure holds, against its covariance written out."""

import numpy as np
import pytest
import torch
from scipy.special import gamma, kv
from torch import Tensor

from head_case import bags
from sigmaff.graph import AtomicGraph
from sigmaff.heads.lnk.unseen import LENGTH, UnseenSurroundings, Waves

N_FEATURES, N_ELEMENTS = 4, 2


@pytest.fixture
def unseen() -> UnseenSurroundings:
    torch.manual_seed(0)
    kernel = UnseenSurroundings(N_FEATURES, N_ELEMENTS)
    training = torch.randn(60, N_FEATURES, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5, 0.1])
    kernel.learn(training, torch.arange(60) % 2)
    kernel.prior.fill_(1.7)
    kernel.reach.fill_(3.0)
    return kernel


def atoms(n_atoms: list[int], spread: float = 3.0) -> tuple[Tensor, Tensor, AtomicGraph]:
    torch.manual_seed(1)
    n = sum(n_atoms)
    return spread * torch.randn(n, N_FEATURES, dtype=torch.float64), torch.arange(n) % 3, bags(n_atoms)


def matern(r: np.ndarray) -> np.ndarray:
    """Of degree 5/2, by its definition with a Bessel function."""
    scaled = np.sqrt(5.0) * np.maximum(r, 1e-9)
    return 2.0**-1.5 / gamma(2.5) * scaled**2.5 * kv(2.5, scaled)


def covariance(kernel: UnseenSurroundings, x: Tensor, other: Tensor, elements: Tensor) -> np.ndarray:
    """k(x_i, x'_j) from the formulas of the module, in NumPy."""
    whitening, means = kernel.whitening.numpy(), kernel.means.numpy()
    points, owners = kernel.points.numpy(), kernel.point_elements.numpy()

    def stand(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
        y = np.stack([(v - means[e]) @ whitening[e] for v, e in zip(values.numpy(), elements.numpy(), strict=True)])
        sums = [
            ((float(kernel.reach) / np.linalg.norm(points[owners == e] - row, axis=1)) ** 8).sum()
            for row, e in zip(y, elements.numpy(), strict=True)
        ]
        return y, 1.0 / np.sqrt(1.0 + np.array(sums))

    (y, a), (y_other, a_other) = stand(x), stand(other)
    r = np.linalg.norm(y[:, None] - y_other, axis=-1) / (LENGTH * float(kernel.reach))
    same = elements.numpy()[:, None] == elements.numpy()
    return float(kernel.prior) ** 2 * same * np.outer(a, a_other) * matern(r)


def summed(pairs: np.ndarray, graph: AtomicGraph) -> np.ndarray:
    index = graph.structure_index.numpy()
    return np.array([pairs[np.ix_(index == k, index == k)].sum() for k in range(graph.n_structures)])


def test_variance_is_that_of_the_covariance_written_out(unseen: UnseenSurroundings):
    x, elements, graph = atoms([3, 1, 5])
    pairs = covariance(unseen, x, x, elements)
    np.testing.assert_allclose(unseen.at(x, elements).variance(graph), summed(pairs, graph), rtol=1e-5)
    np.testing.assert_allclose(unseen.at(x, elements).node_variance(), np.diag(pairs), rtol=1e-5)


def test_slope_variance_is_the_mixed_derivative_of_the_covariance(unseen: UnseenSurroundings):
    x, elements, graph = atoms([5, 7], spread=1.5)
    assert float(unseen.at(x, elements).amplitude.std()) > 0.1  # it varies, as κ does
    tangents = torch.randn(2, *x.shape, dtype=torch.float64)
    step, found = 1e-3, unseen.at(x, elements).slope_variance(tangents, graph)
    for tangent, variance in zip(tangents, found, strict=True):
        ends = [x + step * tangent, x - step * tangent]
        signs = [(0, 0, 1), (0, 1, -1), (1, 0, -1), (1, 1, 1)]
        mixed = sum(sign * covariance(unseen, ends[i], ends[j], elements) for i, j, sign in signs) / (2 * step) ** 2
        np.testing.assert_allclose(variance, summed(mixed, graph), rtol=1e-3)


def test_slope_of_the_amplitude_is_its_derivative(unseen: UnseenSurroundings):
    x, elements, _ = atoms([4])
    moved = torch.randn_like(x)

    def amplitude(surroundings: Tensor) -> Tensor:
        return unseen.at(surroundings, elements).amplitude

    slope = torch.func.jvp(amplitude, (x,), (moved,))[1]
    of_coordinates = torch.func.jvp(lambda values: unseen.at(values, elements).coordinates, (x,), (moved,))[1]
    expected = (unseen.at(x, elements).slope * of_coordinates).sum(-1)
    torch.testing.assert_close(slope, expected)


def test_training_atoms_are_known_and_far_ones_are_not(unseen: UnseenSurroundings):
    torch.manual_seed(0)
    training = torch.randn(60, N_FEATURES, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5, 0.1])
    elements = torch.arange(60) % 2
    assert (unseen.at(training, elements).node_variance() < 1e-6 * unseen.prior**2).all()
    far = 1e4 * torch.randn(5, N_FEATURES, dtype=torch.float64)
    torch.testing.assert_close(unseen.at(far, elements[:5]).node_variance(), unseen.prior.square().expand(5))


def test_an_element_that_was_not_seen_has_the_prior(unseen: UnseenSurroundings):
    x = torch.zeros(1, N_FEATURES, dtype=torch.float64)
    assert float(unseen.at(x, torch.tensor([N_ELEMENTS])).node_variance()) == pytest.approx(float(unseen.prior) ** 2)


def test_copies_are_wrong_alike(unseen: UnseenSurroundings):
    """σ of n copies is n times that of one: atoms in like surroundings have like errors."""
    x, elements, graph = atoms([3])
    copies = unseen.at(x.repeat(4, 1), elements.repeat(4)).variance(bags([12]))
    torch.testing.assert_close(copies, 16.0 * unseen.at(x, elements).variance(graph))


def test_draws_have_the_variance(unseen: UnseenSurroundings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sigmaff.heads.lnk.unseen.N_WAVES", 2048)
    x, elements, graph = atoms([3, 1, 5])
    waves = Waves.drawn(unseen, 2048, torch.Generator().manual_seed(0))
    drawn = unseen.at(x, elements).sampled(waves)
    sums = torch.zeros(3, 2048, dtype=torch.float64).index_add(0, graph.structure_index, drawn)
    torch.testing.assert_close(sums.square().mean(1), unseen.at(x, elements).variance(graph), rtol=0.15, atol=0.0)


def test_large_structures_are_summed_in_blocks(unseen: UnseenSurroundings, monkeypatch: pytest.MonkeyPatch):
    x, elements, graph = atoms([7, 5])
    whole = unseen.at(x, elements).variance(graph)
    monkeypatch.setattr("sigmaff.heads.lnk.unseen.MAX_PAIRS", 30)
    torch.testing.assert_close(unseen.at(x, elements).variance(graph), whole)


def test_few_or_equal_atoms_are_enough(unseen: UnseenSurroundings):
    """One training atom of an element, or many equal ones, leave no spread to whiten by."""
    kernel = UnseenSurroundings(N_FEATURES, N_ELEMENTS)
    kernel.prior.fill_(1.0)
    x = torch.ones(3, N_FEATURES, dtype=torch.float64)
    kernel.learn(x, torch.tensor([0, 0, 1]))
    assert float(kernel.at(x[:1], torch.tensor([0])).node_variance()) < 1e-6
    assert float(kernel.at(x[:1] + 100.0, torch.tensor([0])).node_variance()) > 0.99


def test_slopes_of_draws_are_their_derivatives(unseen: UnseenSurroundings):
    x, elements, _ = atoms([3, 2])
    waves = Waves.drawn(unseen, 3, torch.Generator().manual_seed(0))
    expected = torch.func.jacrev(lambda values: unseen.at(values, elements).sampled(waves).sum(0))(x)
    torch.testing.assert_close(unseen.at(x, elements).sampled_slopes(waves), expected)


def test_of_many_atoms_some_are_enough(monkeypatch: pytest.MonkeyPatch):
    """Sites alternate in a file: a choice at regular steps would see one of them."""
    monkeypatch.setattr("sigmaff.heads.lnk.unseen.MAX_ATOMS", 200)
    torch.manual_seed(0)
    sites = 10.0 * torch.arange(2).repeat(400)
    training = torch.randn(800, N_FEATURES, dtype=torch.float64) + sites.unsqueeze(-1)
    kernel = UnseenSurroundings(N_FEATURES, 1)
    kernel.prior.fill_(1.0)
    kernel.reach.fill_(4.0)
    kernel.learn(training, torch.zeros(800, dtype=torch.int64))
    assert (kernel.at(training, torch.zeros(800, dtype=torch.int64)).node_variance() < 0.1).all()


def test_between_two_kinds_nothing_is_known():
    """Differences between kinds of surroundings are not spread of one of them."""
    torch.manual_seed(0)
    kinds = torch.cat([torch.zeros(100), torch.full((100,), 20.0)]).double()
    training = 0.1 * torch.randn(200, N_FEATURES, dtype=torch.float64)
    training[:, 0] += kinds
    elements = torch.zeros(200, dtype=torch.int64)
    kernel = UnseenSurroundings(N_FEATURES, 1)
    kernel.learn(training, elements)
    between = training[:1].clone()
    between[:, 0] = 10.0
    assert float(kernel.at(between, elements[:1]).distance) > 20.0 * kernel.spacing()


def test_other_atoms_or_other_surroundings_are_looked_at_anew(unseen: UnseenSurroundings):
    """While prepared, the place of the same atoms is computed once."""
    x, elements, _ = atoms([3, 2])
    with unseen.prepared():
        place = unseen.again_at(x, elements)
        assert unseen.again_at(x.view_as(x), elements.clone()) is place
        for other in (x.clone(), x[:3], x.roll(1, 0)):
            again = unseen.again_at(other, elements[: len(other)])
            torch.testing.assert_close(again.amplitude, unseen.at(other, elements[: len(other)]).amplitude)
        place = unseen.again_at(x, elements)
        other_elements = (elements + 1) % N_ELEMENTS
        expected = unseen.at(x, other_elements).amplitude
        torch.testing.assert_close(unseen.again_at(x, other_elements).amplitude, expected)
        x += 1.0
        torch.testing.assert_close(unseen.again_at(x, elements).amplitude, unseen.at(x, elements).amplitude)
    assert unseen.again_at(x, elements) is not unseen.again_at(x, elements)


def test_a_shorter_reach_is_seen(unseen: UnseenSurroundings):
    """While prepared, what follows from the buffers is computed once after each change."""
    x, elements, graph = atoms([3, 2])
    with unseen.prepared():
        before = unseen.again_at(x, elements).variance(graph)
    unseen.reach.mul_(0.5)
    with unseen.prepared():
        after = unseen.again_at(x, elements).variance(graph)
    torch.testing.assert_close(after, unseen.at(x, elements).variance(graph))
    assert (after > before).all()
