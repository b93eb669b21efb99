"""Order in time, found in synthetic trajectories of known correlation, and splits that respect it."""

import numpy as np
import pytest
from ase import Atoms

from sigmaff.data import LabelledStructures, Split, SplitConfig, split_structures
from sigmaff.data.check import check_structures
from sigmaff.data.order import LIMIT, find_series

N_ATOMS = 6


def autoregressive(n: int, memory: float, seed: int = 0, numbers: str = "C6") -> list[Atoms]:
    """Atoms that fluctuate about their places; frames k apart have the correlation exp(−k/memory)."""
    random = np.random.default_rng(seed)
    places = 4.0 * np.random.default_rng(99).normal(size=(N_ATOMS, 3))
    phi = np.exp(-1.0 / memory)
    noise = random.normal(size=(n, N_ATOMS, 3))
    steps = [noise[0]]
    for kick in noise[1:]:
        steps.append(phi * steps[-1] + np.sqrt(1 - phi**2) * kick)
    return [Atoms(numbers, places + 0.05 * step) for step in steps]


def data(frames: list[Atoms], time_index: np.ndarray | None = None) -> LabelledStructures:
    energy = np.array([atoms.positions.sum() for atoms in frames])
    return LabelledStructures(
        structures=tuple(frames),
        energy=energy,
        forces=None,
        source="synthetic",
        frame_index=np.arange(len(frames)),
        time_index=time_index,
    )


def nearest(split: Split, order: np.ndarray) -> int:
    """Smallest distance in time between frames of different parts; ``order`` is the time of each frame."""
    parts = [order[part] for part in (split.train, split.validation, split.test) if len(part)]
    return min(int(np.abs(a[:, None] - b).min()) for k, a in enumerate(parts) for b in parts[:k])


@pytest.mark.parametrize("memory", [2.0, 8.0, 30.0])
def test_memory_is_that_of_the_process(memory: float):
    """exp(−k/memory) falls below LIMIT at k = memory · ln(1/LIMIT)."""
    (series,) = find_series(data(autoregressive(4000, memory)))
    assert series.correlation == pytest.approx(np.exp(-1.0 / memory), abs=0.05)
    assert series.memory == pytest.approx(memory * np.log(1.0 / LIMIT), rel=0.25, abs=1.5)


def test_the_default_split_keeps_correlated_frames_apart():
    trajectory = data(autoregressive(1000, 5.0))
    (series,) = find_series(trajectory)
    sizes = {"n_train": 300, "n_validation": 100, "n_test": 100}
    random, default = (split_structures(SplitConfig(**kind, **sizes), trajectory) for kind in ({"kind": "random"}, {}))
    time = np.arange(1000)
    assert nearest(random, time) == 1
    assert nearest(default, time) > series.memory > 3
    for split in (random, default):
        assert [len(split.train), len(split.validation), len(split.test)] == [300, 100, 100]
    assert "in blocks of time: consecutive frames are correlated (0.8" in default.reason
    thirds = np.histogram(default.train, bins=3, range=(0, 1000))[0]
    assert thirds.min() > 50, "training frames cover the trajectory"


def test_seeds_reproduce_the_split():
    trajectory = data(autoregressive(500, 5.0))
    splits = [
        split_structures(SplitConfig(n_train=100, n_validation=50, n_test=50, seed=seed), trajectory).to_dict()
        for seed in (0, 0, 1)
    ]
    assert splits[0] == splits[1] != splits[2]


@pytest.mark.parametrize("independent", ["shuffled", "drawn", "few"])
def test_independent_frames_are_split_at_random(independent: str):
    frames = autoregressive(500, 1e-3 if independent == "drawn" else 5.0)
    if independent == "shuffled":
        frames = [frames[k] for k in np.random.default_rng(1).permutation(500)]
    if independent == "few":  # of each composition
        frames = [atoms for k in range(40) for atoms in autoregressive(10, 5.0, k, f"C{1 + k % 5}N{5 - k % 5}")][:80]
        frames = [Atoms(np.roll(atoms.numbers, k // 10), atoms.positions) for k, atoms in enumerate(frames)]
    config = SplitConfig(n_train=40, n_validation=20)
    found, expected = (
        split_structures(config.model_copy(update={"kind": kind}), data(frames)) for kind in ("auto", "random")
    )
    assert found.reason == "at random: consecutive frames are not correlated"
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))


def test_a_time_index_orders_shuffled_frames():
    frames = autoregressive(600, 5.0)
    time = np.random.default_rng(2).permutation(600)
    split = split_structures(SplitConfig(n_train=100, n_validation=50), data([frames[k] for k in time], time))
    assert nearest(split, time) > 5
    assert len(split.test) > 150


def test_joined_trajectories_are_split_in_blocks():
    """Replicas one after the other: frames of one replica that are in different parts are apart."""
    frames = [atoms for seed in range(6) for atoms in autoregressive(100, 3.0, seed)]
    split = split_structures(SplitConfig(n_train=400, n_validation=100), data(frames))
    (series,) = find_series(data(frames))
    assert (len(split.train), len(split.validation)) == (400, 100)
    assert len(split.test) >= 50
    assert nearest(split, np.arange(600)) > series.memory


def test_each_composition_is_in_every_part():
    """Trajectories of two molecules in turn, frame by frame, beside structures without an order."""
    two = [autoregressive(300, 5.0, seed, numbers) for seed, numbers in enumerate(("C6", "N6"))]
    loose = autoregressive(200, 1e-3, 2, "O6")
    frames = [atoms for pair in zip(*two, strict=True) for atoms in pair] + loose
    split = split_structures(SplitConfig(n_train=200, n_validation=100, n_test=100), data(frames))
    assert "in 2 of 3 series of frames with the same atoms" in split.reason
    numbers = np.array([atoms.numbers[0] for atoms in frames])
    for part in (split.train, split.validation, split.test):
        assert set(numbers[part]) == {6, 7, 8}
    for number in (6, 7):
        members = np.flatnonzero(numbers == number)
        parts = {k: np.flatnonzero(np.isin(members, own)) for k, own in split.to_dict().items() if k != "reason"}
        assert nearest(Split(**parts), np.arange(300)) > 5


def test_a_test_on_all_others_keeps_what_few_training_frames_leave():
    """Frames of the second molecule are drawn for the test alone."""
    frames = autoregressive(400, 5.0) + autoregressive(25, 3.0, 1, "N6")
    split = split_structures(SplitConfig(n_train=5, n_validation=0), data(frames))
    assert set(split.train) < set(range(400)), "choose another seed"
    assert set(range(400, 425)) <= set(split.test.tolist())
    assert len(split.test) > 100


def test_a_gap_that_does_not_fit_is_shortened_and_the_split_says_so():
    trajectory = data(autoregressive(200, 20.0))
    (series,) = find_series(trajectory)
    split = split_structures(SplitConfig(n_train=150, n_validation=20, n_test=20), trajectory)
    assert f"5 frames between blocks are left out (not {series.memory}: " in split.reason
    assert nearest(split, np.arange(200)) == 6
    assert (len(split.train), len(split.validation), len(split.test)) == (150, 20, 20)
    alone = split_structures(SplitConfig(n_train=150, n_validation=0, n_test=0), trajectory)
    assert len(alone.train) == 150
    assert "no room" not in alone.reason
    everything = split_structures(SplitConfig(n_train=150, n_validation=50), trajectory)
    assert (len(everything.train), len(everything.validation), len(everything.test)) == (150, 50, 0)


def test_a_longer_gap_can_be_asked_for():
    split = split_structures(
        SplitConfig(n_train=100, n_validation=50, n_test=50, gap=40), data(autoregressive(900, 3.0))
    )
    assert nearest(split, np.arange(900)) > 40


@pytest.mark.parametrize("seed", range(20))
def test_any_sizes_are_kept_and_parts_stay_apart(seed: int):
    random = np.random.default_rng(seed)
    n = int(random.integers(40, 400))
    n_train, n_validation, n_test = (int(random.integers(low, n // 3)) for low in (1, 0, 0))
    trajectory = data(autoregressive(n, float(random.uniform(1.5, 15.0)), seed))
    config = SplitConfig(n_train=n_train, n_validation=n_validation, n_test=n_test, seed=seed)
    split = split_structures(config, trajectory)
    assert [len(split.train), len(split.validation), len(split.test)] == [n_train, n_validation, n_test]
    used = np.concatenate([split.train, split.validation, split.test])
    assert len(set(used.tolist())) == len(used)
    if "in blocks" in split.reason and n_validation + n_test > 0:
        gap = int(split.reason.split(" frames between blocks")[0].split("; ")[-1])
        assert nearest(split, np.arange(n)) > gap


def test_periodic_frames_are_followed_across_the_boundary():
    """A crystal that drifts: its atoms are wrapped, its distances are not."""
    frames = []
    for k, atoms in enumerate(autoregressive(300, 5.0)):
        atoms.set_cell(np.diag([9.0, 10.0, 11.0]) + 0.5)
        atoms.pbc = True
        atoms.positions += 0.3 * k
        atoms.wrap()
        frames.append(atoms)
    (series,) = find_series(data(frames))
    assert series.correlation == pytest.approx(np.exp(-0.2), abs=0.1)


@pytest.mark.parametrize("broken", ["position", "cell", "flat"])
@pytest.mark.filterwarnings("error")
def test_broken_structures_have_no_order(broken: str):
    """Others report them."""
    frames = autoregressive(40, 5.0)
    for atoms in frames:
        atoms.set_cell([[9, 0, 0], [18, 0, 0], [0, 0, 9]] if broken == "flat" else [9, 9, np.inf])
        atoms.pbc = broken != "position"
    if broken == "position":
        frames[3].positions[2] = np.inf
    (series,) = find_series(data(frames))
    assert broken == "flat" or series.memory == 0


def test_check_tells_the_order():
    ordered, loose = (
        next(
            found.message for found in check_structures(data(autoregressive(300, memory))) if found.code == "time_order"
        )
        for memory in (5.0, 1e-3)
    )
    assert "an order in time: consecutive frames are correlated (0.8" in ordered
    assert "different blocks" in ordered
    assert "no order in time" in loose
    assert "at random" in loose
