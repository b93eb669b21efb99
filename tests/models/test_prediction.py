"""Predictions of structures, as arrays, and the fields of a prediction."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.errors import DataError
from sigmaff.graph import batch_graphs, build_graph
from sigmaff.heads import LNKConfig
from sigmaff.models import Ensemble, Model, MonteCarloDropout, MonteCarloDropoutConfig, Potential, PotentialConfig
from sigmaff.models.prediction import (
    Calibration,
    Calibrations,
    Prediction,
    StructurePrediction,
    calibrated,
    concatenate,
)

ELEMENTS = (1, 6, 8, 29)
MOLECULES = [molecule(name) for name in ("CH3CH2OH", "H2O", "C6H6", "CH4")]


def potential(seed: int = 0, dropout: float = 0.0) -> Potential:
    torch.manual_seed(seed)
    backbone = SchNetConfig(n_hidden=16, n_filters=16, n_interactions=1, cutoff=4.0, dropout=dropout)
    statistics = DatasetStatistics(
        n_structures=5,
        elements=ELEMENTS,
        reference_energies=dict.fromkeys(ELEMENTS, -10.0),
        scale=2.0,
        mean_neighbors=8.0,
    )
    return Potential(PotentialConfig(backbone=backbone, head=LNKConfig()), statistics).eval()


def models() -> dict[str, Model]:
    return {
        "potential": potential(),
        "ensemble": Ensemble([potential(1), potential(2), potential(3)]),
        "dropout": MonteCarloDropout(potential(dropout=0.1), MonteCarloDropoutConfig(n_samples=4)),
    }


@pytest.fixture(scope="module", params=["potential", "ensemble"])
def model(request: pytest.FixtureRequest) -> Model:
    model = models()[request.param]
    model.energy_calibration = Calibration(method="scalar", scale=3.0, n_samples=20)
    return model


def test_structures_give_what_their_graph_gives(model: Model):
    found = model.predict(MOLECULES, batch_size=3)
    tensors = model.predict(batch_graphs([build_graph(atoms, model.cutoff) for atoms in MOLECULES]))
    assert isinstance(tensors, Prediction)
    first = 0
    for index, (atoms, one) in enumerate(zip(MOLECULES, found, strict=True)):
        rows = slice(first, first := first + len(atoms))
        assert one.energy == pytest.approx(tensors.energy[index].item())
        assert one.energy_std == pytest.approx(tensors.energy_std[index].item(), rel=1e-3)
        np.testing.assert_allclose(one.forces, tensors.forces[rows], atol=1e-4)
        np.testing.assert_allclose(one.node_energy, tensors.node_energy[rows], atol=1e-5)
        assert one.forces_std.shape == (len(atoms), 3)
        assert (one.node_energy_std is None) == (tensors.node_energy_std is None)
        assert one.stress is one.stress_std is None
        assert one.provenance.calibration == "scalar"


def test_one_structure_gives_one_prediction(model: Model):
    alone, (listed,) = model.predict(MOLECULES[0]), model.predict(MOLECULES[:1])
    assert isinstance(alone, StructurePrediction)
    assert alone.energy == listed.energy
    np.testing.assert_array_equal(alone.forces, listed.forces)
    assert model.predict([]) == []
    without = model.predict(MOLECULES[0], forces_std="none")
    assert without.forces_std is None
    assert without.energy_std is not None


def test_only_periodic_structures_have_a_stress(model: Model):
    copper, water = model.predict([bulk("Cu"), MOLECULES[1]])
    assert copper.stress.shape == copper.stress_std.shape == (3, 3)
    assert water.stress is water.stress_std is None


def test_an_unknown_element_is_an_error_that_names_structure_and_atom(model: Model):
    message = r"frame 1: atom 2 is Ar, an element this model was not trained on \(it knows H, C, O, Cu\); leave"
    with pytest.raises(DataError, match=message):
        model.predict([MOLECULES[0], Atoms("HHAr", [[0, 0, 0], [0, 0, 1], [0, 0, 3]])])


def test_models_say_what_they_consist_of():
    passes = {name: (len(model.potentials), model.n_passes) for name, model in models().items()}
    assert passes == {"potential": (1, 1), "ensemble": (3, 3), "dropout": (1, 4)}
    assert {model.kind for model in models().values()} == {"epistemic"}
    assert {model.elements for model in models().values()} == {ELEMENTS}


def test_every_tensor_of_a_prediction_is_joined_and_calibrated():
    per = {item.name: item.metadata["per"] for item in fields(Prediction) if item.name != "provenance"}
    names = dict.fromkeys(per, None)
    single = Prediction(
        **{name: torch.ones(1 if unit == "structure" else 2) for name, unit in per.items()},
        provenance=potential().predict(build_graph(MOLECULES[1], 4.0)).provenance,
    )
    both = concatenate([single, single])
    assert {name: len(getattr(both, name)) for name in names} == {
        name: 2 if unit == "structure" else 4 for name, unit in per.items()
    }
    scales = Calibrations(*(Calibration(method=f"by {scale}", scale=scale, n_samples=1) for scale in (2.0, 5.0, 7.0)))
    found = calibrated(single, scales)
    factors = {name: float(getattr(found, name)[0]) for name in names}
    total = np.hypot(2.0, 1.0)  # with the σ of the composition, which no calibration scales
    expected = {"energy_std": total, "forces_std": 5.0, "stress_std": 7.0}
    assert factors == pytest.approx(dict.fromkeys(names, 1.0) | expected)
    assert found.provenance.calibrated == ("energy", "forces", "stress")


def test_provenance_tells_which_std_are_calibrated(model: Model):
    assert model.predict(MOLECULES[1]).provenance.calibrated == ("energy",)
    assert model.predict_raw(build_graph(MOLECULES[1], model.cutoff)).provenance.calibrated == ()
