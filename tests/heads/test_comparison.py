"""What stationary kernels compare, and where their inducing points are."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from head_case import atoms_of, give_posterior
from sigmaff.errors import ConfigError
from sigmaff.graph.embedding import Embedding
from sigmaff.heads import LNK, SVGP, LNKConfig, SVGPConfig
from sigmaff.heads.comparison import Comparison
from sigmaff.heads.lnk.inducing import PointSettings, choose_inducing_points, place_points

D, ELEMENTS = 5, (1, 6, 8)
EXACT = {"rtol": 1e-10, "atol": 1e-12}
GRAPH = atoms_of([6, 1, 1, 8, 6, 1, 1, 8, 6], [4, 3, 2])
close = torch.testing.assert_close


def embedding(n_blocks: int) -> Embedding:
    return Embedding(n_features=D, n_blocks=n_blocks, activation=nn.SiLU())


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def readout(n_blocks: int) -> nn.Linear:
    return embedding(n_blocks).readout().double()


@pytest.mark.parametrize("n_blocks", [1, 3])
class TestActivated:
    def setup_method(self):
        torch.manual_seed(1)

    def test_the_readout_is_the_sum_of_what_is_compared(self, n_blocks: int):
        linear, h = readout(n_blocks), normal(7, n_blocks * D)
        compared = Comparison("activated", embedding(n_blocks))
        compared.take_readout(linear)
        size = linear.weight.square().mean().sqrt()
        close(size * compared(h).sum(-1), linear(nn.functional.silu(h)).squeeze(-1), **EXACT)

    def test_slopes_are_derivatives(self, n_blocks: int):
        h, tangents = normal(7, n_blocks * D), normal(2, 7, n_blocks * D)
        compared = Comparison("activated", embedding(n_blocks))
        compared.take_readout(readout(n_blocks))
        expected = torch.stack([torch.func.jvp(compared, (h,), (tangent,))[1] for tangent in tangents])
        close(compared.slopes(h, tangents), expected, **EXACT)

    def test_a_process_on_activated_embeddings_is_one_on_given_points(self, n_blocks: int):
        """Mean, variance and slopes are those of a head that is handed what is compared, without an activation."""
        config = LNKConfig(kernel="rbf", mean="constant", fit="variational", n_inducing=12)
        head = LNK(config, embedding(n_blocks), ELEMENTS)
        head.take_readout(readout(n_blocks))
        head.initialize(normal(60, n_blocks * D), torch.tensor(ELEMENTS).repeat(20), torch.zeros(60, dtype=torch.int64))
        give_posterior(head)
        plain = LNK(
            config.model_copy(update={"embedding": "pre_activation"}),
            Embedding(n_features=D, activation=nn.Identity()),
            ELEMENTS,
        )
        plain.load_state_dict({k: v for k, v in head.state_dict().items() if k != "kernel.compared.weights"})
        head, plain = head.eval(), plain.eval()
        h, tangents = normal(GRAPH.n_atoms, n_blocks * D), normal(2, GRAPH.n_atoms, n_blocks * D)
        x, moved = head.kernel.compared(h), head.kernel.compared.slopes(h, tangents)
        ours, expected = head(h, GRAPH), plain(x, GRAPH)
        close(ours.mean, expected.mean, **EXACT)
        close(ours.variance, expected.variance, **EXACT)
        close(head.slope_variance(h, tangents, GRAPH), plain.slope_variance(x, moved, GRAPH), **EXACT)


def test_before_their_activation_embeddings_of_an_atom_are_added():
    h = normal(4, 3 * D)
    close(Comparison("pre_activation", embedding(3))(h), h.unflatten(-1, (3, D)).sum(-2), **EXACT)


def test_a_readout_without_weights_leaves_every_feature_alike():
    compared, linear = Comparison("activated", embedding(1)), readout(1)
    nn.init.zeros_(linear.weight)
    compared.take_readout(linear)
    close(compared.weights, torch.ones(D, dtype=torch.float64))


def test_a_few_points_hold_the_readout_of_activated_embeddings_alone():
    """Best fit of the readout of 600 atoms, 64 features, by 30 points: the reason for the default."""
    torch.manual_seed(0)
    wide = Embedding(n_features=64, activation=nn.SiLU())
    linear, h = wide.readout().double(), normal(600, 64)
    target = linear(nn.functional.silu(h)).squeeze(-1).detach()
    numbers, index = torch.full((600,), 6), torch.zeros(600, dtype=torch.int64)
    left = {}
    for way in ("activated", "pre_activation"):
        head = LNK(LNKConfig(kernel="rbf", fit="variational", embedding=way, n_inducing=30), wide, (6,))
        head.take_readout(linear)
        head.initialize(h, numbers, index)
        basis = head.basis(h, atoms_of(numbers.tolist(), [600]))[0].detach()
        found = torch.linalg.lstsq(basis, target.unsqueeze(-1)).solution.squeeze(-1)
        left[way] = float((basis @ found - target).std() / target.std())
    assert left["activated"] < 0.01
    assert left["pre_activation"] > 0.2


class TestPlacement:
    def setup_method(self):
        torch.manual_seed(2)
        self.x, self.kinds = normal(200, D), torch.tensor([0] * 120 + [1] * 60 + [2] * 20)

    def test_centres_of_clusters_are_nearer_to_atoms_than_atoms_at_random(self):
        def distortion(placement: str) -> float:
            points, kinds = choose_inducing_points(self.x, self.kinds, 30, placement)
            parts = [(self.x[self.kinds == k].numpy(), points[kinds == k].numpy()) for k in range(3)]
            return sum(float(np.square(cdist(own, centres)).min(1).sum()) for own, centres in parts)

        assert distortion("kmeans") < 0.9 * distortion("random")

    @pytest.mark.parametrize("placement", ["farthest", "kmeans", "random"])
    def test_every_element_has_distinct_points(self, placement: str):
        points, kinds = choose_inducing_points(self.x, self.kinds, 40, placement)
        assert len(points.unique(dim=0)) == 40
        assert set(kinds.tolist()) == {0, 1, 2}

    def test_clusters_of_a_few_distinct_points(self):
        points, _ = choose_inducing_points(normal(6, D).repeat(20, 1), torch.zeros(120, dtype=torch.int64), 6, "kmeans")
        assert len(points.unique(dim=0)) == 6

    def test_the_first_are_those_of_the_first_structures(self):
        """As in the paper: the first structures of a molecule give the same number of points to each of its atoms."""
        kinds, x = torch.tensor([1, 0, 0, 2]).repeat(10), normal(40, D)
        points, chosen = choose_inducing_points(x, kinds, 12, "first_k")
        assert torch.equal(points, x[:12])
        assert torch.equal(chosen, kinds[:12])

    def test_copies_among_the_first_are_left_out(self):
        x = normal(8, D)
        points, _ = choose_inducing_points(torch.cat([x[:2], x]), torch.zeros(10, dtype=torch.int64), 5, "first_k")
        assert torch.equal(points, x[:5])

    def test_the_first_without_a_point_of_an_element_are_an_error(self):
        with pytest.raises(ConfigError, match=r"no point of 2 element\(s\)"):
            choose_inducing_points(self.x, self.kinds, 20, "first_k")

    def test_pairs_lie_along_the_readout_about_the_mean_of_their_element(self):
        direction = nn.functional.normalize(normal(D), dim=0)
        settings = PointSettings(readout_pairs=True, lengthscale_factor=4.0)
        points, kinds, length = place_points(settings, self.x, direction.expand(200, D), self.kinds, 30)
        others, own = points[:24], kinds[:24]
        same = (own[:, None] == own).triu(diagonal=1)
        width = torch.cdist(others, others)[same].mean()
        close(length, 4.0 * width, **EXACT)
        for number in range(3):
            low, high = points[24:][kinds[24:] == number]
            close(0.5 * (low + high), self.x[self.kinds == number].mean(0), **EXACT)
            close(high - low, 2.0 * width * direction, **EXACT)

    def test_without_three_points_to_an_element_there_are_no_pairs(self):
        points, kinds, _ = place_points(PointSettings(readout_pairs=True), self.x, self.x, self.kinds, 8)
        expected = choose_inducing_points(self.x, self.kinds, 8)
        assert torch.equal(points, expected[0])
        assert torch.equal(kinds, expected[1])


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_a_process_on_structures_sums_activated_embeddings(n_blocks: int):
    """It is the process of pseudo-atoms with the sum of what is compared."""
    torch.manual_seed(5)
    head = SVGP(SVGPConfig(n_inducing=12), embedding(n_blocks), ELEMENTS)
    head.take_readout(readout(n_blocks))
    index = torch.arange(20).repeat_interleave(3)
    head.initialize(normal(60, n_blocks * D), torch.tensor(ELEMENTS).repeat(20), index)
    give_posterior(head.process)
    head.eval()
    h, tangents = normal(GRAPH.n_atoms, n_blocks * D), normal(2, GRAPH.n_atoms, n_blocks * D)
    member = nn.functional.one_hot(GRAPH.structure_index, GRAPH.n_structures).double()
    summed = member.T @ head.compared(h)
    moved = member.T @ torch.stack([torch.func.jvp(head.compared, (h,), (t,))[1] for t in tangents])
    single = atoms_of([1] * GRAPH.n_structures, [1] * GRAPH.n_structures)
    close(head(h, GRAPH).variance, head.process(summed, single).variance, **EXACT)
    expected = head.process.slope_variance(summed, moved, single)
    close(head.slope_variance(h, tangents, GRAPH), expected, **EXACT)
