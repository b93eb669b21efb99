"""σ of stress: its own calibration where stress has labels, and raw where it has none."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from sigmaff.evaluation import Evaluation, calibrate_evaluation, evaluate_predictor, summarize
from sigmaff.evaluation.metrics import ONE_SIGMA
from sigmaff.graph import AtomicGraph, Labels, batch_graphs, build_graph
from sigmaff.models.prediction import (
    UNCALIBRATED,
    Calibration,
    Calibrations,
    ForceStdMethod,
    Prediction,
    Provenance,
    calibrated,
)

FORCES_FACTOR, STRESS_FACTOR = 0.5, 8.5
CUTOFF = 4.0


def std_of_stress(graph: AtomicGraph) -> torch.Tensor:
    """Different in each structure and component, symmetric; NaN without a cell."""
    assert graph.cell is not None
    volume = torch.linalg.det(graph.cell).abs()
    pattern = torch.tensor([[1.0, 0.2, 0.3], [0.2, 2.0, 0.4], [0.3, 0.4, 3.0]], dtype=torch.float64)
    return torch.where(volume > 0, 1e-4 * volume, torch.nan)[:, None, None] * pattern


@dataclass(frozen=True)
class Still:
    """Predicts 0 for all, with σ of forces 0.1 eV/Å and of stress as above."""

    @property
    def cutoff(self) -> float:
        return CUTOFF

    def predict(
        self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        std = std_of_stress(graph)
        return Prediction(
            energy=torch.zeros(graph.n_structures, dtype=torch.float64),
            forces=torch.zeros(graph.n_atoms, 3, dtype=torch.float64),
            energy_std=torch.ones(graph.n_structures, dtype=torch.float64),
            forces_std=torch.full((graph.n_atoms, 3), 0.1, dtype=torch.float64),
            stress=torch.where(std.isnan(), torch.nan, 0.0),
            stress_std=std if stress_std else None,
            provenance=Provenance(method="still", kind="epistemic"),
        )


@dataclass(frozen=True)
class Noise:
    """Labels are errors of ``Still``: Gaussian, of sizes known in units of its σ."""

    structures: list[Atoms]
    seed: int
    with_stress: bool = True

    def __len__(self) -> int:
        return len(self.structures)

    def batch(self, indices, /) -> tuple[AtomicGraph, Labels]:
        graph = batch_graphs([build_graph(self.structures[i], CUTOFF, torch.float64) for i in indices])
        rng = np.random.default_rng([self.seed, indices[0]])
        noise = rng.standard_normal((len(indices), 3, 3))
        noise = np.triu(noise) + np.swapaxes(np.triu(noise, 1), 1, 2)
        stress = STRESS_FACTOR * std_of_stress(graph).nan_to_num() * torch.as_tensor(noise)
        return graph, Labels(
            energy=torch.as_tensor(rng.standard_normal(len(indices))),
            forces=torch.as_tensor(FORCES_FACTOR * 0.1 * rng.standard_normal((graph.n_atoms, 3))),
            stress=stress if self.with_stress else None,
        )


def crystals(n: int, seed: int) -> list[Atoms]:
    lengths = np.random.default_rng(seed).uniform(3.4, 4.2, n)
    return [bulk("Cu", a=length, cubic=True) for length in lengths]


def evaluation(n: int, seed: int, **labels: bool) -> Evaluation:
    return evaluate_predictor(Still(), Noise(crystals(n, seed), seed, **labels), name="crystals")


@pytest.mark.parametrize("method", ["auto", "quantile", "scalar", "conformal"])
def test_stress_has_a_factor_of_its_own(method: str) -> None:
    (_, forces, stress), reasons = calibrate_evaluation(evaluation(400, 0), method)
    assert reasons == {}
    assert forces.scale == pytest.approx(FORCES_FACTOR, rel=0.05)
    assert stress.scale == pytest.approx(STRESS_FACTOR, rel=0.06)
    assert (stress.n_structures, stress.n_samples) == (400, 2400)
    tested = replace(evaluation(400, 1), forces_calibration=forces, stress_calibration=stress)
    summary = summarize(tested)
    assert summary["stress_coverage_68"] == pytest.approx(ONE_SIGMA, abs=0.04)
    assert summary["stress_coverage_95"] == pytest.approx(0.95, abs=0.02)
    assert summary["stress_calibration"] < 0.1 < 1.4 < summary["stress_calibration_raw"]
    assert summary["stress_nll"] < summary["stress_nll_raw"]
    assert summary["stress_mae_ci"][0] < summary["stress_mae"] < summary["stress_mae_ci"][1]


def test_without_stress_labels_stress_std_stays_raw() -> None:
    unlabelled = evaluation(60, 0, with_stress=False)
    calibrations, reasons = calibrate_evaluation(unlabelled)
    assert calibrations.stress is None
    assert reasons == {}
    raw = Still().predict(build_graph(crystals(1, 3)[0], CUTOFF, torch.float64))
    found = calibrated(raw, calibrations)
    assert found.provenance.calibrated == ("energy", "forces")
    assert torch.equal(found.stress_std, raw.stress_std)
    assert float(found.forces_std[0, 0]) == pytest.approx(calibrations.forces.scale * 0.1)
    everything = calibrated(raw, Calibrations(stress=Calibration(method="scalar", scale=3.0, n_samples=9)))
    assert torch.equal(everything.stress_std, 3.0 * raw.stress_std)
    assert everything.provenance.calibrated == ("stress",)
    assert unlabelled.stress_error is None
    assert unlabelled.stress_std_raw is None  # it was not asked for
    assert not [key for key, value in summarize(unlabelled).items() if key.startswith("stress") and value is not None]


def test_six_components_of_structures_with_a_cell_are_compared() -> None:
    """Molecules between crystals have a NaN stress, which no measure sees."""
    molecule = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.2]])
    cells = crystals(30, 5)
    mixed = evaluate_predictor(Still(), Noise([*cells, molecule, molecule], 2), name="mixed")
    assert mixed.stress_error.shape == (32, 6)
    assert np.isnan(mixed.stress_error[30:]).all()
    sample = mixed.samples["stress"]
    assert sample.errors.size == 180
    assert sample.structure.tolist() == np.repeat(np.arange(30), 6).tolist()
    known = mixed.stress_error[:30]
    summary = summarize(mixed)
    assert summary["stress_mae"] == pytest.approx(np.abs(known).mean())
    assert summary["stress_coverage_68"] == pytest.approx((np.abs(known) <= mixed.stress_std_raw[:30]).mean())
    assert mixed.stress_calibration == UNCALIBRATED
    (_, forces, stress), _ = calibrate_evaluation(mixed)
    assert (forces.n_structures, stress.n_structures) == (32, 30)


def test_too_few_crystals_leave_stress_raw_and_calibrate_the_rest() -> None:
    molecule = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.2]])
    mixed = evaluate_predictor(Still(), Noise([*crystals(5, 5), *[molecule] * 20], 2), name="mixed")
    (energy, forces, stress), reasons = calibrate_evaluation(mixed)
    assert energy is not None
    assert forces is not None
    assert stress is None
    assert reasons.keys() == {"stress"}
    assert "at least 20 held-out structures with σ > 0, got 5" in reasons["stress"]
