"""The shallow ensemble against its members, each a deterministic potential of its own, and its fit on xTB labels."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from scipy.stats import norm

from conftest import Trained
from contract import AMMONIA, BACKBONES, CRYSTAL, ETHANOL, EXACT, MIXED, graph_of
from listeners import Remembering
from sigmaff.backbones import BackboneConfig
from sigmaff.data import DatasetStatistics, GraphDataset
from sigmaff.errors import ConfigError, DataError
from sigmaff.heads import Deterministic, DeterministicConfig, LNKConfig, ShallowEnsemble, ShallowEnsembleConfig
from sigmaff.heads.observations import Rows
from sigmaff.heads.posterior import TOLERATED_LOSS
from sigmaff.heads.shallow_ensemble.fit import Members, ShallowEnsembleFit
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Prediction
from sigmaff.models.solve import solve_head

N_MEMBERS = 6
STATISTICS = DatasetStatistics(
    elements=(1, 6, 7, 8),
    reference_energies={1: -13.6, 6: -1029.0, 7: -1485.0, 8: -2042.0},
    scale=0.7,
    mean_neighbors=8.0,
    n_structures=100,
)
close = torch.testing.assert_close


def random_ensemble(backbone: BackboneConfig) -> Potential:
    config = PotentialConfig(backbone=backbone, head=ShallowEnsembleConfig(n_members=N_MEMBERS))
    torch.manual_seed(2)
    potential = Potential(config, STATISTICS)
    potential.set_precision(torch.float64)
    assert isinstance(potential.head, ShallowEnsemble)
    with torch.no_grad():
        potential.head.deviations.normal_()
        if potential.head.readout.bias is not None:
            potential.head.readout.bias.fill_(0.3)
    return potential.eval()


@torch.no_grad()
def member(ensemble: Potential, index: int) -> Potential:
    """One member as a potential with a deterministic head."""
    head = ensemble.head
    assert isinstance(head, ShallowEnsemble)
    potential = ensemble.with_head(DeterministicConfig())
    assert isinstance(potential.head, Deterministic)
    deviation = head.deviations[index] - head.deviations.mean(0)
    n_features = head.readout.in_features
    potential.head.linear.weight.copy_(head.readout.weight + deviation[:n_features])
    if head.readout.bias is not None:
        potential.head.linear.bias.copy_(head.readout.bias + deviation[n_features:])
    return potential


@pytest.mark.parametrize("backbone", BACKBONES[:3], ids=lambda backbone: backbone.name)
@pytest.mark.parametrize("how", ["exact", "sampled", "auto"])
def test_mean_and_spread_are_those_of_the_members(backbone: BackboneConfig, how: str):
    ensemble = random_ensemble(backbone)
    graph = graph_of(*MIXED, CRYSTAL)
    members = [member(ensemble, index).predict(graph) for index in range(N_MEMBERS)]
    prediction = ensemble.predict(graph, forces_std=how)
    for name in ("energy", "forces", "node_energy", "stress"):
        values = torch.stack([getattr(one, name) for one in members])
        close(getattr(prediction, name), values.mean(0), **EXACT, equal_nan=True)
        if name != "node_energy":  # members share an energy out among its atoms as they like
            close(getattr(prediction, f"{name}_std"), values.std(0), **EXACT, equal_nan=True)
    assert prediction.node_energy_std is None


@pytest.mark.parametrize("n_copies", [2, 5])
def test_std_is_size_consistent_for_far_copies(n_copies: int):
    ensemble, copies = random_ensemble(BACKBONES[0]), Atoms()
    for index in range(n_copies):
        copy = ETHANOL.copy()
        copy.positions += [17.0 * index, 0.0, 0.0]
        copies += copy
    one, many = ensemble.predict(graph_of(ETHANOL)), ensemble.predict(graph_of(copies))
    close(many.energy_std, n_copies * one.energy_std, **EXACT)
    close(many.forces_std, one.forces_std.repeat(n_copies, 1), **EXACT)


def test_training_mode_gives_the_gradient_of_the_likelihood():
    """Of the energies of a batch, by the members' weights: against finite differences."""
    ensemble, graph = random_ensemble(BACKBONES[0]).train(), graph_of(ETHANOL, AMMONIA)
    head, target = ensemble.head, torch.tensor([0.5, -1.0], dtype=torch.float64)
    assert isinstance(head, ShallowEnsemble)

    def loss() -> torch.Tensor:
        return head.energy_loss(head(ensemble.backbone(graph), graph), target, n_train=2)

    distribution = head(ensemble.backbone(graph), graph)
    expected = -norm(distribution.mean.detach(), distribution.variance.detach().sqrt()).logpdf(target).mean()
    assert loss().item() == pytest.approx(expected, rel=1e-12)
    loss().backward()
    with torch.no_grad():
        for index in [(0, 0), (3, 5), (5, -1)]:
            values = []
            for step in (1e-5, -2e-5):
                head.deviations[index] += step
                values.append(float(loss()))
            head.deviations[index] += 1e-5
            slope = (values[0] - values[1]) / 2e-5
            assert float(head.deviations.grad[index]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_likelihood_of_rows():
    """Normal with mean and unbiased variance over members, and a floor; but for the constant ½ log 2π."""
    generator = np.random.default_rng(0)
    weights, features, targets = (generator.normal(size=shape) for shape in ((4, 3), (7, 3), 7))
    rows = Rows(
        features=torch.as_tensor(features),
        targets=torch.as_tensor(targets),
        residual=torch.zeros(7).double(),
        structures=torch.arange(7),
    )
    predicted = features @ weights.T
    sigma = np.sqrt(predicted.var(1, ddof=1) + 0.01)
    expected = -norm(predicted.mean(1), sigma).logpdf(targets).mean() - 0.5 * np.log(2.0 * np.pi)
    members = Members(weights=torch.as_tensor(weights))
    assert float(members.negative_log_likelihood(rows, 0.01)) == pytest.approx(expected, rel=1e-12)


def fit(trained: Trained, seed: int = 0, **settings: object) -> tuple[Potential, ShallowEnsembleFit]:
    train, held_out = trained.datasets()
    return solve_head(trained.potential, ShallowEnsembleConfig(**settings), train, held_out, seed=seed)


def held_out_prediction(potential: Potential, trained: Trained) -> Prediction:
    return potential.predict(graph_of(*trained.held_out.structures, cutoff=potential.cutoff))


def held_out_errors(potential: Potential, trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    prediction = held_out_prediction(potential, trained)
    energy = trained.held_out.energy - prediction.energy.numpy()
    return energy, (np.concatenate(trained.held_out.forces) - prediction.forces.numpy()).ravel()


def held_out_score(potential: Potential, trained: Trained) -> float:
    """From predictions what the fit computes from rows: Σ over energies and forces of ½ log⟨z²⟩ + ⟨log σ⟩.

    The scale of σ that the fit chose makes the product of the two ⟨z²⟩ one.
    """
    prediction, score, log_squares = held_out_prediction(potential, trained), 0.0, []
    sigmas = prediction.energy_std.numpy(), prediction.forces_std.numpy().ravel()
    for errors, sigma in zip(held_out_errors(potential, trained), sigmas, strict=True):
        log_squares.append(np.log(np.mean((errors / sigma) ** 2)))
        score += 0.5 * log_squares[-1] + np.log(sigma / potential.statistics.scale).mean()
    assert sum(log_squares) == pytest.approx(0.0, abs=1e-6)
    return score


class TestFit:
    def test_training_improves_the_likelihood_of_held_out_labels(self, trained: Trained):
        (started, start), (ended, end) = fit(trained, n_steps=0), fit(trained)
        assert start.score == pytest.approx(held_out_score(started, trained), abs=1e-6)
        assert end.score == pytest.approx(held_out_score(ended, trained), abs=1e-6)
        assert end.start_score == pytest.approx(start.score)
        assert end.best_step > 0
        assert not end.keeps_backbone_mean
        assert end.score < start.score - 0.02

    @pytest.mark.parametrize("backbone", BACKBONES[:3], ids=lambda backbone: backbone.name)
    def test_every_backbone(self, trained: Trained, backbone: BackboneConfig):
        """Untrained; with one embedding for each atom or several, with a bias of the readout and without."""
        torch.manual_seed(4)
        config = PotentialConfig(backbone=backbone, head=DeterministicConfig())
        potential = Potential(config, trained.potential.statistics)
        potential.set_precision(torch.float64)
        case = replace(trained, potential=potential.eval())
        fitted, result = fit(case, n_members=8, n_steps=20, learning_rate=0.03)
        assert result.score == pytest.approx(held_out_score(fitted, case), abs=1e-6)

    def test_starts_from_the_trained_readout(self, trained: Trained):
        fitted, result = fit(trained, n_steps=0)
        before, after = (held_out_prediction(potential, trained) for potential in (trained.potential, fitted))
        assert result.keeps_backbone_mean
        close(after.energy, before.energy, rtol=0.0, atol=0.0)
        close(after.forces, before.forces, rtol=1e-12, atol=1e-12)
        assert bool((after.energy_std > 0).all())
        assert bool((after.forces_std > 0).all())

    @pytest.mark.parametrize("learning_rate", [0.003, 0.3])
    def test_never_worsens_the_backbone(self, trained: Trained, learning_rate: float):
        fitted, _ = fit(trained, learning_rate=learning_rate)
        before, after = held_out_errors(trained.potential, trained), held_out_errors(fitted, trained)
        for errors, backbone in zip(after, before, strict=True):
            assert np.abs(errors).mean() <= TOLERATED_LOSS * np.abs(backbone).mean()

    def test_keeps_a_mean_that_it_cannot_improve(self, trained: Trained):
        """Held-out labels that the backbone misses the other way round: what helps in training hurts there."""
        graph = graph_of(*trained.train.structures, cutoff=trained.potential.cutoff)
        prediction = trained.potential.predict(graph)
        forces = prediction.forces.split([len(atoms) for atoms in trained.train.structures])
        mirrored = replace(
            trained.train,
            energy=2.0 * prediction.energy.numpy() - trained.train.energy,
            forces=tuple(2.0 * f.numpy() - label for f, label in zip(forces, trained.train.forces, strict=True)),
        )
        fitted, result = fit(replace(trained, held_out=mirrored))
        assert result.keeps_backbone_mean
        assert result.best_step > 0
        close(fitted.predict(graph).energy, prediction.energy, rtol=0.0, atol=0.0)
        close(fitted.predict(graph).forces, prediction.forces, rtol=1e-12, atol=1e-12)

    def test_a_seed_decides_it(self, trained: Trained):
        states = [fit(trained, seed)[0].state_dict() for seed in (0, 0, 1)]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
        assert not torch.equal(states[0]["head.deviations"], states[2]["head.deviations"])

    def test_energies_alone(self, trained: Trained):
        bare = replace(
            trained, train=replace(trained.train, forces=None), held_out=replace(trained.held_out, forces=None)
        )
        fitted, result = fit(bare)
        assert result.n_force_rows == 0
        assert result.n_energy_rows == len(trained.train)
        assert bool((held_out_prediction(fitted, trained).forces_std > 0).all())

    def test_runs_in_single_precision(self, trained: Trained):
        """The backbone; the members' algebra is in double precision all the same."""
        potential = deepcopy(trained.potential)
        potential.set_precision(torch.float32)
        (double, chosen), (single, result) = fit(trained), fit(replace(trained, potential=potential))
        assert single.dtype == torch.float32
        assert result.score == pytest.approx(chosen.score, abs=0.02)
        graph = graph_of(*trained.held_out.structures, dtype=torch.float32, cutoff=single.cutoff)
        ratio = single.predict(graph).energy_std.double() / held_out_prediction(double, trained).energy_std
        assert 0.9 < float(ratio.min()) <= float(ratio.max()) < 1.1

    def test_leaves_the_backbone_and_its_potential_alone(self, trained: Trained):
        before = {name: value.clone() for name, value in trained.potential.state_dict().items()}
        fitted, _ = fit(trained)
        assert all(torch.equal(value, before[name]) for name, value in trained.potential.state_dict().items())
        for name, value in fitted.backbone.state_dict().items():
            assert torch.equal(value, before[f"backbone.{name}"])
        assert all(parameter.grad is None for parameter in fitted.parameters())

    def test_refuses_what_it_cannot_fit(self, trained: Trained):
        train, held_out = trained.datasets()
        other = trained.potential.with_head(LNKConfig(n_inducing=4))
        with pytest.raises(ConfigError, match="this one has a lnk head"):
            solve_head(other, ShallowEnsembleConfig(), train, held_out)
        with pytest.raises(DataError, match="needs energies"):
            fit(replace(trained, train=replace(trained.train, energy=None)))

    def test_is_reached_by_its_name_and_reports_progress(self, trained: Trained):
        train, held_out = trained.datasets()
        n_total = len(train) + len(held_out)
        listener = Remembering()
        config = ShallowEnsembleConfig(n_members=8)
        fitted, summary = solve_head(trained.potential, config, train, held_out, listener=listener)
        assert isinstance(fitted.head, ShallowEnsemble)
        assert summary.n_members == len(fitted.head.deviations) == 8
        assert listener.advances == sorted(listener.advances)
        assert listener.advances[-1] == (n_total, n_total)

    def test_a_saved_one_is_the_same(self, trained: Trained, tmp_path: Path):
        fitted, _ = fit(trained, n_members=8)
        save(fitted, tmp_path / "model.sigmaff")
        loaded = load(tmp_path / "model.sigmaff")
        before, after = (held_out_prediction(potential, trained) for potential in (fitted, loaded))
        for name in ("energy", "forces", "energy_std", "forces_std"):
            close(getattr(after, name), getattr(before, name), rtol=0.0, atol=0.0)

    def test_a_data_set_of_one_structure_can_be_held_out(self, trained: Trained):
        train, _ = trained.datasets()
        single = GraphDataset(trained.held_out.subset([0]), train.cutoff, torch.float64)
        fitted, _ = solve_head(trained.potential, ShallowEnsembleConfig(), train, single)
        assert bool((held_out_prediction(fitted, trained).energy_std > 0).all())
