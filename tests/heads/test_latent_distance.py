"""Latent distances against scikit-learn and scipy on the same embeddings, and their fit on xTB labels."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from pydantic import ValidationError
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf_shrinkage as sklearn_shrinkage
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from conftest import Trained, joined
from contract import displaced, graph_of
from listeners import Remembering
from sigmaff.data import LabelledStructures
from sigmaff.errors import ConfigError, DataError
from sigmaff.graph import Embedding
from sigmaff.heads import LatentDistance, LatentDistanceConfig, LNKConfig
from sigmaff.heads.latent_distance.fit import UNSEEN_FACTOR, LatentDistanceFit
from sigmaff.heads.latent_distance.mixture import (
    MIN_SHRINKAGE,
    Mixture,
    Regularization,
    fit_mixture,
    ledoit_wolf_shrinkage,
)
from sigmaff.models import Potential
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Prediction
from sigmaff.models.solve import solve_head

DISTANCES = ("knn", "mahalanobis", "mixture")
close = torch.testing.assert_close


def fit(trained: Trained, distance: str, seed: int = 0, **settings: object) -> tuple[Potential, LatentDistanceFit]:
    train, held_out = trained.datasets()
    config = LatentDistanceConfig(distance=distance, **settings)
    return solve_head(trained.potential, config, train, held_out, seed=seed)


@torch.no_grad()
def embeddings(
    potential: Potential, structures: Sequence[Atoms], step: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Of all atoms, and their atomic numbers; of SchNet also after a step, counted from 1."""
    graph, network = graph_of(*structures, cutoff=potential.cutoff), potential.backbone
    if step is None:
        return network(graph).numpy(), graph.atomic_numbers.numpy()
    x, distance = network.elements(graph.atomic_numbers), graph.pair_vectors().norm(dim=-1)
    for interaction, filters in list(zip(network.interactions, network.filters(distance), strict=True))[:step]:
        x = x + interaction(x, filters, graph.pair_index)
    return x.numpy(), graph.atomic_numbers.numpy()


def predicted(potential: Potential, structures: Sequence[Atoms]) -> Prediction:
    return potential.predict(graph_of(*structures, cutoff=potential.cutoff))


def distances(potential: Potential, structures: Sequence[Atoms]) -> np.ndarray:
    """What σ of the atoms says of their distances."""
    head = potential.head
    assert isinstance(head, LatentDistance)
    return predicted(potential, structures).node_energy_std.numpy() / float(head.scale) / potential.statistics.scale


def shrunk_covariances(trained: Trained, step: int | None = None) -> dict[int, np.ndarray]:
    """Of the training embeddings of each element."""
    h, numbers = embeddings(trained.potential, trained.train.structures, step)
    spread = np.mean([h[numbers == z].var(0).mean() for z in numbers])
    found = {}
    for z in np.unique(numbers):
        own = h[numbers == z]
        covariance, n = np.cov(own.T, bias=True), len(own)
        rho = max(sklearn_shrinkage(own), MIN_SHRINKAGE)
        target = (n * np.trace(covariance) / len(covariance) + spread) / (n + 1)
        found[int(z)] = (1 - rho) * covariance + rho * target * np.eye(len(covariance))
    return found


@pytest.mark.parametrize(("layer", "step"), [("last", None), ("first", 1), (1, 1), (2, 2)])
def test_mahalanobis(trained: Trained, layer: str | int, step: int | None):
    fitted, _ = fit(trained, "mahalanobis", layer=layer)
    (known, known_numbers), (h, numbers) = (
        embeddings(fitted, data.structures, step) for data in (trained.train, trained.held_out)
    )
    found = distances(fitted, trained.held_out.structures)
    for z, covariance in shrunk_covariances(trained, step).items():
        mean = known[known_numbers == z].mean(0, keepdims=True)
        expected = cdist(h[numbers == z], mean, "mahalanobis", VI=np.linalg.inv(covariance))[:, 0]
        np.testing.assert_allclose(found[numbers == z], expected, rtol=1e-7)


def test_layers_that_the_backbone_does_not_have(trained: Trained):
    with pytest.raises(ConfigError, match="layer is 3, but the backbone has 2 layers"):
        fit(trained, "knn", layer=3)


def test_an_embedding_of_dimenet_is_a_layer():
    """It has three in place of hidden layers; the last one alone is not their sum."""
    generator = torch.Generator().manual_seed(0)
    embedding = Embedding(n_features=4, n_blocks=3, activation=torch.nn.Identity())
    features = torch.randn(5, 12, generator=generator)
    for number in (1, 2, 3):
        head = LatentDistance(LatentDistanceConfig(layer=number), embedding, (1,))
        close(head.compared(features), features[:, 4 * (number - 1) : 4 * number].double())


def test_the_last_layer_is_written_as_before():
    """Folders of runs that began before the choice existed are still theirs."""
    assert "layer" not in LatentDistanceConfig().model_dump()
    assert LatentDistanceConfig.model_validate({"layer": "first"}).model_dump()["layer"] == "first"
    with pytest.raises(ValidationError):
        LatentDistanceConfig(layer=0)


@pytest.mark.parametrize("n_neighbors", [1, 5, 60])
def test_nearest_neighbours(trained: Trained, n_neighbors: int):
    """Of all training embeddings: there are fewer than places for them. Carbon and oxygen have less than 60."""
    fitted, result = fit(trained, "knn", n_neighbors=n_neighbors)
    (known, known_numbers), (h, numbers) = (
        embeddings(fitted, data.structures) for data in (trained.train, trained.held_out)
    )
    assert result.n_points == len(known) < fitted.config.head.n_points
    found = distances(fitted, trained.held_out.structures)
    for z, covariance in shrunk_covariances(trained).items():
        own = known[known_numbers == z]
        metric = {"VI": np.linalg.inv(covariance)}
        search = NearestNeighbors(
            n_neighbors=min(n_neighbors, len(own)), algorithm="brute", metric="mahalanobis", metric_params=metric
        ).fit(own)
        expected = search.kneighbors(h[numbers == z])[0].mean(1)
        np.testing.assert_allclose(found[numbers == z], expected, rtol=1e-6)


def as_sklearn(mixture: Mixture) -> GaussianMixture:
    model = GaussianMixture(len(mixture.weights))
    model.weights_, model.means_ = mixture.weights.numpy(), mixture.means.numpy()
    model.precisions_cholesky_ = mixture.whitening.transpose(1, 2).numpy()
    factors = np.linalg.inv(mixture.whitening.numpy())
    model.covariances_ = factors @ factors.transpose(0, 2, 1)
    return model


def test_mixture(trained: Trained):
    """d² = −2 log(p/p_max) with the densities of scikit-learn's mixture of the same parameters."""
    fitted, _ = fit(trained, "mixture", n_components=3)
    head = fitted.head
    assert isinstance(head, LatentDistance)
    h, numbers = embeddings(fitted, trained.held_out.structures)
    found = distances(fitted, trained.held_out.structures)
    for element, z in enumerate(head.elements):
        log_density = head.whitening[element].diagonal(dim1=1, dim2=2).log().sum(-1)
        weights = torch.softmax(head.log_heights[element] - log_density, dim=0)
        model = as_sklearn(Mixture(weights=weights, means=head.means[element], whitening=head.whitening[element]))
        peak = model.score_samples(model.means_).max()
        expected = np.maximum(2.0 * (peak - model.score_samples(h[numbers == z])), 0.0)
        np.testing.assert_allclose(found[numbers == z] ** 2, expected, rtol=1e-7, atol=1e-9)


def test_one_gaussian_is_mahalanobis(trained: Trained):
    one, other = fit(trained, "mixture", n_components=1)[0], fit(trained, "mahalanobis")[0]
    first, second = (predicted(potential, trained.held_out.structures) for potential in (one, other))
    for name in ("energy_std", "node_energy_std", "forces_std"):
        close(getattr(first, name), getattr(second, name), rtol=0.0, atol=0.0)


class TestMixture:
    @pytest.fixture
    def points(self) -> np.ndarray:
        """Three clouds of different size, shape and place."""
        generator = np.random.default_rng(0)
        parts = [
            generator.normal(size=(n, 3)) @ generator.normal(size=(3, 3)) + 9.0 * generator.normal(size=3)
            for n in (60, 120, 300)
        ]
        return np.concatenate(parts)

    def test_finds_what_sklearn_finds(self, points: np.ndarray):
        """Almost unregularised, with a best likelihood that both reach whatever their starts."""
        regularization = Regularization(shrinkage=1e-7, spread=1.0)
        found = fit_mixture(torch.as_tensor(points), 3, regularization, np.random.default_rng(1))
        reference = GaussianMixture(3, n_init=5, tol=1e-8, max_iter=500, random_state=0).fit(points)
        assert as_sklearn(found).score(points) == pytest.approx(reference.score(points), abs=1e-5)
        order, expected = np.argsort(found.weights.numpy()), np.argsort(reference.weights_)
        np.testing.assert_allclose(found.means.numpy()[order], reference.means_[expected], atol=2e-3)

    def test_shrinkage_is_ledoit_and_wolfs(self, points: np.ndarray):
        for rows in (points, points[:50], np.random.default_rng(2).normal(size=(10, 40))):
            assert ledoit_wolf_shrinkage(torch.as_tensor(rows)) == pytest.approx(sklearn_shrinkage(rows), rel=1e-9)

    @pytest.mark.parametrize("n_distinct", [1, 2, 7])
    def test_few_points_in_many_dimensions(self, n_distinct: int):
        """Several times each. As many Gaussians as were asked for, of a density that is highest at the points."""
        distinct = torch.randn(n_distinct, 50, dtype=torch.float64)
        x = distinct.repeat(3, 1)
        regularization = Regularization(shrinkage=ledoit_wolf_shrinkage(x), spread=1.0)
        mixture = fit_mixture(x, 4, regularization, np.random.default_rng(0))
        assert len(mixture.weights) == 4
        assert float(mixture.weights.sum()) == pytest.approx(1.0)
        assert all(bool(value.isfinite().all()) for value in vars(mixture).values())
        near, far = (mixture.log_parts(distinct + step).logsumexp(-1) for step in (0.0, 1.0))
        assert bool((near > far).all())


@pytest.mark.parametrize("distance", DISTANCES)
class TestFit:
    def test_energies_and_forces_stay_the_backbones(self, trained: Trained, distance: str):
        fitted, _ = fit(trained, distance)
        before, after = (predicted(p, trained.held_out.structures) for p in (trained.potential, fitted))
        for name in ("energy", "forces", "node_energy"):
            close(getattr(after, name), getattr(before, name), rtol=0.0, atol=0.0)

    def test_std_has_the_scale_of_held_out_errors(self, trained: Trained, distance: str):
        fitted, result = fit(trained, distance)
        prediction = predicted(fitted, trained.held_out.structures)
        errors = trained.held_out.energy - prediction.energy.numpy()
        assert np.mean(prediction.energy_std.numpy() ** 2) == pytest.approx(np.mean(errors**2), rel=1e-6)
        seen = [distances(fitted, data.structures).max() for data in (trained.train, trained.held_out)]
        assert result.largest_distance == pytest.approx(max(seen), rel=1e-6)

    def test_std_of_a_structure_is_the_sum_over_its_atoms(self, trained: Trained, distance: str):
        """So that of far copies, which share their error, grows as their number. A force has the σ of its atom."""
        fitted, _ = fit(trained, distance)
        copies, one = Atoms(), displaced(molecule("CH3CH2OH"), 4)
        for index in range(4):
            copy = one.copy()
            copy.positions += [0.0, 15.0 * index, 0.0]
            copies += copy
        alone, together = predicted(fitted, [one]), predicted(fitted, [copies])
        close(alone.energy_std[0], alone.node_energy_std.sum())
        close(together.energy_std, 4.0 * alone.energy_std)
        close(together.forces_std, alone.node_energy_std.repeat(4).unsqueeze(-1).expand(-1, 3))
        assert together.provenance.forces_std == "by_atom"

    def test_std_grows_with_displacement(self, trained: Trained, distance: str):
        fitted, _ = fit(trained, distance)
        means = []
        for width in (0.05, 0.1, 0.2, 0.4):
            structures = [displaced(molecule("CH3CH2OH"), seed, width) for seed in range(10)]
            means.append(float(predicted(fitted, structures).energy_std.mean()))
        assert means == sorted(means)
        assert means[-1] > 2.0 * means[0]

    def test_an_unseen_element_is_farthest(self, trained: Trained, distance: str):
        fitted, result = fit(trained, distance)
        other = molecule("CH3CH2OH")
        other.numbers[0] = 9
        graph = graph_of(molecule("CH3CH2OH"), other, cutoff=fitted.cutoff)
        prediction = fitted.predict_raw(graph, unseen_elements=True)
        unseen = graph.atomic_numbers == 9
        expected = UNSEEN_FACTOR * result.largest_distance * result.scale * fitted.statistics.scale
        assert float(prediction.node_energy_std[unseen]) == pytest.approx(expected)
        assert float(prediction.node_energy_std[~unseen].max()) < expected
        assert float(prediction.energy_std[1]) > float(prediction.energy_std[0])

    def test_an_element_of_one_atom(self, trained: Trained, distance: str):
        """Its embedding has no covariance of its own: distances are in units of the spread of other elements."""
        rare = Trained(
            potential=with_nitrogen(trained.potential),
            train=joined(trained.train, labelled(molecule("NH3"))),
            held_out=trained.held_out,
        )
        fitted, result = fit(rare, distance)
        assert result.n_atoms["N"] == 1
        near, far = (
            predicted(fitted, [displaced(molecule("NH3"), 1, width)]).node_energy_std[0] for width in (0.01, 0.3)
        )
        assert 0 <= float(near) < float(far) < float("inf")

    def test_a_seed_decides_it(self, trained: Trained, distance: str):
        states = [fit(trained, distance, n_points=50)[0].state_dict() for _ in range(2)]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())

    def test_runs_in_single_precision(self, trained: Trained, distance: str):
        potential = deepcopy(trained.potential)
        potential.set_precision(torch.float32)
        double, single = fit(trained, distance)[0], fit(replace(trained, potential=potential), distance)[0]
        graph = graph_of(*trained.held_out.structures, dtype=torch.float32, cutoff=single.cutoff)
        expected = predicted(double, trained.held_out.structures).energy_std
        close(single.predict(graph).energy_std.double(), expected, rtol=0.02, atol=0.0)

    def test_is_reached_by_its_name_and_reports_progress(self, trained: Trained, distance: str):
        train, held_out = trained.datasets()
        n_total = len(train) + len(held_out)
        listener = Remembering()
        config = LatentDistanceConfig(distance=distance)
        fitted, summary = solve_head(trained.potential, config, train, held_out, listener=listener)
        assert isinstance(fitted.head, LatentDistance)
        assert summary.n_atoms == {"H": 160, "C": 40, "O": 40}
        assert listener.advances == sorted(listener.advances)
        assert listener.advances[-1] == (n_total, n_total)

    def test_a_saved_one_is_the_same(self, trained: Trained, distance: str, tmp_path: Path):
        fitted, _ = fit(trained, distance)
        save(fitted, tmp_path / "model.sigmaff")
        before, after = (predicted(p, trained.held_out.structures) for p in (fitted, load(tmp_path / "model.sigmaff")))
        for name in ("energy", "forces", "energy_std", "forces_std", "node_energy_std"):
            close(getattr(after, name), getattr(before, name), rtol=0.0, atol=0.0)

    def test_refuses_what_it_cannot_fit(self, trained: Trained, distance: str):
        train, held_out = trained.datasets()
        config = LatentDistanceConfig(distance=distance)
        with pytest.raises(ConfigError, match="this one has a lnk head"):
            solve_head(trained.potential.with_head(LNKConfig(n_inducing=4)), config, train, held_out)
        with pytest.raises(DataError, match="needs energies"):
            fit(replace(trained, held_out=replace(trained.held_out, energy=None)), distance)
        with pytest.raises(DataError, match="no training structure holds N"):
            fit(replace(trained, potential=with_nitrogen(trained.potential)), distance)


def with_nitrogen(potential: Potential) -> Potential:
    """The same potential for one more element."""
    statistics = potential.statistics
    references = statistics.reference_energies | {7: -1485.0}
    more = replace(statistics, elements=(1, 6, 7, 8), reference_energies=references, open_compositions=())
    other = Potential(potential.config, more)
    other.set_precision(torch.float64)
    other.load_state_dict(potential.state_dict())
    return other.eval()


def labelled(atoms: Atoms) -> LabelledStructures:
    return LabelledStructures(
        structures=(atoms,),
        energy=np.zeros(1),
        forces=(np.zeros((len(atoms), 3)),),
        source="one",
        frame_index=np.arange(1),
    )


def test_kept_points_are_training_atoms_of_every_element(trained: Trained):
    fitted, result = fit(trained, "knn", n_points=30, n_neighbors=1)
    head = fitted.head
    assert isinstance(head, LatentDistance)
    assert result.n_points == 30
    assert len(head.points.unique(dim=0)) == 30
    assert set(head.point_numbers.tolist()) == {1, 6, 8}
    training = distances(fitted, trained.train.structures)
    assert int((training < 1e-7).sum()) == 30
    with pytest.raises(ConfigError, match="3 elements need at least one point each"):
        fit(trained, "knn", n_points=2)
