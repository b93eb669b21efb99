"""The exact Gaussian process: against one whose covariances are derivatives of the kernel by atomic positions."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import graph_of
from listeners import Remembering
from sigmaff.backbones import DescriptorConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.errors import DataError, ModelFileError
from sigmaff.heads import GP, DeterministicConfig, EnergyDistribution, GPConfig
from sigmaff.heads.gp.fit import GPFit, log_likelihood
from sigmaff.heads.gp.rows import Geometry, factorized
from sigmaff.heads.kernels import SMOOTHING
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.solve import solve_head
from training_case import labelled_structures

BACKBONE = DescriptorConfig(cutoff=4.5, n_radial=5, n_shells=3, n_powers=2)
KERNELS = ("rbf", "matern52")
NOISE = torch.tensor([1e-3, 1e-2], dtype=torch.float64)

close = torch.testing.assert_close


@dataclass(frozen=True, kw_only=True)
class Fitted:
    potential: Potential
    result: GPFit
    train: GraphDataset

    @property
    def head(self) -> GP:
        assert isinstance(self.potential.head, GP)
        return self.potential.head


def fit(structures: LabelledStructures, **settings: object) -> Fitted:
    train = GraphDataset(structures, BACKBONE.cutoff, torch.float64)
    config = PotentialConfig(backbone=BACKBONE, head=DeterministicConfig())
    potential = Potential(config, compute_statistics(train))
    fitted, result = solve_head(potential, GPConfig(**settings), train, train, seed=3)
    return Fitted(potential=fitted, result=result, train=train)


def targets_of(head: GP) -> Tensor:
    """What the head was solved for, in the order of its rows: (K + noise) · weights."""
    factor = factorized(Geometry.between(head.rows, head.rows), head.kernel, head.lengthscale, head.noise)
    return factor @ (factor.T @ head.weights)


@pytest.fixture(scope="module", params=KERNELS)
def fitted(request: pytest.FixtureRequest) -> Fitted:
    """On two waters and two ethanols; scale and noise not as found, for a well-conditioned covariance."""
    fitted = fit(labelled_structures(4, seed=1), kernel=request.param)
    fitted.head.set_rows(fitted.head.rows, targets_of(fitted.head), float(fitted.head.lengthscale), 1.7, NOISE)
    return fitted


NEW = labelled_structures(2, seed=5).structures


class Dense:
    """The same process, written as a Gaussian process over positions with a covariance κ(X, X'), and nothing more.

    Cov(E, E') = κ, Cov(F, E') = −∂κ/∂X, Cov(F, F') = ∂²κ/∂X∂X'.
    """

    def __init__(self, fitted: Fitted) -> None:
        self.fitted, self.head = fitted, fitted.head
        self.train = list(fitted.train.structures.structures)
        structures, statistics = fitted.train.structures, fitted.potential.statistics
        references = [sum(statistics.reference_energies[z] for z in atoms.numbers) for atoms in self.train]
        energies = torch.as_tensor(structures.energy - np.array(references)) / statistics.scale
        constant = energies.mean()
        blocks = [
            torch.cat([(e - constant)[None], torch.as_tensor(f).flatten() / statistics.scale])
            for e, f in zip(energies, structures.forces, strict=True)
        ]
        self.constant, self.targets = constant, torch.cat(blocks)
        noise = [torch.cat([self.head.noise[:1], self.head.noise[1:].expand(3 * len(a))]) for a in self.train]
        prior = self.covariance(self.train, self.train)
        self.inverse = torch.linalg.inv(prior + self.head.scale.square() * torch.diag(torch.cat(noise)))

    def descriptor(self, atoms: Atoms) -> tuple[Tensor, object]:
        graph = graph_of(atoms, cutoff=BACKBONE.cutoff)
        return graph.positions, lambda x: self.fitted.potential.backbone(graph.with_positions(x)).sum(0)

    def block(self, a: Atoms, b: Atoms) -> Tensor:
        (x_a, z_a), (x_b, z_b) = self.descriptor(a), self.descriptor(b)

        def kernel(first: Tensor, second: Tensor) -> Tensor:
            u = ((z_a(first) - z_b(second)) / self.head.spread / self.head.lengthscale).square().sum()
            if self.head.config.kernel == "rbf":
                return self.head.scale.square() * torch.exp(-0.5 * u)
            root = (5.0 * u + SMOOTHING).sqrt()
            return self.head.scale.square() * (1.0 + root + root.square() / 3.0) * torch.exp(-root)

        hessian = torch.func.hessian(kernel, argnums=(0, 1))(x_a, x_b)[0][1].reshape(x_a.numel(), x_b.numel())
        slope_a, slope_b = torch.func.grad(kernel, argnums=(0, 1))(x_a, x_b)
        upper = torch.cat([kernel(x_a, x_b)[None], -slope_b.flatten()])
        return torch.cat([upper[None], torch.cat([-slope_a.reshape(-1, 1), hessian], dim=1)])

    def covariance(self, first: list[Atoms], second: list[Atoms]) -> Tensor:
        """Of energies and forces, structure after structure."""
        return torch.cat([torch.cat([self.block(a, b) for b in second], dim=1) for a in first])

    def predict(self, atoms: Atoms) -> tuple[Tensor, Tensor]:
        """Mean and variance of the energy, then of the force components."""
        cross = self.covariance([atoms], self.train)
        mean = cross @ self.inverse @ self.targets
        mean[0] += self.constant
        return mean, (self.block(atoms, atoms) - cross @ self.inverse @ cross.T).diagonal()


@pytest.fixture(scope="module")
def dense(fitted: Fitted) -> Dense:
    return Dense(fitted)


class TestAgainstADenseProcess:
    def test_means(self, fitted: Fitted, dense: Dense):
        for atoms in NEW:
            distribution, forces = fitted.potential(graph_of(atoms, cutoff=BACKBONE.cutoff))
            expected, _ = dense.predict(atoms)
            close(torch.cat([distribution.mean, forces.flatten()]), expected, rtol=1e-6, atol=1e-6)

    def test_variances(self, fitted: Fitted, dense: Dense):
        scale = fitted.potential.statistics.scale
        for atoms in NEW:
            prediction = fitted.potential.predict(graph_of(atoms, cutoff=BACKBONE.cutoff))
            found = torch.cat([prediction.energy_std, prediction.forces_std.flatten()]) / scale
            _, expected = dense.predict(atoms)
            close(found, expected.clamp(min=0.0).sqrt(), rtol=1e-4, atol=1e-5)
            assert prediction.provenance.forces_std == "exact"

    def test_likelihood(self, fitted: Fitted, dense: Dense):
        """That of a multivariate normal, per row, with the scale that makes it greatest."""
        head = fitted.head
        geometry = Geometry.between(head.rows, head.rows)
        found = log_likelihood(geometry, head.kernel, head.lengthscale, head.noise, targets_of(head))
        covariance = torch.linalg.inv(dense.inverse)
        best = dense.targets @ dense.inverse @ dense.targets / len(dense.targets)
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(dense.targets), best * covariance)
        assert float(found) == pytest.approx(float(normal.log_prob(dense.targets)) / len(dense.targets), rel=1e-6)


def test_predicts_what_it_has_not_seen():
    """Errors of energies and forces on new structures are a fraction of their spread."""
    fitted, new = fit(labelled_structures(40, seed=1), n_force_rows=500), labelled_structures(20, seed=2)
    graph, labels = GraphDataset(new, BACKBONE.cutoff).batch(range(20))
    prediction = fitted.potential.predict(graph, forces_std="none")
    for kind in (0, 1):  # water, ethanol
        spread = labels.energy[kind::2].std()
        assert float((prediction.energy - labels.energy)[kind::2].abs().mean()) < 0.2 * float(spread)
    assert float((prediction.forces - labels.forces).abs().mean()) < 0.1 * float(labels.forces.std())


def test_without_noise_it_passes_through_its_labels(fitted: Fitted):
    """Energies and forces of training structures come back, and nothing is left of their σ."""
    head, kept = fitted.head, {name: value.clone() for name, value in fitted.head.state_dict().items()}
    head.set_rows(head.rows, targets_of(head), float(head.lengthscale), float(head.scale), torch.zeros(2))
    graph, labels = fitted.train.batch(range(4))
    prediction = fitted.potential.predict(graph)
    head.load_state_dict(kept)
    close(prediction.energy, labels.energy, rtol=0.0, atol=1e-3)
    close(prediction.forces, labels.forces, rtol=0.0, atol=1e-2)
    prior = fitted.potential.statistics.scale * float(head.scale)
    assert float(prediction.energy_std.max()) < 1e-4 * prior


def test_far_from_all_structures_the_prior_comes_back(fitted: Fitted):
    """Neither the energy nor σ of n far copies is n times that of one, nor σ √n times: a structure is one point."""
    water, scale = fitted.train.structures.structures[0], fitted.potential.statistics.scale

    def copies(n: int) -> Atoms:
        together = Atoms()
        for index in range(n):
            copy = water.copy()
            copy.positions += [20.0 * index, 0.0, 0.0]
            together += copy
        return together

    std = {
        n: float(fitted.potential.predict(graph_of(copies(n), cutoff=BACKBONE.cutoff), forces_std="none").energy_std)
        for n in (1, 2, 4, 1000)
    }
    assert std[1000] == pytest.approx(scale * float(fitted.head.scale), rel=1e-2)
    for n in (2, 4, 1000):
        assert abs(std[n] / (n * std[1]) - 1.0) > 0.05
        assert abs(std[n] / (math.sqrt(n) * std[1]) - 1.0) > 0.05


def test_hyper_parameters_are_those_of_the_greatest_likelihood():
    """Of labels with noise, which is found; and no change of one hyper-parameter makes the likelihood greater."""
    noise, structures = 0.6, labelled_structures(14, seed=1)
    generator = np.random.default_rng(4)
    forces = tuple(f + generator.normal(0.0, noise, f.shape) for f in structures.forces)
    fitted = fit(replace(structures, forces=forces), kernel="rbf")
    assert fitted.result.forces_noise == pytest.approx(noise, rel=0.2)
    head = fitted.head
    geometry = Geometry.between(head.rows, head.rows)
    targets = targets_of(head)

    def value(length: float, energy: float, forces: float) -> float:
        changed = head.noise * torch.tensor([energy, forces])
        return float(log_likelihood(geometry, head.kernel, length * head.lengthscale, changed, targets))

    best = value(1.0, 1.0, 1.0)
    assert best == pytest.approx(fitted.result.log_likelihood, rel=1e-9)
    for factors in [(1.5, 1.0, 1.0), (0.7, 1.0, 1.0), (1.0, 100.0, 1.0), (1.0, 1.0, 1.5), (1.0, 1.0, 0.7)]:
        assert value(*factors) < best, factors


def test_hyper_parameters_at_the_end_of_the_search_are_told(monkeypatch: pytest.MonkeyPatch):
    """Noise that is far larger than the search allows."""
    structures = labelled_structures(8, seed=1)
    forces = tuple(f + np.random.default_rng(4).normal(0.0, 5.0, f.shape) for f in structures.forces)
    monkeypatch.setattr("sigmaff.heads.gp.fit.NOISE_BOUNDS", (1e-10, 1e-3))
    assert "noise of forces: the largest value" in fit(replace(structures, forces=forces)).result.at_ends


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).norm(dim=-1)


class TestRows:
    def test_numbers_are_limited_and_in_the_settings(self, tmp_path: Path):
        fitted = fit(labelled_structures(12, seed=1), n_structures=7, n_force_rows=20)
        assert (fitted.potential.config.head.n_structures, fitted.potential.config.head.n_force_rows) == (7, 20)
        assert (fitted.result.n_energy_rows, fitted.result.n_force_rows) == (7, 20)
        save(fitted.potential, tmp_path / "model.sigmaff")
        loaded = load(tmp_path / "model.sigmaff")
        graph = graph_of(*NEW, cutoff=BACKBONE.cutoff)
        found, expected = loaded.predict(graph), fitted.potential.predict(graph)
        for name in ("energy", "forces", "energy_std", "forces_std"):
            close(getattr(found, name), getattr(expected, name), rtol=0.0, atol=0.0)
        assert loaded.config == fitted.potential.config

    def test_settings_tell_how_few_there_are(self):
        """Two structures of 3 and 9 atoms have 36 force components."""
        fitted = fit(labelled_structures(2, seed=1), n_structures=100, n_force_rows=5000)
        assert (fitted.potential.config.head.n_structures, fitted.potential.config.head.n_force_rows) == (2, 36)

    def test_are_energies_and_slopes_of_the_chosen_structures(self):
        """Every input is the descriptor of a training structure, every tangent a derivative by one of its positions."""
        fitted = fit(labelled_structures(6, seed=1), n_structures=4, n_force_rows=25)
        head, backbone = fitted.head, fitted.potential.backbone
        inputs, jacobians = [], []
        for atoms in fitted.train.structures.structures:
            graph = graph_of(atoms, cutoff=BACKBONE.cutoff)
            jacobian = torch.func.jacrev(lambda x, g=graph: backbone(g.with_positions(x)).sum(0))(graph.positions)
            inputs.append(backbone(graph).sum(0))
            jacobians.append(-jacobian.flatten(1).T / head.spread)
        structure = distances(head.inputs * head.spread + head.center, torch.stack(inputs)).min(1)
        assert float(structure.values.max()) < 1e-9
        assert len(structure.indices.unique()) == 4
        used = set()
        for tangent, owner in zip(head.tangents, structure.indices[head.owners].tolist(), strict=True):
            nearest = distances(tangent[None], jacobians[owner])[0].min(0)
            assert float(nearest.values) < 1e-9
            used.add((owner, int(nearest.indices)))
        assert len(used) == 25

    def test_energies_alone_suffice(self):
        structures = labelled_structures(12, seed=1)
        fitted = fit(replace(structures, forces=None))
        assert fitted.potential.config.head.n_force_rows == 0
        prediction = fitted.potential.predict(graph_of(*NEW, cutoff=BACKBONE.cutoff))
        assert bool((prediction.forces_std > 0).all())

    def test_energies_are_needed(self):
        structures = labelled_structures(4, seed=1)
        with pytest.raises(DataError, match=r"forces only.*needs energies"):
            fit(replace(structures, energy=None, source="forces only"))


def test_structures_must_differ():
    with pytest.raises(DataError, match="structures that differ"):
        fit(labelled_structures(1, seed=1))


def test_is_found_by_its_name():
    train = GraphDataset(labelled_structures(4, seed=1), BACKBONE.cutoff)
    potential = Potential(PotentialConfig(backbone=BACKBONE, head=DeterministicConfig()), compute_statistics(train))
    listener = Remembering()
    fitted, summary = solve_head(potential, GPConfig(), train, train, listener=listener)
    assert fitted.head.method == "gp"
    assert fitted.dtype == torch.float64
    assert summary.n_energy_rows == 4
    assert listener.advances[-1] == (4, 4)


def test_is_never_trained(fitted: Fitted):
    with pytest.raises(TypeError, match="solved"):
        fitted.head.energy_loss(EnergyDistribution(mean=torch.zeros(1)), torch.zeros(1), 1)
    assert fitted.head.config.stages == ("backbone", "solve")
    assert not list(fitted.head.parameters())


@pytest.mark.parametrize("owner", [-1, 10**6])
def test_a_force_of_no_structure_is_damage(owner: int, tmp_path: Path):
    fitted = fit(labelled_structures(6, seed=1), n_structures=6, n_force_rows=20)
    fitted.head.owners[3] = owner
    save(fitted.potential, tmp_path / "model.sigmaff")
    with pytest.raises(ModelFileError, match="a force belongs to no structure"):
        load(tmp_path / "model.sigmaff")
