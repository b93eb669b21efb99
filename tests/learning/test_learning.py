"""Campaigns: what they leave, why they end, and what an interruption costs (nothing)."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ase.io
import numpy as np
import pytest
import yaml
from ase import Atoms
from pydantic import ValidationError

from campaign_case import SETTINGS, Counted, Silent, calls, go_on, settings
from cli_case import fail, succeed
from dask_case import running_scheduler
from sigmaff import load
from sigmaff.data.labelling import EngineConfig, label
from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.files import folder_lock
from sigmaff.learning import CampaignConfig, CampaignResult, ExploreConfig, learn
from sigmaff.learning.directory import Directory
from sigmaff.learning.start import start_structures
from sigmaff.models.file import read_header

if TYPE_CHECKING:
    from distributed import Client


@pytest.fixture(scope="module")
def client() -> Iterator["Client"]:
    with running_scheduler(1) as client:
        yield client


@pytest.fixture(scope="module")
def scheduler(client: "Client") -> dict[str, str]:
    return {"scheduler": client.scheduler_info()["address"]}


@pytest.fixture(scope="module")
def held_out_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled water, displaced as at the start."""
    folder = tmp_path_factory.mktemp("test")
    config = settings(folder)
    bare = start_structures(config.start, np.random.default_rng(99))
    ase.io.write(folder / "test.extxyz", [label(atoms, config.engine) for atoms in bare])
    return folder / "test.extxyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(folder: Path, scheduler: dict[str, str]) -> CampaignResult:
    """A campaign that nobody has interrupted."""
    return learn(settings(folder, cluster=scheduler), Silent())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def dataset(folder: Path) -> bytes:
    return (folder / "campaign" / "dataset.extxyz").read_bytes()


# --- what a campaign leaves


def test_it_ends_for_the_stated_reason(whole: CampaignResult) -> None:
    assert whole.reason == "2 rounds are done (stop.max_rounds)"
    assert [figures.n_labels for figures in whole.rounds] == [12, 15, 18]
    assert json.loads((whole.directory / "campaign.json").read_text())["ended"] == whole.reason


def test_replicas_have_safety_stops_beside_the_limit(whole: CampaignResult) -> None:
    """On energy σ and on the σ of atoms, as far beyond held-out structures as ``select.upper`` says."""
    for explored in sorted(whole.directory.glob("rounds/*/explored.json")):
        safety = json.loads(explored.read_text())["safety"]
        assert safety["energy"] > 0
        assert safety["atom"] > 0
        assert "3 times the largest of the" in safety["statement"]  # twice, times 1.5
        assert "held-out structures" in safety["statement"]


def test_nothing_is_labelled_twice(whole: CampaignResult, folder: Path) -> None:
    assert len(calls(folder)) == len(set(calls(folder))) == 18
    assert whole.rounds[-1].engine_calls == 18


def test_the_data_set_holds_every_label_as_the_engine_gives_it(whole: CampaignResult, tmp_path: Path) -> None:
    frames = ase.io.read(whole.directory / "dataset.extxyz", ":")
    expected = [f"00-{k:04d}" for k in range(12)] + [f"{r:02d}-{k:04d}" for r in (1, 2) for k in range(3)]
    assert [atoms.info["label_id"] for atoms in frames] == expected
    for atoms in frames:
        known = label(atoms, EngineConfig(calculator="campaign_case:Counted", arguments={"log": str(tmp_path / "x")}))
        assert atoms.get_potential_energy() == pytest.approx(known.get_potential_energy(), abs=1e-6)
        np.testing.assert_allclose(atoms.get_forces(), known.get_forces(), atol=1e-6)


def test_held_out_labels_are_the_same_in_every_round_and_never_trained_on(whole: CampaignResult) -> None:
    """One in four of all labels: of the start every fourth, of round 2 the one that comes after the selected ones."""
    for number, held_out in enumerate(([3, 7, 11], [3, 7, 11], [3, 7, 11, 17])):
        split = read_header(whole.directory / f"rounds/{number:02d}/model.sigmaff").record.split.model_dump()
        assert split["validation"] == held_out
        assert sorted(split["train"] + split["validation"]) == list(range(12 + 3 * number))
    frames = ase.io.read(whole.directory / "dataset.extxyz", ":")
    assert [index for index, atoms in enumerate(frames) if atoms.info["held_out"]] == [3, 7, 11, 17]
    assert [figures.n_held_out for figures in whole.rounds] == [3, 3, 4]


def test_the_backbone_is_kept_until_there_is_enough_to_learn(whole: CampaignResult) -> None:
    """9, 12 and 14 structures to train on: the last are more than 1.4 times the first."""
    backbones = [load(whole.directory / f"rounds/0{k}/model.sigmaff").backbone.state_dict() for k in range(3)]
    same = [all((backbones[0][name] == other[name]).all() for name in other) for other in backbones]
    assert same == [True, True, False]
    assert [figures.backbone.round for figures in whole.rounds] == [0, 0, 2]


def test_errors_of_new_structures_are_those_of_the_model_that_had_not_seen_them(whole: CampaignResult) -> None:
    from sigmaff.simulation import Calculator

    errors = []
    for path in sorted((whole.directory / "rounds/01/labels").glob("*.extxyz")):
        true = ase.io.read(path)
        atoms = true.copy()
        atoms.calc = Calculator(load(whole.directory / "rounds/00/model.sigmaff"), warn_above=None)
        errors.append(atoms.get_forces() - true.get_forces())
    assert whole.rounds[1].fresh.forces_mae == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def test_the_report_is_one_file_that_shows_the_picks(whole: CampaignResult) -> None:
    page = (whole.directory / "report.html").read_text()
    assert "18 labels from 18 calls of the engine; ended: 2 rounds are done" in page
    assert "://" not in page.replace("http://www.w3.org/", "")
    data = json.loads(page.split('id="viewer-data">')[1].split("</script>")[0])
    assert [entry["name"] for entry in data["sets"]] == ["Round 1", "Round 2"]
    picked = ase.io.read(whole.directory / "rounds/01/selected.extxyz", ":")
    for frame, atoms in zip(data["sets"][0]["frames"], picked, strict=True):
        std = np.sqrt(np.mean(atoms.arrays["forces_uncertainty"] ** 2, axis=1))
        np.testing.assert_allclose(frame["std"], std, rtol=1e-6)
    assert page.count("earlier choices leave") == 5
    assert page.count("drawn at random from the exploration, and held out") == 1
    assert "Last limit on force σ: " in page


def test_resume_of_a_finished_campaign(whole: CampaignResult, folder: Path, scheduler: dict[str, str]) -> None:
    before = contents(folder)
    again = learn(settings(folder, cluster=scheduler), Silent())
    assert again == whole
    assert contents(folder) == before


def test_it_goes_on_where_more_rounds_are_allowed(
    whole: CampaignResult, tmp_path: Path, scheduler: dict[str, str]
) -> None:
    shutil.copytree(whole.directory.parent, tmp_path / "copy")
    config = settings(whole.directory.parent, cluster=scheduler, stop={"max_rounds": 9, "max_labels": 20})
    more = learn(config.model_copy(update={"output": tmp_path / "copy" / "campaign"}), Silent())
    assert more.reason == "20 structures are labelled (stop.max_labels)"
    assert dataset(tmp_path / "copy").startswith(dataset(whole.directory.parent))


def test_resume_refuses_another_campaign_and_force_removes_it(
    whole: CampaignResult, tmp_path: Path, scheduler: dict[str, str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole.directory.parent, folder)
    config = settings(whole.directory.parent, select={"n": 4}).model_copy(update={"output": folder / "campaign"})
    with pytest.raises(ConfigError, match=r"another run \(select.n: was 3, now 4\).*--force"):
        learn(config, Silent())
    engine = {"arguments": {"log": str(folder / "log"), "fail": 1.0}}
    broken = settings(folder, engine=engine, cluster=scheduler)
    with pytest.raises(DataError, match=r"only 0 structures have a label.*out of order"):
        learn(broken, Silent(), force=True)
    assert not (folder / "campaign" / "dataset.extxyz").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path, whole: CampaignResult) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole.directory.parent, folder)
    before = contents(folder / "campaign")
    config = settings(folder)
    with folder_lock(config.output), pytest.raises(SigmaffError, match="another process is at work"):
        learn(config, Silent(), force=True)
    assert contents(folder / "campaign") == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "campaign").mkdir()
    (tmp_path / "campaign" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other files and no campaign\.json"):
        learn(settings(tmp_path), Silent(), force=True)
    assert [path.name for path in (tmp_path / "campaign").iterdir()] == ["thesis.tex"]


# --- interruptions


CUTS = {
    "some labels": "rounds/00/labels/0007.extxyz",
    "a trajectory": "rounds/01/explore/*.json",
    "a selection": "rounds/02/selected.extxyz",
    "the last model": "rounds/02/model.sigmaff",
}


@pytest.mark.parametrize("stage", CUTS)
def test_a_campaign_that_ended_after_any_stage_goes_on(
    stage: str, whole: CampaignResult, folder: Path, tmp_path: Path, scheduler: dict[str, str]
) -> None:
    """Files that came after it are taken away: that is what a kill leaves."""
    [last, *_] = sorted(whole.directory.glob(CUTS[stage]), key=lambda path: path.stat().st_mtime_ns)
    for path in whole.directory.rglob("*"):
        kept = path.name == "campaign.json" or path.stat().st_mtime_ns <= last.stat().st_mtime_ns
        if path.is_file() and kept:
            target = tmp_path / "campaign" / path.relative_to(whole.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    n_known = len(list((tmp_path / "campaign").glob("rounds/*/labels/*.extxyz")))
    config = settings(folder, cluster=scheduler).model_copy(update={"output": tmp_path / "campaign"})
    n_calls = len(calls(folder))
    result = learn(config, Silent())
    assert dataset(tmp_path) == dataset(folder)
    assert len(calls(folder)) - n_calls == 18 - n_known
    assert result.reason == whole.reason


def killed_campaign(folder: Path, address: str, moments: Iterator[float]) -> int:
    """Run a campaign to its end in processes that are killed after so many seconds; how many were."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["campaign_case", "sigmaff.training.loop"])
    n_killed = 0
    while True:
        process = context.Process(target=go_on, args=(folder, address))
        process.start()
        process.join(next(moments, None))
        if not process.is_alive():
            assert process.exitcode == 0
            return n_killed
        process.kill()
        process.join()
        n_killed += 1


def check_killed(folder: Path, whole: CampaignResult, n_killed: int) -> None:
    """The same data; no label again but those under way on the worker at a kill."""
    assert dataset(folder) == dataset(whole.directory.parent)
    assert len(set(calls(folder))) == 18
    assert len(calls(folder)) <= 18 + n_killed


def test_resume_after_two_kills(whole: CampaignResult, tmp_path: Path, scheduler: dict[str, str]) -> None:
    n_killed = killed_campaign(tmp_path, scheduler["scheduler"], iter((1.0, 2.0)))
    check_killed(tmp_path, whole, n_killed)


@pytest.mark.slow
def test_resume_after_twenty_kills(whole: CampaignResult, tmp_path: Path, scheduler: dict[str, str]) -> None:
    """At random moments, of one campaign after the other if the first is over too soon."""
    generator = random.Random(1)
    moments = (generator.uniform(0.2, 3.0) for _ in range(1000))
    n_killed = number = 0
    while n_killed < 20:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        killed = killed_campaign(folder, scheduler["scheduler"], moments)
        check_killed(folder, whole, killed)
        n_killed, number = n_killed + killed, number + 1


# --- labels that cannot be had


def test_failures_are_tried_again_then_set_aside_and_never_trained_on(
    tmp_path: Path, scheduler: dict[str, str]
) -> None:
    engine = {"arguments": {"log": str(tmp_path / "calls"), "fail": 0.15, "once": 0.4}}
    config = settings(tmp_path, engine=engine, cluster=scheduler, stop={"max_rounds": 1}, start={"n_labels": 20})
    listener = Silent()
    result = learn(config, listener)
    tried = Counter(calls(tmp_path))
    failures = json.loads((result.directory / "failures.json").read_text())
    frames = ase.io.read(result.directory / "dataset.extxyz", ":")
    assert failures
    assert all(len(failure["errors"]) == 2 for failure in failures)
    assert "ArithmeticError" in failures[0]["errors"][0] or "out of order" in failures[0]["errors"][0]
    assert not {failure["label_id"] for failure in failures} & {atoms.info["label_id"] for atoms in frames}
    assert len(frames) + len(failures) == 23
    assert set(tried.values()) == {1, 2}
    assert result.rounds[-1].engine_calls == sum(tried.values())
    assert any("set aside" in warning for warning in listener.warnings)


# --- other ways to begin, to explore and to end


def test_a_pool_at_random_without_sigma(held_out_file: Path, tmp_path: Path, scheduler: dict[str, str]) -> None:
    """Labels of the start are taken from the file; the pool is used up."""
    config = settings(
        tmp_path,
        start={"molecules": (), "source": str(held_out_file), "use_labels": True},
        model={"head": {"name": "deterministic"}},
        retrain={"every": 1},
        explore={"pool": str(held_out_file), "stop_above": None},
        select={"method": "random", "n": 8},
        stop={"max_rounds": 5},
        cluster=scheduler,
    )
    result = learn(config, Silent())
    assert result.reason == "no candidate of round 3 is worth a label: the pool is used up"
    assert [figures.engine_calls for figures in result.rounds] == [0, 8, 12]
    frames = ase.io.read(result.directory / "dataset.extxyz", ":")
    assert sorted(atoms.info["pool_index"] for atoms in frames[12:]) == list(range(12))
    known = {f"{atoms.get_potential_energy():.6f}" for atoms in ase.io.read(held_out_file, ":")}
    assert {f"{atoms.get_potential_energy():.6f}" for atoms in frames} == known


def test_it_ends_when_all_aims_hold(held_out_file: Path, tmp_path: Path, scheduler: dict[str, str]) -> None:
    config = settings(
        tmp_path,
        explore={"trust_below": 1e3, "steps": 4},
        select={"lower": 0.0},
        stop={"share_above": 0.0, "forces_mae": 1e3},
        test=str(held_out_file),
        retrain={"weights": "continue", "every": 1},
        cluster=scheduler,
    )
    result = learn(config, Silent())
    mae = result.rounds[0].test_value("forces_mae")
    assert result.reason == (
        f"converged: share of exploration beyond the limit on σ 0 (at most 0), "
        f"test force MAE {mae:.3g} eV/Å (at most 1000)"
    )
    assert result.rounds[-1].n_labels == 12
    strict = CampaignConfig.model_validate(config.model_dump() | {"stop": {"forces_mae": 1e-9, "max_rounds": 1}})
    further = learn(strict, Silent())
    assert further.reason == "1 rounds are done (stop.max_rounds)"
    assert further.rounds[1].backbone.round == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": {"molecules": ()}}, "start needs structures"),
        ({"start": {"use_labels": True}}, "molecules have no labels"),
        ({"start": {"n_labels": 7}}, "with one of 4 held out, at least 8 are needed"),
        ({"stop": {"forces_mae": 0.1}}, "aims on test structures: give test"),
        ({"stop": {"max_labels": 5}}, "less than start.n_labels"),
        ({"select": {"lower": 3.0, "upper": 2.0}}, "nothing lies between lower = 3 and upper = 2"),
        ({"model": {"head": {"name": "deterministic"}}}, "no σ to select or stop by"),
        ({"model": {"head": {"name": "evidential"}}}, "evidential head is trained as a whole; set every to 1"),
        ({"ensemble": {"size": 2}}, "an ensemble is trained as a whole"),
        ({"training": {"n_nodes": 2}}, "a campaign trains on one node"),
        ({"training": {"devices": 2}, "retrain": {"weights": "continue"}}, "set weights to scratch"),
        ({"engine": {"calculator": "gfn3-xtb"}}, "no engine 'gfn3-xtb'"),
    ],
)
def test_contradictions_are_told_before_the_first_label(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=words):
        settings(tmp_path, **changes)


def test_an_unknown_molecule(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ASE knows no molecule 'unobtainium'"):
        learn(settings(tmp_path, start={"molecules": ["unobtainium"]}), Silent())


# --- the commands


def test_the_command_tells_what_came_of_it(
    whole: CampaignResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = SETTINGS | {
        "engine": settings(whole.directory.parent).engine.model_dump(mode="json"),
        "output": str(whole.directory),
    }
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    printed = succeed("learn", tmp_path / "campaign.yaml", "--trust")
    assert "2 rounds are done (stop.max_rounds)" in printed
    assert str(whole.directory / "rounds" / "02" / "model.sigmaff") in printed
    assert "2 rounds are done" in succeed("learn", tmp_path / "campaign.yaml")  # the same file is trusted now
    wrong = fail("learn", tmp_path / "campaign.yaml", "--set", "explore.temperatures=500")
    assert "explore.temperatures: unknown key; nearest: temperature;" in wrong


def test_selection_alone(whole: CampaignResult, held_out_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "picked.extxyz"
    assert "5 of 12 structures" in succeed("select", whole.model_path, held_out_file, "-n", "5", "-o", out)
    picked = ase.io.read(out, ":")
    pool = [atoms.positions.tolist() for atoms in ase.io.read(held_out_file, ":")]
    assert len({pool.index(atoms.positions.tolist()) for atoms in picked}) == 5
    assert all("forces_uncertainty" in atoms.arrays for atoms in picked)
    assert "exists already" in fail("select", whole.model_path, held_out_file, "-o", out)


def test_the_engine_of_these_tests_is_a_potential(tmp_path: Path) -> None:
    """Its forces are the slope of its energy."""
    atoms = Atoms("OH2", positions=[[0.0, 0.1, 0.0], [0.9, 0.0, 0.2], [-0.3, 1.0, 0.0]])
    atoms.calc = Counted(str(tmp_path / "calls"))
    forces = atoms.get_forces()
    for atom, axis in np.ndindex(3, 3):
        energies = []
        for step in (1e-4, -1e-4):
            moved = atoms.copy()
            moved.positions[atom, axis] += step
            moved.calc = Counted(str(tmp_path / "calls"))
            energies.append(moved.get_potential_energy())
        assert forces[atom, axis] == pytest.approx((energies[1] - energies[0]) / 2e-4, abs=1e-4)


def test_the_old_name_of_the_limit_is_read(whole: CampaignResult, tmp_path: Path) -> None:
    """``explore.stop_above`` of old configurations and campaigns is ``explore.trust_below``."""
    assert ExploreConfig.model_validate({"stop_above": 0.3}) == ExploreConfig(trust_below=0.3)
    with pytest.raises(ValueError, match="stop_above is the old name of trust_below"):
        ExploreConfig.model_validate({"stop_above": 0.3, "trust_below": 0.3})
    path = whole.directory / "campaign.json"
    directory = Directory(tmp_path)
    (tmp_path / "campaign.json").write_text(path.read_text().replace("explore.trust_below", "explore.stop_above"))
    directory.claim(settings(whole.directory.parent), force=False)
    with pytest.raises(ConfigError, match=r"explore\.trust_below: was auto, now 0\.3"):
        directory.claim(settings(whole.directory.parent, explore={"trust_below": 0.3}), force=False)


def test_a_campaign_keeps_its_method_if_the_settings_name_none(whole: CampaignResult, tmp_path: Path) -> None:
    """The default of version 0.1 was another, and costs did not count."""
    content = json.loads((whole.directory / "campaign.json").read_text())
    content["settings"]["select.method"] = "variance_reduction"
    del content["settings"]["select.cost_power"]
    (tmp_path / "campaign.json").write_text(json.dumps(content))
    config = settings(whole.directory.parent)
    resumed = Directory(tmp_path).claim(config, force=False)
    assert (config.select.method, resumed.select.method) == ("max_det", "variance_reduction")
    with pytest.raises(ConfigError, match=r"select\.method: was variance_reduction, now max_det"):
        Directory(tmp_path).claim(settings(whole.directory.parent, select={"method": "max_det"}), force=False)
