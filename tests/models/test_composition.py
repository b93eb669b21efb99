"""Reference energies that the compositions of the training set leave open, and the σ of energies due to them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from conftest import Trained
from sigmaff.data import GraphDataset, compute_statistics, label_structures
from sigmaff.data.check import check_structures
from sigmaff.evaluation import calibrate_evaluation, evaluate
from sigmaff.graph import batch_graphs, build_graph
from sigmaff.heads import LLPRConfig, LNKConfig
from sigmaff.models import Ensemble, Potential
from sigmaff.models.file import load, save
from sigmaff.models.model import Model
from sigmaff.models.prediction import Calibration, Prediction
from sigmaff.models.solve import solve_head

OPEN = np.array([1.0, -2.0, -2.0])
"""H, C, O: across ethanol (6, 2, 1) and water (2, 0, 1), of which the training set consists."""
TRAINING = ("CH3CH2OH", "H2O")
NEW = ("C2H6", "CH4", "CH3COCH3", "C3H8")


@pytest.fixture(scope="module")
def trained_on_compositions(trained: Trained) -> Trained:
    """The same potential, with what its training set says about compositions."""
    train, _ = trained.datasets()
    potential = Potential(trained.potential.config, compute_statistics(train))
    potential.set_precision(torch.float64)
    potential.load_state_dict(trained.potential.state_dict())
    return replace(trained, potential=potential.eval())


@pytest.fixture(scope="module", params=["lnk", "llpr", "ensemble"])
def model(request: pytest.FixtureRequest, trained_on_compositions: Trained) -> Model:
    trained = trained_on_compositions
    if request.param == "ensemble":
        return Ensemble([trained.potential, trained.potential])
    config = LNKConfig(n_samples=4) if request.param == "lnk" else LLPRConfig(n_samples=4)
    return solve_head(trained.potential, config, *trained.datasets())[0]


def predicted(model: Model, *names: str, raw: bool = False) -> Prediction:
    graph = batch_graphs([build_graph(molecule(name), model.cutoff, model.dtype) for name in names])
    return model.predict_raw(graph, forces_std="none") if raw else model.predict(graph, forces_std="none")


def counts(name: str) -> np.ndarray:
    numbers = molecule(name).numbers
    return np.array([(numbers == element).sum() for element in (1, 6, 8)], dtype=float)


def test_open_directions_are_across_all_compositions(trained_on_compositions: Trained):
    statistics = trained_on_compositions.potential.statistics
    (direction,) = np.array(statistics.open_compositions)
    assert abs(direction @ OPEN) == pytest.approx(np.linalg.norm(OPEN))
    for name in TRAINING:
        assert counts(name) @ direction == pytest.approx(0.0, abs=1e-9)


def test_std_is_the_energy_per_atom_that_was_shared_out(trained: Trained):
    """All of it where references are fitted; the binding energy where they are given."""
    train, _ = trained.datasets()
    sizes = np.array([len(atoms) for atoms in train.structures.structures])
    fitted = compute_statistics(train)
    assert fitted.reference_std == pytest.approx(np.mean(np.abs(train.structures.energy) / sizes))
    given = {"H": -10.0, "C": -48.0, "O": -103.0}
    free = np.array([sum(given[symbol] for symbol in atoms.symbols) for atoms in train.structures.structures])
    bound = np.mean(np.abs(train.structures.energy - free) / sizes)
    assert compute_statistics(train, given).reference_std == pytest.approx(bound)
    assert bound < 0.2 * fitted.reference_std


def test_the_doctor_says_what_a_data_set_leaves_open(trained: Trained):
    (found,) = [finding for finding in check_structures(trained.train) if finding.code == "open_compositions"]
    assert "2 of 3 reference energies" in found.message


def test_isolated_atoms_determine_no_bonded_composition(trained: Trained):
    structures = [*trained.train.structures[:4], Atoms("H"), Atoms("C"), Atoms("O")]
    energies = np.array([*trained.train.energy[:4], -10.0, -48.0, -103.0])
    labelled = replace(label_structures(structures, ()), energy=energies)
    statistics = compute_statistics(GraphDataset(labelled, 4.0, torch.float64))
    assert len(statistics.open_compositions) == 1


def test_energies_of_new_compositions_get_it_and_others_do_not(model: Model):
    """σ² = (factor · own σ)² + (σ of references · part across the training compositions)²: no calibration scales it."""
    model.energy_calibration = Calibration(method="scalar", scale=3.0, n_samples=20)
    raw, total = predicted(model, *TRAINING, *NEW, raw=True), predicted(model, *TRAINING, *NEW)
    statistics = model.potentials[0].statistics
    across = [abs(counts(name) @ OPEN) / np.linalg.norm(OPEN) for name in (*TRAINING, *NEW)]
    expected = np.hypot(3.0 * raw.energy_std.numpy(), statistics.reference_std * np.array(across))
    np.testing.assert_allclose(total.energy_std, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(raw.composition_std[:2], 0.0, atol=1e-9)
    model.energy_calibration = None
    own, of_composition = raw.energy_std[3].item(), raw.composition_std[3].item()
    assert float(predicted(model, "CH4").energy_std[0]) == pytest.approx(np.hypot(own, of_composition))


@pytest.mark.parametrize("name", NEW)
def test_it_is_of_the_size_of_the_error(model: Model, name: str):
    """Of GFN2-xTB, within a factor of three, whatever the method."""
    from tblite.ase import TBLite

    atoms = molecule(name)
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
    found = predicted(model, name)
    error = abs(float(found.energy[0]) - atoms.get_potential_energy())
    assert 1 / 3 < error / float(found.energy_std[0]) < 3


def test_unseen_elements_have_no_reference_energy_at_all(model: Model):
    graph = build_graph(molecule("NH3"), model.cutoff, model.dtype)
    found = model.predict_raw(graph, forces_std="none", unseen_elements=True)
    across = 3 * abs(OPEN[0]) / np.linalg.norm(OPEN)
    expected = model.potentials[0].statistics.reference_std * np.hypot(across, 1.0)
    assert float(found.composition_std[0]) == pytest.approx(expected)


def test_it_is_kept_in_the_model_file(model: Model, tmp_path: Path):
    if isinstance(model, Ensemble):
        return
    save(model, tmp_path / "model.sigmaff")
    again = predicted(load(tmp_path / "model.sigmaff"), *NEW)
    np.testing.assert_allclose(again.energy_std, predicted(model, *NEW).energy_std, rtol=1e-12)


def test_calibration_leaves_open_compositions_out(trained_on_compositions: Trained):
    """Their errors are tens of eV, and say nothing about the σ of a method."""
    trained = trained_on_compositions
    model, _ = solve_head(trained.potential, LNKConfig(n_samples=4), *trained.datasets())
    held_out = trained.held_out
    strange = [molecule("CH4")] * 30
    structures = label_structures([*held_out.structures, *strange], ())
    energies = np.concatenate([held_out.energy, np.full(30, -100.0)])
    mixed = GraphDataset(replace(structures, energy=energies), model.cutoff, torch.float64)
    evaluation = evaluate(model, mixed, name="mixed", forces_std="none")
    assert evaluation.samples["energy"].std[-1] > 10.0
    calibrations, _ = calibrate_evaluation(evaluation, "conformal")
    assert calibrations.energy.n_structures == len(held_out)
    foreign = GraphDataset(
        replace(label_structures(strange, ()), energy=np.full(30, -100.0)), model.cutoff, torch.float64
    )
    _, reasons = calibrate_evaluation(evaluate(model, foreign, name="foreign", forces_std="none"))
    assert "determines no energy of these compositions" in reasons["energy"]
