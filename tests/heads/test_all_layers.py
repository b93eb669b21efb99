"""The LNK on features of all layers, against a Gaussian process with every row and kernel written out in NumPy."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from pydantic import ValidationError
from scipy.linalg import orth

from conftest import Trained
from contract import BACKBONES, WATER, Case, graph_of
from sigmaff.config import validated
from sigmaff.errors import ConfigError
from sigmaff.heads import LNK, LNKConfig
from sigmaff.heads.lnk import factor as factor_module
from sigmaff.heads.lnk.factor import LowRankFactor, TriangularFactor
from sigmaff.heads.observations import Rows
from sigmaff.heads.posterior import Moments, posteriors
from sigmaff.models import Potential
from sigmaff.models.file import load, save
from sigmaff.models.solve import solve_head

STEP = 1e-4
"""Å, of central differences."""
COMPOSITIONS = ((6, 2, 1), (2, 0, 1))
"""H, C, O of ethanol and water, of which the training set consists."""
close = torch.testing.assert_close


def fit(trained: Trained, **settings: object) -> Potential:
    train, held_out = trained.datasets()
    config = LNKConfig(features="all_layers", distance_aware=False, **settings)
    return solve_head(trained.potential, config, train, held_out)[0]


def activated_layers(potential: Potential, structures: Sequence[Atoms]) -> tuple[list[np.ndarray], np.ndarray]:
    """What weights act on, layer by layer, from the modules of SchNet, (n_atoms, d) each; elements of atoms."""
    network, graph = potential.backbone, graph_of(*structures, cutoff=potential.cutoff)
    x, distance = network.elements(graph.atomic_numbers), graph.pair_vectors().norm(dim=-1)
    layers = []
    for interaction, filters in zip(network.interactions, network.filters(distance), strict=True):
        x = x + interaction(x, filters, graph.pair_index)
        layers.append(x.detach().numpy())
    last = np.logaddexp(0.0, network.output(x).detach().numpy()) - math.log(2.0)
    elements = np.searchsorted(potential.statistics.elements, graph.atomic_numbers.numpy())
    return [last, *layers], elements


class Process:
    """The Gaussian process of energies before its scale is known, given training energies."""

    def __init__(self, potential: Potential, train: Sequence[Atoms]) -> None:
        self.potential = potential
        layers, elements = activated_layers(potential, train)
        self.means = [np.stack([part[elements == e].mean(0) for e in range(3)]) for part in layers]
        norm = np.sqrt((layers[0] ** 2).sum(-1).mean())
        self.scales = [1.0] * len(layers)
        spread = [np.sqrt(((rows - rows.mean(0)) ** 2).sum(-1).mean()) for rows in self.layer_rows(train)]
        self.scales = [spread[0] / own / norm for own in spread]
        self.train = train

    def layer_rows(self, structures: Sequence[Atoms]) -> list[np.ndarray]:
        """Of each layer, Σ over the atoms of an element, elements side by side."""
        layers, elements = activated_layers(self.potential, structures)
        index = np.repeat(np.arange(len(structures)), [len(atoms) for atoms in structures])
        rows = []
        for part, mean, scale in zip(layers, self.means, self.scales, strict=True):
            sums = np.zeros((len(structures), 3, part.shape[1]))
            np.add.at(sums, (index, elements), scale * (part - mean[elements]))
            rows.append(sums.reshape(len(structures), -1))
        return rows

    def rows(self, structures: Sequence[Atoms]) -> np.ndarray:
        counts = np.array([[atoms.symbols.count(symbol) for symbol in "HCO"] for atoms in structures])
        span = orth(np.array(COMPOSITIONS, dtype=float).T)
        return np.hstack([*self.layer_rows(structures), counts @ span]) / math.sqrt(len(self.scales))

    def slopes(self, atoms: Atoms) -> np.ndarray:
        """−∂rows/∂x by central differences, (3 n_atoms, n_weights)."""
        moved = []
        for index, step in product(np.ndindex(atoms.positions.shape), (-STEP, STEP)):
            moved.append(atoms.copy())
            moved[-1].positions[index] += step
        ends = self.rows(moved)
        return (ends[::2] - ends[1::2]) / (2.0 * STEP)

    def std(self, rows: np.ndarray, noise: float) -> np.ndarray:
        """The variance k − kᵀ(K + λ)⁻¹k is the least |φ − Φᵀc|² + λ|c|² of all combinations c of known energies."""
        known = self.rows(self.train)
        system = np.vstack([known.T, math.sqrt(noise) * np.eye(len(known))])
        wanted = np.vstack([rows.T, np.zeros((len(known), len(rows)))])
        return np.linalg.norm(wanted - system @ np.linalg.lstsq(system, wanted)[0], axis=0)


@pytest.fixture(scope="module")
def fitted(trained: Trained) -> Potential:
    return fit(trained)


def test_variances_are_those_of_a_gaussian_process_written_out(trained: Trained, fitted: Potential):
    head, frames = fitted.head, trained.held_out.structures[:4]
    process = Process(fitted, trained.train.structures)
    scale = math.exp(head.kernel.log_linear_scale.item())
    noise = head.energy_noise.item() / scale**2
    expected = fitted.statistics.scale * scale * process.std(process.rows(frames), noise)
    prediction = fitted.predict(graph_of(*frames, cutoff=fitted.cutoff), forces_std="exact")
    np.testing.assert_allclose(prediction.energy_std, expected, rtol=1e-6)
    slopes = np.concatenate([process.std(process.slopes(atoms), noise) for atoms in frames])
    of_slopes = fitted.statistics.scale * scale * math.sqrt(head.slope_scale.item())
    np.testing.assert_allclose(prediction.forces_std.flatten(), of_slopes * slopes, rtol=1e-4)


def test_layers_have_equal_shares_of_the_prior(trained: Trained, fitted: Potential):
    """Of the variance of training energies, centred; together that of the last layer alone."""
    train, _ = trained.datasets()
    last, _ = solve_head(trained.potential, LNKConfig(distance_aware=False), train, train)

    def spread(potential: Potential) -> tuple[torch.Tensor, list[int]]:
        graph = graph_of(*trained.train.structures, cutoff=potential.cutoff)
        rows = potential.head.rows(potential.embed(graph), graph)[0]
        embedding = potential.head.embedding
        columns = rows.unflatten(-1, (3, -1))[..., :-1] / potential.head.kernel.log_linear_scale.exp()
        return (columns - columns.mean(0)).square().mean(0).sum(0), [embedding.n_last, *embedding.hidden_layers]

    with torch.no_grad():
        (own, widths), (alone, _) = spread(fitted), spread(last)
    shares = torch.stack([part.sum() for part in own.split(widths)])
    assert len(shares) == 3
    close(shares, alone.sum().expand(3) / 3)


@pytest.mark.parametrize("mean", ["backbone", "residual"])
def test_the_mean_is_that_of_the_last_layer(trained: Trained, mean: str):
    """Hidden layers have a part in σ alone."""
    train, held_out = trained.datasets()
    last, _ = solve_head(trained.potential, LNKConfig(mean=mean), train, held_out)
    graph = graph_of(*trained.held_out.structures[:3], cutoff=last.cutoff)
    found, expected = (potential.predict(graph) for potential in (fit(trained, mean=mean), last))
    for name in ("energy", "forces", "node_energy"):
        close(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-7)


def test_as_many_orthogonal_samples_as_weights_are_exact(trained: Trained):
    potential = fit(trained, n_samples=fit(trained).head.n_weights)
    graph = graph_of(*trained.held_out.structures[:2], cutoff=potential.cutoff)
    sampled, exact = (potential.predict(graph, forces_std=how) for how in ("sampled", "exact"))
    close(sampled.forces_std, exact.forces_std, rtol=1e-7, atol=0.0)
    close(sampled.forces, exact.forces)


def test_variances_of_atoms_are_the_same_prepared_and_not(fitted: Potential):
    """Prepared, they come from factors of each element."""
    graph = graph_of(WATER, cutoff=fitted.cutoff)
    with torch.no_grad():
        features = fitted.embed(graph)
        expected = fitted.head.node_variance(features, graph)
        with fitted.head.prepared():
            close(fitted.head.node_variance(features, graph), expected)


def test_low_rank_factor_is_a_matrix():
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(7, 3, generator=generator, dtype=torch.float64)).Q
    shrinkage = torch.rand(3, generator=generator, dtype=torch.float64)
    factor = LowRankFactor(directions, shrinkage)
    matrix = torch.eye(7, dtype=torch.float64) - directions @ torch.diag(shrinkage) @ directions.T
    values = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    close(factor.of_rows(values), values @ matrix)
    close(factor.of_draws(values), matrix @ values)
    close(factor.part(torch.tensor([4, 1])), matrix[[4, 1]])


@pytest.mark.parametrize("n_weights", [4, 7, 8])
def test_blocks_of_a_triangle_are_its_columns(n_weights: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(factor_module, "BLOCK", 4)
    matrix = torch.randn(n_weights, n_weights, dtype=torch.float64)
    for rows in (torch.randn(3, n_weights, dtype=torch.float64), torch.randn(2, 5, n_weights, dtype=torch.float64)):
        close(TriangularFactor.of(matrix).of_rows(rows), rows @ matrix.tril())


def test_few_rows_are_the_same_as_their_gram_matrix():
    """Dual and primal: eigenvectors of rows, or of weights."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 20, generator=generator, dtype=torch.float64)
    features[5] = features[4]  # rows need not be independent
    targets, residual = torch.randn(6, generator=generator, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    rows = Rows(features=features, targets=targets, residual=residual, structures=torch.arange(len(targets)))
    few = Moments.empty(20).plus(rows)
    assert few.rows is not None
    assert few.plus(replace(rows, features=torch.randn(14, 20), targets=torch.randn(14))).rows is None
    others = replace(rows, features=torch.randn(6, 20, generator=generator, dtype=torch.float64))
    for dual, primal in zip(
        posteriors(few, Moments.empty(20), [0.0]),
        posteriors(replace(few, rows=None), Moments.empty(20), [0.0]),
        strict=True,
    ):
        assert dual.eigenvectors.shape == (20, 6)
        assert dual.relative_noise == pytest.approx(primal.relative_noise)
        if dual.relative_noise > 1e-7:  # below, the rounding of a gram matrix counts
            close(dual.mean, primal.mean, rtol=0.0, atol=1e-7)
            close(dual.covariance, primal.covariance, rtol=0.0, atol=1e-8)
            close(dual.variance(others), primal.variance(others), rtol=1e-8, atol=0.0)


def test_a_file_holds_what_the_energies_determine(trained: Trained, fitted: Potential, tmp_path: Path):
    save(fitted, tmp_path / "model.sigmaff")
    loaded, graph = load(tmp_path / "model.sigmaff"), graph_of(WATER, cutoff=fitted.cutoff)
    head = loaded.head
    assert isinstance(head, LNK)
    assert head.weight_directions.shape == (head.n_weights, min(len(trained.train), head.n_weights))
    for name in ("energy", "energy_std", "forces", "forces_std", "node_energy_std"):
        assert torch.equal(getattr(loaded.predict(graph), name), getattr(fitted.predict(graph), name))


def test_dimenets_embeddings_are_its_layers():
    """So nothing changes."""
    models = [
        Case(backbone=BACKBONES[1], head=LNKConfig(features=features, n_samples=4)).build()
        for features in ("last", "all_layers")
    ]
    predictions = [model.predict(graph_of(WATER)) for model in models]
    for name in ("energy", "energy_std", "forces"):
        close(*(getattr(prediction, name) for prediction in predictions), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": "rbf"},
        {"fit": "variational"},
        {"variance_labels": "energy+forces"},
        {"selection": "marginal_likelihood"},
    ],
)
def test_go_with_the_closed_form_of_a_linear_kernel(other: dict[str, str]):
    with pytest.raises(ConfigError, match=r"settings: .*all_layers.*closed_form.*linear"):
        validated(LNKConfig, {"features": "all_layers", **other}, "settings")
    with pytest.raises(ValidationError):
        LNKConfig(features="all_layers", **other)


def test_settings_of_the_last_layer_are_written_as_before():
    """Folders of runs that began before the choice existed are still theirs."""
    assert not {"features", "n_directions"} & LNKConfig().model_dump().keys()
    chosen = LNKConfig(features="all_layers", n_directions=7)
    assert LNKConfig.model_validate(chosen.model_dump(mode="json")) == chosen


def test_most_directions_may_be_limited(trained: Trained, fitted: Potential):
    """Fewer of them leave more variance."""
    train, held_out = trained.datasets()
    few = LNKConfig(features="all_layers", distance_aware=False, n_directions=5)
    limited, _ = solve_head(trained.potential, few, train, held_out)
    assert limited.head.weight_directions.shape[1] == 5
    graph = graph_of(*trained.held_out.structures, cutoff=fitted.cutoff)
    ratio = limited.predict(graph).energy_std / fitted.predict(graph).energy_std
    assert float(ratio.min()) >= 1.0 - 1e-9
