"""The audit on calculators whose faults are known: each fault costs its own desideratum, and no other."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT
from ase.calculators.harmonic import SpringCalculator
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from scipy.stats import linregress
from scipy.stats import t as student
from tblite.ase import TBLite

from calculator_case import LNK_CONFIG, build_potential, ethanol
from cli_case import Workspace, fail, succeed
from contract import Case
from sigmaff.audit import (
    DESIDERATA,
    QUICK,
    Audit,
    Subject,
    Tolerance,
    ask,
    audit,
    audit_content,
    audit_markdown,
    audit_table,
    conservation,
    foreign_subject,
    locality,
    symmetry,
)
from sigmaff.audit.confidence import calibration_chance
from sigmaff.audit.conservation import (
    Run,
    best_step,
    drift,
    energy_rounding,
    loop_work,
    numerical_force,
    nve,
)
from sigmaff.audit.locality import copies, fit_growth
from sigmaff.audit.page import write_audit_page
from sigmaff.audit.symmetry import OPERATIONS
from sigmaff.backbones import CoordinatesConfig
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation.metrics import calibration_score
from sigmaff.evaluation.samples import Sample
from sigmaff.heads import DeterministicConfig, EvidentialConfig, SVGPConfig
from sigmaff.models import Ensemble, Potential
from sigmaff.models.file import read_header
from sigmaff.models.prediction import UNCALIBRATED
from sigmaff.progress import Listener
from sigmaff.simulation import Calculator
from training_case import labelled_structures

pytest_plugins = ["cli_fixtures"]

Fault = Callable[[Atoms, dict], None]
OPTIONS = QUICK.model_copy(update={"nve_ps": 0.05, "n_rounds": 2, "n_structures": 1, "n_copies": 4, "n_components": 4})


def morse() -> MorsePotential:
    return MorsePotential(epsilon=1.0, rho0=3.0, r0=1.5)


class Faulty(AseCalculator):
    """A sound calculator with a sound σ, ∝ n, and with one fault or none."""

    implemented_properties = ("energy", "forces", "energy_uncertainty", "forces_uncertainty")

    def __init__(self, fault: Fault = lambda atoms, results: None) -> None:
        super().__init__()
        self.fault = fault

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        base = morse()
        base.calculate(self.atoms, ["energy", "forces"], all_changes)
        self.results = {"energy": base.results["energy"], "forces": base.results["forces"].copy()}
        self.results["energy_uncertainty"] = 0.01 * len(self.atoms)
        self.results["forces_uncertainty"] = 0.02 * np.ones((len(self.atoms), 3))
        self.fault(self.atoms, self.results)


def oriented(atoms: Atoms, results: dict) -> None:
    """A field gradient along z about the mean height: conservative, and not isotropic."""
    z = atoms.positions[:, 2] - atoms.positions[:, 2].mean()
    results["energy"] += 0.5 * (z**2).sum()
    results["forces"][:, 2] -= z


def oriented_std(atoms: Atoms, results: dict) -> None:
    results["energy_uncertainty"] *= 1.0 + np.ptp(atoms.positions[:3, 2])


def numbered(atoms: Atoms, results: dict) -> None:
    results["forces_uncertainty"][0] *= 2.0


def not_a_gradient(atoms: Atoms, results: dict) -> None:
    """Forces of any element but hydrogen a tenth too large: as symmetric as before, and with a curl."""
    results["forces"][atoms.numbers > 1] *= 1.1


def constant_std(atoms: Atoms, results: dict) -> None:
    results["energy_uncertainty"] = 0.05


def irregular_std(atoms: Atoms, results: dict) -> None:
    results["energy_uncertainty"] *= 1.0 + 0.5 * ((len(atoms) // 9) % 2)


def not_additive(atoms: Atoms, results: dict) -> None:
    results["energy"] += 0.01 * len(atoms) ** 2


def root_std(atoms: Atoms, results: dict) -> None:
    """No fault: variances add up."""
    results["energy_uncertainty"] = 0.01 * np.sqrt(len(atoms))


def faulty(fault: Fault) -> Subject:
    return Subject(name=fault.__name__, calculator=Faulty(fault))


def sound() -> Subject:
    return Subject(name="sound", calculator=Faulty())


def ours(potential: Potential | Ensemble, name: str = "ours") -> Subject:
    return Subject(name=name, calculator=Calculator(potential, forces_uncertainty="none"), model=potential)


def verdicts(found: Audit) -> dict[str, str]:
    return {finding.desideratum: finding.verdict for finding in found.findings}


STRUCTURES = (ethanol(),)
WITHOUT_DATA = {"Accuracy": "not applicable", "Confidence": "not applicable", "Speed": "not applicable"}
SOUND = {"Symmetry": "holds", "Energy conservation": "holds", "Locality": "holds"} | WITHOUT_DATA


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (root_std, None),
        (oriented, "Symmetry"),
        (oriented_std, "Symmetry"),
        (numbered, "Symmetry"),
        (not_a_gradient, "Energy conservation"),
        (constant_std, "Locality"),
        (irregular_std, "Locality"),
        (not_additive, "Locality"),
    ],
    ids=lambda case: case.__name__ if callable(case) else "",
)
def test_each_fault_costs_its_own_desideratum(fault: Fault, broken: str | None):
    found = audit(faulty(fault), STRUCTURES, options=OPTIONS)
    assert verdicts(found) == SOUND | ({} if broken is None else {broken: "fails"})


# --- symmetry


def test_symmetry_names_the_operation_that_changes_most():
    finding = symmetry.measure(faulty(numbered), STRUCTURES, np.random.default_rng(0), n_repeats=2)
    assert finding.numbers["forces_std, rotation"] < 1e-9
    assert "A force σ" in finding.sentence
    assert "under permutation;" in finding.sentence


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_all_distances(name: str):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=1)
    operation = OPERATIONS[name](len(atoms), np.random.default_rng(2))
    moved = operation.apply(atoms)
    back = np.argsort(operation.order)
    distances = moved.get_all_distances(mic=True)[np.ix_(back, back)]
    np.testing.assert_allclose(distances, atoms.get_all_distances(mic=True), atol=1e-12)
    assert not np.allclose(moved.positions, atoms.positions)


@pytest.mark.parametrize("calculator", [EMT(), LennardJones(sigma=2.2, epsilon=0.1, rc=5.0, smooth=True)])
def test_crystals_hold_the_first_three(calculator: AseCalculator):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=1)
    found = audit(Subject(name="crystal", calculator=calculator), [atoms], options=OPTIONS)
    assert verdicts(found) == SOUND | {"Confidence": "fails"}
    assert "no σ" in found["Locality"].sentence


# --- energy conservation


class Whirl(AseCalculator):
    """No energy and F = c ẑ × r: work around a loop is 2 c times the area that it encloses in the xy plane."""

    implemented_properties = ("energy", "forces")
    strength = 0.3

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        forces = self.strength * np.cross([0.0, 0.0, 1.0], self.atoms.positions)
        self.results = {"energy": 0.0, "forces": forces}


def test_work_around_a_loop_is_that_of_the_curl():
    rng = np.random.default_rng(4)
    first, second = rng.normal(0.0, 0.1, (2, len(STRUCTURES[0]), 3))
    work, total = loop_work(Subject(name="whirl", calculator=Whirl()), STRUCTURES[0], first, second)
    area = np.pi * np.cross(first, second)[:, 2].sum()
    assert work == pytest.approx(2.0 * Whirl.strength * area, rel=1e-9)
    assert total >= abs(work)


def test_a_whirl_drives_a_simulation():
    subject = Subject(name="whirl", calculator=Whirl())
    finding = conservation.measure(
        subject, STRUCTURES, np.random.default_rng(0), n_components=3, n_loops=1, nve_ps=0.2, listener=Listener()
    )
    assert finding.verdict == "fails"
    assert finding.numbers["drift"] > finding.tolerances["drift"].approximately
    assert finding.numbers["drift, slope (eV/atom/ps)"] > 0  # it turns with the force, faster and faster


@pytest.mark.parametrize(("size", "verdict"), [(1e-6, "holds"), (3.0, "fails")])
def test_an_energy_that_scatters_is_not_said_to_be_kept(size: float, verdict: str):
    def scatter(atoms: Atoms, results: dict) -> None:
        results["energy"] += size * rng.normal()

    rng = np.random.default_rng(0)
    finding = conservation.measure(
        faulty(scatter), STRUCTURES, rng, n_components=3, n_loops=1, nve_ps=0.2, listener=Listener()
    )
    assert finding.verdict == verdict
    assert finding.numbers["drift"] <= finding.tolerances["drift"].approximately  # two standard errors hide it


def test_verlet_keeps_the_energy_of_oscillators():
    atoms = ethanol()
    subject = Subject(name="springs", calculator=SpringCalculator(atoms.positions, k=5.0))
    run = nve(subject, atoms, np.random.default_rng(1), 0.5)
    slope, error = drift(*run.means(10))
    assert run.stopped is None
    assert run.picoseconds[-1] == pytest.approx(0.5)
    assert abs(slope) < 3.0 * error + 1e-9
    assert abs(slope) < 1e-4


def test_drift_agrees_with_a_linear_regression():
    times = np.linspace(0.001, 1.0, 1000)
    energies = 3.0 + 0.2 * times + 0.01 * np.random.default_rng(0).normal(size=times.size)
    reference = linregress(times, energies)
    assert drift(times, energies) == pytest.approx((reference.slope, reference.stderr))


def test_vibrations_do_not_hide_a_drift():
    times = np.linspace(0.001, 1.0, 2000)
    run = Run(picoseconds=times, energy=5.0 + 2e-4 * times + 1e-3 * np.sin(2.0 * np.pi * times / 0.01), stopped=None)
    slope, error = drift(*run.means(10))
    assert slope == pytest.approx(2e-4, rel=0.05)
    assert error < 1e-5


def test_rounding_of_an_energy_is_measured():
    rng = np.random.default_rng(0)
    subject = Subject(name="grid", calculator=Faulty(lambda atoms, results: _scatter(results, rng)))
    assert energy_rounding(subject, STRUCTURES[0], np.random.default_rng(0)) == pytest.approx(1e-4, rel=0.5)
    assert energy_rounding(sound(), STRUCTURES[0], np.random.default_rng(0)) < 1e-12
    assert best_step(1e-12) < best_step(1e-6) < best_step(1e-3)


def _scatter(results: dict, rng: np.random.Generator) -> None:
    results["energy"] += 1e-4 * rng.normal()


def test_numerical_force():
    atoms, step = STRUCTURES[0], best_step(1e-14)
    forces = ask(sound(), atoms).forces
    assert numerical_force(sound(), atoms, 2, 1, step) == pytest.approx(forces[2, 1], abs=1e-7)


@pytest.mark.parametrize(("n_steps", "has_drift"), [(60, True), (10, False)])
def test_a_simulation_that_leaves_the_known_is_told_of(n_steps: int, has_drift: bool):
    def stops(atoms: Atoms, results: dict) -> None:
        calls.append(atoms)
        if len(calls) > 1 + n_steps:
            raise RuntimeError("too far")

    calls: list[Atoms] = []
    run = nve(faulty(stops), STRUCTURES[0], np.random.default_rng(1), 1.0)
    assert run.stopped == f"after {0.5 * n_steps:g} fs: too far"
    assert run.energy.size == n_steps
    assert run.is_short != has_drift


# --- locality


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_growth_of_power_laws(exponent: float):
    n = np.arange(1.0, 9.0)
    growth = fit_growth(n, np.array([[0.3], [2.0]]) * n**exponent)
    assert growth.slope == pytest.approx(exponent, abs=1e-12)
    assert growth.irregularity < 1e-12


def test_growth_agrees_with_a_linear_regression():
    n, noise = np.arange(1.0, 9.0), np.random.default_rng(0).normal(0.0, 0.1, 8)
    growth = fit_growth(n, (n * np.exp(noise))[None])
    reference = linregress(np.log(n), np.log(n) + noise)
    assert growth.slope == pytest.approx(reference.slope)
    assert growth.interval[1] - growth.slope == pytest.approx(student.ppf(0.975, 6) * reference.stderr)


def test_copies_are_as_far_apart_as_they_should_be():
    atoms = ethanol()
    row = copies(atoms, 3)
    distances = row.get_all_distances()
    assert distances[:9, 9:18].min() >= 15.0
    assert distances[9:18, 18:].min() >= 15.0
    np.testing.assert_allclose(distances[18:, 18:], atoms.get_all_distances())
    crystal = copies(bulk("Cu", cubic=True), 3)
    assert len(crystal) == 12
    assert crystal.cell.volume == pytest.approx(3 * bulk("Cu", cubic=True).cell.volume)


def test_a_model_of_few_atoms_fails_locality_and_says_why():
    """A Gaussian process of raw coordinates, as in the SVGP of the paper: it is not symmetric either."""
    head = SVGPConfig(n_inducing=8, n_samples=16, n_frequencies=32)
    potential = Case(backbone=CoordinatesConfig(n_atoms=12), head=head).build()
    finding = locality.measure(ours(potential), STRUCTURES, n_copies=5)
    assert finding.verdict == "fails"
    assert "at most 12 atoms" in finding.sentence
    found = symmetry.measure(ours(potential), STRUCTURES, np.random.default_rng(0), n_repeats=1)
    assert found.verdict == "fails"
    assert found.numbers["forces, translation"] < 1e-6
    assert found.numbers["forces, rotation"] > 0.1
    assert found.numbers["forces, permutation"] > 0.1


# --- models of ours


def test_lnk_holds_what_a_network_can_hold():
    potential = build_potential(LNK_CONFIG)
    found = audit(ours(potential), STRUCTURES, options=OPTIONS)
    assert verdicts(found) | {"Speed": ""} == SOUND | {"Speed": ""}
    assert found["Locality"].numbers["slope"] == pytest.approx(1.0, abs=1e-6)
    diagonal = build_potential(LNK_CONFIG.model_copy(update={"covariance": "diagonal"}))
    halved = locality.measure(ours(diagonal), STRUCTURES, n_copies=4)
    assert halved.numbers["slope"] == pytest.approx(0.5, abs=1e-6)
    assert halved.verdict == "holds"


def test_evidential_is_not_local():
    finding = locality.measure(ours(build_potential(EvidentialConfig())), STRUCTURES, n_copies=4)
    assert finding.verdict == "fails"


def test_speed_counts_passes_and_parameters():
    member = build_potential(DeterministicConfig())
    found = audit(ours(Ensemble([member, build_potential(DeterministicConfig())])), STRUCTURES, options=OPTIONS)
    numbers = found["Speed"].numbers
    assert numbers["passes"] == 2
    assert numbers["parameters"] == 2 * numbers["parameters, backbone"]


# --- labels


class Known(Faulty):
    """Errors drawn from N(0, σ²) with σ that varies from structure to structure."""

    def __init__(self, factor: float) -> None:
        super().__init__(self.err)
        self.factor = factor  # of the σ that it states

    def err(self, atoms: Atoms, results: dict) -> None:
        rng = np.random.default_rng(int(1e6 * abs(atoms.positions.sum())))
        sigma = rng.uniform(0.01, 0.05)
        results["energy"] += sigma * rng.normal()
        results["forces"] += sigma * rng.normal(size=(len(atoms), 3))
        results["energy_uncertainty"] = self.factor * sigma
        results["forces_uncertainty"][:] = self.factor * sigma


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "holds"), (0.1, "fails"), (10.0, "fails")])
def test_confidence_is_in_a_sigma_that_is_as_large_as_errors_are(factor: float, verdict: str):
    subject = Subject(name="known", calculator=Known(factor))
    data = labelled_structures(40, seed=2)
    found = audit(subject, data.structures, data=data, options=OPTIONS)
    assert found["Confidence"].verdict == verdict
    assert found["Accuracy"].verdict == "not applicable"
    assert found["Accuracy"].numbers["energy_rmse"] == pytest.approx(0.032, rel=0.35)


def test_chance_in_a_calibration_score():
    """Of normal errors with the right σ, each structure's own, and shared by the three of each structure."""
    rng, n = np.random.default_rng(0), 60
    one_each, shared = np.arange(n), np.repeat(np.arange(n), 3)
    for structure in (one_each, shared):
        draws = [rng.normal(size=n)[structure] for _ in range(400)]
        std = np.ones(structure.size)
        squares = [calibration_score(errors, std) ** 2 for errors in draws]
        samples = [
            Sample(
                quantity="energy",
                errors=errors,
                std_raw=std,
                structure=structure,
                calibration=UNCALIBRATED,
                std_fixed=np.zeros_like(std),
            )
            for errors in draws
        ]
        chances = [calibration_chance(sample) for sample in samples]
        assert np.mean(chances) == pytest.approx(np.sqrt(np.mean(squares)), rel=0.1)
        assert np.mean(chances) == pytest.approx(np.sqrt(1.65 / n), rel=0.05)


def test_accuracy_is_held_against_the_backbone():
    data = labelled_structures(10, seed=2)
    backbone = build_potential(DeterministicConfig())
    same = audit(ours(backbone), data.structures, data=data, backbone=backbone, options=OPTIONS)
    assert same["Accuracy"].verdict == "holds"
    assert same["Accuracy"].numbers["forces_mae_ratio"] == 1.0
    assert same["Confidence"].verdict == "fails"  # it has no σ
    worse = audit(ours(build_potential(LNK_CONFIG)), data.structures, data=data, backbone=backbone, options=OPTIONS)
    numbers = worse["Accuracy"].numbers
    assert numbers["forces_mae_ratio"] == pytest.approx(numbers["forces_mae"] / same["Accuracy"].numbers["forces_mae"])


def test_an_unseen_element_is_a_finding_and_no_crash():
    potential = ours(build_potential(LNK_CONFIG))
    data = labelled_structures(4, seed=2)
    ammonia = replace(data, structures=(molecule("NH3"),) * 4, energy=np.zeros(4), forces=(np.zeros((4, 3)),) * 4)
    found = audit(potential, ammonia.structures, data=data, ood=ammonia, options=OPTIONS)
    assert found["Symmetry"].verdict == "not applicable"
    assert "N, an element this model was not trained on" in found["Symmetry"].sentence
    assert (
        "energy_auroc"
        in audit(potential, data.structures, data=data, ood=ammonia, options=OPTIONS)["Confidence"].numbers
    )


# --- σ of other programs


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("energy_std", 0.25),
        ("energy_var", 0.0625),
        ("energy_comm", [-1.0, -1.25, -1.5]),
        ("energy_ensemble", [0.75, 1.0, 1.25]),
    ],
)
def test_energy_std_of_other_programs(name: str, values: object):
    def fault(atoms: Atoms, results: dict) -> None:
        del results["energy_uncertainty"]
        results[name] = np.array(values)

    assert ask(faulty(fault), ethanol()).energy_std == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "first"), [("forces_comm", True), ("forces_ensemble", True), ("forces_ensemble", False)]
)
def test_force_std_of_committees(name: str, first: bool):
    members = np.random.default_rng(0).normal(size=(5, 9, 3))

    def fault(atoms: Atoms, results: dict) -> None:
        del results["forces_uncertainty"]
        results[name] = members if first else np.moveaxis(members, 0, -1)

    answer = ask(faulty(fault), ethanol())
    np.testing.assert_allclose(answer.forces_std, members.std(axis=0, ddof=1))


def test_xtb_has_no_std():
    subject = Subject(name="xtb", calculator=TBLite(method="GFN2-xTB", verbosity=0))
    found = audit(subject, [molecule("H2O")], options=OPTIONS.model_copy(update={"n_copies": 3}))
    assert found["Symmetry"].verdict == "holds"
    assert found["Energy conservation"].verdict == "holds"
    assert found["Confidence"].verdict == "fails"
    assert found["Speed"].numbers["milliseconds"] > 0
    assert "slope" not in found["Locality"].numbers


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nothing", "write module:factory"),
        ("no_such_module_anywhere:make", "cannot import the module"),
        ("ase.calculators.emt:NoSuchThing", "has no 'NoSuchThing'"),
        ("ase.calculators.harmonic:SpringCalculator", "without arguments failed"),
        ("builtins:dict", "is a class, but none of ASE calculators; it was not called"),
        ("ase.calculators.checkpoint:dict", "has no 'dict'"),
    ],
)
def test_calculators_that_cannot_be_made(reference: str, message: str):
    with pytest.raises(ConfigError, match=message):
        foreign_subject(reference)


def test_a_calculator_must_have_energies_and_forces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "no_forces_calculator.py").write_text(
        "from ase.calculators.calculator import Calculator\n"
        "class EnergyAlone(Calculator):\n    implemented_properties = ['energy']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="has no forces"):
        foreign_subject("no_forces_calculator:EnergyAlone")


def test_what_another_program_raises_names_it():
    def raises(atoms: Atoms, results: dict) -> None:
        raise KeyError("no parameters")

    with pytest.raises(DataError, match=r"raises cannot predict C2OH6.*KeyError"):
        ask(faulty(raises), ethanol())


# --- verdicts, tables, files


def test_tolerances_judge_both_ways():
    below = Tolerance(holds=0.1, approximately=0.2, reason="")
    assert [below.verdict(x) for x in (0.1, 0.2, 0.3, np.nan)] == ["holds", "approximately", "fails", "fails"]
    above = Tolerance(holds=0.9, approximately=0.7, reason="", at_least=True)
    assert [above.verdict(x) for x in (0.9, 0.7, 0.5)] == ["holds", "approximately", "fails"]


def test_table_and_page(tmp_path: Path):
    data = labelled_structures(20, seed=2)
    subjects = [Subject(name="<known>", calculator=Known(1.0)), faulty(constant_std)]
    audits = [audit(subject, data.structures, data=data, options=OPTIONS) for subject in subjects]
    header, *body = audit_table(audits)
    assert header == ["desideratum", "<known>", "constant_std"]
    assert [row[0] for row in body] == list(DESIDERATA)
    assert body[2][2] == "✗ slope 0.00, by no law"
    assert "- ✗ Locality: Energies of up to" in audit_markdown(audits[1:])
    json.dumps(audit_content(audits), allow_nan=False)
    write_audit_page(tmp_path / "audit.html", audits, title="Two")
    page = (tmp_path / "audit.html").read_text()
    assert "<known>" not in page
    assert page.count("<svg") == 4  # run, growth, calibration of energies and of forces
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_command(workspace: Workspace, deterministic: Path, tmp_path: Path):
    outputs = {ending: tmp_path / f"audit.{ending}" for ending in ("json", "html", "md")}
    printed = succeed(
        *("audit", workspace.model, deterministic, "--calculator", "cli_case:MorsePotential"),
        *("--data", workspace / "test.extxyz", "--ood", workspace / "other.extxyz", "--backbone", deterministic),
        *("--json", outputs["json"], "--html", outputs["html"], "--markdown", outputs["md"]),
        *("--quick", "--picoseconds", "0.02"),
    )
    content = json.loads(outputs["json"].read_text())
    assert [entry["name"] for entry in content] == ["run", "deterministic", "MorsePotential"]
    by_name = {entry["name"]: {f["desideratum"]: f["verdict"] for f in entry["findings"]} for entry in content}
    for desideratum in ("Symmetry", "Energy conservation", "Locality"):
        assert by_name["run"][desideratum] == "holds"
    assert by_name["deterministic"]["Accuracy"] == "holds"
    assert by_name["MorsePotential"]["Confidence"] == "fails"
    assert "| desideratum | run | deterministic | MorsePotential |" in outputs["md"].read_text()
    assert "✓ holds" in printed


def test_command_without_data(workspace: Workspace, tmp_path: Path):
    audit_of = ("audit", workspace.model, "--quick", "--picoseconds", "0.02", "--json", tmp_path / "audit.json")
    backbone = workspace / "run" / "backbone.sigmaff"
    assert f"reference for accuracy and speed: {backbone}" in succeed(*audit_of).replace("\n", "")
    found = {f["desideratum"]: f for f in json.loads((tmp_path / "audit.json").read_text())[0]["findings"]}
    assert found["Symmetry"]["verdict"] == "holds"
    own = read_header(workspace.model).record.metrics  # of the test structures of its run
    assert found["Accuracy"]["numbers"]["forces_mae"] == pytest.approx(own["forces_mae"], rel=1e-5)
    assert found["Confidence"]["numbers"]["forces_calibration"] == pytest.approx(own["forces_calibration"], abs=1e-6)
    assert "forces_mae, backbone" in found["Accuracy"]["numbers"]
    assert "with --data" in fail("audit", "--calculator", "ase.calculators.emt:EMT", "--quick")
    assert "nothing to audit" in fail("audit")
