"""The growth of force σ with energy σ: its formula, its fit on errors of known variance, and where it is applied."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from scipy.stats import norm

from contract import AMMONIA, CASES, CUTOFF, ETHANOL, WATER, displaced, graph_of, labelled
from sigmaff.data import GraphDataset
from sigmaff.evaluation import CalibrationMethod, Evaluation, calibrate_evaluation, evaluate, summarize
from sigmaff.evaluation.force_growth import LARGEST_EXPONENT, PRIOR, fit_force_growth
from sigmaff.graph import batch_graphs, build_graph
from sigmaff.models import Potential
from sigmaff.models.force_growth import LARGEST_RATIO, ForceGrowth, connected_parts
from sigmaff.models.prediction import Calibration, Prediction, Provenance
from sigmaff.simulation.md.checkpoint import model_digest

N_ATOMS = 6


def held_out(n: int, *, isotropy: float, exponent: float, seed: int = 0, shared: float = 0.0) -> tuple[np.ndarray, ...]:
    """Errors whose variance is that of the formula, raw force σ, component σ, structure of each atom.

    shared: standard deviation of the logarithm of a factor of all errors of a structure, which no σ knows.
    """
    rng = np.random.default_rng(seed)
    structure = np.repeat(np.arange(n), N_ATOMS)
    std = np.exp(0.6 * rng.standard_normal((n * N_ATOMS, 3)))
    component_std = 0.002 * np.exp(0.5 * rng.standard_normal(n))[structure]
    true = ForceGrowth(isotropy=isotropy, exponent=exponent, typical=0.002).apply(std, component_std)
    luck = np.exp(shared * rng.standard_normal(n))[structure, None]
    return 0.3 * luck * true * rng.standard_normal(true.shape), std, component_std, structure


# --- the formula


def test_growth_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    std, component_std = rng.uniform(0.1, 2.0, (5, 3)), rng.uniform(0.001, 0.1, 5)
    growth = ForceGrowth(isotropy=0.75, exponent=0.4, typical=0.01)
    found = growth.apply(std, component_std)
    for atom, axis in np.ndindex(5, 3):
        r = (component_std[atom] / 0.01) ** 2
        mixed = 0.25 * std[atom, axis] ** 2 + 0.75 * sum(s**2 for s in std[atom]) / 3
        assert found[atom, axis] ** 2 == pytest.approx(mixed * ((1 + r) / (1 + r / LARGEST_RATIO)) ** 0.4)
    tensors = growth.apply(torch.as_tensor(std), torch.as_tensor(component_std))
    np.testing.assert_allclose(tensors, found, rtol=1e-14)


def test_small_and_large_energy_std_change_force_std_by_bounded_factors() -> None:
    growth, std = ForceGrowth(isotropy=1.0, exponent=1.0, typical=0.01), np.ones((4, 3))
    none, typical, large, huge = growth.apply(std, np.array([0.0, 0.01, 0.1, 1e6]))[:, 0]
    assert none / typical > 0.7
    assert typical < large < huge
    assert huge == pytest.approx(np.sqrt(LARGEST_RATIO) * none)


def test_connected_parts_are_structures() -> None:
    """Two molecules with their atoms mixed, and a third structure in one piece."""
    one, other = molecule("CH4"), molecule("H2O")
    other.positions += [30.0, 0.0, 0.0]
    mixed = (one + other)[[5, 0, 1, 6, 2, 3, 7, 4]]
    graph = batch_graphs([build_graph(mixed, 4.0), build_graph(molecule("C2H6"), 4.0)])
    parts, order = connected_parts(graph)
    sizes = sorted(parts.atoms_per_structure().tolist())
    assert (parts.n_structures, sizes) == (3, [3, 5, 8])
    assert torch.equal(graph.atomic_numbers[order], parts.atomic_numbers)
    ends = parts.structure_index[parts.pair_index]
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(parts.pair_vectors(), graph.pair_vectors())


def test_supercells_and_periodic_molecules_are_one_part() -> None:
    chain = Atoms("H", cell=[1.0, 20.0, 20.0], pbc=True)
    assert connected_parts(build_graph(chain.repeat((4, 1, 1)), 1.5))[0].n_structures == 1
    assert connected_parts(build_graph(chain.repeat((1, 2, 1)), 1.5))[0].n_structures == 2


# --- the fit


@pytest.mark.parametrize(("isotropy", "exponent"), [(0.0, 0.0), (0.0, 1.0), (0.5, 0.6), (1.0, 0.0), (1.0, 1.2)])
def test_fit_finds_the_true_growth(isotropy: float, exponent: float) -> None:
    found = fit_force_growth(*held_out(4000, isotropy=isotropy, exponent=exponent)) or ForceGrowth(
        isotropy=0.0, exponent=0.0, typical=1.0
    )
    assert found.isotropy == isotropy
    assert found.exponent == pytest.approx(exponent, abs=0.06)


def test_few_structures_leave_the_exponent_near_the_prior() -> None:
    """Errors of a structure share a factor that no σ knows: 20 structures of many atoms say little."""
    exponents = []
    for seed in range(40):
        found = fit_force_growth(*held_out(20, isotropy=1.0, exponent=PRIOR[0], seed=seed, shared=0.5))
        assert found is not None
        exponents.append(found.exponent)
    assert np.mean(exponents) == pytest.approx(PRIOR[0], abs=0.15)
    assert np.std(exponents) < PRIOR[1]


def test_weight_of_the_prior_counts_structures() -> None:
    """Where each of 4 structures holds thousands of errors, their common factors alone decide a naive exponent."""
    rng = np.random.default_rng(1)
    n, m = 4, 3000
    structure = np.repeat(np.arange(n), m)
    component_std = np.array([0.001, 0.0015, 0.0025, 0.004])[structure]
    luck = np.exp([0.5, 0.7, -0.6, -0.6])[structure, None]
    errors = luck * rng.standard_normal((n * m, 3))
    found = fit_force_growth(errors, np.ones((n * m, 3)), component_std, structure)
    assert found is None or found.exponent < PRIOR[0]
    many = held_out(2000, isotropy=0.0, exponent=0.0, shared=0.5)
    assert (fit_force_growth(*many) or ForceGrowth(isotropy=0.0, exponent=0.0, typical=1.0)).exponent < 0.12


def test_equal_energy_std_says_nothing_of_growth() -> None:
    errors, std, component_std, structure = held_out(500, isotropy=1.0, exponent=0.0)
    found = fit_force_growth(errors, std, np.full_like(component_std, 0.002), structure)
    assert found is not None
    assert (found.isotropy, found.exponent, found.typical) == (1.0, PRIOR[0], pytest.approx(0.002))


def test_one_std_for_an_atom_keeps_the_plainest_isotropy() -> None:
    errors, std, component_std, structure = held_out(200, isotropy=1.0, exponent=0.5)
    by_atom = np.repeat(std[:, :1], 3, axis=1)
    found = fit_force_growth(errors, by_atom, component_std, structure)
    assert found is None or found.isotropy == 0.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_units_and_the_scale_of_std_do_not_matter(scale: float) -> None:
    errors, std, component_std, structure = held_out(300, isotropy=0.5, exponent=0.8)
    expected = fit_force_growth(errors, std, component_std, structure)
    found = fit_force_growth(scale * errors, 7 * scale * std, scale * component_std, structure)
    assert expected is not None
    assert found is not None
    assert (found.isotropy, found.exponent) == (expected.isotropy, pytest.approx(expected.exponent, abs=1e-3))
    assert 0 <= found.exponent <= LARGEST_EXPONENT


def test_components_without_std_are_left_out() -> None:
    errors, std, component_std, structure = held_out(300, isotropy=0.0, exponent=0.8)
    expected = fit_force_growth(errors, std, component_std, structure)
    with_zero = [np.concatenate([a, b]) for a, b in ((errors, np.ones((5, 3))), (std, np.zeros((5, 3))))]
    found = fit_force_growth(*with_zero, np.append(component_std, np.ones(5)), np.append(structure, [300] * 5))
    assert found == expected
    assert fit_force_growth(errors, np.zeros_like(std), component_std, structure) is None
    assert fit_force_growth(errors, std, np.zeros_like(component_std), structure) is None


# --- in calibration


def evaluated(n: int, *, exponent: float, seed: int, hot: float = 1.0) -> Evaluation:
    """Errors of known growth; hot multiplies component σ, and errors accordingly."""
    errors, std, component_std, structure = held_out(n, isotropy=1.0, exponent=exponent, seed=seed)
    growth = ForceGrowth(isotropy=1.0, exponent=exponent, typical=0.002)
    ratio = growth.apply(std, hot * component_std) / growth.apply(std, component_std)
    energy_std = N_ATOMS * hot * component_std[::N_ATOMS]
    return Evaluation(
        name="known",
        structure_index=structure,
        atomic_numbers=np.ones_like(structure),
        positions=np.zeros_like(std),
        energy=np.zeros(n),
        energy_predicted=energy_std * np.random.default_rng(seed).standard_normal(n),
        energy_std_raw=energy_std,
        forces=np.zeros_like(std),
        forces_predicted=errors * ratio,
        forces_std_raw=std,
        component_std_raw=hot * component_std,
        provenance=Provenance(method="known", kind="epistemic", covariance="full", forces_std="exact"),
    )


@pytest.mark.parametrize("method", ["scalar", "quantile", "isotonic"])
def test_calibrated_force_std_holds_off_the_data(method: CalibrationMethod) -> None:
    """Growth learned in distribution gives the nominal coverage where energy σ is four times as large."""
    inside, outside = evaluated(300, exponent=0.8, seed=0), evaluated(300, exponent=0.8, seed=1, hot=4.0)
    coverage = {}
    for with_growth in (True, False):
        calibrations, _ = calibrate_evaluation(inside, method, force_growth=with_growth)
        assert (calibrations.forces.growth is not None) == with_growth
        assert calibrations.energy.growth is None
        tested = replace(outside, forces_calibration=calibrations.forces)
        found = summarize(tested)
        coverage[with_growth] = found["forces_coverage_68"]
        size = np.abs(tested.forces_error) / tested.forces_std
        assert found["forces_coverage_68"] == pytest.approx(np.mean(size <= 1), abs=0.01)
        assert found["forces_nll_raw"] == pytest.approx(
            -norm.logpdf(outside.forces_error, scale=outside.forces_std_raw).mean()
        )
    assert coverage[True] == pytest.approx(norm.cdf(1) - norm.cdf(-1), abs=0.04)
    assert coverage[False] < 0.6


def test_growth_raises_the_likelihood_of_new_structures() -> None:
    calibrations = [
        calibrate_evaluation(evaluated(50, exponent=0.8, seed=2), "scalar", force_growth=g)[0].forces
        for g in (True, False)
    ]
    new = evaluated(1000, exponent=0.8, seed=3)
    with_growth, without = (summarize(replace(new, forces_calibration=c))["forces_nll"] for c in calibrations)
    assert with_growth < without - 0.05


def test_conformal_calibration_has_no_growth() -> None:
    """Its promise holds for a σ that does not depend on the calibration structures."""
    assert calibrate_evaluation(evaluated(50, exponent=0.8, seed=0), "conformal")[0].forces.growth is None


@pytest.fixture
def potential() -> Potential:
    model = next(case for case in CASES if case.head.name == "lnk" and case.wrapper == "none").build()
    assert isinstance(model, Potential)
    return model


def test_predictions_and_evaluations_report_the_same_std(potential: Potential) -> None:
    far = AMMONIA.copy()
    far.positions += [20.0, 0.0, 0.0]
    frames = [displaced(atoms, number) for number in range(12) for atoms in (ETHANOL, WATER + far)]
    dataset = GraphDataset(labelled(frames), CUTOFF, torch.float64)
    calibrations, _ = calibrate_evaluation(evaluate(potential, dataset, name="held out"), "scalar")
    assert calibrations.forces is not None
    growth = calibrations.forces.growth or ForceGrowth(isotropy=0.5, exponent=0.9, typical=0.01)
    potential.forces_calibration = replace(calibrations.forces, growth=growth)
    evaluation = evaluate(potential, dataset, name="test", batch_size=5)
    predicted = potential.predict(graph_of(*frames))
    assert isinstance(predicted, Prediction)
    np.testing.assert_allclose(evaluation.forces_std, predicted.forces_std, rtol=1e-9)
    raw = potential.predict_raw(graph_of(WATER + far))
    water, ammonia = (potential.predict_raw(graph_of(atoms)).energy_std / len(atoms) for atoms in (WATER, AMMONIA))
    component_std = potential.with_component_std(raw, graph_of(WATER + far)).component_std
    torch.testing.assert_close(component_std, torch.cat([water.expand(3), ammonia.expand(4)]))


def test_growth_belongs_to_the_identity_of_a_model(potential: Potential) -> None:
    plain = Calibration(method="scalar", scale=2.0, n_samples=50)
    digests = set()
    for exponent in (None, 0.4, 0.5):
        growth = None if exponent is None else ForceGrowth(isotropy=0.75, exponent=exponent, typical=0.01)
        potential.forces_calibration = replace(plain, growth=growth)
        digests.add(model_digest(potential))
    assert len(digests) == 3
    assert repr(plain) == "Calibration(method='scalar', scale=2.0, n_samples=50, coverages=None, multipliers=None)"


def test_words_tell_the_growth() -> None:
    growth = ForceGrowth(isotropy=0.75, exponent=0.41, typical=0.01)
    words = str(Calibration(method="scalar", scale=2.0, n_samples=50, n_structures=5, growth=growth))
    assert words == "raw σ × 2 (scalar, 5 structures; isotropy 0.75, growth with energy σ: exponent 0.41)"
