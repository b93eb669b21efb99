"""Ensembles and Monte Carlo dropout against their members, one by one, and against many draws."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contract import AMMONIA, BACKBONES, CRYSTAL, CUTOFF, ETHANOL, EXACT, WATER, Case, graph_of
from head_case import far_copies
from sigmaff.backbones import BackboneConfig, SchNetConfig
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, batch_graphs
from sigmaff.heads import DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.models import Ensemble, MonteCarloDropout, MonteCarloDropoutConfig, Potential, PotentialConfig
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Calibration, Prediction
from sigmaff.models.record import MemberRecord, RunRecord

close = torch.testing.assert_close
LNK_HEAD = LNKConfig(kernel="rbf+linear", mean="residual", n_inducing=12, n_samples=16, n_frequencies=64)
NAMES = ("energy", "forces", "node_energy", "stress")


def member(seed: int, backbone: BackboneConfig = BACKBONES[0]) -> Potential:
    """A deterministic potential with weights and a scale of its own."""
    template = Case(backbone=backbone, head=DeterministicConfig()).build()
    torch.manual_seed(seed)
    statistics = template.statistics
    potential = Potential(PotentialConfig(backbone=backbone, head=DeterministicConfig()), statistics)
    potential.set_precision(torch.float64)
    return potential.eval()


def spread(values: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and unbiased standard deviation, by NumPy."""
    stacked = np.stack([value.numpy() for value in values])
    return stacked.mean(0), stacked.std(0, ddof=1)


class TestEnsemble:
    @pytest.mark.parametrize("backbone", BACKBONES, ids=lambda c: f"{c.name}-{getattr(c, 'l_max', '')}")
    def test_is_mean_and_spread_of_its_members(self, backbone: BackboneConfig):
        members = [member(seed, backbone) for seed in range(3)]
        for structures in ((ETHANOL, WATER), (CRYSTAL,)):
            graph = graph_of(*structures)
            joint, alone = Ensemble(members).predict(graph), [one.predict(graph) for one in members]
            for name in NAMES if structures == (CRYSTAL,) else NAMES[:3]:
                mean, std = spread([getattr(prediction, name) for prediction in alone])
                np.testing.assert_allclose(getattr(joint, name), mean, rtol=1e-12, atol=1e-12)
                if name != "node_energy":  # members share an energy out among its atoms as they like
                    np.testing.assert_allclose(getattr(joint, f"{name}_std"), std, rtol=1e-9, atol=1e-12)
            assert joint.node_energy_std is None
            assert joint.energy_members.shape == (len(structures), 3)
            for number, prediction in enumerate(alone):
                close(joint.energy_members[:, number], prediction.energy, **EXACT)
                close(joint.forces_members[..., number], prediction.forces, **EXACT)
            assert joint.provenance.forces_std == "members"

    def test_an_element_never_seen_leaves_a_spread_and_no_energy(self):
        """σ is the spread of what the networks say, which no reference energy enters: all members share them."""
        members = [member(seed) for seed in range(3)]
        strange = AMMONIA.copy()
        strange.numbers[0] = 15
        graph = graph_of(strange, WATER)
        joint = Ensemble(members).predict_raw(graph, unseen_elements=True)
        _, std = spread([one.statistics.scale * one(graph)[0].mean.detach() for one in members])
        np.testing.assert_allclose(joint.energy_std, std, rtol=1e-9)
        assert joint.energy.isnan().tolist() == [True, False]
        assert joint.energy_members.isnan().tolist() == [[True] * 3, [False] * 3]
        assert joint.node_energy.isnan().nonzero().flatten().tolist() == [0]
        close(joint.energy[1:], Ensemble(members).predict(graph_of(WATER)).energy, **EXACT)

    def test_members_with_a_std_add_its_mean_square(self):
        first = Case(backbone=BACKBONES[0], head=LNK_HEAD).build()
        second = Case(backbone=BACKBONES[0], head=LNK_HEAD).build()
        with torch.no_grad():
            second.head.weight_mean.mul_(-0.7)
            second.head.kernel.log_scale.add_(0.2)
        graph = graph_of(ETHANOL, AMMONIA)
        joint = Ensemble([first, second]).predict(graph, forces_std="exact")
        alone = [one.predict(graph, forces_std="exact") for one in (first, second)]
        for name in ("energy", "forces"):
            means, stds = ([getattr(p, name + end) for p in alone] for end in ("", "_std"))
            expected = np.var([m.numpy() for m in means], axis=0, ddof=1) + np.mean([s.numpy() ** 2 for s in stds], 0)
            np.testing.assert_allclose(getattr(joint, f"{name}_std"), np.sqrt(expected), rtol=1e-9, atol=1e-12)
        assert joint.provenance.method == "ensemble of lnk"

    def test_backbones_may_differ(self):
        """Each member sees the pairs within its own cutoff, of one list of pairs."""
        near = member(0, SchNetConfig(cutoff=2.5, n_hidden=8, n_filters=8, n_interactions=2, n_gaussians=6))
        members = [near, *(member(1, backbone) for backbone in BACKBONES[1:3])]
        ensemble = Ensemble(members)
        assert ensemble.cutoff == CUTOFF
        for atoms in (ETHANOL, CRYSTAL):
            joint = ensemble.predict(graph_of(atoms, cutoff=ensemble.cutoff))
            alone = [one.predict(graph_of(atoms, cutoff=one.cutoff)) for one in members]
            mean, std = spread([prediction.forces for prediction in alone])
            np.testing.assert_allclose(joint.forces, mean, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(joint.forces_std, std, rtol=1e-9, atol=1e-12)

    def test_without_std_of_atoms(self):
        prediction = Ensemble([member(0), member(1)]).predict(graph_of(ETHANOL), forces_std="none")
        assert prediction.energy_std is not None
        assert prediction.forces_std is prediction.node_energy_std is prediction.provenance.forces_std is None

    def test_one_is_no_ensemble(self):
        with pytest.raises(ConfigError, match="at least 2 members"):
            Ensemble([member(0)])

    def test_members_know_the_same_elements(self):
        other = member(1)
        other.statistics = other.statistics.__class__(
            **(vars(other.statistics) | {"elements": (1, 6), "reference_energies": {1: 0.0, 6: 0.0}})
        )
        with pytest.raises(ConfigError, match="member 0 knows H, C, N, O; member 1 knows H, C"):
            Ensemble([member(0), other])

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_compiled_equals_eager(self):
        ensemble, compiled = Ensemble([member(0), member(1)]), Ensemble([member(0), member(1)])
        compiled.compile()
        for graph in (graph_of(ETHANOL, WATER), graph_of(AMMONIA, ETHANOL), graph_of(CRYSTAL)):
            first, second = ensemble.predict(graph), compiled.predict(graph)
            for name in ("energy", "energy_std", "forces", "forces_std", "node_energy"):
                close(getattr(first, name), getattr(second, name), rtol=1e-9, atol=1e-9)

    def test_a_head_with_std_is_not_compiled(self):
        potentials = [Case(backbone=BACKBONES[0], head=LNK_HEAD).build() for _ in range(2)]
        with pytest.raises(ConfigError, match="deterministic heads"):
            Ensemble(potentials).compile()


def dropping(
    backbone: BackboneConfig = BACKBONES[0], head: HeadConfig | None = None, rate: float = 0.2, **settings: int
) -> MonteCarloDropout:
    case = Case(backbone=backbone.model_copy(update={"dropout": rate}), head=head or DeterministicConfig())
    return MonteCarloDropout(case.build(), MonteCarloDropoutConfig(**settings))


def passes(potential: Potential, graph: AtomicGraph, n: int) -> list[Prediction]:
    """Predictions with dropout on, one pass each, from whatever random numbers come next."""
    for module in potential.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d):
            module.train()
    return [potential.predict_raw(graph, forces_std="none") for _ in range(n)]


class TestMonteCarloDropout:
    def test_the_same_input_gives_the_same_answer_and_leaves_no_trace(self):
        model, graph = dropping(n_samples=4), graph_of(ETHANOL, WATER)
        before = torch.get_rng_state()
        first, second = model.predict(graph), model.predict(graph)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(first.forces, second.forces)
        assert torch.equal(first.energy_std, second.energy_std)
        assert not any(module.training for module in model.modules())
        model.train()
        assert torch.equal(model.predict(graph).forces, first.forces)
        assert all(module.training for module in model.modules())
        other = dropping(n_samples=4, seed=1).predict(graph)
        assert not torch.equal(other.forces, first.forces)

    @pytest.mark.parametrize("backbone", BACKBONES, ids=lambda c: f"{c.name}-{getattr(c, 'l_max', '')}")
    def test_equivariance_under_rotation_reflection_and_translation(self, backbone: BackboneConfig):
        """With one seed, rotations, reflections and translations keep the energy and its σ exactly."""
        model = dropping(backbone, n_samples=3)
        matrix = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
        turned = ETHANOL.copy()
        turned.positions = ETHANOL.positions @ matrix.T + [3.0, -1.0, 0.5]
        before, after = model.predict(graph_of(ETHANOL)), model.predict(graph_of(turned))
        close(after.energy, before.energy, **EXACT)
        close(after.energy_std, before.energy_std, **EXACT)
        close(after.forces, before.forces @ torch.as_tensor(matrix).T, **EXACT)
        turned_members = torch.einsum("ab,nbm->nam", torch.as_tensor(matrix), before.forces_members)
        close(after.forces_members, turned_members, **EXACT)

    def test_permutation_and_far_copies_change_the_masks(self):
        """So relabelling and far copies, which must change nothing, do: by less than the spread of the samples."""
        model = dropping(n_samples=20)
        one, reordered = model.predict(graph_of(ETHANOL)), model.predict(graph_of(ETHANOL[::-1]))
        two = model.predict(graph_of(far_copies(ETHANOL, 2)))
        spread = float(one.energy_std)
        assert 1e-4 * spread < abs(float(reordered.energy - one.energy)) < 2.0 * spread
        assert 1e-4 * spread < abs(float(two.energy - 2.0 * one.energy)) < 4.0 * spread

    def test_samples_have_the_distribution_of_single_passes(self):
        """Mean and variance of energies within five standard errors of those of as many independent passes."""
        n, graph = 400, graph_of(WATER)
        model = dropping(n_samples=n)
        ours = model.predict(graph)
        torch.manual_seed(5)
        energies = torch.cat([prediction.energy for prediction in passes(model.potential, graph, n)])
        error = float(energies.std()) * (2.0 / n) ** 0.5
        assert abs(float(ours.energy) - float(energies.mean())) < 5 * error
        fourth = float(((energies - energies.mean()) / energies.std()).pow(4).mean())
        ratio = float(ours.energy_std) ** 2 / float(energies.var())
        assert ratio == pytest.approx(1.0, abs=5 * (2 * fourth / n) ** 0.5)

    def test_passes_are_batched_and_differ(self, monkeypatch: pytest.MonkeyPatch):
        """As many samples as asked for, all different, whatever fits into one pass."""
        graph = graph_of(ETHANOL, WATER)
        together = dropping(n_samples=7).predict(graph)
        n_pairs = graph.pair_index.shape[1]
        monkeypatch.setattr("sigmaff.models.dropout.MAX_PAIRS", 3 * n_pairs)
        in_threes = dropping(n_samples=7).predict(graph)
        for prediction in (together, in_threes):
            assert prediction.energy_members.shape == (2, 7)
            assert len(prediction.energy_members[0].unique()) == 7
        model = dropping(n_samples=3)
        torch.manual_seed(model.config.seed)
        expected = passes(model.potential, batch_graphs([graph] * 3), 1)[0].energy.view(3, 2).T
        close(in_threes.energy_members[:, :3], expected, **EXACT)

    def test_lnk_adds_its_own_variance(self):
        model, graph = dropping(head=LNK_HEAD, n_samples=3), graph_of(ETHANOL)
        joint, own = model.predict(graph), model.potential.predict(graph)
        torch.manual_seed(model.config.seed)
        samples = passes(model.potential, batch_graphs([graph] * 3), 1)[0]
        expected = samples.energy.var(unbiased=True) + samples.energy_std.square().mean()
        close(joint.energy_std, expected.sqrt().view(1), **EXACT)
        spread = samples.forces.view(3, -1, 3).std(0)
        close(joint.forces_std, torch.hypot(spread, own.forces_std), **EXACT)
        assert joint.provenance.method == "mc dropout of lnk"

    def test_a_network_without_dropout_is_refused(self):
        with pytest.raises(ConfigError, match="rate of 0"):
            dropping(rate=0.0)


@pytest.mark.parametrize("kind", ["ensemble", "mixed ensemble", "mc dropout"])
def test_serialization_round_trip_is_exact(kind: str, tmp_path: Path):
    model = {
        "ensemble": lambda: Ensemble([member(seed) for seed in range(12)]),
        "mixed ensemble": lambda: Ensemble([member(0), member(1, BACKBONES[1])]),
        "mc dropout": lambda: dropping(n_samples=3, seed=4),
    }[kind]()
    model.energy_calibration = Calibration(method="scalar", scale=1.7, n_samples=50)
    model.record = RunRecord(members=[MemberRecord(file="a")])
    save(model, tmp_path / "a.sigmaff")
    again, graph = load(tmp_path / "a.sigmaff"), graph_of(ETHANOL, WATER, cutoff=model.cutoff)
    assert type(again) is type(model)
    assert again.record == model.record
    for name in ("energy", "energy_std", "forces", "forces_std", "energy_members"):
        assert torch.equal(getattr(again.predict(graph), name), getattr(model.predict(graph), name)), name
    assert again.predict(graph).provenance == model.predict(graph).provenance
