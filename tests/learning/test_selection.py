"""Selection: the gain of every label against a fit with that label in it, and what is chosen from a pool."""

from typing import get_args

import numpy as np
import pytest
import torch
from ase import Atoms

from conftest import Trained
from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.heads import LNK, LatentDistanceConfig, LLPRConfig, LNKConfig
from sigmaff.heads.lnk.head import LabelNoise
from sigmaff.heads.observations import RowLimit
from sigmaff.heads.posterior import Moments
from sigmaff.learning.config import SelectConfig, SelectionMethod
from sigmaff.learning.selection import largest_std, replaced_method, select
from sigmaff.learning.variance_reduction import StructureRows, greedy, structure_rows
from sigmaff.models import Potential
from sigmaff.models.solve import LabelledObservations, solve_head
from sigmaff.simulation import predict_structures

ALL_ROWS = RowLimit(n_rows=10**9, work=10**12)
POOL = 5

HEADS = {
    "linear": LNKConfig(selection="marginal_likelihood", distance_aware=False, n_samples=8, n_frequencies=8),
    "rbf+linear": LNKConfig(
        kernel="rbf+linear", n_inducing=12, selection="marginal_likelihood", n_samples=8, n_frequencies=8
    ),
    "energies alone": LNKConfig(kernel="rbf", n_inducing=12, variance_labels="energy", n_samples=8, n_frequencies=8),
    "llpr": LLPRConfig(n_samples=8),
}


def fitted(trained: Trained, config: LNKConfig | LLPRConfig) -> Potential:
    """From Python, without the record that a run writes."""
    return solve_head(trained.potential, config, *trained.datasets())[0]


def label_gram(potential: Potential, plain: Potential, structures: LabelledStructures) -> torch.Tensor:
    """Σ φφᵀ over the energies of these labels and, with the weight that the fit gave them, over their forces."""
    head = potential.head
    assert isinstance(head, LNK)
    energy = forces = Moments.empty(head.kernel.n_weights)
    data = GraphDataset(structures, potential.cutoff, torch.float64)
    for [(energy_rows, force_rows)], _ in LabelledObservations(plain, data).rows([head], ALL_ROWS, seed=0):
        energy, forces = energy.plus(energy_rows), forces.plus(force_rows)
    return (energy.gram + head.force_weight * forces.gram).detach()


def refit(potential: Potential, gram: torch.Tensor) -> torch.Tensor:
    """Covariance of the weights from all labels at once, with the noise that the fit had chosen."""
    head = potential.head
    assert isinstance(head, LNK)
    return torch.linalg.inv(torch.eye(len(gram)) + gram / head.label_noise.energy)


def force_variance(potential: Potential, covariance: torch.Tensor, pool: GraphDataset) -> torch.Tensor:
    """Of each force component of the pool, (eV/Å)², as the potential predicts it with these weights."""
    head = potential.head
    assert isinstance(head, LNK)
    with torch.no_grad():
        head.weight_cholesky.copy_(torch.linalg.cholesky(covariance))
    graph, _ = pool.batch(range(len(pool)))
    std = potential.predict_raw(graph, forces_std="exact").forces_std
    assert std is not None
    return std.square()


@pytest.mark.parametrize("name", ["linear", "llpr"])
def test_choices_are_those_of_fitting_anew_with_every_candidate(name: str, trained: Trained) -> None:
    """Two choices, the second given the first; gains in the variance that the potential itself then predicts."""
    potential = fitted(trained, HEADS[name])
    head, plain = potential.head, trained.potential
    assert isinstance(head, LNK)
    candidates = trained.held_out.subset(range(POOL))
    pool = GraphDataset(candidates, potential.cutoff, torch.float64)
    factor = head.weight_cholesky.detach().tril()
    rows = list(structure_rows(potential, pool))
    picks = greedy(rows, factor @ factor.T, head.label_noise, 2, torch.ones(POOL))

    known, left = label_gram(potential, plain, trained.train), set(range(POOL))
    grams = [label_gram(potential, plain, candidates.subset([k])) for k in range(POOL)]
    for index, gain in picks:
        before = force_variance(potential, refit(potential, known), pool)
        after = {k: force_variance(potential, refit(potential, known + grams[k]), pool) for k in left}
        std = before.sqrt()
        shares = {k: float((std * (1.0 - after[k] / before)).sum() / std.sum()) for k in left}
        assert index == max(shares, key=lambda k: shares[k])
        assert gain == pytest.approx(shares[index], rel=1e-4, abs=1e-9)
        left.remove(index)
        known = known + grams[index]


@pytest.mark.parametrize("force_noise", [0.3, None])
def test_a_label_takes_the_residual_of_its_own_structure_and_no_other(force_noise: float | None) -> None:
    """Against the joint normal distribution of weights, residuals and labels, conditioned densely."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = [
        StructureRows(
            energy=normal(4), energy_residual=normal(1)[0].square(), forces=normal(6, 4), residual=normal(6).square()
        )
        for _ in range(5)
    ]
    prior = normal(4, 4)
    prior = prior @ prior.T
    noise = LabelNoise(0.1, force_noise)
    [(index, gain), *_] = greedy(rows, prior, noise, 2, torch.ones(5))
    forces, residual = torch.cat([part.forces for part in rows]), torch.cat([part.residual for part in rows])
    variance = (forces @ prior @ forces.T).diagonal() + residual
    shares = []
    for k, part in enumerate(rows):
        label, spread = part.energy[None], part.energy_residual[None] + noise.energy
        if noise.forces is not None:
            label, spread = torch.cat([label, part.forces]), torch.cat([spread, part.residual + noise.forces])
        after = torch.linalg.inv(torch.linalg.inv(prior) + label.T @ torch.diag(1.0 / spread) @ label)
        left = residual.clone()
        left[6 * k : 6 * k + 6] = 0.0
        left = (forces @ after @ forces.T).diagonal() + left
        shares.append(float(((variance - left) / variance.sqrt()).sum() / variance.sqrt().sum()))
    assert index == int(np.argmax(shares))
    assert gain == pytest.approx(max(shares), rel=1e-9)


@pytest.fixture(scope="module")
def lnk(trained: Trained) -> Potential:
    return fitted(trained, HEADS["rbf+linear"])


@pytest.fixture(scope="module")
def candidates(lnk: Potential, trained: Trained) -> list[Atoms]:
    """With σ; the first two are all but the same structure."""
    frames = list(trained.held_out.structures[:12])
    twin = frames[0].copy()
    twin.positions += 1e-4
    unlabelled = LabelledStructures(
        structures=(twin, *frames), energy=None, forces=None, source="pool", frame_index=np.arange(13)
    )
    return predict_structures(lnk, GraphDataset(unlabelled, lnk.cutoff, torch.float64), 32, "exact")


def chosen(model: Potential, candidates: list[Atoms], limit: float | None = None, **settings: object) -> list[int]:
    config = SelectConfig.model_validate(settings)
    return [pick.index for pick in select(model, candidates, config, limit=limit, rng=np.random.default_rng(0))]


def test_of_two_structures_that_are_alike_one_is_enough(lnk: Potential, candidates: list[Atoms]) -> None:
    """Sorted by σ alone they come together: the twins are put on top by their σ."""
    boosted = [atoms.copy() for atoms in candidates]
    for atoms in boosted[:2]:
        atoms.arrays["forces_uncertainty"] = atoms.arrays["forces_uncertainty"] + 10.0
    assert set(chosen(lnk, boosted, n=2, method="sigma")) == {0, 1}
    for method in ("max_det", "k_centre", "variance_reduction"):
        assert len({0, 1} & set(chosen(lnk, boosted, n=2, method=method))) <= 1


def test_every_label_takes_a_share_of_the_variance(lnk: Potential, candidates: list[Atoms]) -> None:
    config = SelectConfig(n=13, method="variance_reduction")
    picks = select(lnk, candidates, config, limit=None, rng=np.random.default_rng(0))
    shares = [pick.variance_share or 0.0 for pick in picks]
    assert len({pick.index for pick in picks}) == 13
    assert all(0 < share < 1 for share in shares)


def test_largest_sigma_first(lnk: Potential, candidates: list[Atoms]) -> None:
    std = [np.linalg.norm(atoms.arrays["forces_uncertainty"], axis=1).max() for atoms in candidates]
    found = chosen(lnk, candidates, n=5, method="sigma")
    assert [std[index] for index in found] == pytest.approx(sorted(std, reverse=True)[:5], rel=1e-9)  # two are alike
    assert len(set(found)) == 5


@pytest.mark.parametrize("method", ["sigma", "max_det", "k_centre", "variance_reduction"])
def test_candidates_outside_of_the_window_are_left_out(method: str, lnk: Potential, candidates: list[Atoms]) -> None:
    std = np.array([largest_std(atoms) for atoms in candidates])
    limit = float(np.median(std))
    picked = chosen(lnk, candidates, limit, n=13, method=method, lower=0.9, upper=1.2)
    assert sorted(picked) == np.flatnonzero((std >= 0.9 * limit) & (std <= 1.2 * limit)).tolist()
    assert chosen(lnk, candidates, 1e-9, n=5, method=method) == []


def test_random_choices_do_not_look_at_sigma(lnk: Potential, candidates: list[Atoms]) -> None:
    bare = [Atoms(atoms.numbers, atoms.positions) for atoms in candidates]
    picked = chosen(lnk, candidates, 1e-9, n=6, method="random")
    assert len(set(picked)) == 6
    assert chosen(lnk, bare, n=6, method="random") == picked


def test_no_more_are_compared_than_allowed(lnk: Potential, candidates: list[Atoms]) -> None:
    assert len(chosen(lnk, candidates, n=10, method="variance_reduction", max_candidates=4)) == 4


@pytest.mark.parametrize("method", ["max_det", "k_centre", "variance_reduction"])
def test_heads_without_a_covariance_go_by_sigma_and_say_so(
    method: SelectionMethod, trained: Trained, candidates: list[Atoms]
) -> None:
    other = fitted(trained, LatentDistanceConfig())
    assert chosen(other, candidates, n=5, method=method) == chosen(other, candidates, n=5, method="sigma")
    assert f"which {method} needs: selecting by largest force σ (sigma) instead" in str(replaced_method(other, method))


def test_methods_that_a_model_can_select_by_are_not_replaced(lnk: Potential) -> None:
    assert all(replaced_method(lnk, method) is None for method in get_args(SelectionMethod))


@pytest.mark.parametrize("method", ["max_det", "k_centre", "variance_reduction"])
def test_costs_count_only_where_sizes_differ(method: str, lnk: Potential, candidates: list[Atoms]) -> None:
    """Of ethanol and water, a steep power takes water first; of ethanol alone no molecule is cheaper."""
    ethanol = [atoms for atoms in candidates if len(atoms) == 9]
    equal = [chosen(lnk, ethanol, n=4, method=method, cost_power=power) for power in (0.0, 3.0)]
    assert equal[0] == equal[1]
    water = {index for index, atoms in enumerate(candidates) if len(atoms) == 3}
    assert set(chosen(lnk, candidates, n=len(water), method=method, cost_power=100.0)) == water


def test_sigma_and_a_window_need_sigma_and_nothing_else_does(lnk: Potential, candidates: list[Atoms]) -> None:
    bare = [Atoms(atoms.numbers, atoms.positions) for atoms in candidates]
    for method in ("max_det", "k_centre", "variance_reduction"):
        assert chosen(lnk, bare, n=5, method=method) == chosen(lnk, candidates, n=5, method=method)
    for limit, method in ((None, "sigma"), (1.0, "max_det")):
        with pytest.raises(DataError, match="no σ of forces to select by"):
            chosen(lnk, bare, limit, n=3, method=method)
