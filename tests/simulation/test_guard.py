"""What a guard promises for whole runs, how its folder comes about, and which runs may use it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from pydantic import ValidationError
from scipy.stats import beta, binom

from calculator_case import LNK_CONFIG, build_potential, ethanol, rattled
from campaign_case import Silent
from cli_case import fail, succeed
from dask_case import running_scheduler
from guard_case import CUBIC, Interrupted, n_calls, settings
from md_case import Wells, at_sites, changed
from sigmaff.errors import ConfigError, DataError
from sigmaff.heads import DeterministicConfig
from sigmaff.models.file import save
from sigmaff.simulation.md import MDConfig, PilotRun, Scores, guard, risk_threshold, run_md
from sigmaff.simulation.md.guard import GuardResult
from sigmaff.simulation.md.pilots import promise, run_limit
from sigmaff.simulation.md.risk import fewest, highest_risk, n_allowed

N_CHECKS, ERROR_ABOVE = 41, 0.6


# --- the promise, on runs of which all is known


def autoregressive(shape: tuple[int, ...], generator: np.random.Generator, memory: float) -> np.ndarray:
    """Standard normal, correlated along the last axis."""
    values = generator.standard_normal(shape)
    for index in range(1, shape[-1]):
        values[..., index] = memory * values[..., index - 1] + np.sqrt(1.0 - memory**2) * values[..., index]
    return values


def drawn_runs(n: int, generator: np.random.Generator) -> list[tuple[PilotRun, np.ndarray]]:
    """Runs with σ and errors that are correlated in time and, partly, with each other; their errors."""
    level = 0.3 * generator.standard_normal((n, 1))
    std = np.exp(-2.0 + level + 0.4 * autoregressive((n, N_CHECKS), generator, 0.9))
    errors = std * np.exp(0.7 * autoregressive((n, N_CHECKS), generator, 0.8))
    steps = 10 * np.arange(N_CHECKS)
    wrong = [np.flatnonzero(row > ERROR_ABOVE) for row in errors]
    return [
        (PilotRun(steps=steps, forces_std=s, wrong_at=int(10 * w[0]) if w.size else None, ended_at=400), e)
        for s, e, w in zip(std, errors, wrong, strict=True)
    ]


@pytest.mark.parametrize(("risk", "n_pilots"), [(0.05, 19), (0.1, 39)])
def test_runs_keep_the_promise_and_a_limit_for_frames_does_not(risk: float, n_pilots: int):
    """Mean over draws of pilot runs: of runs at most x, by theory at least x − 1 / (K + 1); many more by frames."""
    generator, by_runs, by_frames = np.random.default_rng(0), [], []
    for _ in range(500):
        pilots, new = drawn_runs(n_pilots, generator), [run for run, _ in drawn_runs(10, generator)]
        limit = run_limit([run for run, _ in pilots], n_allowed(n_pilots, risk))
        by_runs.append(np.mean([run.does_harm(limit) for run in new]))
        std = np.concatenate([run.forces_std for run, _ in pilots])
        chosen = generator.permutation(std.size)[:200]
        scores = Scores(forces_std=std[chosen], forces_error=np.concatenate([e for _, e in pilots])[chosen])
        limit = risk_threshold(scores, ERROR_ABOVE, risk).value
        by_frames.append(np.mean([run.does_harm(limit) for run in new]))
    spread = 3 * np.std(by_runs) / np.sqrt(500)
    assert risk - 1 / (n_pilots + 1) - spread < np.mean(by_runs) < risk + spread
    assert np.mean(by_frames) > 4 * risk


def test_a_promise_with_confidence_is_kept_by_almost_every_draw():
    """59 pilot runs, 5 % and 95 %; of the limit that holds on average, the bound that is told is kept as often."""
    generator = np.random.default_rng(1)
    truth = np.sort([run.score for run, _ in drawn_runs(20_000, generator)])
    broken, broken_bound, bound = 0, 0, highest_risk(59, n_allowed(59, 0.05), 0.95)
    for _ in range(400):
        pilots = [run for run, _ in drawn_runs(59, generator)]
        sure, mean = (run_limit(pilots, n_allowed(59, 0.05, how)) for how in (0.95, None))
        broken += np.searchsorted(truth, sure, side="right") / truth.size > 0.05
        broken_bound += np.searchsorted(truth, mean, side="right") / truth.size > bound
    allowed = 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert 0 < broken / 400 < allowed
    assert broken_bound / 400 < allowed


def stopped_in_time(run: PilotRun, errors: np.ndarray, limit: float) -> bool:
    """The definition, check by check."""
    for std, error in zip(run.forces_std, errors, strict=True):
        if std > limit:
            return True
        if error > ERROR_ABOVE:
            return False
    return True


def test_harm_is_what_the_definition_says_and_never_falls_with_the_limit():
    generator = np.random.default_rng(2)
    for run, errors in drawn_runs(100, generator):
        limits = np.sort(np.append(run.forces_std, generator.uniform(0.0, 1.0, 10)))
        harm = [run.does_harm(limit) for limit in limits]
        assert harm == [not stopped_in_time(run, errors, limit) for limit in limits]
        assert harm == sorted(harm)


def test_a_shorter_run_does_no_more_harm():
    for run, errors in drawn_runs(100, np.random.default_rng(3)):
        wrong = np.flatnonzero(errors[:20] > ERROR_ABOVE)
        short = replace(
            run, steps=run.steps[:20], forces_std=run.forces_std[:20], wrong_at=10 * wrong[0] if wrong.size else None
        )
        assert short.score >= run.score


def test_an_unphysical_end_is_an_error_unless_a_check_before_stops_the_run():
    run = PilotRun(steps=np.array([0, 10, 20]), forces_std=np.array([1.0, 3.0, 2.0]), wrong_at=27, ended_at=27)
    assert (run.score, run.does_harm(3.0), run.does_harm(2.9)) == (3.0, True, False)
    assert (run.last_step(2.9), run.last_step(3.0), run.oracle_step) == (10, 27, 27)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("risk", [0.01, 0.05, 0.1, 0.5])
def test_counts_of_allowed_harm(risk: float, confidence: float):
    """By trial of every count, and by the bound of Clopper and Pearson."""
    for n in (1, 18, 19, 58, 59, 60, 300):
        on_average = [k for k in range(n + 1) if (k + 1) / (n + 1) <= risk + 1e-12]
        assert n_allowed(n, risk) == max(on_average, default=-1)
        sure = [k for k in range(n) if binom.cdf(k, n, risk) <= 1.0 - confidence]
        assert n_allowed(n, risk, confidence) == max(sure, default=-1)
        assert all(beta.ppf(confidence, k + 1, n - k) <= risk + 1e-9 for k in sure)
    for how in (None, confidence):
        assert n_allowed(fewest(risk, how), risk, how) >= 0
        assert n_allowed(fewest(risk, how) - 1, risk, how) == -1


def test_known_numbers_of_pilot_runs():
    assert (fewest(0.05), fewest(0.1), fewest(0.05, 0.95), fewest(0.1, 0.95)) == (19, 9, 59, 29)
    assert highest_risk(19, 0, 0.95) == pytest.approx(1.0 - 0.05 ** (1 / 19))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pilots": 3, "risk": 0.2}, "3 pilots cannot promise a risk of 0.2: at least 4 can"),
        ({"pilots": 28, "risk": 0.1, "confidence": 0.95}, "with a confidence of 0.95: at least 29 can"),
        ({"temperature": [300.0, 600.0]}, "at most 1"),
        ({"forces_std": "none"}, "does not compute it"),
    ],
)
def test_guards_that_cannot_be(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValidationError, match=message):
        settings(tmp_path, "tcp://nowhere", **changes)


def test_a_limit_that_stops_every_run_at_once_is_refused_with_the_risk_that_would_do():
    """Runs are wrong at once where σ is smallest."""
    runs = [
        PilotRun(
            steps=np.array([0, 10]),
            forces_std=np.array([s, s]),
            wrong_at=0 if s < 3.5 else None,
            ended_at=10,
        )
        for s in np.arange(1.0, 10.0)
    ]
    with pytest.raises(ConfigError, match=r"stopped at their start\. Half of a run .* risk of 0\.4") as error:
        promise(runs, 10, 0.5, 0.1)
    risk = float(re.findall(r"risk of ([\d.]+);", str(error.value))[0])
    assert promise(runs, 10, 0.5, risk).done >= 0.5


def test_what_the_limit_costs_is_told():
    """20 steps each; the first run is wrong at step 10 with σ = 3, the others never."""
    stds = np.array([[1.0, 3.0, 1.0], [1.0, 2.0, 4.0], [1.0, 1.0, 2.0], [2.0, 2.0, 2.0]])
    runs = [
        PilotRun(steps=np.array([0, 10, 20]), forces_std=std, wrong_at=10 if index == 0 else None, ended_at=20)
        for index, std in enumerate(stds)
    ]
    found = promise(runs, 20, 0.5, 0.2)
    assert found.limit == np.nextafter(3.0, 0.0)
    assert (found.wrong, found.harmful, found.stopped) == (1, 0, 2)
    assert found.done == pytest.approx((0.5 + 1.0 + 1.0 + 1.0) / 4)
    assert found.done_by_oracle == pytest.approx((0.5 + 1.0 + 1.0 + 1.0) / 4)
    assert "88% of a run is done on average" in found.cost
    assert "at most 0.53 with a confidence of 0.95; 14 pilot runs or more" in found.statement("nvt")


# --- a guard, from pilot runs to a guarded run


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with one worker."""
    with running_scheduler(1) as client:
        yield client.scheduler.address


STARTS = [rattled(at_sites(), seed) for seed in range(5)]


def moves(path: Path, **changes: Any) -> MDConfig:
    """The runs of ``guard_case.settings``, guarded."""
    kind = {"temperature": 900.0, "timestep": 8.0, "steps": 30, "check_every": 3, "every": 3}
    return MDConfig.model_validate({**kind, "stop_above": path, **changes})


def away(frame: Atoms) -> float:
    """The largest displacement of an atom, Å."""
    sites = np.array(Wells().sites)
    return float(np.linalg.norm(frame.positions - frame.positions.mean(0) - (sites - sites.mean(0)), axis=1).max())


def test_a_guard_finds_the_limit_that_its_runs_allow(tmp_path: Path, scheduler: str):
    """Errors and σ of the wells follow from displacements: the error is k c |d|³, σ is k |d|."""
    result = guard(Wells(), STARTS, settings(tmp_path, scheduler), tmp_path / "guard")
    scores = []
    for number in range(9):
        frames = ase.io.read(tmp_path / "guard" / "pilots" / f"trajectory-{number}.extxyz", ":")
        assert [frame.info["step"] for frame in frames] == list(range(0, 31, 3))
        largest = np.maximum.accumulate([away(frame) for frame in frames])
        wrong = 4.0 * CUBIC * largest**3 > 0.1
        scores.append(4.0 * largest[wrong.argmax()] if wrong.any() else np.inf)
    assert 2 < sum(np.isfinite(scores)) < 9
    assert result.promise.limit == pytest.approx(sorted(scores)[1], abs=1e-6)  # 2 / 10 ≤ 0.2: one may do harm
    assert result.promise.limit < sorted(run.score for run in result.runs)[1]
    said = json.loads(result.path.read_text())
    assert said["statement"] == result.statement
    assert said["promise"]["harmful"] == 1
    guarded = run_md(Wells(), STARTS, moves(result.path, replicas=4, seed=5), tmp_path / "run")
    assert guarded.threshold is not None
    assert (guarded.threshold.value, guarded.threshold.statement) == (result.promise.limit, result.statement)
    pilots = [ase.io.read(tmp_path / "guard" / "pilots" / f"trajectory-{number}.extxyz", ":") for number in range(9)]
    largest = max(
        frame.info["energy_uncertainty"] / 4
        for frames, run in zip(pilots, result.runs, strict=True)
        for frame, is_right in zip(frames, run.is_right, strict=True)
        if is_right
    )
    assert guarded.safety is not None
    assert guarded.safety.energy == pytest.approx(2.0 * largest)
    passed = [
        4.0 * CUBIC * max(away(frame) for frame in ase.io.read(guarded.trajectory(number), ":")) ** 3 > 0.1
        for number in range(20)
    ]
    assert np.mean(passed) < 0.5  # without the limit about 0.8
    del said["known"]  # as of a version without safety stops
    result.path.write_text(json.dumps(said))
    again = run_md(Wells(), STARTS, moves(result.path, replicas=4, seed=5), tmp_path / "run")
    assert (again.safety, again.records) == (guarded.safety, guarded.records)  # as the run began
    old = run_md(Wells(), STARTS, moves(result.path, steps=0), tmp_path / "old")
    assert (old.threshold, old.safety) == (guarded.threshold, None)


def test_labels_end_at_the_first_error_and_serve_another_question(tmp_path: Path, scheduler: str):
    first = guard(Wells(), STARTS, settings(tmp_path, scheduler), tmp_path / "guard")
    labelled = n_calls(tmp_path)
    assert labelled == len(list((tmp_path / "guard" / "labels").iterdir()))
    expected = [31 if run.wrong_at is None else run.wrong_at + 1 for run in first.runs]
    assert labelled == sum(len(range(0, steps, 3)) for steps in expected)
    guard(Wells(), STARTS, settings(tmp_path, scheduler, risk=0.4), tmp_path / "guard")
    assert n_calls(tmp_path) == labelled
    larger = guard(Wells(), STARTS, settings(tmp_path, scheduler, error_above=0.15), tmp_path / "guard")
    assert n_calls(tmp_path) > labelled
    assert larger.promise.limit > first.promise.limit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, scheduler: str) -> GuardResult:
    """A guard that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    return guard(Wells(), STARTS, settings(folder, scheduler, checkpoint_every=7), folder / "guard")


@pytest.mark.parametrize(("stage", "n"), [("pilot runs", 20), ("labels", 0), ("labels", 4)])
def test_an_interrupted_guard_resumes(stage: str, n: int, whole: GuardResult, tmp_path: Path, scheduler: str):
    """In the pilot runs, between them and the labels, among the labels: the same limit; what is there stays."""
    config = settings(tmp_path, scheduler, checkpoint_every=7)
    with pytest.raises(KeyboardInterrupt):
        guard(Wells(), STARTS, config, tmp_path / "guard", Interrupted(stage, n))
    with pytest.raises(ConfigError, match="no limit yet: run its sigmaff guard to the end"):
        run_md(Wells(), STARTS, moves(tmp_path / "guard" / "guard.json"), tmp_path / "run")
    folder = tmp_path / "guard" / "labels"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()} if folder.exists() else {}
    assert len(before) == (n if stage == "labels" else 0)
    result = guard(Wells(), STARTS, config, tmp_path / "guard")
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())
    assert n_calls(tmp_path) <= len(list(folder.iterdir())) + 9  # labels that were under way
    assert (result.promise, result.statement) == (whole.promise, whole.statement)
    with pytest.raises(ConfigError, match=r"another run .*pilots: was 9, now 10"):
        guard(Wells(), STARTS, settings(tmp_path, scheduler, pilots=10), tmp_path / "guard")


def test_pilot_runs_are_none_of_the_later_runs(tmp_path: Path, scheduler: str):
    """Also with one start and the same seed."""
    result = guard(Wells(), STARTS[:1], settings(tmp_path, scheduler), tmp_path / "guard")
    run_md(Wells(), STARTS[:1], moves(result.path, replicas=9), tmp_path / "run")
    ends = [
        {ase.io.read(path, 1).positions.tobytes() for path in folder.glob("trajectory-*.extxyz")}
        for folder in (tmp_path / "guard" / "pilots", tmp_path / "run")
    ]
    assert len(ends[0]) == 9
    assert not ends[0] & ends[1]


def test_what_the_engine_cannot_label_counts_as_an_error(tmp_path: Path, scheduler: str):
    """Displacements beyond 0.3 Å have a σ of 1.2 eV/Å."""
    listener = Silent()
    config = settings(tmp_path, scheduler, fail_beyond=0.3, risk=0.1)
    result = guard(Wells(), STARTS, config, tmp_path / "guard", listener)
    assert result.promise.limit == pytest.approx(min(run.score for run in result.runs))
    assert 1.2 <= result.promise.limit < 1.5
    assert re.search(r"\d checks have no label and count as errors", listener.warnings[0])


def test_an_engine_that_labels_nothing_is_an_error_and_leaves_no_trace(tmp_path: Path, scheduler: str):
    with pytest.raises(DataError, match=r"no pilot run could be labelled .* too far for the engine"):
        guard(Wells(), STARTS, settings(tmp_path, scheduler, fail_beyond=0.0), tmp_path / "guard")
    assert not (tmp_path / "guard" / "labels").exists()


def test_a_start_that_cannot_be_is_named_by_its_place_in_the_file(tmp_path: Path, scheduler: str):
    bad = at_sites()
    bad.positions[1] = bad.positions[0] + 0.1
    with pytest.raises(DataError, match="start 3: atoms 0 and 1 are"):
        guard(Wells(), [*STARTS[:3], bad], settings(tmp_path, scheduler), tmp_path / "guard")


def test_a_run_that_breaks_is_wrong_where_it_ends(tmp_path: Path, scheduler: str):
    config = settings(tmp_path, scheduler, error_above=100.0, risk=0.1)
    result = guard(Wells(edge=0.4), STARTS, config, tmp_path / "guard")
    broken = [run for run in result.runs if run.ended_at < 30]
    assert len(broken) > 2
    assert all(run.wrong_at == run.ended_at for run in broken)
    assert result.promise.limit < min(run.score for run in broken)


@pytest.mark.parametrize("name", ["wells", "network"])
def test_a_stopped_run_is_the_beginning_of_the_run_without_a_limit(name: str, tmp_path: Path):
    """Bit for bit: so a limit may be applied afterwards."""
    if name == "wells":
        model, start, limit, config = Wells(), STARTS[0], 1.4, moves(Path("guard.json"), steps=400, stop_above=1.4)
    else:
        model, start, limit = build_potential(LNK_CONFIG), ethanol(), None
        config = MDConfig(timestep=0.25, steps=40, check_every=2, every=2, hottest=1e6)
    free = run_md(model, [start], changed(config, stop_above=None), tmp_path / "free")
    whole = np.genfromtxt(tmp_path / "free" / "log.csv", delimiter=",", names=True)
    limit = limit or float(np.sort(whole["forces_std_max"])[-2])
    stopped = run_md(model, [start], changed(config, stop_above=limit), tmp_path / "stopped")
    [record] = stopped.records
    assert record.ending == "crossing"
    above = whole["forces_std_max"] > limit
    assert record.ended_at == whole["step"][above.argmax()]
    for file in ("trajectory-0.extxyz", "log.csv"):
        begun = (tmp_path / "stopped" / file).read_bytes()
        assert begun
        assert free.trajectory(0).with_name(file).read_bytes().startswith(begun)


# --- runs that the promise is not about


class OtherWells(Wells):
    """Another model."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, scheduler: str) -> Path:
    """The file of a guard."""
    folder = tmp_path_factory.mktemp("made")
    return guard(Wells(), STARTS, settings(folder, scheduler), folder / "guard").path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 1000.0}, r"temperature: was \[900.0\], now \[1000.0\]"),
        ({"temperature": [900.0, 300.0]}, "temperature"),
        ({"steps": 31}, "steps: was 30, now 31; only shorter runs are covered"),
        ({"timestep": 2.0}, "timestep: was 8.0, now 2.0"),
        ({"check_every": 6}, "check_every: was 3, now 6"),
        ({"damping": 10.0}, "damping"),
        ({"thermostat": "bussi"}, "thermostat: was langevin, now bussi"),
        ({"ensemble": "nve"}, "ensemble"),
        ({"forces_std": "exact"}, "forces_std"),
    ],
)
def test_a_guard_is_refused_for_other_runs(changes: dict[str, Any], message: str, made: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        run_md(Wells(), STARTS, moves(made, **changes), tmp_path / "run")


def test_a_guard_is_refused_for_another_model_or_molecule(made: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="model: was Wells, now OtherWells"):
        run_md(OtherWells(), STARTS, moves(made), tmp_path / "run")
    krypton = at_sites()
    krypton.numbers[:] = 36
    with pytest.raises(ConfigError, match="no pilot run started from Kr4"):
        run_md(Wells(), [krypton], moves(made), tmp_path / "run")


def test_shorter_runs_other_outputs_and_seeds_are_covered_and_other_starts_are_told(made: Path, tmp_path: Path):
    fine = {"steps": 20, "seed": 4, "replicas": 2, "every": 7, "thermostat": "langevin"}
    result = run_md(Wells(), STARTS, moves(made, **fine), tmp_path / "run")
    assert result.threshold is not None
    assert "starts are not those" not in result.threshold.statement
    result = run_md(Wells(), [rattled(at_sites(), 9)], moves(made), tmp_path / "other")
    assert result.threshold is not None
    assert "The starts are not those of the guard" in result.threshold.statement


def test_a_setting_that_a_guard_does_not_know_had_its_default(made: Path, tmp_path: Path):
    """As in a file of an earlier version."""
    content = json.loads(made.read_text())
    del content["kind"]["motion"]["pressure_damping"]
    (tmp_path / "guard.json").write_text(json.dumps(content))
    run_md(Wells(), STARTS, moves(tmp_path / "guard.json"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"pressure_damping: was 1000\.0, now 9\.0"):
        run_md(Wells(), STARTS, moves(tmp_path / "guard.json", pressure_damping=9.0), tmp_path / "other")


def test_a_guarded_run_resumes_and_is_not_extended_beyond_its_promise(made: Path, tmp_path: Path):
    run_md(Wells(), STARTS, moves(made, steps=20), tmp_path / "run")
    result = run_md(Wells(), STARTS, moves(made), tmp_path / "run")
    assert all(record.ending in ("finished", "crossing") for record in result.records)
    with pytest.raises(ConfigError, match="only shorter runs are covered"):
        run_md(Wells(), STARTS, moves(made, steps=90), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"another run .*stop_above changed"):
        run_md(Wells(), STARTS, moves(made, stop_above=2.0), tmp_path / "run")


def test_files_that_are_no_guard(tmp_path: Path):
    with pytest.raises(DataError, match="does not exist: sigmaff guard makes it"):
        run_md(Wells(), STARTS, moves(tmp_path / "guard.json"), tmp_path / "run")
    (tmp_path / "guard.json").write_text("{}")
    with pytest.raises(DataError, match="no file of sigmaff guard"):
        run_md(Wells(), STARTS, moves(tmp_path / "guard.json"), tmp_path / "run")
    for changes in ({"on_crossing": "continue"}, {"on_crossing": "rollback"}, {"error_above": 1.0}):
        with pytest.raises(ValidationError, match="guard"):
            moves(tmp_path / "guard.json", **changes)


# --- the command


def test_the_command_with_tight_binding(tmp_path: Path, scheduler: str):
    """Weights are random, so the error to guard against is large."""
    save(build_potential(LNK_CONFIG), tmp_path / "model.sigmaff")
    save(build_potential(DeterministicConfig()), tmp_path / "bare.sigmaff")
    ase.io.write(tmp_path / "starts.extxyz", [rattled(ethanol(), seed) for seed in range(3)])
    runs = ["--temperature", "200", "--steps", "4", "--check-every", "2", "--timestep", "0.1"]
    asked = ["--error-above", "1e3", "--risk", "0.25", "--pilots", "3", "--scheduler", scheduler]
    model, starts = tmp_path / "model.sigmaff", tmp_path / "starts.extxyz"
    output = succeed("guard", model, starts, *runs, *asked, "-o", tmp_path / "guard")
    assert "errors against gfn2-xtb" in output
    assert "of the 3 pilot runs, 0 have such an error" in output
    guarded = ["--stop-above", tmp_path / "guard" / "guard.json", "-o", tmp_path / "run"]
    assert "Of runs like the 3 pilot runs" in succeed("md", model, starts, *runs, *guarded)
    assert "timestep: was 0.1, now 0.2" in fail("md", model, starts, *runs, *guarded, "--timestep", "0.2")
    assert "no σ of forces" in fail("guard", tmp_path / "bare.sigmaff", starts, *runs, *asked, "-o", tmp_path / "bare")
