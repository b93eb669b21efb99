"""Force σ from energy σ: the fit against a simulated truth, and its way through models, files and predictions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contract import CASES, ETHANOL, LNK, WATER, Case, displaced, graph_of, labelled
from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.calibration import fit_energy_force_std
from sigmaff.evaluation.datasets import calibrate
from sigmaff.models import Model
from sigmaff.models.file import load, save
from sigmaff.models.prediction import EnergyForceStd
from sigmaff.simulation.md.checkpoint import model_digest

KNOWN = EnergyForceStd(scales={1: 0.1, 6: 0.4, 8: 0.2}, exponent=0.7, reference=0.01, n_structures=30)
close = torch.testing.assert_close


def model_with(wrapper: str = "none") -> Model:
    return Case(backbone=CASES[0].backbone, head=LNK, wrapper=wrapper).build()


def held_out(model: Model, n: int = 24) -> GraphDataset:
    frames = [displaced(atoms, seed) for seed in range(n // 2) for atoms in (WATER, ETHANOL)]
    return GraphDataset(labelled(frames), model.cutoff, torch.float64)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.4])
def test_the_fit_finds_the_truth(exponent: float):
    """Errors drawn with σ = a_z u^b, structures of different sizes: b and a_z come back within sampling error."""
    random = np.random.default_rng(3)
    sizes = random.integers(2, 20, size=1500)
    structure = np.repeat(np.arange(sizes.size), sizes)
    numbers = random.choice([1, 8], size=structure.size)
    per_atom = random.lognormal(-4.0, 0.8, size=sizes.size)
    std = np.where(numbers == 1, 0.3, 0.9) * (per_atom[structure] / 0.02) ** exponent
    errors = std[:, None] * random.standard_normal((structure.size, 3))
    found = fit_energy_force_std(errors, numbers, structure, per_atom * sizes)
    assert found.exponent == pytest.approx(exponent, abs=0.02)
    assert found.reference == pytest.approx(np.exp(np.log(per_atom).mean()))
    at_reference = (found.reference / 0.02) ** exponent
    assert found.scales == pytest.approx({1: 0.3 * at_reference, 8: 0.9 * at_reference}, rel=0.03)
    assert found.n_structures == 1500


def test_too_few_structures_with_a_std():
    structure, std = np.arange(30), np.where(np.arange(30) < 19, 0.1, 0.0)
    with pytest.raises(DataError, match="needs 20 held-out structures, got 19"):
        fit_energy_force_std(np.ones((30, 3)), np.ones(30, dtype=np.int64), structure, std)


def test_is_intensive_and_safe_at_zero():
    """Twice the atoms with twice the energy σ: the same; an energy σ of 0 gives 0 and no NaN; an unknown element the
    largest scale."""
    far = WATER.copy()
    far.positions += 50.0
    graph = graph_of(WATER, WATER + far)
    one, two = KNOWN.std(torch.tensor([0.05, 0.1]).double(), graph).split([3, 6])
    close(two, one.repeat(2, 1))
    close(one[0], torch.full((3,), 0.2 * (0.05 / 3 / 0.01) ** 0.7).double())
    assert not KNOWN.std(torch.zeros(2).double(), graph).any()
    unknown = replace(KNOWN, scales={1: 0.1, 6: 0.4})
    close(unknown.std(torch.tensor([0.03, 0.06]).double(), graph)[0], torch.full((3,), 0.4).double())


@pytest.mark.parametrize("wrapper", ["none", "ensemble", "mc dropout"])
def test_a_calibrated_model_predicts_it(wrapper: str, tmp_path: Path):
    model = model_with(wrapper)
    before, graph = model_digest(model), graph_of(WATER, ETHANOL)
    with pytest.raises(ConfigError, match="calibrate it again"):
        model.predict(graph, forces_std="energy")
    calibrate(model, held_out(model), "scalar")
    assert model.energy_force_std is not None
    raw = model.predict_raw(graph, forces_std="none")
    expected = model.energy_force_std.std(raw.energy_std, graph)
    save(model, tmp_path / "model.sigmaff")
    loaded = load(tmp_path / "model.sigmaff")
    found = loaded.predict(graph, forces_std="energy")
    close(found.forces_std, expected)  # no factor of another force σ
    close(found.forces, raw.forces)
    assert found.provenance.forces_std == "energy"
    assert "forces" in found.provenance.calibrated
    assert model_digest(loaded) != before


def test_evaluation_takes_it_as_it_is():
    """Errors over σ have unit mean square for each element on the structures that it was fitted on."""
    model = model_with()
    calibrate(model, held_out(model), "scalar")
    found = evaluate(model, held_out(model), name="held out", forces_std="energy")
    for number in (1, 6, 8):
        chosen = found.atomic_numbers == number
        ratios = found.forces_error[chosen] / found.forces_std[chosen]
        assert np.mean(ratios**2) == pytest.approx(1.0)


def test_a_method_without_energy_std():
    model = next(case for case in CASES if case.head.name == "deterministic").build()
    with pytest.raises(ConfigError, match="needs an energy σ; deterministic has none"):
        model.predict(graph_of(WATER), forces_std="energy")
