"""Selection: the gain of every label against a fit with that label in it, and what is chosen from a pool."""

import numpy as np
import pytest
import torch
from ase import Atoms

from conftest import Trained
from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.errors import DataError
from sigmaff.heads import LNK, LLPRConfig, LNKConfig, ShallowEnsembleConfig
from sigmaff.heads.observations import RowLimit
from sigmaff.heads.posterior import Moments
from sigmaff.learning.config import SelectConfig
from sigmaff.learning.selection import greedy, largest_std, select, structure_rows
from sigmaff.models import Potential
from sigmaff.models.solve import LabelledObservations, solve_head
from sigmaff.simulation import predict_structures

ALL_ROWS = RowLimit(n_rows=10**9, work=10**12)
POOL = 5

HEADS = {
    "linear": LNKConfig(kernel="linear", selection="marginal_likelihood", n_samples=8, n_frequencies=8),
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


@pytest.mark.parametrize("name", HEADS)
def test_choices_are_those_of_fitting_anew_with_every_candidate(name: str, trained: Trained) -> None:
    """Two choices, the second given the first; gains in the variance that the potential itself then predicts.

    Components count by their σ; a label of a structure of more variance than the median counts that much less.
    """
    potential = fitted(trained, HEADS[name])
    head, plain = potential.head, trained.potential
    assert isinstance(head, LNK)
    if name != "llpr":  # which chooses for itself whether force labels count
        assert (head.force_weight == 0.0) == (name == "energies alone")
    candidates = trained.held_out.subset(range(POOL))
    pool = GraphDataset(candidates, potential.cutoff, torch.float64)
    factor = head.weight_cholesky.detach().tril()
    rows = list(structure_rows(potential, pool))
    picks = greedy(rows, factor @ factor.T, head.label_noise, 2)

    known, left = label_gram(potential, plain, trained.train), set(range(POOL))
    parts = force_variance(potential, factor @ factor.T, pool).split(pool.n_atoms.tolist())
    of_each = torch.stack([part.mean() for part in parts])
    counts = torch.clamp(of_each.median() / of_each, max=1.0)
    grams = [counts[k] * label_gram(potential, plain, candidates.subset([k])) for k in range(POOL)]
    for index, gain in picks:
        before = force_variance(potential, refit(potential, known), pool)
        after = {k: force_variance(potential, refit(potential, known + grams[k]), pool) for k in left}
        std = before.sqrt()
        shares = {k: float((std * (1.0 - after[k] / before)).sum() / std.sum()) for k in left}
        assert index == max(shares, key=lambda k: shares[k])
        assert gain == pytest.approx(shares[index], rel=1e-4, abs=1e-9)
        left.remove(index)
        known = known + grams[index]


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
    assert len({0, 1} & set(chosen(lnk, boosted, n=2))) <= 1


def test_every_label_takes_a_share_of_the_variance(lnk: Potential, candidates: list[Atoms]) -> None:
    picks = select(lnk, candidates, SelectConfig(n=13), limit=None, rng=np.random.default_rng(0))
    shares = [pick.variance_share or 0.0 for pick in picks]
    assert len({pick.index for pick in picks}) == 13
    assert all(0 < share < 1 for share in shares)
    assert shares[0] == max(shares)


def test_largest_sigma_first(lnk: Potential, candidates: list[Atoms]) -> None:
    std = [np.linalg.norm(atoms.arrays["forces_uncertainty"], axis=1).max() for atoms in candidates]
    assert chosen(lnk, candidates, n=5, method="sigma") == np.argsort(std)[::-1][:5].tolist()


@pytest.mark.parametrize("method", ["sigma", "variance_reduction"])
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
    assert len(chosen(lnk, candidates, n=10, max_candidates=4)) == 4


def test_other_heads_go_by_sigma(lnk: Potential, trained: Trained, candidates: list[Atoms]) -> None:
    other = fitted(trained, ShallowEnsembleConfig(n_members=8, n_steps=20))
    assert chosen(other, candidates, n=5) == chosen(other, candidates, n=5, method="sigma")


def test_without_sigma_there_is_nothing_to_select_by(lnk: Potential, candidates: list[Atoms]) -> None:
    bare = [Atoms(atoms.numbers, atoms.positions) for atoms in candidates]
    with pytest.raises(DataError, match="no σ of forces to select by"):
        chosen(lnk, bare, n=3)
