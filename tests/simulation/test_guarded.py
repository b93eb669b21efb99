"""Where σ leaves its range: a calculator warns or stops, and optimizers stop at the last good structure."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from ase.optimize.optimize import Optimizer
from ase.optimize.sciopt import SciPyFminCG

import sigmaff as sf
from calculator_case import build_potential, ethanol
from cli_case import Workspace, fail, succeed
from sigmaff.errors import ConfigError, DataError, UncertaintyError, UncertaintyWarning
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.evaluation.evaluate import evaluate
from sigmaff.evaluation.std_range import std_range
from sigmaff.heads import DeterministicConfig
from sigmaff.inputs import structures_of
from sigmaff.models import Model
from sigmaff.models.prediction import NO_CALIBRATIONS
from sigmaff.simulation.limits import Limits, range_limits

pytest_plugins = ["cli_fixtures"]

MakeOptimizer = Callable[[Any], Optimizer]


@pytest.fixture(scope="module")
def model(workspace: Workspace) -> Model:
    """A closed-form LNK that knows molecules of one size. Its labels pull them apart: every relaxation leaves them."""
    return sf.load(workspace.model)


@pytest.fixture
def start(workspace: Workspace) -> Atoms:
    return ase.io.read(workspace / "start.extxyz", 0)


def stds_of(model: Model, structures: list[Atoms]) -> list[dict[str, float]]:
    """The three σ by hand, from the predictions."""
    bare = [Atoms(atoms.numbers, atoms.positions) for atoms in structures]
    return [
        {
            "forces": float(np.sqrt((found.forces_std**2).sum(axis=1)).max()),
            "energy": found.energy_std / len(found.forces),
            "atom": float(found.node_energy_std.max()),
        }
        for found in model.predict(bare)
    ]


def outside(model: Model, structures: list[Atoms]) -> list[bool]:
    """Is a σ more than twice the largest of the calibration structures?"""
    largest = {name: getattr(model.std_range, name).largest for name in ("forces", "energy", "atom")}
    return [any(std[name] > 2.0 * largest[name] for name in largest) for std in stds_of(model, structures)]


def calculator(model: Model) -> sf.Calculator:
    return sf.Calculator(model, warn_above=None)


# --- the range


def test_the_range_is_that_of_the_validation_structures(workspace: Workspace, model: Model) -> None:
    split, data = model.record.split, ase.io.read(workspace / "data.extxyz", ":")
    assert split is not None
    each = stds_of(model, [data[index] for index in split.validation])
    found = model.std_range
    assert found is not None
    assert found.n_structures == len(each) == 20
    for name in ("forces", "energy", "atom"):
        values = [std[name] for std in each]
        assert getattr(found, name).largest == pytest.approx(max(values), rel=1e-4)
        assert getattr(found, name).median == pytest.approx(np.median(values), rel=1e-4)
    assert "at most" in succeed("info", workspace.model)


def test_the_range_goes_with_the_calibrations(workspace: Workspace, tmp_path: Path) -> None:
    model = sf.load(workspace.copied_model(tmp_path))
    before = model.std_range
    assert before is not None
    sf.calibrate(model, workspace / "held_out.extxyz")
    dataset = dataset_for(model, structures_of(workspace / "held_out.extxyz"))
    assert model.std_range == std_range(evaluate(model, dataset, name="held out")) != before
    sf.save(model, tmp_path / "again.sigmaff")
    assert sf.load(tmp_path / "again.sigmaff").std_range == model.std_range
    model.calibrations = NO_CALIBRATIONS
    assert model.std_range is None


# --- the calculator


def test_a_calculator_warns_once_where_std_leaves_its_range(model: Model, start: Atoms) -> None:
    watched, torn = sf.Calculator(model), start.copy()
    torn.positions[0] += [1.5, 0.0, 0.0]
    assert outside(model, [start, torn]) == [False, True]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for atoms in (start, torn, start, torn):
            watched.calculate(atoms)
    assert [item.category for item in caught] == [UncertaintyWarning]
    text = str(caught[0].message)
    assert "\n" not in text
    assert "2 times the largest of the 20 calibration structures" in text
    assert "times the usual" in text
    assert watched.results["energy"] == model.predict(torn).energy


def test_a_calculator_stops_where_it_is_asked_to(model: Model, start: Atoms) -> None:
    value = stds_of(model, [start])[0]["forces"]
    atom = int(np.linalg.norm(model.predict(start).forces_std, axis=1).argmax())
    start.calc = sf.Calculator(model, stop_above=value * 0.999)
    for _ in range(2):  # no results are left behind that a second question would find
        with pytest.raises(UncertaintyError, match=f"force σ of .* at atom {atom} is above"):
            start.get_forces()
    start.calc = sf.Calculator(model, stop_above=value * 1.001)
    assert start.get_forces().shape == (3, 3)
    start.calc = sf.Calculator(model, stop_above=Limits(energy=1e-9))
    with pytest.raises(UncertaintyError, match=r"energy σ of .* eV/atom is above 1e-09"):
        start.get_forces()


def test_limits_that_cannot_be(model: Model) -> None:
    potential, atoms = build_potential(DeterministicConfig()), ethanol()
    with pytest.raises(ConfigError, match=r"gives no σ: there is no limit auto; give --stop-above"):
        sf.Calculator(potential, stop_above="auto")
    with pytest.raises(ConfigError, match=r"stop_above is -1\.0; it must be"):
        sf.Calculator(model, stop_above=-1.0)
    atoms.calc = sf.Calculator(model, stop_above=1.0, forces_uncertainty="none")
    with pytest.raises(ConfigError, match="a limit on force σ, which the calculator does not compute"):
        atoms.get_potential_energy()


def test_a_model_of_an_earlier_version_says_how_to_get_its_range() -> None:
    file = Path(__file__).parents[1] / "data" / "v0.1.0" / "models" / "lnk.sigmaff"
    old = sf.load(file)
    sf.Calculator(old).calculate(molecule("H2O"))  # no limit, no warning
    with pytest.raises(ConfigError, match="does not record the range of its σ; sigmaff calibrate records it"):
        sf.Calculator(old, stop_above="auto")


# --- optimizers

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "BFGS": lambda atoms: BFGS(atoms, logfile=None, maxstep=0.03),
    "FIRE": lambda atoms: FIRE(atoms, logfile=None),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_relaxation_stops_at_the_first_step_outside(name: str, model: Model, start: Atoms) -> None:
    """Against the same relaxation without a guard, with σ of every step by hand."""
    free, make = start.copy(), OPTIMIZERS[name]
    free.calc = calculator(model)
    path = [free.copy() for _ in make(free).irun(fmax=0.05, steps=9)]
    first = outside(model, path).index(True)
    assert first > 1

    atoms = start.copy()
    atoms.calc = calculator(model)
    optimizer = make(atoms)
    outcome = sf.guarded(optimizer).run(fmax=0.05, steps=9)
    assert (outcome.ending, outcome.step, optimizer.nsteps) == ("crossing", first - 1, first)
    assert not outcome.is_good
    assert outcome.message.startswith(f"step {first}: ")
    np.testing.assert_allclose(atoms.positions, path[first - 1].positions, atol=1e-9)


def test_a_relaxation_without_a_crossing_is_that_of_the_optimizer(model: Model, start: Atoms) -> None:
    free = start.copy()
    for atoms in (free, start):
        atoms.calc = calculator(model)
    BFGS(free, logfile=None).run(fmax=0.05, steps=4)
    outcome = sf.guarded(BFGS(start, logfile=None), stop_above=None).run(fmax=0.05, steps=4)
    assert (outcome.ending, outcome.step, outcome.message) == ("steps", 4, "")
    np.testing.assert_array_equal(start.positions, free.positions)


def test_a_start_outside_may_come_back_but_not_go_further(model: Model, start: Atoms) -> None:
    """The limit is just below the σ of the start: its σ may not grow."""
    start.calc = calculator(model)
    steps = [start.copy() for _ in OPTIMIZERS["BFGS"](start).irun(fmax=0.05, steps=8)]
    values = [std["energy"] for std in stds_of(model, steps)]
    first = next(index for index, value in enumerate(values) if value > values[0])
    again = steps[0].copy()
    again.calc = calculator(model)
    limits = Limits(energy=0.5 * min(values))
    outcome = sf.guarded(OPTIMIZERS["BFGS"](again), stop_above=limits).run(fmax=0.05, steps=8)
    assert (outcome.ending, outcome.step) == ("crossing", first - 1)
    assert "the start is outside, and σ grows" in outcome.message
    steps[0].calc = calculator(model)
    ended = sf.guarded(OPTIMIZERS["BFGS"](steps[0]), stop_above=limits).run(fmax=100.0)
    assert (ended.ending, ended.step, ended.is_good) == ("converged", 0, False)
    assert "the end is outside: energy σ" in ended.message


@pytest.mark.parametrize("shared", [False, True])
def test_a_band_stops_at_the_first_step_outside(shared: bool, model: Model, start: Atoms) -> None:
    end = start.copy()
    end.rattle(0.02, seed=1)

    def band() -> tuple[NEB, Optimizer]:
        images = [start.copy(), *(start.copy() for _ in range(2)), end.copy()]
        one = calculator(model)
        for image in images:
            image.calc = one if shared else calculator(model)
        neb = NEB(images, method="improvedtangent", allow_shared_calculator=shared)
        neb.interpolate()
        return neb, BFGS(neb, logfile=None, maxstep=0.1)

    free, optimizer = band()
    steps = [[image.copy() for image in free.images] for _ in optimizer.irun(fmax=0.05, steps=4)]
    values = [max(std["energy"] for std in stds_of(model, images[1:-1])) for images in steps]
    limit = 1.01 * max(values[:2])  # eV/atom
    first = next(index for index, value in enumerate(values) if value > limit)
    neb, optimizer = band()
    outcome = sf.guarded(optimizer, stop_above=Limits(energy=limit)).run(fmax=0.05, steps=4)
    assert (outcome.ending, outcome.step) == ("crossing", first - 1)
    assert outcome.message.startswith(f"step {first}: image ")
    for image, expected in zip(neb.images, steps[first - 1], strict=True):
        np.testing.assert_allclose(image.positions, expected.positions, atol=1e-9)


def test_a_structure_that_cannot_be_predicted_ends_at_the_last_good_step(model: Model, start: Atoms) -> None:
    """A calculator of the user's own limits does too."""
    start.calc = sf.Calculator(model, warn_above=None, stop_above=range_limits(model))
    before = start.positions.copy()
    outcome = sf.guarded(BFGS(start, logfile=None), stop_above=None).run()
    assert outcome.ending == "crossing"
    assert outcome.step < 20
    assert outside(model, [start]) == [False]
    start.calc = calculator(model)
    start.positions[:] = before
    leap = BFGS(start, logfile=None)
    leap.step = lambda: start.positions.__setitem__(0, np.nan)
    outcome = sf.guarded(leap).run()
    assert (outcome.ending, outcome.step) == ("unphysical", 0)
    np.testing.assert_array_equal(start.positions, before)


def test_optimizers_that_cannot_be_watched_are_refused(model: Model, start: Atoms) -> None:
    start.calc = sf.Calculator(model)
    with pytest.raises(ConfigError, match="SciPyFminCG takes its steps where no watch can look"):
        sf.guarded(SciPyFminCG(start, logfile=None))
    other = start.copy()
    with pytest.raises(ConfigError, match=r"set atoms.calc = sf.Calculator\(model\)"):
        sf.guarded(BFGS(other, logfile=None))


# --- relax


def test_relax_leaves_the_last_good_structures(workspace: Workspace, model: Model, tmp_path: Path) -> None:
    starts = ase.io.read(workspace / "start.extxyz", ":")
    out, steps = tmp_path / "out.extxyz", tmp_path / "steps.extxyz"
    text = succeed(
        "relax", workspace.model, workspace / "start.extxyz", out, "--optimizer", "fire", "--trajectory", steps
    )
    frames, good = ase.io.read(out, ":"), ase.io.read(steps, ":")
    assert "0 of 2 converged, with every σ below its limit" in text
    for index, (start, frame) in enumerate(zip(starts, frames, strict=True)):
        start.calc = calculator(model)
        outcome = sf.guarded(FIRE(start, logfile=None)).run(fmax=0.05, steps=500)
        np.testing.assert_allclose(frame.positions, start.positions, atol=1e-6)
        assert (frame.info["relaxation"], frame.info["step"]) == ("crossing", outcome.step)
        assert f"structure {index}: crossing at step {outcome.step}, " in text
        assert [step.info["step"] for step in good if step.info["structure"] == index] == [*range(outcome.step + 1)]
        assert outside(model, [frame]) == [False]
        assert frame.get_potential_energy() == pytest.approx(model.predict(frame).energy, abs=1e-4)


def test_relax_keeps_fixed_atoms_and_moves_cells_if_asked(model: Model, start: Atoms) -> None:
    start.set_constraint(FixAtoms([0]))
    off = {"stop_above": "off", "stop_above_energy": "off", "stop_above_atom": "off", "steps": 2}
    (relaxed,) = sf.relax(model, start, off)
    moved = np.abs(relaxed.atoms.positions - start.positions).max(axis=1)
    assert moved[0] == 0.0
    assert moved[1:].min() > 0.0
    crystal = start.copy()
    crystal.set_constraint()
    crystal.set_cell([6.0, 6.0, 6.0])
    crystal.pbc = True
    free = crystal.copy()
    free.calc = calculator(model)
    BFGS(FrechetCellFilter(free), logfile=None).run(fmax=0.05, steps=2)
    (relaxed,) = sf.relax(model, crystal, off | {"cell": True})
    np.testing.assert_allclose(relaxed.atoms.cell.array, free.cell.array, atol=1e-10)


def test_relax_warns_and_goes_on(workspace: Workspace, tmp_path: Path) -> None:
    limits = ("--stop-above", "off", "--stop-above-energy", "off", "--stop-above-atom", "off", "--warn-above", "0.01")
    out = tmp_path / "out.traj"
    text = succeed("relax", workspace.model, workspace / "start.extxyz", out, *limits, "--steps", "2")
    assert text.count("warning: structure") == 2
    assert "structure 1: steps at step 2" in text
    assert "forces_uncertainty" in ase.io.read(out, 0).info


def test_relaxations_that_cannot_be(workspace: Workspace, model: Model, tmp_path: Path) -> None:
    out = tmp_path / "out.extxyz"
    with pytest.raises(DataError, match=r"structure 0: --cell \(cell\) needs a cell"):
        sf.relax(model, ethanol(), {"cell": True})
    with pytest.raises(DataError, match=r"structure 0: .*Cu"):
        sf.relax(model, bulk("Cu"))
    assert "no such file" in fail("relax", workspace.model, tmp_path / "none.extxyz", out)
    assert "--stop-above must be above 0" in fail(
        "relax", workspace.model, workspace / "start.extxyz", out, "--stop-above", "-1"
    )
