"""Evaluation of a harmonic pair potential whose errors and σ are known."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from ase import Atoms
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

import contract
from listeners import Remembering
from sigmaff.data import GraphDataset
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation import Evaluation, calibrate_evaluation, evaluate, evaluate_predictor, summarize
from sigmaff.evaluation.detection import SCORES
from sigmaff.evaluation.metrics import bootstrap, calibration_score, crps, fpr_at_tpr, nll, spearman
from sigmaff.graph import AtomicGraph, Labels, batch_graphs, build_graph
from sigmaff.heads import LNKConfig
from sigmaff.models.prediction import (
    NO_CALIBRATIONS,
    Calibration,
    Calibrations,
    ForceStdMethod,
    Prediction,
    Provenance,
    calibrated,
)

CUTOFF = 20.0
ENERGY_STD = 1 / 128  # eV per atom; sums of it are exact
EPISTEMIC = Provenance(method="harmonic", kind="epistemic", forces_std="exact")


@dataclass(frozen=True)
class HarmonicPairs:
    """E = Σ_pairs ½ k (r − 1)². σ_E = ``energy_std`` × atoms; σ_F = ``forces_std`` × (1 + |position|)."""

    stiffness: float = 1.0
    energy_std: float | None = ENERGY_STD
    forces_std: float | None = 0.05

    @property
    def cutoff(self) -> float:
        return CUTOFF

    def predict(
        self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        positions = graph.positions.detach().clone().requires_grad_()
        stretch = graph.with_positions(positions).pair_vectors().norm(dim=1) - 1
        pair_energy = 0.5 * self.stiffness * stretch**2
        node_energy = pair_energy.new_zeros(graph.n_atoms).index_add(0, graph.pair_index[0], pair_energy)
        (gradient,) = torch.autograd.grad(pair_energy.sum(), positions)
        one = torch.ones(graph.n_atoms, dtype=torch.float64)
        energy_std = None if self.energy_std is None else self.energy_std * one
        return Prediction(
            energy=structure_totals(node_energy, graph),
            forces=-gradient,
            node_energy=node_energy,
            energy_std=None if energy_std is None else structure_totals(energy_std, graph),
            forces_std=None if forces_std == "none" else self._forces_std(graph),
            node_energy_std=energy_std,
            provenance=EPISTEMIC,
        )

    def _forces_std(self, graph: AtomicGraph) -> Tensor | None:
        return None if self.forces_std is None else self.forces_std * (1 + graph.positions.abs())


def structure_totals(node_values: Tensor, graph: AtomicGraph) -> Tensor:
    return node_values.new_zeros(graph.n_structures).index_add(0, graph.structure_index, node_values)


@dataclass(frozen=True)
class Clusters:
    """Structures with labels of their own, as a data set."""

    structures: Sequence[Atoms]
    energy: np.ndarray | None
    forces: Sequence[np.ndarray] | None

    def __len__(self) -> int:
        return len(self.structures)

    def batch(self, indices: Sequence[int], /) -> tuple[AtomicGraph, Labels]:
        graph = batch_graphs([build_graph(self.structures[i], CUTOFF, torch.float64) for i in indices])
        return graph, Labels(
            energy=None if self.energy is None else torch.as_tensor(self.energy[list(indices)]),
            forces=None if self.forces is None else torch.cat([torch.as_tensor(self.forces[i]) for i in indices]),
        )


def random_clusters(seed: int, n: int, *, spread: float = 1.0, sizes: tuple[int, int] = (2, 6)) -> list[Atoms]:
    """Atoms near distinct points of a cubic lattice around the origin."""
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(*3 * [[-1.0, 0.0, 1.0]]), axis=-1).reshape(-1, 3)
    structures = []
    for k in rng.integers(sizes[0], sizes[1] + 1, size=n):
        sites = rng.choice(lattice, size=k, replace=False) + rng.uniform(-0.2, 0.2, size=(k, 3))
        structures.append(Atoms(numbers=rng.integers(1, 9, k), positions=spread * sites))
    return structures


def labelled(structures: list[Atoms], *, seed: int = 0, noise: float = 0.0) -> Clusters:
    """Labels of the potential with k = 1, plus Gaussian noise of ``noise`` times the potential's own σ."""
    rng = np.random.default_rng(seed)
    energy, forces = [], []
    for atoms in structures:
        truth = HarmonicPairs().predict(build_graph(atoms, CUTOFF, torch.float64))
        energy.append(truth.energy.item() + noise * ENERGY_STD * len(atoms) * rng.standard_normal())
        std = truth.forces_std.detach().numpy()
        forces.append(truth.forces.numpy() + noise * std * rng.standard_normal(std.shape))
    return Clusters(structures, np.array(energy), forces)


@pytest.fixture(scope="module")
def noisy() -> Evaluation:
    """The potential's own σ is half of what it should be."""
    dataset = labelled(random_clusters(1, 600), seed=2, noise=2.0)
    return evaluate_predictor(HarmonicPairs(), dataset, name="noisy")


@pytest.fixture(scope="module")
def stretched() -> Evaluation:
    dataset = labelled(random_clusters(3, 150, spread=2.0, sizes=(2, 7)), seed=4, noise=2.0)
    return evaluate_predictor(HarmonicPairs(), dataset, name="stretched")


@pytest.fixture(scope="module")
def uneven(noisy: Evaluation) -> Evaluation:
    """Errors that are large or small in a whole structure at once, and so have heavy tails."""
    factor = np.random.default_rng(17).lognormal(sigma=1.0, size=noisy.n_structures)
    return replace(
        noisy,
        energy_predicted=noisy.energy + factor * noisy.energy_error,
        forces_predicted=noisy.forces + factor[noisy.structure_index, None] * noisy.forces_error,
    )


def test_errors_of_a_stiffer_potential_are_known() -> None:
    """E and F are linear in k, so k = 1.1 is wrong by a tenth of the truth."""
    dataset = labelled(random_clusters(5, 25))
    evaluation = evaluate_predictor(HarmonicPairs(stiffness=1.1), dataset, name="stiff")
    assert evaluation.energy_error == pytest.approx(0.1 * dataset.energy, rel=1e-9)
    assert evaluation.forces_error == pytest.approx(0.1 * np.concatenate(dataset.forces), abs=1e-12)
    assert evaluation.energy_std_raw == pytest.approx(ENERGY_STD * evaluation.atoms_per_structure)
    assert evaluation.node_energy_std_raw == pytest.approx(np.full(evaluation.n_atoms, ENERGY_STD))
    summary = summarize(evaluation)
    truth = dataset.energy
    assert summary["energy_mae"] == pytest.approx(0.1 * np.abs(truth).mean())
    assert summary["energy_rmse"] == pytest.approx(0.1 * np.sqrt((truth**2).mean()))
    per_atom = truth / [len(atoms) for atoms in dataset.structures]
    assert summary["energy_mae_per_atom"] == pytest.approx(0.1 * per_atom.mean())


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_batches_do_not_matter(batch_size: int) -> None:
    structures = random_clusters(6, 23)
    listener = Remembering()
    evaluation = evaluate_predictor(
        HarmonicPairs(), labelled(structures), name="set", batch_size=batch_size, listener=listener
    )
    assert listener.advances == [(n, 23) for n in [*range(batch_size, 23, batch_size), 23]]
    assert evaluation.n_structures == 23
    centered = [atoms.positions - atoms.positions.mean(0) for atoms in structures]
    assert evaluation.positions == pytest.approx(np.concatenate(centered))
    assert evaluation.atomic_numbers.tolist() == [z for atoms in structures for z in atoms.numbers]
    assert evaluation.structure_index.tolist() == [i for i, atoms in enumerate(structures) for _ in atoms]
    assert evaluation.atoms_per_structure.tolist() == [len(atoms) for atoms in structures]
    assert evaluation.energy_error == pytest.approx(0, abs=1e-12)
    assert evaluation.forces_error == pytest.approx(0, abs=1e-12)
    assert evaluation.energy_predicted.dtype == evaluation.forces_std_raw.dtype == np.float64
    assert evaluation.seconds_per_structure > 0


def test_calibration_finds_the_missing_factor(noisy: Evaluation) -> None:
    for method in ("scalar", "quantile", "isotonic", "conformal"):
        (energy, forces, stress), reasons = calibrate_evaluation(noisy, method)
        assert stress is None
        assert reasons == {}
        assert energy.scale == pytest.approx(2.0, rel=0.12)
        assert forces.scale == pytest.approx(2.0, rel=0.04)
        assert (energy.n_samples, forces.n_samples) == (600, 3 * noisy.n_atoms)
        assert energy.n_structures == forces.n_structures == 600


def test_calibrations_scale_every_std_but_that_of_atoms(noisy: Evaluation) -> None:
    (energy, forces, _), _ = calibrate_evaluation(noisy)
    calibrated = replace(noisy, energy_calibration=energy, forces_calibration=forces)
    assert calibrated.energy_std == pytest.approx(energy.scale * noisy.energy_std_raw)
    np.testing.assert_array_equal(calibrated.node_energy_std, noisy.node_energy_std_raw)
    assert calibrated.forces_std == pytest.approx(forces.scale * noisy.forces_std_raw)
    summary = summarize(calibrated)
    for quantity in ("energy", "forces"):
        assert summary[f"{quantity}_calibration"] < 0.05
        assert summary[f"{quantity}_calibration_raw"] > 0.5
        assert summary[f"{quantity}_calibration_paper"] == pytest.approx(1.254, abs=0.03)
        errors, std = (getattr(noisy, f"{quantity}_{name}").ravel() for name in ("error", "std_raw"))
        levels = np.arange(1, 10) / 10
        inside = np.abs(errors)[:, None] <= std[:, None] * norm.ppf(0.5 + 0.5 * levels)
        each = np.sqrt(((levels - inside) ** 2).sum(axis=1))
        assert summary[f"{quantity}_calibration_paper_raw"] == pytest.approx(each.mean())
        assert summary[f"{quantity}_calibration_paper_raw"] > 1.35  # σ is too small by a factor of two
        assert summary[f"{quantity}_coverage_68"] == pytest.approx(0.6827, abs=0.04)
        assert summary[f"{quantity}_coverage_95"] == pytest.approx(0.95, abs=0.02)
        assert summary[f"{quantity}_nll"] < summary[f"{quantity}_nll_raw"]
        assert summary[f"{quantity}_ence"] < 0.15
        assert summary[f"{quantity}_miscalibration_area"] < 0.03


def test_summary_is_the_measures_of_the_arrays(noisy: Evaluation) -> None:
    summary = summarize(noisy)
    error, std = noisy.forces_error.ravel(), noisy.forces_std_raw.ravel()
    assert summary["n_structures"] == 600
    assert summary["n_atoms"] == noisy.n_atoms == len(noisy.positions)
    assert summary["forces_mae"] == pytest.approx(np.abs(error).mean())
    assert summary["forces_rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert summary["forces_spearman"] == pytest.approx(spearmanr(std, np.abs(error)).statistic)
    assert summary["forces_nll"] == pytest.approx(nll(error, std))
    assert summary["forces_crps"] == pytest.approx(crps(error, std))
    assert summary["forces_sharpness"] == pytest.approx(np.sqrt((std**2).mean()))
    norms = [np.sqrt((values**2).sum(axis=1)) for values in (noisy.forces_std_raw, noisy.forces_error)]
    assert summary["forces_atom_spearman"] == pytest.approx(spearmanr(*norms).statistic)
    assert summary["energy_calibration"] == calibration_score(noisy.energy_error, noisy.energy_std_raw)
    assert 0 < summary["forces_retention_gain"] < 1
    assert summary["forces_retention_area"] < 0.5 * summary["forces_mae"]


@pytest.mark.parametrize("method", ["isotonic", "conformal"])
def test_intervals_of_the_calibration_are_used_for_coverage(uneven: Evaluation, method: str) -> None:
    (energy, forces, _), _ = calibrate_evaluation(uneven, method)
    summary = summarize(replace(uneven, energy_calibration=energy, forces_calibration=forces))
    for quantity in ("energy", "forces"):
        assert summary[f"{quantity}_calibration"] < 0.02
        assert summary[f"{quantity}_miscalibration_area"] < 0.01
        assert summary[f"{quantity}_calibration_paper"] == pytest.approx(1.254, abs=0.01)
        assert summary[f"{quantity}_coverage_68"] == pytest.approx(0.6827, abs=0.005)
        assert summary[f"{quantity}_coverage_95"] == pytest.approx(0.95, abs=0.005)
    assert summary["energy_calibration_raw"] == calibration_score(uneven.energy_error, uneven.energy_std_raw)
    assert summary["energy_calibration_ci"][1] < 0.15


def test_bootstrap_intervals_are_those_of_resampled_structures(uneven: Evaluation) -> None:
    """Against resampling the structures themselves and computing each measure anew."""
    summary = summarize(uneven)
    components = [np.repeat(uneven.structure_index == i, 3) for i in range(uneven.n_structures)]
    error, std = uneven.forces_error.ravel(), uneven.forces_std_raw.ravel()
    structures = np.array([np.flatnonzero(mask) for mask in components], dtype=object)
    anew = {
        "mae": lambda error, _: np.abs(error).mean(),
        "calibration": calibration_score,
        "spearman": lambda error, std: spearman(std, np.abs(error)),
    }
    for key, measure in anew.items():

        def statistic(rows: np.ndarray, measure=measure) -> float:
            chosen = np.concatenate(rows)
            return measure(error[chosen], std[chosen])

        low, high = bootstrap(statistic, structures, seed=0)
        assert summary[f"forces_{key}_ci"] == pytest.approx([low, high], abs=0.1 * (high - low))
        assert low < summary[f"forces_{key}"] < high


def test_out_of_distribution(noisy: Evaluation, stretched: Evaluation) -> None:
    summary = summarize(noisy, stretched)
    labels = np.repeat([0, 1], [noisy.n_structures, stretched.n_structures])

    def force_rms(evaluation: Evaluation) -> list[float]:
        index = evaluation.structure_index
        stds = [evaluation.forces_std_raw[index == i] for i in range(evaluation.n_structures)]
        return [np.sqrt(np.mean(std**2)) for std in stds]

    inside, outside = force_rms(noisy), force_rms(stretched)
    assert summary["forces_auroc"] == pytest.approx(roc_auc_score(labels, inside + outside))
    assert summary["forces_auroc"] > 0.8
    assert summary["forces_fpr95"] == pytest.approx(fpr_at_tpr(inside, outside))
    totals = np.concatenate([noisy.energy_std_raw, stretched.energy_std_raw])
    assert summary["energy_auroc_total"] == pytest.approx(roc_auc_score(labels, totals))
    assert summary["energy_auroc_total"] > 0.5  # only because its structures are larger
    assert summary["energy_auroc"] == 0.5  # σ per atom is the same everywhere
    assert summary["ood_n_structures"] == 150
    assert summary["ood_energy_mae"] == pytest.approx(np.abs(stretched.energy_error).mean())
    assert summary["ood_forces_rmse"] == pytest.approx(np.sqrt((stretched.forces_error**2).mean()))
    errors = np.abs(np.concatenate([noisy.forces_error.ravel(), stretched.forces_error.ravel()]))
    stds = np.concatenate([noisy.forces_std_raw.ravel(), stretched.forces_std_raw.ravel()])
    assert summary["forces_spearman_with_ood"] == pytest.approx(spearmanr(stds, errors).statistic)


def said(summary: dict, prefix: str) -> set[str]:
    return {key for key, value in summary.items() if key.startswith(prefix) and value is not None}


def test_keys_are_always_the_same_and_json_has_no_nan(noisy: Evaluation, stretched: Evaluation) -> None:
    silent = HarmonicPairs(energy_std=None, forces_std=None)
    dataset = labelled(random_clusters(7, 1))
    full = summarize(noisy, stretched)
    of_stress = {key for key in full if key.startswith(("stress_", "ood_stress_"))}
    assert {key for key, value in full.items() if value is None} == of_stress
    for summary in (
        summarize(noisy),
        summarize(evaluate_predictor(silent, dataset, name="no σ"), noisy),
        summarize(evaluate_predictor(HarmonicPairs(), dataset, name="one structure")),
    ):
        assert summary.keys() == full.keys()
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_what_is_not_labelled_is_none(stretched: Evaluation) -> None:
    dataset = labelled(random_clusters(8, 40), noise=2.0)
    no_energies = evaluate_predictor(HarmonicPairs(), replace(dataset, energy=None), name="forces only")
    no_forces = evaluate_predictor(HarmonicPairs(), replace(dataset, forces=None), name="energies only")
    assert no_energies.energy is None
    assert no_energies.energy_error is None
    assert no_forces.forces_error is None
    aurocs = {*SCORES, *(f"{key}_ci" for key in SCORES)}
    for summary, quantity in (
        (summarize(no_energies, stretched), "energy"),
        (summarize(no_forces, stretched), "forces"),
    ):
        detection = {key for key in aurocs if key.startswith(quantity)} | {f"{quantity}_fpr95"}
        assert said(summary, quantity) == detection | {f"{quantity}_std_zero"}
    assert calibrate_evaluation(no_energies)[0].energy is None
    assert calibrate_evaluation(no_forces)[0].forces is None


def test_a_method_without_std_has_errors_only() -> None:
    silent = HarmonicPairs(energy_std=None, forces_std=None)
    evaluation = evaluate_predictor(silent, labelled(random_clusters(9, 12), noise=1.0), name="silent")
    assert evaluation.energy_std is None
    assert evaluation.forces_std is None
    assert evaluation.node_energy_std is None
    summary = summarize(evaluation)
    assert said(summary, "energy") == {"energy_mae", "energy_rmse", "energy_mae_per_atom", "energy_mae_ci"}
    assert said(summary, "forces") == {"forces_mae", "forces_rmse", "forces_mae_ci"}
    with pytest.raises(DataError, match=r"silent.*labelled: energy and forces; σ from method 'harmonic': nothing"):
        calibrate_evaluation(evaluation)


def test_force_std_is_left_out_on_request() -> None:
    dataset = labelled(random_clusters(9, 12), noise=1.0)
    evaluation = evaluate_predictor(HarmonicPairs(), dataset, name="energies' σ only", forces_std="none")
    assert evaluation.forces_std_raw is None
    assert evaluation.energy_std_raw is not None


def test_an_isolated_atom_has_exact_forces_and_no_say_in_their_std() -> None:
    """At the origin of a potential with σ ∝ position, both the force's error and its σ are 0."""

    class Centred(HarmonicPairs):
        def _forces_std(self, graph: AtomicGraph) -> Tensor:
            return 0.05 * graph.positions.abs()

    pairs = random_clusters(10, 30)
    atom = Atoms("O", positions=[[0.0, 0.0, 0.0]])
    alone, without = (
        evaluate_predictor(Centred(), labelled(structures, noise=1.0, seed=1), name="set")
        for structures in ([*pairs, atom], pairs)
    )
    alone = replace(alone, forces=np.concatenate([without.forces, np.zeros((1, 3))]))
    summary, reference = summarize(alone), summarize(without)
    assert (summary["forces_std_zero"], reference["forces_std_zero"]) == (3, 0)
    for key in ("forces_calibration", "forces_nll", "forces_crps", "forces_spearman"):
        assert summary[key] == reference[key]
    assert summary["forces_mae"] == pytest.approx(reference["forces_mae"] * without.n_atoms / alone.n_atoms)
    assert calibrate_evaluation(alone)[0].forces == calibrate_evaluation(without)[0].forces


def test_rounding_is_no_std() -> None:
    """The force on the carbon of a straight, symmetric CO2 vanishes; its σ is what float32 leaves of a difference."""
    head = LNKConfig(kernel="rbf+linear", mean="residual", n_inducing=12, n_samples=16, n_frequencies=64)
    potential = contract.Case(backbone=contract.BACKBONES[0], head=head).build()
    potential.set_precision(torch.float32)
    axis = np.array([0.3, 0.5, 0.8])
    frames = [Atoms("COO", positions=[0 * axis, length * axis, -length * axis]) for length in (1.1, 1.17, 1.3)]
    data = GraphDataset(contract.labelled(frames), potential.cutoff)
    graph, _ = data.batch(range(3))
    predicted = potential.predict(graph, forces_std="exact").forces_std[graph.atomic_numbers == 6]
    assert 0 < float(predicted.max()) < 1e-4
    evaluation = evaluate_predictor(potential, data, name="straight", forces_std="exact")
    carbon = evaluation.atomic_numbers == 6
    assert (evaluation.forces_std_raw[carbon] == 0).all()
    assert (evaluation.forces_std_raw[~carbon] > 0).all()


def test_all_std_zero_is_not_an_estimate() -> None:
    mute = HarmonicPairs(energy_std=0.0, forces_std=0.0)
    evaluation = evaluate_predictor(mute, labelled(random_clusters(9, 22), noise=1.0), name="mute")
    summary = summarize(evaluation)
    assert summary["energy_std_zero"] == 22
    assert summary["energy_calibration"] is None
    calibrations, reasons = calibrate_evaluation(evaluation)
    assert calibrations == NO_CALIBRATIONS
    assert reasons.keys() == {"energy", "forces"}
    assert reasons["energy"].startswith("every held-out σ is zero")


def test_sampled_force_std_of_one_batch_is_said_of_all() -> None:
    class Mixed(HarmonicPairs):
        def predict(
            self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
        ) -> Prediction:
            large = graph.n_atoms > 4
            prediction = super().predict(graph, forces_std=forces_std)
            return replace(prediction, provenance=replace(EPISTEMIC, forces_std="sampled" if large else "exact"))

    small, large = random_clusters(11, 4, sizes=(2, 3)), random_clusters(12, 1, sizes=(5, 5))
    mixed = evaluate_predictor(Mixed(), labelled(small + large), name="mixed", batch_size=1)
    assert mixed.provenance.forces_std == "sampled"
    assert evaluate_predictor(Mixed(), labelled(small), name="small", batch_size=1).provenance == EPISTEMIC


@pytest.mark.parametrize(("std", "said_of_it"), [(float("nan"), "nan"), (-1.0, "-")])
def test_std_that_is_none_names_the_structure(std: float, said_of_it: str) -> None:
    with pytest.raises(DataError, match=f"bad: energy_std_raw of structure 0 is {said_of_it}"):
        evaluate_predictor(HarmonicPairs(energy_std=std), labelled(random_clusters(13, 3)), name="bad")


def test_a_label_that_is_not_a_number_names_its_structure() -> None:
    dataset = labelled(random_clusters(14, 5))
    dataset.forces[3][0, 1] = np.nan
    with pytest.raises(DataError, match="labels: forces of structure 3 is nan"):
        evaluate_predictor(HarmonicPairs(), dataset, name="labels", batch_size=2)


def test_nothing_to_evaluate() -> None:
    with pytest.raises(DataError, match="empty: there is no structure"):
        evaluate_predictor(HarmonicPairs(), labelled([]), name="empty")
    with pytest.raises(ValueError, match="batch_size"):
        evaluate_predictor(HarmonicPairs(), labelled(random_clusters(15, 2)), name="set", batch_size=0)


def test_many_components_of_few_structures_are_too_few() -> None:
    """19 structures have 19 energies and over a hundred force components: neither is calibrated by one factor."""
    evaluation = evaluate_predictor(HarmonicPairs(), labelled(random_clusters(16, 19), noise=1.0), name="few.extxyz")
    assert evaluation.n_atoms > 60
    calibrations, reasons = calibrate_evaluation(evaluation)
    assert calibrations == NO_CALIBRATIONS
    assert reasons["energy"] == reasons["forces"]
    assert "at least 20 held-out structures with σ > 0, got 19; give more" in reasons["forces"]
    assert "conformal, which needs 3" in reasons["forces"]
    conformal, reasons = calibrate_evaluation(evaluation, "conformal")
    assert reasons == {}
    assert conformal.forces.multiplier(19 / 20) < np.inf
    assert conformal.forces.multiplier(0.951) == np.inf


def test_a_calibrated_predictor_is_refused() -> None:
    class Calibrated(HarmonicPairs):
        def predict(
            self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
        ) -> Prediction:
            calibration = Calibration(method="scalar", scale=2.0, n_samples=10)
            return calibrated(super().predict(graph, forces_std=forces_std), Calibrations(energy=calibration))

    with pytest.raises(SigmaffError, match=r"set: σ .* already calibrated \(scalar\).* Uncalibrated\(model\)"):
        evaluate_predictor(Calibrated(), labelled(random_clusters(17, 3)), name="set")


def test_a_calibrated_model_is_evaluated_with_its_raw_std() -> None:
    potential = contract.Case(
        backbone=contract.BACKBONES[0],
        head=LNKConfig(kernel="rbf+linear", n_inducing=12, n_samples=16, n_frequencies=64),
    ).build()
    data = GraphDataset(contract.labelled([Atoms("CO", [[0, 0, 0], [0, 0, r]]) for r in (1.1, 1.2)]), potential.cutoff)
    raw = evaluate(potential, data, name="raw")
    potential.energy_calibration = Calibration(method="scalar", scale=2.0, n_samples=10)
    found = evaluate(potential, data, name="calibrated")
    np.testing.assert_array_equal(found.energy_std_raw, raw.energy_std_raw)
    np.testing.assert_array_equal(found.energy_std, 2 * raw.energy_std_raw)
    with pytest.raises(SigmaffError, match="already calibrated"):
        evaluate_predictor(potential, data, name="calibrated")
