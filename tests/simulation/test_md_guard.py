"""What a limit on σ promises, and the command that uses it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

import sigmaff as sf
from calculator_case import LNK_CONFIG, build_potential, ethanol, rattled
from cli_case import Workspace, sigmaff
from md_case import Wells, at_sites
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import Evaluation
from sigmaff.heads import DeterministicConfig
from sigmaff.learning.config import ExploreConfig
from sigmaff.models.file import save
from sigmaff.models.prediction import Calibration, Provenance
from sigmaff.simulation import Calculator
from sigmaff.simulation.md import MDConfig, Scores, conditional_threshold, risk_threshold, run_md, structure_scores
from sigmaff.simulation.md.status import sparkline

pytest_plugins = ["cli_fixtures"]

N_DRAWS = 3000


def draw(n: int, generator: np.random.Generator, *, is_informed: bool) -> Scores:
    """Errors with heavy tails, of the size that σ says or of any."""
    std = generator.lognormal(-2.0, 0.7, n)
    size = std if is_informed else generator.lognormal(-2.0, 0.7, n)
    return Scores(forces_std=std, forces_error=size * np.abs(generator.standard_t(4, n)))


def limit(scores: Scores, error_above: float, risk: float) -> float:
    """0, which accepts nothing, where there is none."""
    try:
        return risk_threshold(scores, error_above, risk).value
    except ConfigError:
        return 0.0


@pytest.mark.parametrize(("risk", "n"), [(0.1, 30), (0.05, 200)])
@pytest.mark.parametrize("is_informed", [True, False])
def test_the_promise_holds_and_is_used_up(risk: float, n: int, is_informed: bool):
    """Chance of harm by one more structure, over draws of all: at most x, and by theory at least x − 2 / (n + 1)."""
    generator = np.random.default_rng(0)
    harm, passed = [], []
    for _ in range(N_DRAWS):
        scores, new = draw(n, generator, is_informed=is_informed), draw(20, generator, is_informed=is_informed)
        passing = new.forces_std <= limit(scores, 0.25, risk)
        harm.append(np.mean(passing & (new.forces_error > 0.25)))
        passed.append(passing.mean())
    spread = 3 * np.std(harm) / np.sqrt(N_DRAWS)
    assert risk - 2 / (n + 1) - spread < np.mean(harm) < risk + spread
    assert np.mean(passed) > (0.5 if is_informed else 0.2)


def test_the_limit_is_the_largest_that_can_be_promised():
    """19 structures and a risk of 0.1 leave one to do harm; the second harmful one has σ = 7."""
    scores = Scores(forces_std=np.arange(1.0, 20.0), forces_error=np.isin(np.arange(1, 20), (3, 7, 12)).astype(float))
    threshold = risk_threshold(scores, 0.5, 0.1)
    assert threshold.value == np.nextafter(7.0, 0.0)
    assert threshold.accepted == 6 / 19
    for part in ("19 calibration structures", "above 0.5 eV/Å", "at most 0.1", "31.6% stay below", "16.67% of these"):
        assert part in threshold.statement


def test_without_harm_the_limit_is_the_largest_std_known():
    scores = Scores(forces_std=np.arange(1.0, 20.0), forces_error=np.zeros(19))
    assert risk_threshold(scores, 0.5, 0.1).value == 19.0


def test_too_few_structures_for_a_promise():
    scores = Scores(forces_std=np.arange(1.0, 19.0), forces_error=np.zeros(18))
    with pytest.raises(ConfigError, match=r"18 calibration .* at least 19, or allow a risk of 0.053"):
        risk_threshold(scores, 0.5, 0.05)


def test_where_nothing_could_pass_the_error_says_what_would():
    scores = Scores(forces_std=np.arange(1.0, 41.0), forces_error=np.linspace(2.0, 1.0, 40))
    with pytest.raises(ConfigError, match="Half of the structures") as error:
        risk_threshold(scores, 0.5, 0.05)
    suggested = float(str(error.value).split(" at ")[-1].split(" eV")[0])
    assert risk_threshold(scores, suggested, 0.05).accepted >= 0.5
    assert suggested < 2.0


def conditional_risks(n: int, is_informed: bool, kind: str) -> np.ndarray:
    """For draws of calibration structures: the share of wrong ones below the limit for 5 %; 0 if there is no limit."""
    generator = np.random.default_rng(4)
    truth = draw(200_000, generator, is_informed=is_informed)
    order = np.argsort(truth.forces_std)
    std, wrong = truth.forces_std[order], np.cumsum(truth.forces_error[order] > 0.35)
    risks = []
    for _ in range(400):
        scores = draw(n, generator, is_informed=is_informed)
        try:
            how = (scores, 0.35, 0.05)
            value = (risk_threshold(*how) if kind == "joint" else conditional_threshold(*how, 0.95)).value
        except ConfigError:
            value = 0.0
        n_below = int(np.searchsorted(std, value, side="right"))
        risks.append(wrong[n_below - 1] / n_below if n_below else 0.0)
    return np.array(risks)


@pytest.mark.parametrize("is_informed", [True, False])
def test_a_conditional_risk_is_kept_with_its_confidence_where_a_joint_one_is_not(is_informed: bool):
    """Of structures below the limit, more than 5 % are wrong in at most 5 % of the draws; by the joint kind in most."""
    broken = conditional_risks(200, is_informed, "conditional") > 0.05
    assert broken.mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert (conditional_risks(200, is_informed, "joint") > 0.05).mean() > 0.5


def test_the_conditional_limit_is_the_last_before_the_first_test_that_fails():
    """59 structures without an error keep 5 % with 95 %, 92 with one do not, 93 do."""
    error = np.zeros(100)
    scores = Scores(forces_std=np.arange(1.0, 101.0), forces_error=error)
    assert conditional_threshold(scores, 0.5, 0.05, 0.95).value == 100.0
    error[91] = 1.0  # the 92nd
    assert conditional_threshold(scores, 0.5, 0.05, 0.95).value == np.nextafter(92.0, 0.0)
    error[91], error[92] = 0.0, 1.0
    threshold = conditional_threshold(scores, 0.5, 0.05, 0.95)
    assert threshold.value == 100.0
    for part in ("100 calibration structures", "a share of at most 0.05", "a confidence of 0.95", "not a whole run"):
        assert part in threshold.statement
    error[3] = 1.0
    with pytest.raises(ConfigError, match=r"59 .* of the smallest σ, none may .* error_above at 1 eV/Å"):
        conditional_threshold(scores, 0.5, 0.05, 0.95)


def test_too_few_structures_for_a_conditional_promise():
    scores = Scores(forces_std=np.arange(1.0, 59.0), forces_error=np.zeros(58))
    with pytest.raises(ConfigError, match=r"58 calibration .* at least 59, or allow a risk of 0\.051"):
        conditional_threshold(scores, 0.5, 0.05, 0.95)


def test_what_is_said_of_a_risk_is_what_is_bounded():
    """A joint chance, of one structure; and of the validation set that the model was chosen by it."""
    for settings in (MDConfig, ExploreConfig):
        assert re.search("structure .*below the limit .*error", settings.model_fields["risk"].description or "")
    plain = draw(100, np.random.default_rng(5), is_informed=True)
    validation = Scores(forces_std=plain.forces_std, forces_error=plain.forces_error, chose_model=True)
    said = [risk_threshold(scores, 0.5, 0.1).statement for scores in (plain, validation)]
    assert all("About one structure, not a whole run" in statement for statement in said)
    assert ["validation set" in statement for statement in said] == [False, True]


def test_the_validation_set_is_named_where_it_gives_the_limit(workspace: Workspace, tmp_path: Path):
    settings = {"stop_above": "auto", "error_above": 50.0, "risk": 0.2, "steps": 0}
    model = sf.load(workspace.model)
    own = sf.run_md(model, workspace / "start.extxyz", settings, tmp_path / "own")
    other = sf.run_md(
        model, workspace / "start.extxyz", settings, tmp_path / "other", calibration=workspace / "held_out.extxyz"
    )
    assert own.threshold is not None
    assert other.threshold is not None
    assert "are the validation set, at which training" in own.threshold.statement
    assert "validation" not in other.threshold.statement


def evaluation(forces: np.ndarray | None, std: np.ndarray | None) -> Evaluation:
    return Evaluation(
        name="held out",
        structure_index=np.array([0, 0, 1]),
        atomic_numbers=np.ones(3, dtype=np.int64),
        positions=np.zeros((3, 3)),
        energy=None,
        energy_predicted=np.zeros(2),
        energy_std_raw=None,
        forces=forces,
        forces_predicted=np.zeros((3, 3)),
        forces_std_raw=std,
        node_energy_std_raw=None,
        forces_calibration=Calibration(method="scalar", scale=2.0, n_samples=9),
        provenance=Provenance(method="test"),
        seconds_per_structure=0.0,
    )


def test_scores_are_those_of_the_worst_atom():
    std = np.array([[3.0, 4.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 7.0]])
    scores = structure_scores(evaluation(np.array([[1.0, 0, 0], [0, 6.0, 8.0], [0, 0, 2.0]]), std))
    assert scores.forces_std.tolist() == [10.0, 14.0]  # calibrated: twice the raw σ
    assert scores.forces_error.tolist() == [10.0, 2.0]
    with pytest.raises(DataError, match="no forces"):
        structure_scores(evaluation(None, std))
    with pytest.raises(DataError, match="no σ of forces"):
        structure_scores(evaluation(std, None))


def test_auto_limits_a_run_and_its_file_says_so(tmp_path: Path):
    generator = np.random.default_rng(0)
    std = generator.uniform(0.0, 2.0, 200)
    scores = Scores(forces_std=std, forces_error=std * generator.uniform(0.5, 1.5, 200))
    config = MDConfig(temperature=900.0, timestep=4.0, steps=500, check_every=1, stop_above="auto", error_above=1.5)
    result = run_md(Wells(), [at_sites()], config, tmp_path, calibration=scores)
    expected = risk_threshold(scores, 1.5, 0.05)
    assert result.threshold == expected
    said = json.loads((tmp_path / "md.json").read_text())
    assert (said["threshold"]["value"], said["threshold"]["statement"]) == (expected.value, expected.statement)
    assert said["replicas"][0]["ending"] == result.records[0].ending == "crossing"
    assert np.linalg.norm(result.crossings[0].arrays["forces_uncertainty"], axis=1).max() > expected.value


def test_sparkline():
    assert sparkline([0.0, 0.5, 1.0, 9.0], 1.0) == "▁▅██"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, a start, and labelled structures with forces that are not quite the model's."""
    potential = build_potential(LNK_CONFIG)
    save(potential, tmp_path / "model.sigmaff")
    save(build_potential(DeterministicConfig()), tmp_path / "bare.sigmaff")
    write(tmp_path / "start.extxyz", ethanol())
    generator, frames = np.random.default_rng(0), []
    for seed in range(30):
        atoms = rattled(ethanol(), seed)
        atoms.calc = Calculator(potential, forces_uncertainty="none")
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=generator.normal(forces, 0.3))
        frames.append(atoms)
    write(tmp_path / "held_out.extxyz", frames)
    return tmp_path


def command(*arguments: str | Path) -> tuple[int, str]:
    outcome = sigmaff("md", *arguments)
    return outcome.code, outcome.out + outcome.err


def test_the_command(folder: Path):
    arguments = [folder / "model.sigmaff", folder / "start.extxyz", "--output", folder / "run", "--steps", "6"]
    arguments += ["--stop-above", "auto", "--error-above", "1.5", "--risk", "0.2", "--on-crossing", "continue"]
    arguments += ["--calibration", folder / "held_out.extxyz", "--temperature", "200", "--temperature", "300"]
    arguments += ["--every", "2", "--check-every", "2", "--timestep", "0.25"]
    code, output = command(*arguments)
    assert code == 0, output
    statement = json.loads((folder / "run" / "md.json").read_text())["threshold"]["statement"]
    assert statement in output
    drift = json.loads((folder / "run" / "md.json").read_text())["drift"]["statement"]
    assert drift in output
    assert "off. 30 calibration structures" in drift
    assert "replica 1 (start 0 at 300 K): finished at step 6" in output
    assert "0/2 running, force σ " in output
    assert command(*arguments)[0] == 0
    code, output = command(*arguments, "--seed", "3")
    assert code == 1
    assert "seed: was 0, now 3" in output


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("model", ["--stop-above", "much"], "--stop-above: got 'much'; Input should be a valid number"),
        ("model", ["--stop-above", "auto", "--error-above", "1"], "give labelled structures .* with --calibration"),
        ("model", ["--stop-above", "auto"], "needs --error-above"),
        ("model", ["--ensemble", "nve"], "no velocities"),
        ("model", ["--ensemble", "npt"], "npt needs a cell"),
        ("bare", ["--stop-above", "1.0"], "no σ of forces"),
    ],
)
def test_commands_that_cannot_be(model: str, options: list[str], message: str, folder: Path):
    code, output = command(
        folder / f"{model}.sigmaff", folder / "start.extxyz", "-o", folder / "run", "--steps", "2", *options
    )
    assert code == 1
    assert re.search(message, output), output
