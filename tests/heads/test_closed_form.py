"""The closed-form LNK against Bayesian linear regression with every row written out, on GFN2-xTB labels."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from scipy.linalg import orth
from scipy.stats import multivariate_normal, norm

from conftest import Trained, joined
from contract import graph_of
from listeners import Remembering
from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.errors import ConfigError, DataError
from sigmaff.heads import LNK, LNKConfig
from sigmaff.heads import posterior as algebra
from sigmaff.heads.kernels import SMOOTHING
from sigmaff.heads.lnk import fit as lnk_fit
from sigmaff.heads.lnk.fit import LNKFit
from sigmaff.heads.lnk.kernel import JITTER
from sigmaff.heads.observations import Rows
from sigmaff.heads.posterior import (
    NOISES,
    TOLERATED_LOSS,
    Moments,
    Posterior,
    choose_mean,
    choose_variance,
    marginal_score,
    posteriors,
)
from sigmaff.models import Potential
from sigmaff.models.solve import solve_head
from sigmaff.progress import Collecting

FAST = {"n_inducing": 16, "n_samples": 4, "n_frequencies": 16}
KERNELS = ("rbf", "matern52", "linear", "rbf+linear")
STEP = 1e-4
"""Å, of the central differences that make force rows; they are right to 1e-7 of the largest."""
REGRESSION = 1e-5
COMPOSITIONS = ((6, 2, 1), (2, 0, 1))
"""H, C, O of ethanol and water, of which the training set consists."""


def fit(trained: Trained, **settings: object) -> tuple[Potential, LNKFit]:
    train, held_out = trained.datasets()
    return solve_head(trained.potential, LNKConfig(**(FAST | settings)), train, held_out)


class Regression:
    """Bayesian linear regression of what the backbone misses, normalised, with its rows computed from scratch."""

    def __init__(self, fitted: Potential, trained: Trained) -> None:
        head = fitted.head
        assert isinstance(head, LNK)
        self.fitted, self.kernel = fitted, head.config.kernel
        self.parameters = {name: value.numpy() for name, value in head.kernel.state_dict().items()}
        self.scale = np.exp(self.parameters["log_scale"])
        graph = graph_of(*trained.train.structures, cutoff=fitted.cutoff)
        activated = np.logaddexp(0.0, fitted.backbone(graph).detach().numpy()) - math.log(2.0)
        numbers = graph.atomic_numbers.numpy()
        self.means = np.stack([activated[numbers == number].mean(0) for number in fitted.statistics.elements])
        self.phi = self.energy_rows(trained.train.structures)
        self.slopes = self.force_rows(trained.train.structures)
        self.energy_missed, self.forces_missed = missed(trained.potential, trained.train)

    @torch.no_grad()
    def energy_rows(self, structures: Sequence[Atoms]) -> np.ndarray:
        """Φ = Σ_i φ(h_i) of each structure."""
        graph = graph_of(*structures, cutoff=self.fitted.cutoff)
        h = self.fitted.backbone(graph).numpy()
        elements = np.searchsorted(self.fitted.statistics.elements, graph.atomic_numbers.numpy())
        parts = []
        if self.kernel != "linear":
            points, kinds = self.parameters["inducing_points"], self.parameters["inducing_elements"]
            gram = self._stationary(points, points, kinds, kinds) + JITTER * self.scale**2 * np.eye(len(points))
            compared = self.parameters["compared.weights"] * (np.logaddexp(0.0, h) - math.log(2.0))
            cross = self._stationary(points, compared, kinds, elements)
            parts.append(np.linalg.solve(np.linalg.cholesky(gram), cross).T)
        if "linear" in self.kernel:
            parts.append(self._linear(h, elements))
        member = graph.structure_index.numpy() == np.arange(len(structures))[:, None]
        return member @ np.concatenate(parts, axis=1)

    def _stationary(self, a: np.ndarray, b: np.ndarray, kinds_a: np.ndarray, kinds_b: np.ndarray) -> np.ndarray:
        squared = ((a[:, None] - b[None]) ** 2).sum(-1) / np.exp(2.0 * self.parameters["log_lengthscale"])
        root = np.sqrt(5.0 * squared + SMOOTHING)
        value = (1 + root + root**2 / 3) * np.exp(-root) if self.kernel == "matern52" else np.exp(-0.5 * squared)
        return self.scale**2 * value * (kinds_a[:, None] == kinds_b)

    def _linear(self, h: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Activated embeddings less their mean over the training atoms of an element, and constants of elements."""
        activated = self.parameters["activation_scale"] * (np.logaddexp(0.0, h) - math.log(2.0) - self.means[elements])
        kinds = elements[:, None] == np.arange(len(self.means))
        span = orth(np.array(COMPOSITIONS).T)
        constants = (kinds @ span @ span.T).T
        columns = [part for k, c in zip(kinds.T, constants, strict=True) for part in (activated * k[:, None], c)]
        return np.exp(self.parameters["log_linear_scale"]) * np.column_stack(columns)

    def force_rows(self, structures: Sequence[Atoms]) -> np.ndarray:
        """−∂Φ/∂x by central differences, for each coordinate of each structure."""
        moved = []
        for atoms in structures:
            for index, step in product(np.ndindex(atoms.positions.shape), (-STEP, STEP)):
                moved.append(atoms.copy())
                moved[-1].positions[index] += step
        ends = self.energy_rows(moved)
        return (ends[::2] - ends[1::2]) / (2.0 * STEP)

    def posterior(self, noise: float, force_weight: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of w ~ N(0, 1) given rows with noise s²λ on energies and s²λ/ω on force components."""
        variance = self.scale**2 * noise
        gram = self.phi.T @ self.phi + force_weight * self.slopes.T @ self.slopes
        projection = self.phi.T @ self.energy_missed + force_weight * self.slopes.T @ self.forces_missed
        precision = np.eye(len(gram)) + gram / variance
        return np.linalg.solve(precision, projection / variance), np.linalg.inv(precision)


def missed(potential: Potential, data: LabelledStructures) -> tuple[np.ndarray, np.ndarray]:
    """Label minus prediction, of energies and of force components, normalised."""
    prediction = potential.predict(graph_of(*data.structures, cutoff=potential.cutoff), forces_std="none")
    energy = data.energy - prediction.energy.numpy()
    forces = np.concatenate(data.forces) - prediction.forces.numpy()
    return energy / potential.statistics.scale, forces.ravel() / potential.statistics.scale


@pytest.mark.parametrize("kernel", KERNELS)
def test_fit_is_bayesian_linear_regression(trained: Trained, kernel: str):
    """Mean and covariance at held-out structures, with the noises and force weights that the fit chose for each."""
    fitted, result = fit(trained, kernel=kernel)
    regression = Regression(fitted, trained)
    frames = trained.held_out.subset(range(8))
    phi, slopes = regression.energy_rows(frames.structures), regression.force_rows(frames.structures)
    _, covariance = regression.posterior(result.noise, result.force_weight)
    cholesky = fitted.head.weight_cholesky.detach().numpy()
    for rows in (phi, slopes):
        close(rows @ cholesky @ cholesky.T @ rows.T, rows @ covariance @ rows.T)
    mean, _ = regression.posterior(result.mean_noise, result.mean_force_weight)
    before, after = missed(trained.potential, frames), missed(fitted, frames)
    close(before[0] - after[0], phi @ mean)
    close(before[1] - after[1], slopes @ mean)


def close(values: np.ndarray, expected: np.ndarray) -> None:
    """Equal to ``REGRESSION`` of the largest."""
    np.testing.assert_allclose(values, expected, rtol=0.0, atol=REGRESSION * np.abs(expected).max())


def random_rows(n: int, n_weights: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, n_weights, generator=generator, dtype=torch.float64)
    targets = torch.randn(n, generator=generator, dtype=torch.float64)
    residual = torch.rand(n, generator=generator, dtype=torch.float64)
    return Rows(features=features, targets=targets, residual=residual, structures=torch.arange(n))


class TestAlgebra:
    N_WEIGHTS = 7

    def setup_method(self):
        self.energy, self.forces = random_rows(5, self.N_WEIGHTS, 0), random_rows(12, self.N_WEIGHTS, 1)
        empty = Moments.empty(self.N_WEIGHTS)
        self.moments = empty.plus(self.energy), empty.plus(self.forces)

    def candidates(self) -> list[Posterior]:
        return [c for c in posteriors(*self.moments, (0.0, 0.03, 2.0)) if 1e-4 < c.noise < 1e3]

    def dense(self, candidate: Posterior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, targets and noise variances of all rows that count."""
        kinds = [(self.energy, 1.0)] + [(self.forces, candidate.force_weight)] * (candidate.force_weight > 0)
        features = np.concatenate([rows.features for rows, _ in kinds])
        targets = np.concatenate([rows.targets for rows, _ in kinds])
        noise = np.concatenate([np.full(len(rows.targets), candidate.noise / weight) for rows, weight in kinds])
        return features, targets, noise

    def test_posterior_by_conditioning_a_gaussian(self):
        """In function space: w | y has mean Φᵀ(ΦΦᵀ + N)⁻¹ y and covariance 1 − Φᵀ(ΦΦᵀ + N)⁻¹ Φ."""
        for candidate in self.candidates():
            features, targets, noise = self.dense(candidate)
            gain = np.linalg.solve(features @ features.T + np.diag(noise), features).T
            np.testing.assert_allclose(candidate.mean, gain @ targets, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(candidate.covariance, np.eye(7) - gain @ features, rtol=1e-7, atol=1e-9)
            expected = np.einsum("np,pq,nq->n", features, np.eye(7) - gain @ features, features)
            ones = torch.ones(len(features))
            rows = Rows(features=torch.as_tensor(features), targets=None, residual=ones, structures=ones.long())
            np.testing.assert_allclose(candidate.variance(rows), expected + 1.0, rtol=1e-7)

    def test_factor_of_a_covariance_that_labels_leave_almost_nothing_of(self):
        """LAPACK finds the product of these roots not positive definite."""
        steep = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
        for noise in (1.0, 1e-9, 1e-17):
            eigenvalues = torch.logspace(-3, 3, 7, dtype=torch.float64)
            candidate = replace(self.candidates()[-1], eigenvalues=eigenvalues, eigenvectors=steep, noise=noise)
            factor = candidate.cholesky
            assert torch.equal(factor, factor.tril())
            assert (factor.diagonal() > 0.0).all()
            inverse = steep.T @ torch.cholesky_inverse(factor) @ steep
            np.testing.assert_allclose(inverse.diagonal() / (1.0 + eigenvalues / noise), 1.0, rtol=1e-4)

    def test_marginal_score_is_scipys_log_density(self):
        """Per row, at the scale that maximises it, up to the constant (1 + log 2π)/2."""
        for candidate in self.candidates():
            features, targets, noise = self.dense(candidate)
            shape = features @ features.T + np.diag(noise)
            score, scale = marginal_score(candidate, *self.moments)
            densities = [
                multivariate_normal.logpdf(targets, cov=factor * scale * shape) for factor in (1.0, 0.99, 1.01)
            ]
            assert score == pytest.approx(-densities[0] / len(targets) - 0.5 * (1.0 + math.log(2 * math.pi)), abs=1e-8)
            assert densities[0] > max(densities[1:])

    def test_moments_do_not_care_how_rows_are_batched(self):
        parts = [
            replace(self.forces, **{n: getattr(self.forces, n)[k::3] for n in vars(self.forces)}) for k in range(3)
        ]
        summed = Moments.empty(self.N_WEIGHTS).plus(parts[0]).plus(parts[1]).plus(parts[2])
        torch.testing.assert_close(vars(summed), vars(self.moments[1]))

    def test_a_mean_that_worsens_one_error_is_refused(self):
        """Rows that contradict each other: what lowers one error raises the other."""
        features = torch.eye(2, dtype=torch.float64).repeat(4, 1)
        train = Rows(
            features=features,
            targets=torch.ones(8, dtype=torch.float64),
            residual=torch.zeros(8),
            structures=torch.arange(8),
        )
        candidates = posteriors(Moments.empty(2).plus(train), Moments.empty(2), (0.0,))
        agree = replace(train, targets=torch.ones(8, dtype=torch.float64))
        contradict = replace(train, targets=-torch.ones(8, dtype=torch.float64))
        assert choose_mean(candidates, [agree, contradict])[0] is None
        chosen, errors = choose_mean(candidates, [agree, agree])
        assert chosen is not None
        assert float(errors[0].abs().mean()) < 0.01


def mean_errors(potential: Potential, data: LabelledStructures) -> np.ndarray:
    """Mean absolute error of energies and of force components."""
    return np.array([np.abs(errors).mean() for errors in missed(potential, data)])


class TestMean:
    def test_backbone_is_left_as_it_is(self, trained: Trained):
        fitted, result = fit(trained, mean="backbone")
        graph = graph_of(*trained.held_out.structures, cutoff=fitted.cutoff)
        before, after = trained.potential.predict(graph), fitted.predict(graph)
        assert torch.equal(before.energy, after.energy)
        torch.testing.assert_close(before.forces, after.forces, rtol=1e-12, atol=1e-12)
        assert result.mean_noise is None
        assert bool((after.energy_std > 0).all())

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_residual_never_worsens_held_out_errors(self, trained: Trained, kernel: str):
        fitted, _ = fit(trained, kernel=kernel, mean="residual")
        ratio = mean_errors(fitted, trained.held_out) / mean_errors(trained.potential, trained.held_out)
        assert ratio.max() <= TOLERATED_LOSS + 1e-6

    def test_residual_lowers_training_errors_of_a_poor_backbone(self, trained: Trained):
        fitted, _ = fit(trained, mean="residual")
        assert (mean_errors(fitted, trained.train) < mean_errors(trained.potential, trained.train)).all()


class TestPrior:
    """Held-out errors determine the noise s²λ. The prior s² alone is what σ far from the data depends on."""

    N_WEIGHTS, N_STRUCTURES, N_COMPONENTS = 6, 40, 9

    def setup_method(self):
        """Rows of a linear model with noise: energies, and some force components of each structure."""
        generator = torch.Generator().manual_seed(5)
        weights = torch.randn(self.N_WEIGHTS, generator=generator, dtype=torch.float64)

        def rows(n: int, noise: float) -> Rows:
            features = torch.randn(n, self.N_WEIGHTS, generator=generator, dtype=torch.float64)
            error = noise * torch.randn(n, generator=generator, dtype=torch.float64)
            targets, each = features @ weights + error, torch.arange(n)
            return Rows(features=features, targets=targets, residual=torch.zeros(n).double(), structures=each)

        empty = Moments.empty(self.N_WEIGHTS)
        self.moments = empty.plus(rows(30, 0.3)), empty.plus(rows(200, 1.0))
        self.held_out = [rows(self.N_STRUCTURES, 0.3), rows(self.N_STRUCTURES * self.N_COMPONENTS, 1.0)]
        self.errors = [0.01 * rows.targets for rows in self.held_out]

    def log_likelihood(self, candidate: Posterior) -> float:
        """Of the held-out structures, each kind at its best scale; the components of one structure count as one."""
        total = 0.0
        for rows, errors in zip(self.held_out, self.errors, strict=True):
            std = candidate.variance(rows).sqrt().numpy()
            scale = np.sqrt(np.mean((errors.numpy() / std) ** 2))
            total += self.N_STRUCTURES * norm.logpdf(errors.numpy(), scale=scale * std).mean()
        return total

    def test_is_the_smallest_within_one_standard_error(self):
        """Where the log-likelihood has fallen by one half from its maximum."""
        candidates = posteriors(*self.moments, (0.0, 0.1))
        chosen, score, scale = choose_variance(candidates, self.held_out, self.errors, self.N_STRUCTURES)
        likelihoods = [self.log_likelihood(c) for c in candidates]
        assert NOISES[0] < chosen.relative_noise < NOISES[-1]
        assert chosen.force_weight == candidates[int(np.argmax(likelihoods))].force_weight
        assert max(likelihoods) - self.log_likelihood(chosen) == pytest.approx(0.5, abs=0.01)
        assert (score, scale) == algebra.held_out_score(chosen, self.held_out, self.errors)

    def test_has_the_least_scale_that_is_asked_for(self):
        """λ is lowered until it has, which costs no likelihood: only s²λ is determined."""
        candidates = posteriors(*self.moments, (0.0,))
        smallest, score, scale = choose_variance(candidates, self.held_out, self.errors, self.N_STRUCTURES)
        larger, other, found = choose_variance(
            candidates, self.held_out, self.errors, self.N_STRUCTURES, least_scale=100.0 * scale
        )
        assert found == pytest.approx(100.0 * scale, rel=0.01)
        assert larger.noise < smallest.noise
        assert other < score

    def test_of_constants_that_no_composition_determines_is_not_in_the_head(self, trained: Trained):
        """Energies of ethanol and water say nothing about 3 H − C: σ of one more such group is that of embeddings."""
        fitted, result = fit(trained)
        rows = Regression(fitted, trained).energy_rows([molecule("CH3OH"), *trained.train.structures[:2]])
        per_element = rows.reshape(3, 3, -1)[..., -1] / fitted.head.kernel.log_linear_scale.exp().item()
        span = np.linalg.qr(np.array(COMPOSITIONS, dtype=float).T).Q
        counts = np.array([[4, 1, 1], *COMPOSITIONS], dtype=float)
        np.testing.assert_allclose(per_element, counts @ span @ span.T, atol=1e-9)
        np.testing.assert_allclose(per_element[1:], counts[1:], atol=1e-9)
        assert result.at_ends == ()

    @pytest.mark.parametrize("name", ["C2H6", "CH3OCH3", "CH3OH"])
    def test_does_not_depend_on_where_the_grid_ends(self, trained: Trained, name: str, monkeypatch: pytest.MonkeyPatch):
        """σ of a new composition, of an isomer, and of a part of the training molecules."""
        found = []
        graph = graph_of(molecule(name), cutoff=trained.potential.cutoff)
        for lowest, highest in ((-12, 2), (-16, 2), (-12, 6)):
            grid = tuple(10.0**k for k in range(lowest, highest + 1))
            monkeypatch.setattr(algebra, "NOISES", grid)
            monkeypatch.setattr(lnk_fit, "NOISES", grid)
            fitted, result = fit(trained)
            assert result.at_ends == ()
            found.append(float(fitted.predict(graph, forces_std="none").energy_std))
        assert found[1:] == pytest.approx(found[:1] * 2, rel=0.1)

    def test_at_the_end_of_a_grid_is_told(self, trained: Trained, monkeypatch: pytest.MonkeyPatch):
        for k in (-12, 2):
            grid = (10.0**k,)
            monkeypatch.setattr(algebra, "NOISES", grid)
            monkeypatch.setattr(lnk_fit, "NOISES", grid)
            listener, (train, held_out) = Collecting(), trained.datasets()
            _, result = solve_head(trained.potential, LNKConfig(**FAST), train, held_out, listener=listener)
            assert any(end.startswith("noise") for end in result.at_ends)
            assert any("noise" in text for text in listener.texts)


class TestFit:
    def test_standardises_held_out_errors(self, trained: Trained):
        """68 % of the errors of energies are within σ, and of those of forces."""
        fitted, _ = fit(trained, distance_aware=False)
        held_out = trained.held_out
        prediction = fitted.predict(graph_of(*held_out.structures, cutoff=fitted.cutoff), forces_std="exact")
        energy = (prediction.energy.numpy() - held_out.energy) / prediction.energy_std.numpy()
        forces = (prediction.forces.numpy() - np.concatenate(held_out.forces)) / prediction.forces_std.numpy()
        for standardised in (energy, forces):
            assert np.quantile(np.abs(standardised), math.erf(math.sqrt(0.5))) == pytest.approx(1.0, rel=1e-3)

    def test_knows_what_it_has_not_seen(self, trained: Trained):
        """σ per atom of stretched molecules is larger than of molecules like those of the training set."""
        fitted, _ = fit(trained)
        stretched = [atoms.copy() for atoms in trained.held_out.structures]
        for atoms in stretched:
            atoms.positions *= 1.25
        near = fitted.predict(graph_of(*trained.held_out.structures, cutoff=fitted.cutoff))
        far = fitted.predict(graph_of(*stretched, cutoff=fitted.cutoff))
        ratio = far.energy_std / near.energy_std
        assert bool((ratio > 1.0).all())
        assert float(ratio.median()) > 10.0

    def test_does_not_depend_on_the_order_of_structures(self, trained: Trained):
        order = np.random.default_rng(1).permutation(len(trained.train))
        shuffled = replace(trained, train=trained.train.subset(order))
        (one, first), (other, second) = fit(trained), fit(shuffled)
        graph = graph_of(*trained.held_out.structures, cutoff=one.cutoff)
        a, b = one.predict(graph, forces_std="exact"), other.predict(graph, forces_std="exact")
        assert (first.lengthscale, first.linear_scale) == (second.lengthscale, second.linear_scale)
        for name in ("energy", "forces", "energy_std", "forces_std"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("selection", ["held_out", "marginal_likelihood"])
    def test_energies_are_enough(self, trained: Trained, selection: str):
        bare = replace(
            trained, train=replace(trained.train, forces=None), held_out=replace(trained.held_out, forces=None)
        )
        fitted, result = fit(bare, selection=selection)
        assert result.n_force_rows == 0
        assert result.force_weight == 0.0
        prediction = fitted.predict(graph_of(*trained.held_out.structures, cutoff=fitted.cutoff))
        for value in (prediction.energy, prediction.forces, prediction.energy_std, prediction.forces_std):
            assert bool(torch.isfinite(value).all())

    @pytest.mark.parametrize("labels", ["energy", "energy+forces"])
    def test_marginal_likelihood_chooses_too(self, trained: Trained, labels: str):
        train, held_out = trained.datasets()
        config = LNKConfig(**FAST, selection="marginal_likelihood", variance_labels=labels)
        listener = Collecting()
        fitted, result = solve_head(trained.potential, config, train, held_out, listener=listener)
        assert any("too narrow" in text for text in listener.texts)
        assert (result.force_weight > 0) == (labels == "energy+forces")
        prediction = fitted.predict(graph_of(*trained.held_out.structures, cutoff=fitted.cutoff))
        assert bool((prediction.energy_std > 0).all())

    def test_energy_labels_leave_the_variance_without_force_rows(self, trained: Trained):
        _, result = fit(trained, variance_labels="energy")
        assert result.force_weight == 0.0
        assert result.n_energy_rows == len(trained.train)

    def test_runs_in_single_precision(self, trained: Trained):
        """The backbone; the algebra is in double precision all the same."""
        potential = deepcopy(trained.potential)
        potential.set_precision(torch.float32)
        double, chosen = fit(trained)
        single, result = fit(replace(trained, potential=potential))
        graph = graph_of(*trained.held_out.structures, cutoff=double.cutoff)
        assert single.dtype == torch.float32
        assert single.head.weight_cholesky.dtype == torch.float64
        assert result.score == pytest.approx(chosen.score, abs=0.05)
        ratio = single.predict(graph).energy_std / double.predict(graph).energy_std
        assert 0.8 < float(ratio.min()) <= float(ratio.max()) < 1.25

    @pytest.mark.parametrize(
        "determined",
        [
            Atoms("O"),
            Atoms("CO", positions=[[0, 0, 0], [0, 0, 1.2]]),
            Atoms("OH", positions=[[0, 0, 0], [0.5, 0.5, 0.6]]),
        ],
        ids=["atom", "aligned", "tilted"],
    )
    def test_forces_that_symmetry_determines_do_no_harm(self, trained: Trained, determined: Atoms):
        """Of a lone atom, or across a bond: they have no variance, so the rounding of their labels must not matter."""
        prediction = trained.potential.predict(graph_of(determined, cutoff=trained.potential.cutoff))
        graph = graph_of(*trained.held_out.structures, cutoff=trained.potential.cutoff)
        found = []
        for rounding in (0.0, 1e-7):
            noise = np.random.default_rng(0).normal(0.0, rounding, (len(determined), 3))
            extra = LabelledStructures(
                structures=(determined,),
                energy=prediction.energy.numpy() + 0.1,
                forces=(prediction.forces.numpy() + noise,),
                source="determined",
                frame_index=np.arange(1),
            )
            fitted, _ = fit(replace(trained, held_out=joined(trained.held_out, extra)))
            found.append(fitted.predict(graph).energy_std)
        torch.testing.assert_close(*found, rtol=1e-3, atol=0.0)

    def test_refuses_what_it_cannot_fit(self, trained: Trained):
        with pytest.raises(ConfigError, match="mean 'constant'"):
            fit(trained, mean="constant")
        with pytest.raises(ConfigError, match="covariance 'diagonal' needs fit 'variational'"):
            fit(trained, covariance="diagonal")
        with pytest.raises(ConfigError, match="distinct atomic environments"):
            fit(trained, kernel="rbf", n_inducing=5000)
        with pytest.raises(DataError, match="needs energies"):
            fit(replace(trained, train=replace(trained.train, energy=None)))

    def test_leaves_the_backbone_and_its_potential_alone(self, trained: Trained):
        before = {name: value.clone() for name, value in trained.potential.state_dict().items()}
        fitted, _ = fit(trained)
        assert all(torch.equal(value, before[name]) for name, value in trained.potential.state_dict().items())
        for name, value in fitted.backbone.state_dict().items():
            assert torch.equal(value, before[f"backbone.{name}"])

    def test_reports_its_progress(self, trained: Trained):
        train, held_out = trained.datasets()
        listener = Remembering()
        solve_head(trained.potential, LNKConfig(**FAST), train, held_out, listener=listener)
        assert listener.advances == sorted(listener.advances)
        assert listener.advances[-1] == (len(train) + len(held_out), len(train) + len(held_out))


def test_a_data_set_of_one_structure_can_be_held_out(trained: Trained):
    train, _ = trained.datasets()
    single = GraphDataset(trained.held_out.subset([0]), train.cutoff, torch.float64)
    fitted, _ = solve_head(trained.potential, LNKConfig(**FAST), train, single)
    prediction = fitted.predict(graph_of(*trained.held_out.structures, cutoff=fitted.cutoff))
    assert bool((prediction.energy_std > 0).all())
