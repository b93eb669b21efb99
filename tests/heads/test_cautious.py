"""The choice of a correction by folds, against fits that leave structures out one by one."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sigmaff.heads import cautious
from sigmaff.heads.cautious import Fold, choose_cautious_mean
from sigmaff.heads.observations import RowLimit, Rows
from sigmaff.heads.posterior import Moments, Posterior, posteriors

N_WEIGHTS, N_STRUCTURES, PER_STRUCTURE = 6, 5, 7
FORCE_WEIGHTS = (0.0, 1.0)


def rows_of(truth: Tensor, structures: int, per_structure: int, seed: int, noise: float = 0.3) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    n = structures * per_structure
    features = torch.randn(n, N_WEIGHTS, generator=generator, dtype=torch.float64)
    targets = features @ truth + noise * torch.randn(n, generator=generator, dtype=torch.float64)
    owner = torch.arange(structures).repeat_interleave(per_structure)
    return Rows(features=features, targets=targets, residual=torch.zeros_like(targets), structures=owner)


def folds_of(energy: Rows, forces: Rows) -> list[Fold]:
    empty = Fold.empty(N_WEIGHTS)
    return [
        empty.plus(energy[energy.structures == number], forces[forces.structures == number])
        for number in range(N_STRUCTURES)
    ]


def candidates_of(folds: list[Fold]) -> list[Posterior]:
    energy, forces = (Moments.joined(list(kind)) for kind in zip(*folds, strict=True))
    return posteriors(energy, forces, FORCE_WEIGHTS)


@pytest.fixture
def truth() -> Tensor:
    return torch.linspace(-1.0, 1.0, N_WEIGHTS, dtype=torch.float64)


def test_every_label_is_predicted_without_it(truth: Tensor):
    """Sums of squares against ridge regressions in numpy that leave out one fold each."""
    energy, forces = rows_of(truth, N_STRUCTURES, 1, 0), rows_of(truth, N_STRUCTURES, PER_STRUCTURE, 1)
    folds = folds_of(energy, forces)
    means = cautious._without(folds[2], folds, FORCE_WEIGHTS)
    found = cautious._fold_squares(means, folds[2].forces).sums[:, 0]
    kept_e, kept_f = energy.structures != 2, forces.structures != 2
    others = candidates_of([fold for number, fold in enumerate(folds) if number != 2])
    for number, candidate in enumerate(others):
        if candidate.relative_noise < 1e-7:  # the equations of numpy's solution are nearly singular
            continue
        weight, phi_e, phi_f = candidate.force_weight, energy.features[kept_e].numpy(), forces.features[kept_f].numpy()
        gram = phi_e.T @ phi_e + weight * phi_f.T @ phi_f + candidate.noise * np.eye(N_WEIGHTS)
        right = phi_e.T @ energy.targets[kept_e].numpy() + weight * phi_f.T @ forces.targets[kept_f].numpy()
        left = forces[~kept_f]
        errors = left.targets.numpy() - left.features.numpy() @ np.linalg.solve(gram, right)
        assert float(found[number]) == pytest.approx(np.square(errors).sum(), rel=1e-5)


def test_the_smallest_correction_that_is_not_told_apart_from_the_best(truth: Tensor):
    energy, forces = rows_of(truth, N_STRUCTURES, 1, 2), rows_of(truth, N_STRUCTURES, PER_STRUCTURE, 3)
    held_out = [rows_of(truth, 4, 1, 4), rows_of(truth, 4, PER_STRUCTURE, 5)]
    folds = folds_of(energy, forces)
    candidates = candidates_of(folds)
    chosen, errors = choose_cautious_mean(candidates, folds, held_out, FORCE_WEIGHTS)
    assert chosen is not None
    for error, rows in zip(errors, held_out, strict=True):
        torch.testing.assert_close(error, rows.targets - rows.features @ chosen.mean)
        assert error.square().mean() < rows.targets.square().mean()
    logs, influence = _log_rms(candidates, folds, held_out)
    best = int(logs.sum(1).argmin())
    limits = np.linalg.norm(influence - influence[best], axis=-1)
    near = np.flatnonzero((logs <= logs[best] + limits).all(1))
    smallest = min(near, key=lambda number: float(candidates[number].mean.norm()))
    assert chosen.mean.norm() == candidates[smallest].mean.norm() < candidates[best].mean.norm()


def _log_rms(candidates: list[Posterior], folds: list[Fold], held_out: list[Rows]) -> tuple[np.ndarray, np.ndarray]:
    """Of all labels, (n_candidates, 2), and the influence of each unit on it, (n_candidates, 2, n_units), by loops."""
    without = [cautious._without(fold, folds, FORCE_WEIGHTS) for fold in folds]
    logs, influence = np.zeros((len(candidates), 2)), np.zeros((len(candidates), 2, len(folds) + 4))
    for number, candidate in enumerate(candidates):
        for kind, rows in enumerate(held_out):
            squares, counts = [], []
            for fold, means in zip(folds, without, strict=True):
                moments, mean = fold[kind], means[number]
                fitted = mean @ moments.gram @ mean - 2 * mean @ moments.projection
                squares.append(moments.square + float(fitted))
                counts.append(moments.count)
            for structure in range(4):
                own = rows[rows.structures == structure]
                squares.append(float((own.targets - own.features @ candidate.mean).square().sum()))
                counts.append(len(own.targets))
            logs[number, kind] = 0.5 * math.log(sum(squares) / sum(counts))
            influence[number, kind] = 0.5 * np.array(squares) / sum(squares)
    return logs, influence


def test_a_correction_that_explains_nothing_is_refused():
    """Labels that are noise: every correction raises the errors of those that it has not seen."""
    nothing = torch.zeros(N_WEIGHTS, dtype=torch.float64)
    energy, forces = rows_of(nothing, N_STRUCTURES, 1, 6), rows_of(nothing, N_STRUCTURES, PER_STRUCTURE, 7)
    held_out = [rows_of(nothing, 4, 1, 8), rows_of(nothing, 4, PER_STRUCTURE, 9)]
    folds = folds_of(energy, forces)
    chosen, errors = choose_cautious_mean(candidates_of(folds), folds, held_out, FORCE_WEIGHTS)
    assert chosen is None or chosen.mean.norm() < 0.1
    if chosen is None:
        assert all(error is rows.targets for error, rows in zip(errors, held_out, strict=True))


def test_energies_may_not_pay_for_forces(truth: Tensor):
    """Energies of the opposite sign: what lowers errors of forces raises those of energies."""
    energy, forces = rows_of(-truth, N_STRUCTURES, 4, 10, noise=0.01), rows_of(truth, N_STRUCTURES, 40, 11)
    held_out = [rows_of(-truth, 8, 1, 12, noise=0.01), rows_of(truth, 8, 40, 13)]
    folds = folds_of(energy, forces)
    chosen, errors = choose_cautious_mean(candidates_of(folds), folds, held_out, FORCE_WEIGHTS)
    if chosen is not None:
        worse = [
            float(e.square().mean() / rows.targets.square().mean()) for e, rows in zip(errors, held_out, strict=True)
        ]
        assert max(worse) < 1.2


def test_moments_of_parts_are_those_of_all_rows(truth: Tensor):
    rows = rows_of(truth, N_STRUCTURES, 1, 14)
    parts = [Moments.empty(N_WEIGHTS).plus(rows[rows.structures == number]) for number in range(N_STRUCTURES)]
    whole, joined = Moments.empty(N_WEIGHTS).plus(rows), Moments.joined(parts)
    for name in ("gram", "projection", "rows"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))
    assert (joined.count, joined.square) == (whole.count, pytest.approx(whole.square))


@pytest.mark.parametrize(
    ("seconds", "share"), [(None, 1.0), (1e-9, 1.0), (1e-3, 0.25), (4e-3, 0.0625), (9e-4, 2**-1.5)]
)
def test_force_rows_are_limited_by_time(seconds: float | None, share: float):
    """10 structures of 10 atoms and 100 pairs: 30,000 units of work; 10 s at 1 ms allow a third, and so a quarter."""
    limit = RowLimit(n_rows=10**9, work=10**12, seconds=10.0)
    n = torch.full((10,), 10)
    assert limit.share(n, 10 * n, seconds) == share
