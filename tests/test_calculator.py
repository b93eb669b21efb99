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
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.constraints import FixAtoms
from ase.db import connect
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS

import sigmaff
from sigmaff.backbones import SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import LNK, DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.potential import Potential, PotentialConfig
from sigmaff.prediction import Calibration, ForcesStd, Prediction
from sigmaff.simulation import Calculator, snapshot, store_results

BACKBONE = SchNetConfig(n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12, cutoff=5.0)
STATISTICS = DatasetStatistics(
    elements=(1, 6, 8),
    reference_energies={1: -13.6, 6: -1029.0, 8: -2042.0},
    scale=1.3,
    mean_neighbors=8.0,
    n_structures=100,
)
PRINTED_DIGITS = 1e-8  # of a column of an extxyz file


def build_potential(head: HeadConfig, dtype: torch.dtype = torch.float64) -> Potential:
    """Random weights; the output is scaled up so that its forces are those of a stiff molecule."""
    torch.manual_seed(3)
    potential = Potential(PotentialConfig(backbone=BACKBONE, head=head), STATISTICS)
    potential.set_precision(dtype)
    if isinstance(potential.head, LNK):
        fill_posterior(potential)
    return potential.eval()


def fill_posterior(potential: Potential) -> None:
    graph = batch_graphs([build_graph(rattled(molecule("CH3CH2OH"), seed), 5.0) for seed in range(4)])
    graph = graph.to(dtype=potential.dtype)
    head = potential.head
    assert isinstance(head, LNK)
    with torch.no_grad():
        head.initialize(potential.backbone(graph), graph.atomic_numbers)
        head.weight_mean.normal_()
        head.weight_cholesky.copy_(0.3 * torch.randn_like(head.weight_cholesky).tril())


def rattled(atoms: Atoms, seed: int = 0) -> Atoms:
    atoms.rattle(0.05, seed=seed)
    return atoms


def ethanol() -> Atoms:
    return rattled(molecule("CH3CH2OH"))


def water_crystal() -> Atoms:
    """Two molecules in a skewed cell smaller than the cutoff's sphere."""
    atoms = molecule("H2O") + molecule("H2O")
    atoms.positions[3:] += [2.4, 2.1, 1.9]
    atoms.set_cell([[4.9, 0.0, 0.0], [0.6, 4.5, 0.0], [0.3, -0.4, 5.2]])
    atoms.pbc = True
    return rattled(atoms)


@pytest.fixture(scope="module")
def potential() -> Potential:
    return build_potential(LNKConfig(n_inducing=12, n_samples=16, n_frequencies=32))


@pytest.fixture(scope="module")
def deterministic() -> Potential:
    return build_potential(DeterministicConfig())


class Counting:
    """A predictor that counts how often it is asked."""

    def __init__(self, potential: Potential) -> None:
        self.potential = potential
        self.n_calls = 0

    @property
    def cutoff(self) -> float:
        return self.potential.cutoff

    def predict(self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto") -> Prediction:
        self.n_calls += 1
        return self.potential.predict(graph, forces_std=forces_std)


class Altered(Counting):
    """A predictor whose predictions are altered on the way."""

    def __init__(self, potential: Potential, alter: Callable[[Prediction], Prediction]) -> None:
        super().__init__(potential)
        self.alter = alter

    def predict(self, graph: AtomicGraph, *, forces_std: ForcesStd = "auto") -> Prediction:
        return self.alter(super().predict(graph, forces_std=forces_std))


# --- what it computes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("structure", [ethanol, water_crystal])
def test_results_are_the_prediction(structure: Callable[[], Atoms], dtype: torch.dtype) -> None:
    potential = build_potential(LNKConfig(n_inducing=12, n_samples=16), dtype)
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
    for name in results:
        np.testing.assert_array_equal(atoms.calc.get_property(name, atoms), results[name])


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
    assert atoms.calc.results["energies_uncertainty"] == pytest.approx(atoms.calc.results["energy_uncertainty"])


def test_sigma_that_is_not_estimated_is_absent(deterministic: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(deterministic)
    atoms.get_forces()
    assert not [name for name in atoms.calc.results if "uncertainty" in name]
    with pytest.raises(PropertyNotImplementedError):
        atoms.calc.get_property("energy_uncertainty", atoms)


@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_force_sigma_is_computed_as_asked(potential: Potential, how: ForcesStd) -> None:
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
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    energy, largest = atoms.get_potential_energy(), np.abs(atoms.get_forces()).max()
    BFGS(atoms, logfile=None).run(fmax=0.01, steps=25)
    assert atoms.get_potential_energy() < energy - 0.01
    assert np.abs(atoms.get_forces()).max() < 0.5 * largest


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


# --- files


def assert_same_results(frame: Atoms, expected: dict[str, float | np.ndarray], atol: float) -> None:
    for name, value in expected.items():
        holders = (frame.calc.results, frame.info, frame.arrays)
        found = [holder[name] for holder in holders if name in holder]
        assert len(found) == 1, name
        np.testing.assert_allclose(found[0], value, rtol=1e-12, atol=atol)


@pytest.mark.parametrize("structure", [ethanol, water_crystal])
@pytest.mark.parametrize(("suffix", "per_atom", "atol"), [("extxyz", "arrays", PRINTED_DIGITS), ("traj", "info", 0.0)])
def test_files_written_during_dynamics_keep_everything(
    potential: Potential, structure: Callable[[], Atoms], suffix: str, per_atom: str, atol: float, tmp_path: Path
) -> None:
    atoms = structure()
    atoms.calc = Calculator(potential)
    path = tmp_path / f"md.{suffix}"
    seen: list[dict[str, float | np.ndarray]] = []
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    dynamics.attach(store_results, 2, atoms, per_atom=per_atom)
    dynamics.attach(lambda: seen.append(copy.deepcopy(atoms.calc.results)), 2)
    if suffix == "traj":
        dynamics.attach(dynamics.closelater(Trajectory(path, "w", atoms)), 2)
    else:
        dynamics.attach(lambda: ase.io.write(path, atoms, append=True), 2)
    dynamics.run(4)
    dynamics.close()
    frames = ase.io.read(path, ":")
    assert len(frames) == len(seen) == 3
    for frame, expected in zip(frames, seen, strict=True):
        assert set(expected) >= {"forces", "energy_uncertainty", "forces_uncertainty", "energies_uncertainty"}
        assert_same_results(frame, expected, atol)


@pytest.mark.parametrize("name", ["out.extxyz", "out.traj", "out.json"])
def test_writers_accept_the_calculator_itself(potential: Potential, name: str, tmp_path: Path) -> None:
    atoms = water_crystal()
    atoms.calc = Calculator(potential)
    forces = atoms.get_forces()
    if name.endswith("json"):
        with connect(tmp_path / name) as database:
            database.write(atoms)
        frame = connect(tmp_path / name).get_atoms(1)
    else:
        ase.io.write(tmp_path / name, atoms)
        frame = ase.io.read(tmp_path / name)
    np.testing.assert_allclose(frame.get_forces(), forces, atol=PRINTED_DIGITS)
    assert frame.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-12)


def test_snapshots_of_structures_that_share_a_calculator_keep_their_own_results(
    potential: Potential, tmp_path: Path
) -> None:
    calculator = Calculator(potential)
    frames, expected = [], []
    for atoms in (ethanol(), water_crystal(), Atoms("H")):
        atoms.calc = calculator
        frames.append(snapshot(atoms))
        expected.append(copy.deepcopy(calculator.results))
        assert "energy_uncertainty" not in atoms.info
    ase.io.write(tmp_path / "all.extxyz", frames)
    for frame, values in zip(ase.io.read(tmp_path / "all.extxyz", ":"), expected, strict=True):
        assert_same_results(frame, values, PRINTED_DIGITS)


def test_a_snapshot_does_not_follow_the_structure(potential: Potential) -> None:
    atoms = ethanol()
    atoms.set_constraint(FixAtoms([0]))
    atoms.calc = Calculator(potential)
    frame = snapshot(atoms)
    expected = copy.deepcopy(atoms.calc.results)
    atoms.positions[1:] += 0.3 * np.arange(24).reshape(8, 3) / 24
    store_results(atoms)
    assert_same_results(frame, expected, 0.0)
    assert np.abs(frame.calc.results["forces"][0]).max() > 0  # as the model gave it, not as the constraint leaves it


def test_stored_sigma_is_of_the_structure_as_it_is(potential: Potential, deterministic: Potential) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    store_results(atoms)
    before = atoms.info["energy_uncertainty"]
    atoms.positions[0] += 0.2
    store_results(atoms, per_atom="info")
    assert atoms.info["energy_uncertainty"] == atoms.calc.results["energy_uncertainty"] != before
    np.testing.assert_array_equal(atoms.info["forces_uncertainty"], atoms.calc.results["forces_uncertainty"])
    assert not [name for name in atoms.arrays if "uncertainty" in name]
    atoms.calc = Calculator(deterministic)
    store_results(atoms)
    assert not [name for name in (*atoms.info, *atoms.arrays) if "uncertainty" in name]


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
    [(unseen_element, "atom 2 .* is S"), (overlap, "atoms 3 and 5 are 0.0173 Å apart"), (lost_position, "atom 6")],
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
        Calculator(copy.deepcopy(potential).train())
    with pytest.raises(ModelFileError, match="nowhere"):
        Calculator(tmp_path / "nowhere.sigmaff")
    with pytest.raises(DataError, match="no structure"):
        Calculator(potential).get_potential_energy()


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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda calculator: pickle.loads(pickle.dumps(calculator))])
def test_copies_and_calculators_that_share_a_model_agree(
    potential: Potential, duplicate: Callable[[Calculator], Calculator]
) -> None:
    first, second = ethanol(), water_crystal()
    first.calc, second.calc = Calculator(potential), Calculator(potential)
    energies = first.get_potential_energy(), second.get_potential_energy()
    twin = ethanol()
    twin.calc = duplicate(first.calc)
    assert twin.calc.model is not potential
    twin.positions[0] += 0.1
    assert twin.get_potential_energy() != energies[0]
    assert (first.calc.results["energy"], second.calc.results["energy"]) == energies
    twin.positions[:] = first.positions
    np.testing.assert_array_equal(twin.get_forces(), first.get_forces())
    np.testing.assert_array_equal(twin.calc.results["forces_uncertainty"], first.calc.results["forces_uncertainty"])


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
