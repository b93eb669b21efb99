"""Variational fits begin at the closed form, and their mean is solved for again after a training with dropout."""

import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import N_HELD_OUT, Trained
from head_case import atoms_of, give_posterior, plain_embedding
from sigmaff.heads import LNK, SVGP, HeadConfig, LNKConfig, SVGPConfig
from sigmaff.models import Potential
from sigmaff.models.solve import LabelledObservations
from sigmaff.progress import Listener

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gpytorch

PAPERS = LNKConfig(kernel="rbf", mean="constant", fit="variational", n_inducing=24)
HEADS = {
    "full": PAPERS,
    "diagonal": PAPERS.model_copy(update={"covariance": "diagonal"}),
    "residual": PAPERS.model_copy(update={"mean": "residual"}),
    "two parts": PAPERS.model_copy(update={"kernel": "rbf+linear"}),
    "structures": SVGPConfig(n_inducing=12),
}


def started(trained: Trained, config: HeadConfig) -> Potential:
    potential = trained.potential.with_head(config).eval()
    parts = (LabelledObservations(potential, part) for part in trained.datasets())
    potential.head.start(*parts, seed=0, listener=Listener())
    return potential


def errors(potential: Potential, trained: Trained, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of energies and forces, and σ of energies: of training structures (0) or held-out ones (1)."""
    graph, labels = trained.datasets()[part].batch(range(len(trained.datasets()[part])))
    found = potential.predict(graph, forces_std="none")
    std = np.zeros(len(found.energy)) if found.energy_std is None else found.energy_std.numpy()
    return (found.energy - labels.energy).numpy(), (found.forces - labels.forces).numpy(), std


@pytest.mark.parametrize("name", [name for name in HEADS if name != "structures"])
class TestStart:
    def test_is_as_accurate_as_the_backbone(self, trained: Trained, name: str):
        """Held-out errors, on which the solution was chosen."""
        before, after = (errors(p, trained, 1) for p in (trained.potential, started(trained, HEADS[name])))
        ratios = [np.abs(after[k]).mean() / np.abs(before[k]).mean() for k in range(2)]
        assert max(ratios) < 1.1

    def test_std_has_the_size_of_training_errors(self, trained: Trained, name: str):
        potential = started(trained, HEADS[name])
        energy, _, std = errors(potential, trained, 0)
        noise = math.exp(potential.head.log_noise.item()) * potential.statistics.scale
        assert np.square(std).mean() + noise**2 == pytest.approx(np.square(energy).mean(), rel=1e-3)


def test_variances_that_add_up_over_atoms_have_the_covariance_of_the_expected_likelihood(trained: Trained):
    """Its derivative vanishes there: −½ (S⁻¹ − 1) + ½ Σ φφᵀ/noise over all atoms is 0 for one noise."""
    potential = started(trained, HEADS["diagonal"])
    head, train = potential.head, trained.datasets()[0]
    graph, _ = train.batch(range(len(train)))
    with torch.no_grad():
        basis, _ = head.basis(potential.embed(graph), graph)
        factor = head.weight_cholesky.tril()
    misfit = torch.cholesky_inverse(factor) - torch.eye(head.n_weights, dtype=torch.float64)
    moment = basis.T @ basis
    ratio = float((misfit * moment).sum() / moment.square().sum())
    assert ratio > 0.0
    np.testing.assert_allclose(misfit / misfit.norm(), ratio * moment / misfit.norm(), atol=1e-5)


def test_of_a_process_on_structures_learns_their_energies(trained: Trained):
    energy, _, std = errors(started(trained, HEADS["structures"]), trained, 0)
    prior = errors(trained.potential.with_head(HEADS["structures"]).eval(), trained, 0)[0]
    assert np.abs(energy).mean() < 0.2 * np.abs(prior - prior.mean()).mean()
    assert np.isfinite(std).all()


def test_at_the_prior_nothing_is_solved(trained: Trained):
    head = started(trained, PAPERS.model_copy(update={"start": "prior"})).head
    assert isinstance(head, LNK)
    assert not head.weight_mean.any()
    assert torch.equal(head.weight_cholesky, torch.eye(head.n_weights, dtype=torch.float64))


def test_a_solution_is_trained_with_a_lower_rate():
    assert [PAPERS.model_copy(update={"start": start}).learning_rate for start in ("solve", "prior")] == [1e-3, 1e-2]


class TestRefit:
    def shifted(self, trained: Trained) -> Potential:
        """As after a training with dropout: all energies are off by the same."""
        potential = started(trained, PAPERS)
        with torch.no_grad():
            potential.head.constant += 0.3
        return potential

    def refit(self, potential: Potential, trained: Trained, *, moved: bool = False) -> None:
        parts = (LabelledObservations(potential, part) for part in trained.datasets())
        potential.head.refit(*parts, moved=moved, seed=0, listener=Listener())

    def test_takes_an_offset_away(self, trained: Trained):
        potential = self.shifted(trained)
        before = errors(potential, trained, 1)[0]
        self.refit(potential, trained)
        after = errors(potential, trained, 1)[0]
        assert abs(after.mean()) < 0.05 * abs(before.mean())

    def test_goes_with_inducing_points_that_training_has_moved(self, trained: Trained):
        potential = started(trained, PAPERS)
        before = np.abs(errors(potential, trained, 1)[1]).mean()
        with torch.no_grad():
            potential.head.kernel.inducing_points += 0.1 * torch.randn_like(potential.head.kernel.inducing_points)
        moved = np.abs(errors(potential, trained, 1)[1]).mean()
        self.refit(potential, trained)
        after = np.abs(errors(potential, trained, 1)[1]).mean()
        assert moved > 2.0 * before
        assert after < 1.2 * before

    def test_leaves_a_mean_that_is_better(self, trained: Trained):
        potential = started(trained, PAPERS)
        before = errors(potential, trained, 1)
        self.refit(potential, trained)
        after = errors(potential, trained, 1)
        scores = [sum(math.log(np.abs(each[k]).mean()) for k in range(2)) for each in (before, after)]
        assert scores[1] <= scores[0] + 1e-9

    def unlikelihood(self, potential: Potential, trained: Trained, part: int) -> float:
        """Twice the negative log-likelihood of energies by a normal distribution, up to a constant."""
        process = potential.head.process if isinstance(potential.head, SVGP) else potential.head
        energy, _, std = errors(potential, trained, part)
        variance = np.square(std) + math.exp(2.0 * process.log_noise.item()) * potential.statistics.scale**2
        return float((np.log(variance) + np.square(energy) / variance).sum())

    @pytest.mark.parametrize("name", HEADS)
    def test_mends_a_covariance_that_steps_have_shaken(self, trained: Trained, name: str):
        """Noise of the size of some steps of gradient descent in every element of its factor."""
        potential = started(trained, HEADS[name])
        process = potential.head.process if name == "structures" else potential.head
        before = errors(potential, trained, 1)
        with torch.no_grad():
            process.weight_cholesky += 0.3 * torch.randn_like(process.weight_cholesky).tril()
        shaken, unlikely = errors(potential, trained, 1), self.unlikelihood(potential, trained, 1)
        self.refit(potential, trained)
        after = errors(potential, trained, 1)
        assert np.square(shaken[2]).mean() > 4.0 * np.square(before[2]).mean(), "of variances"
        assert np.square(after[2]).mean() < 0.5 * np.square(shaken[2]).mean()
        assert self.unlikelihood(potential, trained, 1) < unlikely
        np.testing.assert_allclose(after[0], before[0], atol=0.2 * np.abs(before[0]).mean())

    @pytest.mark.parametrize("factor", [0.1, 0.25, 10.0])
    def test_does_not_depend_on_the_size_that_training_ended_with(self, trained: Trained, factor: float):
        """Whether held-out energies would prefer that size, as they do 0.25, or not."""
        found = []
        for size in (1.0, factor):
            potential = started(trained, PAPERS)
            with torch.no_grad():
                potential.head.kernel.log_scale += math.log(size)
                potential.head.log_noise += math.log(size)
                potential.head.weight_mean /= size
            self.refit(potential, trained)
            found.append(errors(potential, trained, 1))
        for one, other, tolerance in zip(*found, (1e-5, 1e-5, 1e-3), strict=True):  # σ: scales are tried in steps
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=1e-6)

    @pytest.mark.parametrize("name", HEADS)
    def test_std_does_not_depend_on_the_covariance_that_steps_have_shaken(self, trained: Trained, name: str):
        """A shaken one is nearly the same in all directions: its σ was no higher off the data than on it."""
        found = []
        for size in (0.0, 0.3):
            potential = started(trained, HEADS[name])
            process = potential.head.process if name == "structures" else potential.head
            with torch.no_grad():
                process.weight_cholesky += size * torch.randn_like(process.weight_cholesky).tril()
            self.refit(potential, trained)
            found.append(errors(potential, trained, 1)[2])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-6)

    @pytest.mark.parametrize("name", [name for name in HEADS if name != "structures"])
    def test_std_is_higher_off_the_data_after_the_network_has_moved(self, trained: Trained, name: str):
        """Its inducing points were places among the embeddings of the start."""
        potential = copy.deepcopy(started(trained, HEADS[name]))
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in potential.backbone.parameters():
                weight.mul_(1.0 + torch.randn_like(weight))
        self.refit(potential, trained, moved=True)
        seen, _ = trained.datasets()[1].batch(range(N_HELD_OUT))
        displaced = replace(seen, positions=seen.positions + 0.3 * torch.randn_like(seen.positions))
        on, off = (potential.predict(graph, forces_std="none").energy_std for graph in (seen, displaced))
        assert off.median() > 3.0 * on.median()

    @pytest.mark.parametrize("name", HEADS)
    def test_small_changes_stay_small(self, trained: Trained, name: str):
        """As those of another order of sums: σ follows from the trained process, and nothing is chosen."""
        found = []
        for seed in range(2):
            potential = started(trained, HEADS[name])
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in potential.head.parameters():
                    parameter.mul_(1.0 + 1e-6 * torch.randn_like(parameter))
            self.refit(potential, trained)
            found.append(errors(potential, trained, 1)[2])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-3)

    @pytest.mark.parametrize("name", HEADS)
    def test_std_has_the_size_of_training_errors(self, trained: Trained, name: str):
        potential = started(trained, HEADS[name])
        self.refit(potential, trained)
        process = potential.head.process if name == "structures" else potential.head
        energy, _, std = errors(potential, trained, 0)
        variance = np.square(std) + math.exp(2.0 * process.log_noise.item()) * potential.statistics.scale**2
        assert np.mean(np.square(energy) / variance) == pytest.approx(1.0, rel=1e-3)


def test_the_evidence_bound_is_that_of_gpytorch():
    """One element, one atom to a structure: mean and variance of the process, KL, and the expected log-likelihood."""
    torch.manual_seed(3)
    config = LNKConfig(kernel="rbf", mean="constant", fit="variational", objective="elbo", n_inducing=6)
    head = LNK(config, plain_embedding(4), (6,))
    h = torch.randn(30, 4, dtype=torch.float64)
    head.initialize(h, torch.full((30,), 6), torch.zeros(30, dtype=torch.int64))
    give_posterior(head)
    target, n_train = torch.randn(30, dtype=torch.float64), 70
    distribution = head(h, atoms_of([6] * 30, [1] * 30))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.exp(2.0 * head.log_noise).detach()
    normal = gpytorch.distributions.MultivariateNormal(distribution.mean, distribution.variance.diag())
    expected = -likelihood.expected_log_prob(target, normal).mean() + head.kl_divergence() / n_train
    torch.testing.assert_close(head.energy_loss(distribution, target, n_train), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("config", [LNKConfig, SVGPConfig])
def test_training_from_scratch_trains_the_backbone(config: type[LNKConfig] | type[SVGPConfig]):
    variational = {"fit": "variational"} if config is LNKConfig else {}
    settings = config(freeze_backbone=False, from_scratch=True, **variational)
    assert settings.stages == ("warmup", "joint")
    with pytest.raises(ValueError, match="from_scratch goes with"):
        config(freeze_backbone=True, from_scratch=True, **variational)
