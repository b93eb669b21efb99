"""What a campaign holds out: frames like those of the exploration, so that σ and its limit hold for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from scipy.stats import mannwhitneyu

from campaign_case import Silent, settings
from dask_case import running_scheduler
from sigmaff import load
from sigmaff.data import label_structures
from sigmaff.evaluation import calibrate_evaluation, evaluate
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.learning import CampaignConfig, CampaignResult, ExploreConfig, StartConfig, learn
from sigmaff.learning.directory import Context, Round, write_frames
from sigmaff.learning.explore import explore
from sigmaff.learning.labels import labels_so_far
from sigmaff.learning.limit import choose_limit
from sigmaff.learning.start import start_structures
from sigmaff.models.file import read_header
from sigmaff.simulation.md import Scores

if TYPE_CHECKING:
    from distributed import Client

OLD = Path(__file__).parents[1] / "data" / "v0.1.0" / "campaign" / "campaign" / "rounds"
N_START, N_LABELS = 12, 40


# --- a campaign that selects the structures of largest σ from a pool


@pytest.fixture(scope="module")
def client() -> Iterator["Client"]:
    with running_scheduler(1) as client:
        yield client


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, client: "Client") -> CampaignConfig:
    """One label in two is held out; the pool has structures from hardly to heavily distorted."""
    folder, rng = tmp_path_factory.mktemp("pool"), np.random.default_rng(3)
    pool = [molecule("H2O") for _ in range(200)]
    for atoms in pool:
        atoms.positions += rng.normal(0.0, rng.uniform(0.01, 0.2), (3, 3))
    write_frames(folder / "pool.extxyz", pool)
    return settings(
        folder,
        hold_out_every=2,
        explore={"pool": str(folder / "pool.extxyz"), "trust_below": 1e3},
        select={"n": N_LABELS, "method": "sigma", "lower": 0.0},
        stop={"max_rounds": 2, "share_above": None},
        cluster={"scheduler": client.scheduler_info()["address"]},
    )


@pytest.fixture(scope="module")
def result(config: CampaignConfig) -> CampaignResult:
    return learn(config, Silent())


def largest_std(atoms: Atoms) -> float:
    return float(np.linalg.norm(atoms.arrays["forces_uncertainty"], axis=1).max())


def parts(result: CampaignResult, number: int) -> tuple[list[Atoms], list[Atoms]]:
    """Trained on and held out, of the structures labelled in a round, as the model before saw them."""
    split = read_header(result.directory / f"rounds/{number:02d}/model.sigmaff").record.split
    assert split is not None
    chosen = ase.io.read(result.directory / f"rounds/{number:02d}/selected.extxyz", ":")
    first = N_START + N_LABELS * (number - 1)
    held_out = [chosen[index - first] for index in split.validation if index >= first]
    return [chosen[index - first] for index in split.train if index >= first], held_out


@pytest.mark.parametrize("number", [1, 2])
def test_held_out_structures_are_a_random_sample_of_the_exploration(result: CampaignResult, number: int) -> None:
    """Selected ones are not: their σ is the largest."""
    selected, held_out = parts(result, number)
    visited = [
        largest_std(atoms) for atoms in ase.io.read(result.directory / f"rounds/0{number}/candidates.extxyz", ":")
    ]
    assert mannwhitneyu([largest_std(atoms) for atoms in held_out], visited).pvalue > 0.05
    assert mannwhitneyu([largest_std(atoms) for atoms in selected], visited, alternative="greater").pvalue < 1e-6


def test_the_budget_of_labels_is_kept(result: CampaignResult) -> None:
    assert [figures.n_labels for figures in result.rounds] == [N_START, N_START + N_LABELS, N_START + 2 * N_LABELS]
    assert [figures.n_held_out for figures in result.rounds] == [6, 26, 46]
    assert [len(part) for number in (1, 2) for part in parts(result, number)] == [20, 20, 20, 20]


def test_each_label_tells_how_it_was_chosen(result: CampaignResult) -> None:
    frames = ase.io.read(result.directory / "dataset.extxyz", ":")
    assert [frame.info.get("method") for frame in frames[:N_START]] == [None] * N_START
    for number in (1, 2):
        rows = frames[N_START + N_LABELS * (number - 1) :][:N_LABELS]
        assert [frame.info["method"] for frame in rows] == ["sigma"] * 20 + ["random"] * 20
        assert [bool(frame.info["held_out"]) for frame in rows] == [False] * 20 + [True] * 20
    pool = [frame.info["pool_index"] for frame in frames[N_START:]]
    assert len(set(pool)) == len(pool)


def test_errors_of_selected_and_random_structures_are_told_apart(result: CampaignResult) -> None:
    for figures in result.rounds[1:]:
        for errors, part in zip((figures.fresh, figures.random), parts(result, figures.round), strict=True):
            assert errors is not None
            std = np.concatenate([atoms.arrays["forces_uncertainty"] for atoms in part])
            assert errors.forces_std == pytest.approx(np.sqrt(np.mean(std**2)))


def test_sigma_is_calibrated_on_random_structures(result: CampaignResult) -> None:
    """As soon as there are enough of them, without those of the start."""
    labelled = ase.io.read(result.directory / "rounds/01/dataset.extxyz", ":")
    model = load(result.directory / "rounds/01/model.sigmaff")
    drawn = label_structures(labelled[-20:])
    expected, _ = calibrate_evaluation(evaluate(model, dataset_for(model, drawn), name="random"))
    for ours, wanted in zip(model.calibrations[:2], expected[:2], strict=True):
        assert wanted is not None
        assert ours.scale == pytest.approx(wanted.scale, rel=1e-3)


def test_no_exploration_starts_from_a_held_out_structure(
    result: CampaignResult, config: CampaignConfig, client: "Client"
) -> None:
    """After a hundredth of a femtosecond each replica is where it was."""
    moves = {"pool": None, "starts": 1000, "timestep": 0.01, "steps": 1, "every": 1, "check_every": 1}
    changed = config.model_copy(update={"explore": config.explore.model_copy(update=moves | {"temperature": (300.0,)})})
    round_ = Round(3, result.directory / "rounds")
    explore(Context(changed, Silent(), lambda: client), round_)
    known = labels_so_far(round_.before, 2)
    visited = [atoms.positions for atoms in ase.io.read(round_.candidates, ":")]
    nearest = {int(np.argmin([np.abs(atoms.positions - frame).max() for atoms in known])) for frame in visited}
    assert len(nearest) == len(visited) == 46
    assert not any(known[index].info["held_out"] for index in nearest)


# --- the start


def test_every_molecule_of_the_start_is_trained_on() -> None:
    """As many molecules as labels between two that are held out: in the order given it would be always the same."""
    names = ("H2O", "CH4", "NH3", "CH3OH", "C2H6")
    frames = start_structures(StartConfig(molecules=names, n_labels=20), np.random.default_rng([0, 0, 0]))
    held_out = frames[4::5]
    assert sorted(str(atoms.symbols) for atoms in frames) == sorted(4 * [str(molecule(name).symbols) for name in names])
    assert len({str(atoms.symbols) for atoms in held_out}) > 1


# --- campaigns of version 0.1


def test_an_old_round_holds_out_what_it_did() -> None:
    """Every fourth label, by its place in the data set: 12 of the start and one of round 1."""
    labelled = labels_so_far(Round(1, OLD), 4)
    assert [index for index, atoms in enumerate(labelled) if atoms.info["held_out"]] == [3, 7, 11]
    assert len(labelled) == 13


# --- the limit

RISK, ERROR = 0.2, 1.0


def simulated(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """σ and error of frames of an exploration: one in two has an error above 1, whatever its σ."""
    return rng.uniform(0.0, 1.0, n), rng.exponential(ERROR / np.log(2.0), n)


def held_out_scores(rng: np.random.Generator, n_drawn: int) -> tuple[Scores, list[int | None]]:
    """Many structures of the start, known well, and some of one exploration."""
    std, error = simulated(rng, n_drawn)
    scores = Scores(
        forces_std=np.concatenate([rng.uniform(0.0, 2.0, 40), std]), forces_error=np.concatenate([np.zeros(40), error])
    )
    return scores, [None] * 40 + [1] * n_drawn


@pytest.mark.parametrize("n_drawn", [4, 9, 30])
def test_a_frame_of_the_exploration_keeps_the_risk(n_drawn: int) -> None:
    """On average over draws, within three standard errors. Structures of the start would promise too much."""
    rng, n = np.random.default_rng(n_drawn), 2000
    explore_config = ExploreConfig(error_above=ERROR, risk=RISK)
    harm = np.zeros(n)
    for draw in range(n):
        limit = choose_limit(explore_config, *held_out_scores(rng, n_drawn))
        if limit.accepted is not None:
            std, error = simulated(rng, 100)
            harm[draw] = np.mean((std <= limit.value) & (error > ERROR))
    assert harm.mean() <= RISK + 3 * harm.std() / np.sqrt(n)
    assert np.mean(harm > 0) > 0.4  # most limits let something pass


def scores(std: list[float], error: list[float]) -> Scores:
    return Scores(forces_std=np.array(std), forces_error=np.array(error))


def test_without_enough_random_structures_nothing_is_promised() -> None:
    """20 structures of the start are none of an exploration."""
    limit = choose_limit(ExploreConfig(risk=0.2), scores([0.1] * 20 + [0.3], [0.0] * 21), [None] * 20 + [1])
    assert limit.accepted is None
    assert limit.value == 0.3
    assert "a risk of 0.2 takes 4 labels drawn at random from explorations, and there are 1" in limit.statement


def test_the_latest_exploration_counts_alone_if_it_has_enough() -> None:
    """Four for a risk of 0.2. The large error is in round 1."""
    std, error = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.0, 9.0, 0.0, 0.0, 0.0, 0.0]
    config = ExploreConfig(error_above=ERROR, risk=RISK)
    latest = choose_limit(config, scores(std, error), [1, 1, 2, 2, 2, 2])
    assert latest.value == 0.6
    assert "4 that were drawn at random from the exploration of round 2" in latest.statement
    mixed = choose_limit(config, scores(std, error), [1, 1, 1, 2, 2, 2])
    assert mixed.value == pytest.approx(0.2)
    assert mixed.value < 0.2
    assert "drawn at random from the explorations of rounds 1 to 2" in mixed.statement
    assert "assumed: this exploration visits structures like them" in mixed.statement
    assert "the validation set, at which training, choices and the calibration of σ have looked" in mixed.statement


def test_where_the_risk_asks_for_no_limit_it_is_the_largest_known_sigma() -> None:
    """Of any held-out structure, as if nothing were promised: one of few frames would stop most explorations."""
    known = scores([0.9, 0.1, 0.2, 0.1, 0.3], [5.0, 0.1, 0.1, 0.1, 0.1])
    limit = choose_limit(ExploreConfig(error_above=ERROR, risk=RISK), known, [None, 1, 1, 1, 1])
    assert (limit.value, limit.accepted) == (0.9, 1.0)
    assert "whatever its σ, a structure like 4 that were drawn at random" in limit.statement
