"""Scores of how new a structure is: each finds the change that it is for, and none is fooled by symmetry or size."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import gmean
from sklearn.metrics import roc_auc_score

from sigmaff.evaluation import Evaluation, summarize
from sigmaff.evaluation.detection import SCORES
from sigmaff.evaluation.metrics import auroc_interval
from sigmaff.evaluation.paired import auroc_differences, detection_scores
from sigmaff.models.force_growth import ForceGrowth
from sigmaff.models.prediction import Calibration, Provenance

N_ATOMS = 20


def evaluation(forces_std: np.ndarray, atom_std: np.ndarray | None = None) -> Evaluation:
    """Arguments: (n_structures, n_atoms, 3) and (n_structures, n_atoms)."""
    n, n_atoms, _ = forces_std.shape
    return Evaluation(
        name="test",
        structure_index=np.repeat(np.arange(n), n_atoms),
        atomic_numbers=np.ones(n * n_atoms, dtype=np.int64),
        positions=np.zeros((n * n_atoms, 3)),
        energy=None,
        energy_predicted=np.zeros(n),
        energy_std_raw=None,
        forces=None,
        forces_predicted=np.zeros((n * n_atoms, 3)),
        forces_std_raw=forces_std.reshape(-1, 3),
        node_energy_std_raw=None if atom_std is None else atom_std.ravel(),
        provenance=Provenance(method="toy"),
    )


def drawn(rng: np.random.Generator, n: int, *, shift: float = 1.0, event: float = 1.0) -> Evaluation:
    """σ with heavy tails. shift: factor for every atom; event: for one."""
    forces_std, atom_std = rng.lognormal(sigma=1.0, size=(n, N_ATOMS, 3)), rng.lognormal(sigma=0.3, size=(n, N_ATOMS))
    forces_std[:, 7] *= event
    atom_std[:, 7] *= event
    return evaluation(shift * forces_std, atom_std)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_scores_are_what_their_names_say(rng: np.random.Generator) -> None:
    forces_std, atom_std = rng.lognormal(size=(6, 5, 3)), rng.lognormal(size=(6, 5))
    scores = detection_scores(evaluation(forces_std, atom_std))
    sizes = np.sqrt((forces_std**2).sum(axis=2))
    assert scores["forces_auroc"] == pytest.approx(np.sqrt((forces_std**2).mean(axis=(1, 2))))
    covariances = [np.diag(std.ravel() ** 2) for std in forces_std]
    assert scores["forces_auroc_trace"] == pytest.approx([np.trace(covariance) for covariance in covariances])
    assert scores["forces_auroc_geometric_mean"] == pytest.approx(gmean(sizes, axis=1))
    assert scores["forces_auroc_largest_atom"] == pytest.approx(sizes.max(axis=1))
    assert scores["energy_auroc_largest_atom"] == pytest.approx(atom_std.max(axis=1))
    assert scores.keys() == SCORES.keys() - {"energy_auroc", "energy_auroc_total"}  # there is no energy σ


def test_a_summary_has_each_auroc_with_its_interval(rng: np.random.Generator) -> None:
    inside, outside = drawn(rng, 40), drawn(rng, 30, shift=1.3)
    summary, is_new = summarize(inside, outside), np.repeat([0, 1], [40, 30])
    for key in (
        "forces_auroc_trace",
        "forces_auroc_geometric_mean",
        "forces_auroc_largest_atom",
        "energy_auroc_largest_atom",
    ):
        scores = np.concatenate([detection_scores(item)[key] for item in (inside, outside)])
        assert summary[key] == pytest.approx(roc_auc_score(is_new, scores))
        assert summary[f"{key}_ci"] == pytest.approx(auroc_interval(summary[key], 40, 30))


def test_the_geometric_mean_finds_shifts_and_the_largest_finds_events(rng: np.random.Generator) -> None:
    inside = drawn(rng, 300)
    shifted, broken = summarize(inside, drawn(rng, 300, shift=1.4)), summarize(inside, drawn(rng, 300, event=20.0))
    mean, rms, largest = "forces_auroc_geometric_mean", "forces_auroc", "forces_auroc_largest_atom"
    assert shifted[mean] > shifted[rms] + 0.05 > shifted[largest] + 0.1
    assert broken[largest] > 0.9 > broken[mean] + 0.1
    assert broken["energy_auroc_largest_atom"] > 0.99


def test_an_atom_without_std_by_symmetry_is_left_out(rng: np.random.Generator) -> None:
    """The force of an isolated atom vanishes; a score of 0 would call the structure the most familiar of all."""
    std = rng.lognormal(size=(4, 5, 3))
    with_isolated = np.concatenate([std, np.zeros((4, 1, 3))], axis=1)
    known, score = evaluation(std), SCORES["forces_auroc_geometric_mean"]
    assert score(evaluation(with_isolated)) == pytest.approx(score(known))
    assert score(evaluation(np.zeros((2, 3, 3)))).tolist() == [0.0, 0.0]


def test_a_larger_structure_of_the_same_kind_has_no_larger_score(rng: np.random.Generator) -> None:
    std, atom_std = rng.lognormal(size=(4, 5, 3)), rng.lognormal(size=(4, 5))
    one, copies = evaluation(std, atom_std), evaluation(np.tile(std, (1, 3, 1)), np.tile(atom_std, (1, 3)))
    for key, score in detection_scores(copies).items():
        n = 3 if key == "forces_auroc_trace" else 1  # the trace is extensive
        assert score == pytest.approx(n * detection_scores(one)[key]), key


def test_the_trace_is_of_raw_std_and_counts_atoms(rng: np.random.Generator) -> None:
    """Larger structures with smaller σ: the trace finds them new, the rms familiar. A calibration does not matter."""
    known, larger = rng.uniform(1.0, 2.0, (30, 4, 3)), rng.uniform(0.5, 0.9, (30, 40, 3))
    summary = summarize(evaluation(known), evaluation(larger))
    assert (summary["forces_auroc_trace"], summary["forces_auroc"]) == (1.0, 0.0)
    plain, growth = evaluation(known), ForceGrowth(isotropy=1.0, exponent=1.0, typical=1.0)
    calibrated = replace(
        plain,
        forces_calibration=Calibration(method="toy", scale=3.0, n_samples=1, growth=growth),
        component_std_raw=np.repeat(rng.uniform(0.1, 9.0, 30), 4),
    )
    rms, trace = (
        detection_scores(calibrated)[key] / detection_scores(plain)[key]
        for key in ("forces_auroc", "forces_auroc_trace")
    )
    assert rms.max() > 2 * rms.min()
    assert trace == pytest.approx(np.ones(30))


def test_methods_without_std_of_atoms_have_no_score_of_them(rng: np.random.Generator) -> None:
    ensemble = evaluation(rng.lognormal(size=(3, 5, 3)))
    assert "energy_auroc_largest_atom" not in detection_scores(ensemble)
    assert summarize(ensemble, ensemble)["energy_auroc_largest_atom"] is None


def test_two_models_are_compared_by_each_score(rng: np.random.Generator) -> None:
    good = [detection_scores(drawn(rng, 60, event=event)) for event in (1.0, 20.0)]
    blind = [detection_scores(drawn(rng, 60)) for _ in range(2)]
    found = auroc_differences(tuple(blind), tuple(good))
    assert found.keys() == SCORES.keys() - {"energy_auroc", "energy_auroc_total"}
    assert found["forces_auroc_largest_atom"].low > 0.2
