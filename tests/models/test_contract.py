"""The contract: properties of every model, backbone × head × wrapper. A new one joins by one line in ``contract``."""

from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import (
    AMMONIA,
    BACKBONES,
    BATCHING,
    CASES,
    CRYSTAL,
    CUTOFF,
    DESCRIPTOR,
    ETHANOL,
    EXACT,
    EXTENSIVITY,
    FINITE_DIFFERENCE,
    GRADIENT_STD,
    ISOLATED_EXTENSIVITY,
    MIXED,
    OXYGEN_ATOM,
    PERIODIC_CELL,
    PERMUTATION,
    POTENTIAL_CASES,
    SINGLE,
    SLAB,
    SMOOTHNESS,
    STD_EXTENSIVITY,
    STEP,
    WATER,
    Case,
    covariance_of,
    displaced,
    force_std_modes,
    graph_of,
    predicted,
)
from sigmaff.graph import AtomicGraph
from sigmaff.models import MonteCarloDropout, Potential
from sigmaff.models.file import load, save
from sigmaff.models.force_growth import ForceGrowth
from sigmaff.models.model import Model
from sigmaff.models.prediction import Calibration
from sigmaff.models.record import RunRecord

close = torch.testing.assert_close
NO_DIFFERENCE = {"rtol": 0.0, "atol": 0.0}
GROWTH = ForceGrowth(isotropy=0.3, exponent=0.8, typical=0.01)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def built(request: pytest.FixtureRequest) -> Model:
    """The model of a case, shared by all tests: one that changes it takes a copy.

    A test of a property that its method breaks must fail.
    """
    case: Case = request.param
    broken = {name for mark in request.node.iter_markers("desideratum") for name in mark.args} & case.breaks
    if broken:
        reason = f"{case.name} breaks {', '.join(sorted(broken))}"
        request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
    return shared(case)


@cache
def shared(case: Case) -> Model:
    return case.build()


def parameters(cases: list[Case]) -> list[Any]:
    """Cases as parameters of a fixture."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.is_slow else []) for case in cases]


@pytest.fixture(params=parameters(CASES))
def model(request: pytest.FixtureRequest) -> Model:
    return built(request)


@pytest.fixture(params=parameters(POTENTIAL_CASES))
def potential(request: pytest.FixtureRequest) -> Model:
    """A model without a wrapper."""
    return built(request)


@pytest.fixture(params=parameters([case for case in CASES if case.wrapper != "none"]))
def wrapped(request: pytest.FixtureRequest) -> Model:
    """An ensemble, or MC dropout. What it repeats has tests of its own."""
    return built(request)


@pytest.fixture(params=parameters([case for case in CASES if case.has_std]))
def uncertain(request: pytest.FixtureRequest) -> Model:
    """A model with σ."""
    return built(request)


BATCHES = {
    "molecule": (ETHANOL,),
    "water": (WATER,),
    "atom": (OXYGEN_ATOM,),
    "ammonia": (AMMONIA,),
    "crystal": (CRYSTAL,),
    "slab": (SLAB,),
    "both": (ETHANOL, CRYSTAL),
    "mixed": MIXED,
    "many": (*MIXED, CRYSTAL, SLAB),
}


@cache
def known(model: Model, batch: str) -> dict[str, Tensor]:
    """What a shared model predicts for some structures, computed once."""
    return predicted(model, graph_of(*BATCHES[batch]))


def energy_of(model: Model, atoms: Atoms) -> float:
    return float(model.predict(graph_of(atoms), forces_std="none").energy)


def slopes(model: Model, steps: list[tuple[Atoms, Atoms]]) -> list[float]:
    """Central differences of energies over ``STEP``, each of a structure ahead and one behind."""
    structures = [atoms for pair in steps for atoms in pair]
    if isinstance(model, MonteCarloDropout):  # its masks depend on the place in a batch
        energies = [energy_of(model, atoms) for atoms in structures]
    else:
        energies = model.predict(graph_of(*structures), forces_std="none").energy.tolist()
    return [(ahead - behind) / (2.0 * STEP) for ahead, behind in zip(energies[::2], energies[1::2], strict=True)]


def per_atom(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """What depends on the order of atoms."""
    return {name: value for name, value in values.items() if name.startswith(("forces", "node"))}


def test_none_means_not_estimated(model: Model):
    prediction, modes = model.predict(graph_of(*MIXED)), force_std_modes(model)
    wrapped = not isinstance(model, Potential)
    expected = {
        "energy_std": model.kind is not None,
        "forces_std": bool(modes),
        "node_energy_std": not wrapped and model.potentials[0].head.method in ("lnk", "latent_distance"),
        "energy_members": wrapped,
        "forces_members": wrapped,
    }
    for name, is_estimated in expected.items():
        value = getattr(prediction, name)
        assert (value is not None) == is_estimated, name
        assert value is None or not name.endswith("std") or bool((value >= 0).all()), name
    assert prediction.stress is None
    assert prediction.provenance.kind == model.kind
    assert prediction.provenance.forces_std in (modes or (None,))
    assert prediction.energy.dtype == torch.float64
    assert prediction.node_energy is None or prediction.node_energy.dtype == torch.float64


@pytest.mark.desideratum(BATCHING)
def test_batching_agrees_with_single_structures(model: Model):
    together = known(model, "many")
    alone = [known(model, name) for name in ("molecule", "water", "atom", "ammonia", "crystal", "slab")]
    for name, value in together.items():
        if name.startswith("stress"):
            assert bool(value[: len(MIXED)].isnan().all())
            close(value[len(MIXED) :], torch.cat([one[name] for one in alone[len(MIXED) :]]), **EXACT)
        else:
            close(value, torch.cat([one[name] for one in alone]), **EXACT, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("handedness", [1.0, -1.0], ids=["rotation", "reflection"])
def test_forces_are_equivariant_under_rotation_and_reflection(model: Model, handedness: float):
    """Energies and σ are invariant; so is the sum of the variances of the three components of a force."""
    q = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    q *= handedness * np.linalg.det(q)
    turned = [atoms.copy() for atoms in (ETHANOL, CRYSTAL)]
    for atoms in turned:
        atoms.positions = atoms.positions @ q.T
        atoms.cell = atoms.cell.array @ q.T
    before, after = known(model, "both"), predicted(model, graph_of(*turned))
    matrix = torch.as_tensor(q)
    for name, value in before.items():
        if name == "forces":
            close(after[name], value @ matrix.T, **EXACT)
        elif name == "stress":
            close(after[name], matrix @ value @ matrix.T, **EXACT, equal_nan=True)
        elif name.startswith("forces_std"):
            close(after[name].square().sum(-1), value.square().sum(-1), **EXACT)
        elif name == "stress_std":
            squares = (values.square().sum((-1, -2)) for values in (after[name], value))
            close(*squares, **EXACT, equal_nan=True)
        else:
            close(after[name], value, **EXACT)


def test_predictions_are_invariant_under_translation(model: Model):
    graph = graph_of(ETHANOL, CRYSTAL)
    moved = graph.with_positions(graph.positions + torch.tensor([3.1, -12.7, 0.4], dtype=torch.float64))
    close(predicted(model, moved), known(model, "both"), **EXACT, equal_nan=True)


@pytest.mark.desideratum(PERMUTATION)
def test_predictions_are_equivariant_under_permutation_of_atoms(model: Model):
    order = np.random.default_rng(6).permutation(len(ETHANOL))
    before, after = known(model, "molecule"), predicted(model, graph_of(ETHANOL[order]))
    expected = before | {name: value[order] for name, value in per_atom(before).items()}
    close(after, expected, **EXACT)


@pytest.mark.desideratum(PERIODIC_CELL)
def test_predictions_are_invariant_under_the_choice_of_periodic_cell(model: Model):
    """Atoms moved by lattice vectors, and a cell written with other lattice vectors, describe the same crystal."""
    moved = CRYSTAL.copy()
    moved.positions += np.array([[2, -1, 0], [0, 3, 5]]) @ moved.cell.array
    moved.cell = np.array([[1, 1, 0], [0, 1, 0], [0, -2, 1]]) @ moved.cell.array
    close(predicted(model, graph_of(moved)), known(model, "crystal"), **EXACT)


@pytest.mark.desideratum(EXTENSIVITY)
def test_energy_is_extensive_in_a_supercell(model: Model):
    once = known(model, "crystal")
    twice = predicted(model, graph_of(CRYSTAL.repeat((2, 1, 1))))
    close(twice["energy"], 2.0 * once["energy"], **EXACT)
    close(twice["forces"], once["forces"].repeat(2, 1), **EXACT)
    close(twice["stress"], once["stress"], **EXACT)


@pytest.mark.desideratum(STD_EXTENSIVITY)
def test_std_is_size_consistent_in_a_supercell(uncertain: Model):
    once = known(uncertain, "crystal")
    twice = predicted(uncertain, graph_of(CRYSTAL.repeat((2, 1, 1))))
    factor = 2.0**0.5 if covariance_of(uncertain) == "diagonal" else 2.0
    close(twice["energy_std"], factor * once["energy_std"], **EXACT)
    if "node_energy_std" in once:
        close(twice["node_energy_std"], once["node_energy_std"].repeat(2), **EXACT)
    if "stress_std" in once:
        close(twice["stress_std"], 0.5 * factor * once["stress_std"], **EXACT)


@pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL, SLAB], ids=["molecule", "crystal", "slab"])
def test_forces_conserve_energy(model: Model, atoms: Atoms):
    """They are −∂E/∂x, by central differences: work along a closed path vanishes."""
    forces = model.predict(graph_of(atoms), forces_std="none").forces
    places = [(0, 0), (1, 2), (len(atoms) - 1, 1)]
    for (atom, axis), slope in zip(places, slopes(model, [moved(atoms, *place) for place in places]), strict=True):
        assert float(forces[atom, axis]) == pytest.approx(-slope, rel=1e-5, abs=1e-6)


def moved(atoms: Atoms, atom: int, axis: int) -> tuple[Atoms, Atoms]:
    """An atom a step ahead, and behind."""
    ahead, behind = atoms.copy(), atoms.copy()
    ahead.positions[atom, axis] += STEP
    behind.positions[atom, axis] -= STEP
    return ahead, behind


def strained(atoms: Atoms, a: int, b: int) -> tuple[Atoms, Atoms]:
    """A symmetric strain of a step, and its opposite."""
    pair = []
    for step in (STEP, -STEP):
        strain = np.zeros((3, 3))
        strain[a, b] += 0.5 * step
        strain[b, a] += 0.5 * step
        deformed = atoms.copy()
        deformed.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        pair.append(deformed)
    return pair[0], pair[1]


@pytest.mark.parametrize("atoms", [CRYSTAL, CRYSTAL.repeat((1, 2, 1))], ids=["cell", "supercell"])
def test_stress_is_the_strain_derivative_of_the_energy(model: Model, atoms: Atoms):
    stress = model.predict(graph_of(atoms), forces_std="none").stress
    numeric = torch.zeros(3, 3, dtype=torch.float64)
    places = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]
    for (a, b), slope in zip(places, slopes(model, [strained(atoms, *place) for place in places]), strict=True):
        numeric[a, b] = numeric[b, a] = slope / atoms.get_volume()
    close(stress[0], numeric, **FINITE_DIFFERENCE)


def test_forces_conserve_momentum(model: Model):
    """The net force on a structure vanishes."""
    for atoms in (ETHANOL, CRYSTAL, SLAB):
        net = model.predict(graph_of(atoms), forces_std="none").forces.sum(0)
        close(net, torch.zeros_like(net), **EXACT)


def approaching(distance: float) -> Atoms:
    """Water, and one more oxygen atom at this distance from its first atom and farther from the others."""
    atoms = WATER.copy()
    away = atoms.positions[0] - atoms.positions[1:].mean(0)
    atoms.append("O")
    atoms.positions[-1] = atoms.positions[0] + distance * away / np.linalg.norm(away)
    return atoms


@pytest.mark.desideratum(SMOOTHNESS)
def test_smoothness_at_the_cutoff(model: Model):
    """Energy, forces and energy σ cross the cutoff continuously, with bounded slopes: changes shrink with the step."""
    names = ("energy", "forces", "energy_std", "node_energy_std")
    changes = []
    for step in (1e-2, 1e-4):
        inside = predicted(model, graph_of(approaching(CUTOFF - step)))
        outside = predicted(model, graph_of(approaching(CUTOFF + step)))
        assert graph_of(approaching(CUTOFF - step)).pair_index.shape[1] == 4
        assert graph_of(approaching(CUTOFF + step)).pair_index.shape[1] == 3
        changes.append({n: float((inside[n] - outside[n]).abs().max()) for n in names if n in inside})
    for name, far in changes[0].items():
        assert changes[1][name] <= 0.02 * far + 1e-11, name
        assert far < 0.1, name


@pytest.mark.desideratum(EXTENSIVITY)
def test_energy_is_extensive_for_far_molecules(model: Model):
    far = AMMONIA.copy()
    far.positions += [20.0, 3.0, 0.0]
    pair = predicted(model, graph_of(ETHANOL + far))
    one, other = known(model, "molecule"), known(model, "ammonia")
    close(pair["energy"], one["energy"] + other["energy"], **EXACT)
    for name in per_atom(pair):
        if covariance_of(model) == "diagonal" or not name.startswith("forces_std"):
            close(pair[name], torch.cat([one[name], other[name]]), **EXACT)
    if covariance_of(model) == "diagonal":
        close(pair["energy_std"], torch.hypot(one["energy_std"], other["energy_std"]), **EXACT)
    elif covariance_of(model) == "full":
        a, b, both = (float(values["energy_std"]) for values in (one, other, pair))
        assert abs(a - b) <= both <= (a + b) * (1.0 + 1e-12)


@pytest.mark.desideratum(EXTENSIVITY)
def test_force_std_is_local(uncertain: Model):
    """A far molecule tells nothing of the forces on this one, also where their σ grows with energy σ."""
    uncertain = deepcopy(uncertain)
    uncertain.forces_calibration = Calibration(method="scalar", scale=2.0, n_samples=50, growth=GROWTH)
    far = AMMONIA.copy()
    far.positions += [0.0, 25.0, 0.0]
    pair, alone = predicted(uncertain, graph_of(ETHANOL + far)), predicted(uncertain, graph_of(ETHANOL))
    close(pair["forces"][: len(ETHANOL)], alone["forces"], **EXACT)
    for mode in force_std_modes(uncertain):
        close(pair[f"forces_std_{mode}"][: len(ETHANOL)], alone[f"forces_std_{mode}"], **EXACT)


@pytest.mark.desideratum(STD_EXTENSIVITY)
@pytest.mark.parametrize("n_copies", [2, 3, 8])
def test_std_is_size_consistent_for_far_copies(uncertain: Model, n_copies: int):
    """σ grows as n where the errors of copies are the same error, as √n where they are taken as independent."""
    copies = Atoms()
    for index in range(n_copies):
        copy = ETHANOL.copy()
        copy.positions += [17.0 * index, 0.0, 0.0]
        copies += copy
    factor = n_copies**0.5 if covariance_of(uncertain) == "diagonal" else n_copies
    one = uncertain.predict(graph_of(ETHANOL), forces_std="none").energy_std
    many = uncertain.predict(graph_of(copies), forces_std="none").energy_std
    close(many, factor * one, rtol=1e-9, atol=0.0)


def test_batching_keeps_structures_independent(wrapped: Model):
    """A change of one structure leaves the predictions of another in its batch as they are."""
    before, after = (predicted(wrapped, graph_of(ETHANOL, second)) for second in (WATER, displaced(WATER, 15, 0.05)))
    for name, value in before.items():
        n = len(ETHANOL) if name in per_atom(before) else 1
        close(after[name][:n], value[:n], **EXACT)
    assert not torch.equal(after["forces"][len(ETHANOL) :], before["forces"][len(ETHANOL) :])


def test_batching_keeps_gradients_independent(potential: Potential):
    graph = graph_of(ETHANOL, WATER)
    ours = graph.structure_index == 0

    def energies(positions: Tensor) -> Tensor:
        return potential(graph.with_positions(positions))[0].mean

    jacobian = torch.func.jacrev(energies)(graph.positions)
    assert bool((jacobian[0, ~ours] == 0).all())
    assert bool((jacobian[1, ours] == 0).all())
    assert bool((jacobian[0, ours] != 0).any())


def test_forces_on_an_isolated_atom_vanish(model: Model):
    assert bool((model.predict(graph_of(OXYGEN_ATOM), forces_std="none").forces == 0).all())


@pytest.mark.desideratum(ISOLATED_EXTENSIVITY)
def test_energy_is_extensive_for_isolated_atoms(model: Model):
    beside = Atoms("O2", positions=[[0, 0, 0], [0, 0, CUTOFF + 1e-6]])
    assert energy_of(model, beside) == pytest.approx(2.0 * energy_of(model, OXYGEN_ATOM), rel=1e-9, abs=1e-9)


@pytest.mark.desideratum(GRADIENT_STD)
def test_force_std_of_an_isolated_atom_vanishes(uncertain: Model):
    """Its energy may be wrong; its force is certainly zero."""
    alone = known(uncertain, "atom")
    for mode in force_std_modes(uncertain):
        assert float(alone[f"forces_std_{mode}"].max()) < 1e-7


def test_members_add_to_the_std_that_a_head_has_itself(model: Model):
    """Of forces as of energies: σ of an ensemble, or with dropout, is not below that of what it consists of."""
    if isinstance(model, Potential):
        return
    graph = graph_of(*MIXED)
    mode = "exact" if model.potentials[0].head.force_std_methods else "auto"
    whole = model.predict(graph, forces_std=mode)
    spread = whole.forces_members.std(-1)
    own = [member.predict(graph, forces_std=mode) for member in model.potentials]
    expected = spread.square()
    if own[0].forces_std is not None:
        expected = expected + torch.stack([one.forces_std.square() for one in own]).mean(0)
    close(whole.forces_std.square(), expected, **EXACT)


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


def test_predict_does_not_change_its_input(model: Model):
    graph = graph_of(ETHANOL, CRYSTAL)
    kept = {f.name: getattr(graph, f.name) for f in fields(AtomicGraph)}
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in kept.items()}
    predicted(model, graph)
    for potential in model.potentials:
        potential(graph)
    for name, value in kept.items():
        assert getattr(graph, name) is value
        assert torch.equal(value, copies[name]) if isinstance(value, Tensor) else value == copies[name]
    assert not graph.positions.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_predict_does_not_change_the_model(model: Model, training: bool):
    model = deepcopy(model).train(training)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    values = predicted(model, graph_of(ETHANOL, CRYSTAL))
    assert all(module.training == training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(value.requires_grad for value in values.values())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_single_precision_agrees_with_double(model: Model):
    double, model = known(model, "many"), deepcopy(model)
    for potential in model.potentials:
        potential.set_precision(torch.float32)
    single = predicted(model, graph_of(*BATCHES["many"], dtype=torch.float32))
    assert single["forces"].dtype == torch.float32
    for name, value in single.items():
        close(value.double(), double[name], **SINGLE, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize(
    "case",
    [case for case in POTENTIAL_CASES if case.backbone in (BACKBONES[0], DESCRIPTOR)],
    ids=lambda case: case.name,
)
def test_caches_follow_changed_weights(case: Case):
    """Changed in place, the backbone's weights, then each tensor of the head: the potential predicts what a new one
    with these weights does."""
    potential, graph = case.build(), graph_of(WATER)
    assert isinstance(potential, Potential)
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


def test_serialization_round_trip_is_exact(model: Model, tmp_path: Path):
    model = deepcopy(model)
    model.energy_calibration = Calibration(method="scalar", scale=1.7, n_samples=50)
    model.forces_calibration = Calibration(
        method="quantile",
        scale=0.6,
        n_samples=90,
        coverages=(0.0, 0.5, 0.9),
        multipliers=(0.0, 0.7, 3.0),
        growth=GROWTH,
    )
    model.stress_calibration = Calibration(method="scalar", scale=3.0, n_samples=6, n_structures=1, scale_error=0.5)
    model.record = RunRecord.model_validate({"source": "here", "values": [1, 2.5]})
    save(model, tmp_path / "model.sigmaff")
    loaded = load(tmp_path / "model.sigmaff")
    graph = graph_of(WATER, CRYSTAL)
    close(predicted(loaded, graph), predicted(model, graph), **NO_DIFFERENCE, equal_nan=True)
    assert type(loaded) is type(model)
    for name in ("calibrations", "record"):
        assert getattr(loaded, name) == getattr(model, name), name
    for one, other in zip(loaded.potentials, model.potentials, strict=True):
        assert (one.config, one.statistics) == (other.config, other.statistics)
    assert not loaded.training
    for potential in model.potentials:
        potential.set_precision(torch.float32)
    save(model, tmp_path / "single.sigmaff")
    single = load(tmp_path / "single.sigmaff")
    close(predicted(single, graph), predicted(model, graph), **NO_DIFFERENCE, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_predictions_repeat_and_devices_agree(model: Model, device: str):
    there = predicted(deepcopy(model).to(device), graph_of(*MIXED))
    assert {value.device.type for value in there.values()} == {device}
    tolerance = NO_DIFFERENCE if device == "cpu" else {"rtol": 1e-7, "atol": 1e-7}
    close({name: value.cpu() for name, value in there.items()}, known(model, "mixed"), **tolerance)
