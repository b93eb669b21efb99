"""What every backbone with every head must do. A new one inherits all of it by one line in ``contract``."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import (
    ADDITIVE,
    ADDITIVE_STD,
    AMMONIA,
    CASES,
    CASES_WITH_STD,
    CRYSTAL,
    CUTOFF,
    ETHANOL,
    EXACT,
    FINITE_DIFFERENCE,
    MIXED,
    OXYGEN_ATOM,
    SINGLE,
    SLAB,
    SLOPES,
    STEP,
    WATER,
    Case,
    graph_of,
    predicted,
)
from sigmaff.graph import AtomicGraph
from sigmaff.models import Potential
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Calibration
from sigmaff.models.record import RunRecord

close = torch.testing.assert_close
NO_DIFFERENCE = {"rtol": 0.0, "atol": 0.0}
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def built(request: pytest.FixtureRequest) -> Potential:
    """The potential of a case. A test of what its method breaks must fail."""
    case: Case = request.param
    broken = {name for mark in request.node.iter_markers("desideratum") for name in mark.args} & case.breaks
    if broken:
        reason = f"{case.head.name}: not so that {', '.join(broken)}"
        request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
    return case.build()


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def potential(request: pytest.FixtureRequest) -> Potential:
    return built(request)


@pytest.fixture(params=CASES_WITH_STD, ids=lambda case: case.name)
def uncertain(request: pytest.FixtureRequest) -> Potential:
    """A potential with σ."""
    return built(request)


def energy_of(potential: Potential, atoms: Atoms) -> float:
    return float(potential.predict(graph_of(atoms), forces_std="none").energy)


def per_atom(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """What depends on the order of atoms."""
    return {name: value for name, value in values.items() if name.startswith(("forces", "node"))}


def test_none_means_not_estimated(potential: Potential):
    prediction, head = potential.predict(graph_of(*MIXED)), potential.head
    expected = {
        "energy_std": head.kind is not None,
        "forces_std": bool(head.forces_ways),
        "node_energy_std": bool(head.forces_ways) and head.covariance is not None,
    }
    for name, has_std in expected.items():
        value = getattr(prediction, name)
        assert (value is not None) == has_std, name
        assert value is None or bool((value >= 0).all()), name
    assert prediction.stress is prediction.energy_members is None
    assert prediction.provenance.kind == head.kind
    assert prediction.provenance.forces_std in (*head.forces_ways, None)
    assert (prediction.provenance.forces_std is not None) == bool(head.forces_ways)
    assert prediction.energy.dtype == torch.float64
    assert prediction.node_energy is None or prediction.node_energy.dtype == torch.float64


def test_a_batch_is_its_structures_one_by_one(potential: Potential):
    structures = (*MIXED, CRYSTAL, SLAB)
    together = predicted(potential, graph_of(*structures))
    alone = [predicted(potential, graph_of(atoms)) for atoms in structures]
    for name, value in together.items():
        if name.startswith("stress"):
            assert bool(value[: len(MIXED)].isnan().all())
            close(value[len(MIXED) :], torch.cat([one[name] for one in alone[len(MIXED) :]]), **EXACT)
        else:
            close(value, torch.cat([one[name] for one in alone]), **EXACT, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("handedness", [1.0, -1.0], ids=["rotation", "reflection"])
@pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL], ids=["molecule", "crystal"])
def test_turning_the_world_turns_the_forces(potential: Potential, atoms: Atoms, handedness: float):
    """Energies and σ stay; so does the sum of the variances of the three components of a force."""
    q = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    q *= handedness * np.linalg.det(q)
    turned = atoms.copy()
    turned.positions = atoms.positions @ q.T
    turned.cell = atoms.cell.array @ q.T
    before, after = predicted(potential, graph_of(atoms)), predicted(potential, graph_of(turned))
    matrix = torch.as_tensor(q)
    for name, value in before.items():
        if name == "forces":
            close(after[name], value @ matrix.T, **EXACT)
        elif name == "stress":
            close(after[name], matrix @ value @ matrix.T, **EXACT)
        elif name.startswith("forces_std"):
            close(after[name].square().sum(-1), value.square().sum(-1), **EXACT)
        elif name == "stress_std":
            close(after[name].square().sum((-1, -2)), value.square().sum((-1, -2)), **EXACT)
        else:
            close(after[name], value, **EXACT)


@pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL], ids=["molecule", "crystal"])
def test_moving_everything_changes_nothing(potential: Potential, atoms: Atoms):
    graph = graph_of(atoms)
    moved = graph.with_positions(graph.positions + torch.tensor([3.1, -12.7, 0.4], dtype=torch.float64))
    close(predicted(potential, moved), predicted(potential, graph), **EXACT)


def test_the_order_of_atoms_does_not_matter(potential: Potential):
    order = np.random.default_rng(6).permutation(len(ETHANOL))
    before, after = predicted(potential, graph_of(ETHANOL)), predicted(potential, graph_of(ETHANOL[order]))
    expected = before | {name: value[order] for name, value in per_atom(before).items()}
    close(after, expected, **EXACT)


def test_periodic_images_are_the_same_atom(potential: Potential):
    """Atoms moved by lattice vectors, and a cell written with other lattice vectors, describe the same crystal."""
    moved = CRYSTAL.copy()
    moved.positions += np.array([[2, -1, 0], [0, 3, 5]]) @ moved.cell.array
    moved.cell = np.array([[1, 1, 0], [0, 1, 0], [0, -2, 1]]) @ moved.cell.array
    close(predicted(potential, graph_of(moved)), predicted(potential, graph_of(CRYSTAL)), **EXACT)


@pytest.mark.desideratum(ADDITIVE)
def test_a_supercell_is_its_cell_repeated(potential: Potential):
    once = predicted(potential, graph_of(CRYSTAL))
    twice = predicted(potential, graph_of(CRYSTAL.repeat((2, 1, 1))))
    close(twice["energy"], 2.0 * once["energy"], **EXACT)
    close(twice["forces"], once["forces"].repeat(2, 1), **EXACT)
    close(twice["stress"], once["stress"], **EXACT)


@pytest.mark.desideratum(ADDITIVE_STD)
def test_std_of_a_supercell(uncertain: Potential):
    once = predicted(uncertain, graph_of(CRYSTAL))
    twice = predicted(uncertain, graph_of(CRYSTAL.repeat((2, 1, 1))))
    factor = 2.0**0.5 if uncertain.head.covariance == "diagonal" else 2.0
    close(twice["energy_std"], factor * once["energy_std"], **EXACT)
    close(twice["node_energy_std"], once["node_energy_std"].repeat(2), **EXACT)
    if "stress_std" in once:
        close(twice["stress_std"], 0.5 * factor * once["stress_std"], **EXACT)


@pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL, SLAB], ids=["molecule", "crystal", "slab"])
def test_forces_are_slopes_of_the_energy(potential: Potential, atoms: Atoms):
    forces = potential.predict(graph_of(atoms), forces_std="none").forces
    for atom, axis in [(0, 0), (1, 2), (len(atoms) - 1, 1)]:
        energies = []
        for step in (STEP, -STEP):
            moved = atoms.copy()
            moved.positions[atom, axis] += step
            energies.append(energy_of(potential, moved))
        slope = (energies[0] - energies[1]) / (2.0 * STEP)
        assert float(forces[atom, axis]) == pytest.approx(-slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("atoms", [CRYSTAL, CRYSTAL.repeat((1, 2, 1))], ids=["cell", "supercell"])
def test_stress_is_the_slope_by_strain(potential: Potential, atoms: Atoms):
    stress = potential.predict(graph_of(atoms), forces_std="none").stress
    numeric = torch.zeros(3, 3, dtype=torch.float64)
    for a, b in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]:
        energies = []
        for step in (STEP, -STEP):
            strain = np.zeros((3, 3))
            strain[a, b] += 0.5 * step
            strain[b, a] += 0.5 * step
            deformed = atoms.copy()
            deformed.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
            energies.append(energy_of(potential, deformed))
        numeric[a, b] = numeric[b, a] = (energies[0] - energies[1]) / (2.0 * STEP * atoms.get_volume())
    close(stress[0], numeric, **FINITE_DIFFERENCE)


def test_no_structure_pulls_itself(potential: Potential):
    for atoms in (ETHANOL, CRYSTAL, SLAB):
        net = potential.predict(graph_of(atoms), forces_std="none").forces.sum(0)
        close(net, torch.zeros_like(net), **EXACT)


def approaching(distance: float) -> Atoms:
    """Water, and one more oxygen atom at this distance from its first atom and farther from the others."""
    atoms = WATER.copy()
    away = atoms.positions[0] - atoms.positions[1:].mean(0)
    atoms.append("O")
    atoms.positions[-1] = atoms.positions[0] + distance * away / np.linalg.norm(away)
    return atoms


def test_nothing_jumps_at_the_cutoff(potential: Potential):
    """Energy, forces and energy σ cross the cutoff continuously, with bounded slopes: changes shrink with the step."""
    names = ("energy", "forces", "energy_std", "node_energy_std")
    changes = []
    for step in (1e-2, 1e-4):
        inside = predicted(potential, graph_of(approaching(CUTOFF - step)))
        outside = predicted(potential, graph_of(approaching(CUTOFF + step)))
        assert graph_of(approaching(CUTOFF - step)).pair_index.shape[1] == 4
        assert graph_of(approaching(CUTOFF + step)).pair_index.shape[1] == 3
        changes.append({n: float((inside[n] - outside[n]).abs().max()) for n in names if n in inside})
    for name, far in changes[0].items():
        assert changes[1][name] <= 0.02 * far + 1e-11, name
        assert far < 0.1, name


@pytest.mark.desideratum(ADDITIVE)
def test_far_molecules_add(potential: Potential):
    far = AMMONIA.copy()
    far.positions += [20.0, 3.0, 0.0]
    pair = predicted(potential, graph_of(ETHANOL + far))
    one, other = predicted(potential, graph_of(ETHANOL)), predicted(potential, graph_of(AMMONIA))
    close(pair["energy"], one["energy"] + other["energy"], **EXACT)
    for name in per_atom(pair):
        if potential.head.covariance == "diagonal" or not name.startswith("forces_std"):
            close(pair[name], torch.cat([one[name], other[name]]), **EXACT)
    if potential.head.covariance == "diagonal":
        close(pair["energy_std"], torch.hypot(one["energy_std"], other["energy_std"]), **EXACT)
    elif potential.head.covariance == "full":
        a, b, both = (float(values["energy_std"]) for values in (one, other, pair))
        assert abs(a - b) <= both <= (a + b) * (1.0 + 1e-12)


@pytest.mark.desideratum(ADDITIVE)
def test_force_std_is_local(uncertain: Potential):
    """A far molecule tells nothing of the forces on this one."""
    far = AMMONIA.copy()
    far.positions += [0.0, 25.0, 0.0]
    pair, alone = predicted(uncertain, graph_of(ETHANOL + far)), predicted(uncertain, graph_of(ETHANOL))
    close(pair["forces"][: len(ETHANOL)], alone["forces"], **EXACT)
    for how in uncertain.head.forces_ways:
        close(pair[f"forces_std_{how}"][: len(ETHANOL)], alone[f"forces_std_{how}"], **EXACT)


@pytest.mark.desideratum(ADDITIVE_STD)
@pytest.mark.parametrize("n_copies", range(2, 9))
def test_std_of_far_copies(uncertain: Potential, n_copies: int):
    """σ grows as n where the errors of copies are the same error, as √n where they are taken as independent."""
    copies = Atoms()
    for index in range(n_copies):
        copy = ETHANOL.copy()
        copy.positions += [17.0 * index, 0.0, 0.0]
        copies += copy
    factor = n_copies**0.5 if uncertain.head.covariance == "diagonal" else n_copies
    one = uncertain.predict(graph_of(ETHANOL), forces_std="none").energy_std
    many = uncertain.predict(graph_of(copies), forces_std="none").energy_std
    close(many, factor * one, rtol=1e-9, atol=0.0)


def test_structures_of_a_batch_do_not_feel_each_other(potential: Potential):
    graph = graph_of(ETHANOL, WATER)
    ours = graph.structure_index == 0

    def energies(positions: Tensor) -> Tensor:
        return potential(graph.with_positions(positions))[0].mean

    jacobian = torch.func.jacrev(energies)(graph.positions)
    assert bool((jacobian[0, ~ours] == 0).all())
    assert bool((jacobian[1, ours] == 0).all())
    assert bool((jacobian[0, ours] != 0).any())


@pytest.mark.desideratum(ADDITIVE)
def test_an_isolated_atom_feels_nothing(potential: Potential):
    alone = predicted(potential, graph_of(OXYGEN_ATOM))
    beside = predicted(potential, graph_of(Atoms("O2", positions=[[0, 0, 0], [0, 0, CUTOFF + 1e-6]])))
    assert bool((alone["forces"] == 0).all())
    close(beside["energy"], 2.0 * alone["energy"], **EXACT)


@pytest.mark.desideratum(SLOPES)
def test_std_of_an_isolated_atom(uncertain: Potential):
    """Its energy may be wrong; its force is certainly zero."""
    alone = predicted(uncertain, graph_of(OXYGEN_ATOM))
    if "node_energy_std" in alone:
        close(alone["energy_std"], alone["node_energy_std"], **EXACT)
    for how in uncertain.head.forces_ways:
        assert float(alone[f"forces_std_{how}"].max()) < 1e-7


def test_forward_agrees_with_predict(potential: Potential):
    graph = graph_of(*MIXED)
    distribution, forces = potential(graph)
    prediction = potential.predict(graph, forces_std="none")
    scale, references = potential.statistics.scale, potential.statistics.reference_energies
    offsets = torch.tensor([sum(references[z] for z in atoms.numbers) for atoms in MIXED], dtype=torch.float64)
    close(prediction.energy, offsets + scale * distribution.mean, **EXACT)
    close(prediction.forces, scale * forces, **EXACT)
    if distribution.variance is not None:
        close(prediction.energy_std, scale * distribution.variance.sqrt(), **EXACT)


def test_input_is_left_alone(potential: Potential):
    graph = graph_of(ETHANOL, CRYSTAL)
    kept = {f.name: getattr(graph, f.name) for f in fields(AtomicGraph)}
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in kept.items()}
    predicted(potential, graph)
    potential(graph)
    for name, value in kept.items():
        assert getattr(graph, name) is value
        assert torch.equal(value, copies[name]) if isinstance(value, Tensor) else value == copies[name]
    assert not graph.positions.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_predicting_leaves_no_trace(potential: Potential, training: bool):
    potential.train(training)
    weights = {name: value.clone() for name, value in potential.state_dict().items()}
    values = predicted(potential, graph_of(ETHANOL, CRYSTAL))
    assert all(module.training == training for module in potential.modules())
    assert all(parameter.grad is None for parameter in potential.parameters())
    assert not any(value.requires_grad for value in values.values())
    assert all(torch.equal(value, weights[name]) for name, value in potential.state_dict().items())


def test_the_same_input_gives_the_same_bits(potential: Potential):
    graph = graph_of(*MIXED)
    close(predicted(potential, graph), predicted(potential, graph), **NO_DIFFERENCE)


def test_single_precision_is_near_double(potential: Potential):
    structures = (*MIXED, CRYSTAL)
    double = predicted(potential, graph_of(*structures))
    potential.set_precision(torch.float32)
    single = predicted(potential, graph_of(*structures, dtype=torch.float32))
    assert single["forces"].dtype == torch.float32
    for name, value in single.items():
        close(value.double(), double[name], **SINGLE, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")


def test_nothing_of_earlier_weights_is_kept(potential: Potential):
    """Changed in place, the backbone's weights, then each tensor of the head: the potential predicts what a new one
    with these weights does."""
    graph = graph_of(WATER)
    before = predicted(potential, graph)
    of_head = [tensor for tensor in potential.head.state_dict().values() if tensor.is_floating_point()]
    for tensors in (list(potential.backbone.parameters()), *([tensor] for tensor in of_head)):
        with torch.no_grad():
            for tensor in tensors:
                tensor.mul_(1.01).add_(0.01)
        fresh = Potential(potential.config, potential.statistics)
        fresh.set_precision(torch.float64)
        fresh.load_state_dict(potential.state_dict())
        after = predicted(potential, graph)
        close(after, predicted(fresh.eval(), graph), **NO_DIFFERENCE)
    assert all(not torch.equal(after[name], before[name]) for name in before)


def test_a_saved_potential_is_the_same_potential(potential: Potential, tmp_path: Path):
    potential.energy_calibration = Calibration(method="scalar", scale=1.7, n_samples=50)
    potential.forces_calibration = Calibration(
        method="quantile", scale=0.6, n_samples=90, coverages=(0.0, 0.5, 0.9), multipliers=(0.0, 0.7, 3.0)
    )
    potential.record = RunRecord.model_validate({"source": "here", "values": [1, 2.5]})
    save(potential, tmp_path / "model.sigmaff")
    loaded = load(tmp_path / "model.sigmaff")
    graph = graph_of(ETHANOL, CRYSTAL)
    close(predicted(loaded, graph), predicted(potential, graph), **NO_DIFFERENCE, equal_nan=True)
    for name in ("config", "statistics", "energy_calibration", "forces_calibration", "record"):
        assert getattr(loaded, name) == getattr(potential, name), name
    assert not loaded.training
    potential.set_precision(torch.float32)
    save(potential, tmp_path / "single.sigmaff")
    single = load(tmp_path / "single.sigmaff")
    close(predicted(single, graph), predicted(potential, graph), **NO_DIFFERENCE, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_gives_the_same(potential: Potential, device: str):
    expected = predicted(potential, graph_of(*MIXED))
    there = predicted(potential.to(device), graph_of(*MIXED))
    assert {value.device.type for value in there.values()} == {device}
    close({name: value.cpu() for name, value in there.items()}, expected, rtol=1e-7, atol=1e-7)
