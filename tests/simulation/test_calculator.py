"""The ASE calculator against the model's own predictions, finite differences, and what ASE does with it."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from ase.stress import full_3x3_to_voigt_6_stress

import sigmaff
from calculator_case import LNK_CONFIG, build_potential, ethanol, water_crystal
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.graph import AtomicGraph, build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential
from sigmaff.models.prediction import Calibration, ForceStdMethod, Prediction
from sigmaff.simulation import Calculator
from sigmaff.simulation.md import MDConfig, run_md


@pytest.fixture(scope="module")
def potential() -> Potential:
    return build_potential(LNK_CONFIG)


@pytest.fixture(scope="module")
def deterministic() -> Potential:
    return build_potential(DeterministicConfig())


class Counting:
    """A predictor that counts how often it is asked."""

    def __init__(self, potential: Potential) -> None:
        self.potential = potential
        self.n_calls = self.n_with_stress_std = 0

    @property
    def cutoff(self) -> float:
        return self.potential.cutoff

    def predict(
        self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        self.n_calls += 1
        self.n_with_stress_std += stress_std
        return self.potential.predict(graph, forces_std=forces_std, stress_std=stress_std)


class Altered(Counting):
    """A predictor whose predictions are altered on the way."""

    def __init__(self, potential: Potential, alter: Callable[[Prediction], Prediction]) -> None:
        super().__init__(potential)
        self.alter = alter

    def predict(
        self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        return self.alter(super().predict(graph, forces_std=forces_std, stress_std=stress_std))


# --- what it computes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("structure", [ethanol, water_crystal])
def test_results_are_the_prediction(structure: Callable[[], Atoms], dtype: torch.dtype) -> None:
    potential = build_potential(LNK_CONFIG, dtype)
    potential.energy_calibration = Calibration(method="scalar", scale=3.0, n_samples=10)
    potential.forces_calibration = Calibration(method="scalar", scale=0.5, n_samples=10)
    atoms = structure()
    atoms.calc = Calculator(potential)
    atoms.get_forces()
    expected = potential.predict(build_graph(atoms, 5.0, torch.float64))
    results = atoms.calc.results
    assert results["energy"] == results["free_energy"] == expected.energy.item()
    assert results["energy_uncertainty"] == expected.energy_std.item() > 0
    for name, tensor in {
        "forces": expected.forces,
        "energies": expected.node_energy,
        "forces_uncertainty": expected.forces_std,
        "energies_uncertainty": expected.node_energy_std,
    }.items():
        assert results[name].dtype == np.float64
        np.testing.assert_array_equal(results[name], tensor.numpy())
    assert ("stress" in results) == atoms.pbc.all()
    np.testing.assert_allclose(results["energies"].sum(), results["energy"], rtol=1e-12)
    assert results["calibrated_uncertainties"] == "energy_uncertainty forces_uncertainty"
    for name in results.keys() - {"calibrated_uncertainties"}:
        np.testing.assert_array_equal(atoms.calc.get_property(name, atoms), results[name])


def test_ase_gets_the_properties_that_it_has_names_for(potential: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    properties = atoms.get_properties(["energy", "forces"])
    assert dict(properties)["energy"] == atoms.get_potential_energy()
    np.testing.assert_array_equal(properties["forces"], atoms.get_forces())
    assert set(properties) == {"energy", "free_energy", "energies", "forces", "natoms"}
    assert "energy_uncertainty" in atoms.calc.results


@pytest.mark.parametrize("structure", [ethanol, water_crystal])
def test_a_user_sees_which_uncertainties_are_calibrated(structure: Callable[[], Atoms]) -> None:
    potential, atoms = build_potential(LNK_CONFIG), structure()
    atoms.calc = Calculator(potential, stress_uncertainty=True)
    atoms.get_forces()
    assert atoms.calc.results["calibrated_uncertainties"] == "none"
    raw = dict(atoms.calc.results)
    potential.stress_calibration = Calibration(method="scalar", scale=3.0, n_samples=10)
    atoms.calc = Calculator(potential, stress_uncertainty=True)
    atoms.get_forces()
    found = atoms.calc.results
    if atoms.pbc.all():
        np.testing.assert_allclose(found["stress_uncertainty"], 3.0 * raw["stress_uncertainty"])
    assert found["calibrated_uncertainties"] == ("stress_uncertainty" if atoms.pbc.all() else "none")
    np.testing.assert_array_equal(found["forces_uncertainty"], raw["forces_uncertainty"])
    np.testing.assert_array_equal(found["energies_uncertainty"], raw["energies_uncertainty"])


def test_forces_are_finite_differences_of_the_energy(potential: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential, forces_uncertainty="none")
    forces = atoms.get_forces()
    assert np.abs(forces).max() > 0.1
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, eps=1e-4), atol=1e-6)


def test_stress_is_a_finite_difference_of_the_energy(potential: Potential) -> None:
    atoms = water_crystal()
    atoms.calc = Calculator(potential, forces_uncertainty="none")
    stress = atoms.get_stress()
    assert np.abs(stress).max() > 1e-3
    np.testing.assert_allclose(stress, calculate_numerical_stress(atoms, eps=1e-5), atol=1e-7)


def test_a_slab_with_vacuum_has_the_stress_of_its_cell(potential: Potential) -> None:
    atoms = water_crystal()
    atoms.set_cell([[4.9, 0.0, 0.0], [0.6, 4.5, 0.0], [0.0, 0.0, 20.0]])
    atoms.pbc = (True, True, False)
    atoms.calc = Calculator(potential, forces_uncertainty="none")
    np.testing.assert_allclose(atoms.get_stress(), calculate_numerical_stress(atoms, eps=1e-5), atol=1e-7)


@pytest.mark.parametrize("cell", [None, [[4.9, 0.0, 0.0], [0.6, 4.5, 0.0], [0.0, 0.0, 0.0]]])
def test_stress_is_absent_where_there_is_no_volume(potential: Potential, cell: list[list[float]] | None) -> None:
    atoms = ethanol() if cell is None else water_crystal()
    if cell is not None:
        atoms.set_cell(cell)
        atoms.pbc = (True, True, False)
    atoms.calc = Calculator(potential)
    assert np.isfinite(atoms.get_forces()).all()
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()


def test_an_isolated_atom_feels_no_force_and_its_force_has_no_doubt(potential: Potential) -> None:
    atoms = Atoms("O", positions=[[1.0, 2.0, 3.0]])
    atoms.calc = Calculator(potential)
    assert np.isfinite(atoms.get_potential_energy())
    np.testing.assert_array_equal(atoms.get_forces(), np.zeros((1, 3)))
    np.testing.assert_array_equal(atoms.calc.results["forces_uncertainty"], np.zeros((1, 3)))
    assert atoms.calc.results["energy_uncertainty"] > 0
    assert atoms.calc.results["energies_uncertainty"] > 0  # unlike the oxygen atoms of the training set


def test_sigma_that_is_not_estimated_is_absent(deterministic: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(deterministic)
    atoms.get_forces()
    assert not [name for name in atoms.calc.results if "uncertainty" in name]
    with pytest.raises(PropertyNotImplementedError):
        atoms.calc.get_property("energy_uncertainty", atoms)


@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_force_sigma_is_computed_as_asked(potential: Potential, how: ForceStdMethod) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential, forces_uncertainty=how)
    expected = potential.predict(build_graph(atoms, 5.0, torch.float64), forces_std=how).forces_std
    np.testing.assert_array_equal(atoms.calc.get_property("forces_uncertainty", atoms), expected.numpy())


def test_force_sigma_that_is_off_is_computed_on_request_alone(potential: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential, forces_uncertainty="none")
    atoms.get_forces()
    assert "forces_uncertainty" not in atoms.calc.results
    assert "energy_uncertainty" in atoms.calc.results
    expected = Calculator(potential).get_property("forces_uncertainty", atoms)
    np.testing.assert_array_equal(atoms.calc.get_property("forces_uncertainty", atoms), expected)
    atoms.positions[0, 0] += 0.1
    atoms.get_forces()
    assert "forces_uncertainty" not in atoms.calc.results


def test_stress_sigma_is_computed_on_request_alone(potential: Potential) -> None:
    model, atoms = Counting(potential), water_crystal()
    expected = potential.predict(atoms).stress_std
    assert expected is not None
    atoms.calc = Calculator(model)
    atoms.get_stress()
    assert "forces_uncertainty" in atoms.calc.results
    assert "stress_uncertainty" not in atoms.calc.results
    assert model.n_with_stress_std == 0
    for options in ({}, {"forces_uncertainty": "none"}, {"stress_uncertainty": True}):
        atoms.calc = Calculator(model, **options)
        found = atoms.calc.get_property("stress_uncertainty", atoms)
        np.testing.assert_allclose(found, full_3x3_to_voigt_6_stress(expected))
    assert model.n_with_stress_std == 3
    with pytest.raises(ConfigError, match="stress_uncertainty is 'auto'"):
        Calculator(model, stress_uncertainty="auto")


def test_dynamics_does_not_ask_for_stress_sigma(potential: Potential, tmp_path: Path) -> None:
    model, atoms = Counting(potential), water_crystal()
    config = MDConfig(steps=2, every=1, hottest=1e9, stop_above=None)
    frames = ase.io.read(run_md(model, [atoms], config, tmp_path / "md").trajectory(0), ":")
    assert model.n_calls > 1
    assert model.n_with_stress_std == 0
    assert "forces_uncertainty" in frames[-1].arrays
    assert "stress_uncertainty" not in frames[-1].info


# --- when it computes


def test_one_prediction_serves_until_the_structure_changes(potential: Potential) -> None:
    model = Counting(potential)
    atoms = water_crystal()
    atoms.calc = Calculator(model)
    for _ in range(2):
        atoms.get_potential_energy()
        atoms.get_potential_energies()
        atoms.get_forces()
        atoms.get_stress()
        atoms.calc.get_property("forces_uncertainty", atoms)
    atoms.set_initial_charges(np.ones(len(atoms)))
    atoms.get_forces()
    assert model.n_calls == 1
    for change in (
        lambda: atoms.positions.__iadd__(0.1),
        lambda: atoms.set_cell(1.01 * atoms.cell.array),
        lambda: atoms.set_pbc((True, True, False)),
        lambda: atoms.numbers.__setitem__(0, 6),
        lambda: atoms.calc.set(forces_uncertainty="none"),
    ):
        before = model.n_calls
        change()
        atoms.get_forces()
        atoms.get_forces()
        assert model.n_calls == before + 1


def test_results_handed_out_are_copies(potential: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    forces = atoms.get_forces()
    forces[:] = 0.0
    assert np.abs(atoms.get_forces()).max() > 0


# --- relaxation and dynamics


def test_relaxation_goes_downhill(potential: Potential) -> None:
    """In small steps at every step; random weights need not have a minimum nearby."""
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    energies: list[float] = []
    relaxation = BFGS(atoms, logfile=None, maxstep=0.02)
    relaxation.attach(lambda: energies.append(atoms.get_potential_energy()))
    relaxation.run(fmax=0.01, steps=25)
    assert (np.diff(energies) < 0.0).all()
    assert energies[-1] < energies[0] - 0.01


def energy_fluctuation(potential: Potential, femtoseconds: float, n_steps: int) -> float:
    """Range of the total energy along a trajectory at constant energy, eV."""
    atoms = ethanol()
    atoms.calc = Calculator(potential, forces_uncertainty="none")
    momenta = np.random.default_rng(1).normal(size=(9, 3)) * np.sqrt(300 * units.kB * atoms.get_masses())[:, None]
    atoms.set_momenta(momenta)
    dynamics = VelocityVerlet(atoms, timestep=femtoseconds * units.fs)
    energies: list[float] = []
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.run(n_steps)
    return float(np.ptp(energies))


def test_dynamics_conserve_energy_to_second_order_in_the_time_step(potential: Potential) -> None:
    coarse = energy_fluctuation(potential, 0.4, 50)
    fine = energy_fluctuation(potential, 0.1, 200)
    assert fine < 1e-3
    assert coarse / fine == pytest.approx(16.0, rel=0.1)


# --- errors


def nan_forces(prediction: Prediction) -> Prediction:
    forces = prediction.forces.clone()
    forces[4, 1] = torch.nan
    return replace(prediction, forces=forces)


def infinite_energy(prediction: Prediction) -> Prediction:
    return replace(prediction, energy=prediction.energy + torch.inf)


@pytest.mark.parametrize(
    ("alter", "message"), [(nan_forces, "forces of atom 4 in C2"), (infinite_energy, "energy in C2")]
)
def test_a_prediction_that_is_no_number_is_an_error(
    potential: Potential, alter: Callable[[Prediction], Prediction], message: str
) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(Altered(potential, alter))
    with pytest.raises(DataError, match=message):
        atoms.get_forces()


def unseen_element(atoms: Atoms) -> None:
    atoms.numbers[2] = 16


def overlap(atoms: Atoms) -> None:
    atoms.positions[3] = atoms.positions[5] + 0.01


def lost_position(atoms: Atoms) -> None:
    atoms.positions[6, 2] = np.nan


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(unseen_element, "atom 2 is S"), (overlap, "atoms 3 and 5 are 0.0173 Å apart"), (lost_position, "atom 6")],
)
def test_a_broken_structure_is_an_error_and_leaves_no_results(
    potential: Potential, spoil: Callable[[Atoms], None], message: str
) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    good = atoms.get_potential_energy()
    positions, numbers = atoms.positions.copy(), atoms.numbers.copy()
    spoil(atoms)
    for attempt in (atoms.get_potential_energy, lambda: atoms.calc.calculate(atoms)):
        with pytest.raises(DataError, match=message):
            attempt()
        assert atoms.calc.results == {}
    atoms.positions, atoms.numbers = positions, numbers
    assert atoms.get_potential_energy() == good


def test_wrong_arguments_are_named(potential: Potential, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'exakt'; it must be one of auto, exact"):
        Calculator(potential, forces_uncertainty="exakt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'charge'"):
        Calculator(potential).set(charge=1)
    with pytest.raises(ConfigError, match="stays on its own device"):
        Calculator(potential, device="cpu")
    with pytest.raises(ConfigError, match=r"call model\.eval\(\)"):
        Calculator(build_potential(DeterministicConfig()).train())
    with pytest.raises(ModelFileError, match="nowhere"):
        Calculator(tmp_path / "nowhere.sigmaff")
    for atoms in (None, Atoms()):
        with pytest.raises(DataError, match="no atoms to calculate"):
            Calculator(potential).get_potential_energy(atoms)


# --- the model


def test_the_model_and_torch_are_left_as_they_were(potential: Potential) -> None:
    weights = copy.deepcopy(potential.state_dict())
    settings = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed())
    random_state = torch.get_rng_state()
    atoms = water_crystal()
    atoms.calc = Calculator(potential)
    atoms.get_forces()
    assert not potential.training
    assert all(parameter.grad is None for parameter in potential.parameters())
    assert all(torch.equal(value, weights[name]) for name, value in potential.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert settings == (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.initial_seed(),
    )


def test_calculators_may_share_a_model(potential: Potential) -> None:
    first, second = ethanol(), water_crystal()
    first.calc, second.calc = Calculator(potential), Calculator(potential)
    alone = first.get_forces(), second.get_forces()
    first.positions[0] += 0.1
    first.get_forces()
    first.positions[:] = ethanol().positions
    assert second.calc.calculation_required(second, ["forces"]) is False
    np.testing.assert_array_equal(first.get_forces(), alone[0])
    np.testing.assert_array_equal(second.get_forces(), alone[1])


def pickled(calculator: Calculator) -> Calculator:
    return pickle.loads(pickle.dumps(calculator))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_predicts_the_same_and_is_independent(
    potential: Potential, duplicate: Callable[[Calculator], Calculator]
) -> None:
    original = ethanol()
    original.calc = Calculator(potential)
    forces = original.get_forces()
    twin = ethanol()
    twin.calc = duplicate(original.calc)
    assert twin.calc.model is not potential
    twin.positions[0] += 0.1
    twin.get_forces()
    assert original.calc.calculation_required(original, ["forces"]) is False
    twin.positions[:] = original.positions
    np.testing.assert_array_equal(twin.get_forces(), forces)
    for name, value in original.calc.results.items():
        np.testing.assert_array_equal(twin.calc.results[name], value)


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_model_file_is_all_it_needs(
    potential: Potential, as_type: Callable[[Path], str | Path], tmp_path: Path
) -> None:
    path = tmp_path / "model.sigmaff"
    sigmaff.save(potential, path)
    atoms = ethanol()
    atoms.calc = sigmaff.Calculator(as_type(path), device="cpu")
    forces = atoms.get_forces()
    expected = Calculator(potential)
    np.testing.assert_array_equal(forces, expected.get_forces(atoms))
    np.testing.assert_array_equal(atoms.calc.results["forces_uncertainty"], expected.results["forces_uncertainty"])
