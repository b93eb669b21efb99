"""Covariance of candidates' energies against the models' own σ, and batches against dense algebra."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Trained
from sigmaff.data import GraphDataset
from sigmaff.heads import HeadConfig, LatentDistanceConfig, LLPRConfig, LNKConfig, ShallowEnsembleConfig
from sigmaff.learning.covariance import EnergyCovariance, energy_covariance, has_covariance, k_centre, max_det
from sigmaff.models import Ensemble, Potential
from sigmaff.models.solve import solve_head

N = 12


@pytest.fixture
def pool() -> EnergyCovariance:
    """Three weights for twelve candidates, some with a residual, the last two all but the same."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    rows[-1] = rows[-2] + 1e-6
    residual = torch.rand(N, generator=generator, dtype=torch.float64) * (torch.arange(N) % 2)
    residual[-2:] = 0.0
    return EnergyCovariance(rows=rows, residual=residual, noise=0.05)


COST = torch.linspace(1.0, 3.0, N, dtype=torch.float64)


def dense(pool: EnergyCovariance) -> np.ndarray:
    return (pool.rows @ pool.rows.T + torch.diag(pool.residual)).numpy()


def conditioned(covariance: np.ndarray, noise: float, chosen: list[int]) -> np.ndarray:
    """Variances given labels of the chosen: one dense solve."""
    known = covariance[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen))
    cross = covariance[:, chosen]
    return np.diag(covariance - cross @ np.linalg.solve(known, cross.T))


@pytest.mark.parametrize("cost", [torch.ones(N, dtype=torch.float64), COST], ids=["equal costs", "costs"])
def test_max_det_takes_the_most_informative_given_those_before(pool: EnergyCovariance, cost: Tensor) -> None:
    covariance, chosen = dense(pool), []
    for index, left in max_det(pool, N, cost):
        variance = conditioned(covariance, pool.noise, chosen)
        gain = np.log1p(variance / pool.noise) / cost.numpy()
        gain[chosen] = -np.inf
        assert index == np.argmax(gain)
        assert left == pytest.approx(variance[index] / covariance[index, index], rel=1e-9)
        chosen.append(index)
    assert sorted(chosen) == list(range(N))


def test_information_of_a_batch_is_the_log_determinant(pool: EnergyCovariance) -> None:
    choices = max_det(pool, 5, torch.ones(N, dtype=torch.float64))
    chosen, covariance = [index for index, _ in choices], dense(pool)
    gains = [np.log1p(left * covariance[index, index] / pool.noise) for index, left in choices]
    together = np.eye(5) + covariance[np.ix_(chosen, chosen)] / pool.noise
    assert sum(gains) == pytest.approx(np.linalg.slogdet(together)[1], rel=1e-9)
    assert not {N - 2, N - 1} <= set(chosen)  # near-copies


def test_k_centre_takes_the_farthest(pool: EnergyCovariance) -> None:
    """The labelled structures are the origin: of no variance."""
    covariance = np.pad(dense(pool), (0, 1))
    variance = np.diag(covariance)
    squared = variance[:, None] + variance - 2.0 * covariance
    chosen = [N]  # the origin
    for index, _ in k_centre(pool, 6, torch.ones(N, dtype=torch.float64)):
        nearest = squared[:, chosen].min(1)
        nearest[chosen] = -np.inf
        assert index == np.argmax(nearest)
        chosen.append(index)


HEADS: dict[str, HeadConfig] = {
    "linear": LNKConfig(variance_labels="energy"),
    "rbf, with a residual": LNKConfig(kernel="rbf", n_inducing=6, variance_labels="energy", n_frequencies=8),
    "llpr": LLPRConfig(),
    "shallow ensemble": ShallowEnsembleConfig(n_members=8, n_steps=20),
}


def in_model_unit(model: Potential, dataset: GraphDataset) -> Tensor:
    std = model.predict_raw(dataset.batch(range(len(dataset)))[0], forces_std="none").energy_std
    assert std is not None
    return (std / model.statistics.scale).square()


@pytest.mark.parametrize("name", HEADS)
def test_variances_are_those_that_the_model_predicts(name: str, trained: Trained) -> None:
    model = solve_head(trained.potential, HEADS[name], *trained.datasets())[0]
    structures = trained.held_out.subset(range(N))
    covariance = energy_covariance(model, structures.structures)
    expected = in_model_unit(model, GraphDataset(structures, model.cutoff, torch.float64))
    torch.testing.assert_close(covariance.variances(), expected, rtol=1e-5, atol=0.0)
    assert (covariance.residual.max() > 0) == (name != "llpr")


@pytest.mark.parametrize("name", ["linear", "rbf, with a residual"])
def test_covariance_is_that_of_the_energy_of_two_structures_together(name: str, trained: Trained) -> None:
    """Far copies of two structures in one: Var(E₁ + E₂) = V₁ + V₂ + 2 Cov."""
    model = solve_head(trained.potential, HEADS[name], *trained.datasets())[0]
    first, second = trained.held_out.structures[0:3:2]
    apart = second.copy()
    apart.positions += 100.0
    together = first + apart
    covariance = energy_covariance(model, [first, second, together])
    variance, of_both = covariance.variances(), covariance.column(0)[1]
    assert float(variance[2]) == pytest.approx(float(variance[0] + variance[1] + 2.0 * of_both), rel=1e-4)


def test_near_copies_off_the_data_are_not_chosen_twice(trained: Trained) -> None:
    """Five frames of one broken bond, whose variance is all residual: one of them is enough, then others come."""
    model = solve_head(trained.potential, HEADS["rbf, with a residual"], *trained.datasets())[0]
    known = list(trained.held_out.structures[:8])
    broken = [known[0].copy() for _ in range(5)]
    for step, atoms in enumerate(broken):
        atoms.positions[-1] += 0.5 + 1e-4 * step
    covariance = energy_covariance(model, [*broken, *known])
    assert (covariance.residual[:5] > 0.5 * covariance.variances()[:5]).all()
    for method in (max_det, k_centre):
        chosen = [index for index, _ in method(covariance, 3, torch.ones(13, dtype=torch.float64))]
        assert sum(index < 5 for index in chosen) == 1


def test_members_of_an_ensemble_are_rows(trained: Trained) -> None:
    """Covariance of the members' energies; a share of the variance, one over their number, is each structure's own."""
    members = [trained.potential]
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            other = deepcopy(trained.potential)
            for parameter in other.parameters():
                parameter.data += 0.02 * torch.randn_like(parameter)
        members.append(other)
    structures = trained.held_out.subset(range(N))
    covariance = energy_covariance(Ensemble(members), structures.structures)
    graph, _ = GraphDataset(structures, trained.potential.cutoff, torch.float64).batch(range(N))
    sampled = np.cov(np.stack([member.predict_raw(graph).energy.numpy() for member in members], -1))
    expected = sampled * 2.0 / 3.0 + np.diag(np.diag(sampled)) / 3.0
    np.testing.assert_allclose(dense(covariance), expected, rtol=1e-6, atol=1e-9 * sampled.max())


def test_what_gives_no_covariance(trained: Trained) -> None:
    assert not has_covariance(trained.potential)
    assert not has_covariance(solve_head(trained.potential, LatentDistanceConfig(), *trained.datasets())[0])
